//! Does the head still score on the held-out tasks what it did when it was released?
//! The learner calls it every `training.recheck_every` steps. It measures the head anew, compares with the scores that
//! the step of its release heard, alarms when they have fallen, and rolls back where the operator wants that. A head
//! that was never measured, or on other tasks, is left alone.

use std::sync::Arc;

use reef_core::{DecidedBy, Measurement, Recheck, Release, ReleaseOrigin, Surface, recheck};
use reef_store::RecordedStep;

use super::gate_candidate::{CANDIDATE, SERVED, lots, measure};
use super::held_out::{Binding, HeldOut, Measured, ScoreCache, StepModels};
use super::run_step::{StepError, Workshop};
use super::transcript::heard_scores;
use crate::scenarios::{Scenario, promoted};

/// Chance that a check of a head that did not change alarms; small, because checks are many.
const ALPHA: f64 = 0.01;
/// Rollbacks that are followed back to the release they returned to.
const ROLLBACKS_MAX: u32 = 100;

/// Measures the head and compares.
pub async fn recheck_head(
    workshop: &Workshop,
    scenario: &Arc<Scenario>,
    held_out: &Arc<HeldOut>,
) -> Result<(), StepError> {
    let served = scenario.served();
    let Some(original) = original(workshop, scenario, served.release.clone()).await? else { return Ok(()) };
    let released = scores_at_release(workshop, scenario, (&original, held_out)).await?;
    if released.is_empty() {
        return Ok(());
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
    match found {
        Recheck::Holds => scenario.side(Surface::Weights).set_status(|status| status.regression = None),
        Recheck::Undecided(problem) => {
            tracing::warn!(scenario = %scenario.key.1, problem, "head.recheck");
        }
        Recheck::Regressed { by, p } => {
            let told = format!("the head scores {by:.4} less on held-out tasks than at its release (p {p:.2e})");
            tracing::error!(scenario = %scenario.key.1, release.id = %served.release.release_id, told, "head.regressed");
            metrics::counter!("reef_head_regressions_total").increment(1);
            scenario.side(Surface::Weights).set_status(|status| status.regression = Some(told.clone()));
            if let Some(to) = original.manifest.parent.filter(|_| workshop.recheck_rollback) {
                let why = (ReleaseOrigin::Rollback { to: to.clone() }, promoted(DecidedBy::Host, told));
                // Whoever exchanged the head meanwhile has decided already.
                let head = &served.release.release_id;
                workshop.scenarios.mint_copy_over(scenario, (head, &to), why).await?;
            }
        }
    }
    Ok(())
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
    Ok(heard_scores(&heard.calls, CANDIDATE, lots).into_iter().map(Measurement::of).collect())
}
