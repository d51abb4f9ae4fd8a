//! What a learner does differently by the surface of its recipe: on which head and beside which others a step begins, and
//! what a sample is. A recipe of weights trains on tokens of releases of its own lineage; a recipe of the harness reads texts, whoever gave
//! the answers.

use std::collections::BTreeMap;

use reef_core::{RecordId, ReleaseId, ReleaseManifest, ReleaseOrigin, Sample, Step, Surface};
use reef_sandbox::{PoolSample, Recipe};
use reef_store::{ListedRelease, Pool, StepInputs, Store, StoreError};

use super::run_step::{StepError, Workshop};
use crate::scenarios::{Scenario, ScenarioKey};

/// The surfaces that recipes evolve.
pub const EVOLVED: [Surface; 2] = [Surface::Weights, Surface::Harness];

/// The surface that a recipe evolves.
pub fn of(recipe: &Recipe) -> Surface {
    match recipe.manifest().surface {
        reef_sandbox::Surface::Weights => Surface::Weights,
        reef_sandbox::Surface::Harness => Surface::Harness,
        reef_sandbox::Surface::Router => Surface::Router,
    }
}

/// Does the recipe evolve the harness?
pub fn is_harness(recipe: &Recipe) -> bool {
    of(recipe) == Surface::Harness
}

/// The surface of a step; steps of earlier versions say it by what they began on.
pub async fn of_step(store: &Store, (tenant, name): &ScenarioKey, step: &Step) -> Result<Surface, StoreError> {
    if let Some(surface) = step.surface {
        return Ok(surface);
    }
    let parent = store.release(tenant, name, &step.parent).await?;
    Ok(parent.map_or(Surface::Weights, |parent| parent.release.manifest.surface))
}

/// The heads beside which a step would begin now: those of the other surfaces that have one.
pub async fn beside(workshop: &Workshop, scenario: &Scenario) -> Result<BTreeMap<Surface, ReleaseId>, StepError> {
    let (tenant, name) = &scenario.key;
    let mut heads = BTreeMap::new();
    for surface in Surface::ALL.into_iter().filter(|surface| *surface != of(&workshop.recipe)) {
        if let Some(head) = workshop.store.head_on(tenant, name, surface).await? {
            heads.insert(surface, head.release_id);
        }
    }
    Ok(heads)
}

/// Do other weights serve than those that the step measures a harness with? Then what it finds is of no use: the step
/// fails, and is begun again beside those that serve. Weights are measured without a harness, so that one that moves
/// changes nothing about them.
pub fn weights_moved(scenario: &Scenario, step: &Step) -> bool {
    let served = scenario.served();
    step.beside.get(&Surface::Weights).is_some_and(|weights| *weights != served.release.release_id)
}

/// The head on which a step would begin now.
pub async fn head(workshop: &Workshop, scenario: &Scenario) -> Result<ReleaseId, StepError> {
    if is_harness(&workshop.recipe) {
        return Ok(workshop.scenarios.harness(scenario).await?.release_id);
    }
    Ok(scenario.served().release.release_id.clone())
}

/// What waits to be learned from.
pub async fn pool(workshop: &Workshop, scenario: &Scenario, limit: u32) -> Result<Pool, StepError> {
    let (tenant, name) = &scenario.key;
    if is_harness(&workshop.recipe) {
        let head = head(workshop, scenario).await?;
        return Ok(workshop.store.text_pool((tenant, name), limit, &head).await?);
    }
    Ok(workshop.store.pool(tenant, name, limit).await?)
}

/// The samples of a step that is reserved.
pub async fn samples(workshop: &Workshop, (tenant, name): &ScenarioKey, step: &Step) -> Result<Vec<Sample>, StepError> {
    if is_harness(&workshop.recipe) {
        return Ok(workshop.store.text_samples((tenant, name), &step.batch, &step.parent).await?);
    }
    Ok(workshop.store.samples(tenant, name, &step.batch).await?)
}

/// The samples of a recorded pool that still exist, as the recipe would see them; none where the step was one of another
/// surface.
pub async fn recorded_pool(
    store: &Store,
    key: &ScenarioKey,
    recipe: &Recipe,
    (step, inputs): (&Step, &StepInputs),
) -> Result<Option<Vec<PoolSample>>, StoreError> {
    let was_harness = of_step(store, key, step).await? == Surface::Harness;
    if was_harness != is_harness(recipe) {
        return Ok(None);
    }
    let lags: BTreeMap<&RecordId, u32> = inputs.pool.iter().map(|entry| (&entry.report, entry.lag)).collect();
    let reports: Vec<RecordId> = inputs.pool.iter().map(|entry| entry.report.clone()).collect();
    let (tenant, name) = key;
    let samples = match was_harness {
        true => store.text_samples((tenant, name), &reports, &step.parent).await?,
        false => store.samples(tenant, name, &reports).await?,
    };
    let with_lag = |sample: Sample| lags.get(&sample.report).copied().map(|lag| PoolSample { sample, lag });
    Ok(Some(samples.into_iter().filter_map(with_lag).collect()))
}

/// Texts do not grow old with the weights.
pub fn fresh(samples: Vec<Sample>) -> Vec<PoolSample> {
    samples.into_iter().map(|sample| PoolSample { sample, lag: 0 }).collect()
}

/// The head and its ancestors by content, newest first. A rollback continues from where it returned to, and a promotion
/// from the candidate that it took: answers that a canary drew from it are answers of the weights that serve now.
pub async fn lineage(store: &Store, scenario: &Scenario, max_staleness: u32) -> Result<Vec<ReleaseId>, StepError> {
    let (tenant, name) = &scenario.key;
    let mut release = scenario.served().release.clone();
    let mut lineage = vec![release.release_id.clone()];
    let mut all = Vec::new();
    while lineage.len() <= max_staleness as usize {
        if all.is_empty() && matches!(release.manifest.origin, ReleaseOrigin::Promotion { .. }) {
            all = store.releases_of(tenant, name, Surface::Weights).await?;
        }
        let Some(previous) = before(&release.manifest, &all) else { break };
        let Some(listed) = store.release(tenant, name, &previous).await? else { break };
        release = listed.release;
        lineage.push(previous);
    }
    Ok(lineage)
}

/// The release before this one by content: what it is a copy of, else its parent. `all`: the releases of weights, among
/// which the candidate of a promotion is found by its step.
pub fn before(manifest: &ReleaseManifest, all: &[ListedRelease]) -> Option<ReleaseId> {
    let copied = match &manifest.origin {
        ReleaseOrigin::Rollback { to } => Some(to),
        ReleaseOrigin::Promotion { step } => (all.iter().map(|listed| &listed.release))
            .find(|release| release.manifest.origin == ReleaseOrigin::Step { step: *step })
            .map(|release| &release.release_id),
        _ => None,
    };
    copied.or(manifest.parent.as_ref()).cloned()
}

/// The trace of the report that a step begins with.
pub async fn report_trace(
    store: &Store,
    (tenant, name): &ScenarioKey,
    step: &Step,
) -> Result<Option<String>, StepError> {
    let Some(first) = step.batch.first() else { return Ok(None) };
    let record = store.record(tenant, name, first).await?;
    Ok(record.and_then(|stored| match stored.body {
        reef_store::RecordBody::Report(report) => report.traceparent,
        reef_store::RecordBody::Inference(_) | reef_store::RecordBody::Instruction(_) => None,
    }))
}

#[cfg(test)]
mod tests {
    use reef_core::{ContentId, Release, ScenarioName, TenantId};
    use reef_store::ReleaseStatus;

    use super::*;

    fn id(n: u32) -> ReleaseId {
        ReleaseId::parse(format!("{n:040x}")).expect("valid")
    }

    fn listed(n: u32, parent: Option<u32>, origin: ReleaseOrigin) -> ListedRelease {
        let manifest = ReleaseManifest {
            tenant: TenantId::parse("acme").expect("valid"),
            scenario: ScenarioName::parse("spell").expect("valid"),
            surface: Surface::Weights,
            sequence: n,
            parent: parent.map(id),
            origin,
            base_model: "0".repeat(64),
            recipe: None,
            seed: None,
            records: None,
            metrics: BTreeMap::new(),
            evaluation: None,
            decision: None,
            created_at_ms: 0,
        };
        let content_id = ContentId::parse(format!("{n:064x}")).expect("valid");
        ListedRelease { release: Release { release_id: id(n), content_id, manifest }, status: ReleaseStatus::Retained }
    }

    #[test]
    fn a_promotion_goes_on_from_its_candidate_and_a_rollback_from_what_it_returned_to() {
        // Step 1 made candidate 1 of the base; step 2 moved the head to 2; then the candidate was promoted as 3.
        let all = [
            listed(0, None, ReleaseOrigin::Base),
            listed(1, Some(0), ReleaseOrigin::Step { step: 1 }),
            listed(2, Some(0), ReleaseOrigin::Step { step: 2 }),
            listed(3, Some(2), ReleaseOrigin::Promotion { step: 1 }),
            listed(4, Some(3), ReleaseOrigin::Rollback { to: id(2) }),
        ];
        let walked: Vec<_> = all.iter().map(|one| before(&one.release.manifest, &all)).collect();
        assert_eq!(walked, [None, Some(id(0)), Some(id(0)), Some(id(1)), Some(id(2))]);
        let gone = before(&all[3].release.manifest, &[]);
        assert_eq!(gone, Some(id(2)), "the parent, where the candidate is not to be found");
    }
}
