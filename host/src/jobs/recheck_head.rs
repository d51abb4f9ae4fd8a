//! Does the head still score on the held-out tasks what it did when it was released?
//! The learner calls it after each step of weights that ended well; it measures after every `training.recheck_every` of
//! them, compares with the scores that the step of the head's release heard, alarms when they have fallen, and rolls
//! back where the operator wants that. A head that was never measured, or on other tasks, is left alone.

use std::sync::Arc;

use reef_core::{DecidedBy, Measurement, Recheck, Release, ReleaseOrigin, Surface, recheck, recheck_due};
use reef_store::RecordedStep;

use super::gate_candidate::{CANDIDATE, SERVED, lots, measure};
use super::held_out::{Binding, HeldOut, Measured, ScoreCache, StepModels};
use super::run_step::{StepError, Workshop};
use super::transcript::heard_scores;
use crate::scenarios::{Scenario, Served, promoted};

/// Chance that a check of a head that did not change alarms; small, because checks are many.
const ALPHA: f64 = 0.01;
/// Rollbacks that are followed back to the release they returned to.
const ROLLBACKS_MAX: u32 = 100;
/// Steps of weights since the last check, in the state of the recipe: 4 bytes little-endian. Steps of other surfaces and
/// restarts must not make a check rarer.
const UNCHECKED_STATE: &str = "reef.unchecked";

/// Counts a step of weights that ended well, and checks the head where as many have ended as the operator wants between
/// two checks.
pub async fn recheck_when_due(
    workshop: &Workshop,
    scenario: &Arc<Scenario>,
    held_out: &Arc<HeldOut>,
) -> Result<(), StepError> {
    if workshop.recheck_every == 0 {
        return Ok(());
    }
    let ((tenant, name), owner) = (&scenario.key, workshop.recipe.manifest().name.as_str());
    let state = workshop.store.recipe_state(tenant, name, owner).await?;
    let left = counted(state.get(UNCHECKED_STATE), workshop.recheck_every);
    // A check that cannot be made is not counted as made: it is due again after the next step.
    if left.is_none() {
        recheck_head(workshop, scenario, held_out).await?;
    }
    let write = (UNCHECKED_STATE.to_owned(), left);
    Ok(workshop.store.write_recipe_state(tenant, name, owner, vec![write]).await?)
}

/// The count after one more step; `None`: a check is due, and the count begins anew.
fn counted(before: Option<&Vec<u8>>, every: u32) -> Option<Vec<u8>> {
    let before = before.and_then(|bytes| <[u8; 4]>::try_from(bytes.as_slice()).ok()).map_or(0, u32::from_le_bytes);
    let steps = before.saturating_add(1);
    // A lower number in the configuration may have made it overdue.
    (!recheck_due(steps.min(every), every)).then(|| steps.to_le_bytes().to_vec())
}

/// Measures the head and compares; what is found stands in the status until the next check.
async fn recheck_head(workshop: &Workshop, scenario: &Arc<Scenario>, held_out: &Arc<HeldOut>) -> Result<(), StepError> {
    let served = scenario.served();
    let (id, side) = (&served.release.release_id, scenario.side(Surface::Weights));
    let compared = compare(workshop, scenario, (&served, held_out)).await?;
    // Whoever exchanged the head meanwhile has decided already, and what was found is not about the new one.
    let unmoved = scenario.served().release.release_id == *id;
    let told = compared.as_ref().filter(|_| unmoved).and_then(|(_, found)| told(found));
    side.set_status(|status| status.regression.clone_from(&told));
    match (compared, told) {
        (None, _) => tracing::info!(scenario = %scenario.key.1, release.id = %id, "head.unmeasured"),
        (Some((original, Recheck::Regressed { .. })), Some(told)) => {
            tracing::error!(scenario = %scenario.key.1, release.id = %id, told, "head.regressed");
            metrics::counter!("reef_head_regressions_total").increment(1);
            if let Some(to) = original.manifest.parent.filter(|_| workshop.recheck_rollback) {
                let why = (ReleaseOrigin::Rollback { to: to.clone() }, promoted(DecidedBy::Host, told.clone()));
                // Whoever exchanged or pinned the head meanwhile has decided already.
                if workshop.scenarios.mint_copy_over(scenario, (id, &to), why).await?.is_some() {
                    side.set_status(|status| status.regression = Some(format!("{told}; rolled back to {to}")));
                }
            }
        }
        (_, Some(told)) => tracing::warn!(scenario = %scenario.key.1, release.id = %id, told, "head.recheck"),
        (_, None) => {}
    }
    Ok(())
}

/// What a check found, where an operator must know it.
fn told(found: &Recheck) -> Option<String> {
    match found {
        Recheck::Holds => None,
        Recheck::Undecided(problem) => Some(format!("the head cannot be compared with its release: {problem}")),
        Recheck::Regressed { by, p } => {
            Some(format!("the head scores {by:.4} less on held-out tasks than at its release (p {p:.2e})"))
        }
    }
}

/// The release whose content the head has, and how fresh scores compare with those at it; `None`: it was not measured on
/// these tasks.
async fn compare(
    workshop: &Workshop,
    scenario: &Scenario,
    (served, held_out): (&Served, &Arc<HeldOut>),
) -> Result<Option<(Release, Recheck)>, StepError> {
    let Some(original) = original(workshop, scenario, served.release.clone()).await? else { return Ok(None) };
    let released = scores_at_release(workshop, scenario, (&original, held_out)).await?;
    if released.is_empty() {
        return Ok(None);
    }
    // Nothing kept is asked for: the scores are to be fresh.
    let binding = Binding { name: SERVED, weights: served.weights.clone(), content: None };
    let (engine, cache) = (workshop.engine.clone(), ScoreCache::default());
    let mut models = StepModels::new(engine, vec![binding], Arc::clone(held_out), cache, Measured::default());
    let tasks = 0..u32::try_from(released.len()).unwrap_or(u32::MAX);
    let fresh = tokio::task::spawn_blocking(move || measure(&mut models, SERVED, &tasks))
        .await
        .map_err(|_| StepError::Interrupted)?;
    let found = match fresh {
        Ok(fresh) => recheck(&released, &fresh, ALPHA),
        Err(refusal) => Recheck::Undecided(refusal.to_string()),
    };
    Ok(Some((original, found)))
}

/// The release whose content the head has: what rollbacks returned to. None = it is not to be found.
async fn original(
    workshop: &Workshop,
    scenario: &Scenario,
    mut release: Release,
) -> Result<Option<Release>, StepError> {
    let (tenant, name) = &scenario.key;
    for _ in 0..ROLLBACKS_MAX {
        let ReleaseOrigin::Rollback { to } = &release.manifest.origin else { return Ok(Some(release)) };
        let Some(listed) = workshop.store.release(tenant, name, to).await? else { return Ok(None) };
        release = listed.release;
    }
    Ok(None)
}

/// What the step of a release heard of its candidate; empty where it was not measured on these tasks.
async fn scores_at_release(
    workshop: &Workshop,
    scenario: &Scenario,
    (release, held_out): (&Release, &HeldOut),
) -> Result<Vec<Measurement>, StepError> {
    let (tenant, name) = &scenario.key;
    let Some(step) = release.manifest.origin.step() else { return Ok(Vec::new()) };
    let Some(RecordedStep { transcript: Some(heard), .. }) = workshop.store.step_record(tenant, name, step).await?
    else {
        return Ok(Vec::new());
    };
    if heard.held_out != held_out.fingerprint() {
        return Ok(Vec::new());
    }
    let lots = lots(heard.gate.unwrap_or(reef_core::Gate::Always {}), heard.held_out.0);
    Ok(heard_scores(&heard.calls, CANDIDATE, lots))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of the first steps are followed by a check.
    fn checked(steps: u32, every: impl Fn(u32) -> u32) -> Vec<u32> {
        let mut kept = None;
        let mut due = Vec::new();
        for step in 1..=steps {
            kept = counted(kept.as_ref(), every(step));
            if kept.is_none() {
                due.push(step);
            }
        }
        due
    }

    #[test]
    fn a_check_follows_every_so_many_steps_of_weights_whatever_their_numbers_are() {
        assert_eq!(checked(9, |_| 4), [4, 8]);
        assert_eq!(checked(3, |_| 1), [1, 2, 3]);
        assert_eq!(checked(6, |step| if step < 4 { 100 } else { 2 }), [4, 6], "a lower number makes it overdue");
        assert_eq!(counted(Some(&vec![1, 2, 3]), 1), None, "what does not read counts as nothing");
    }

    #[test]
    fn what_a_check_finds_is_told_unless_the_head_holds() {
        assert_eq!(told(&Recheck::Holds), None);
        let regressed = told(&Recheck::Regressed { by: 0.25, p: 0.001 }).expect("an alarm");
        assert!(regressed.contains("0.2500 less"), "{regressed}");
        let undecided = told(&Recheck::Undecided("2 of 4 tasks failed".to_owned())).expect("not in silence");
        assert!(undecided.ends_with("2 of 4 tasks failed"), "{undecided}");
    }
}
