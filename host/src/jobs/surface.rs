//! What a learner does differently by the surface of its recipe: on which head and beside which others a step begins, and
//! what a sample is. A recipe of weights trains on tokens of releases of its own lineage; a recipe of the harness reads texts, whoever gave
//! the answers.

use std::collections::BTreeMap;

use reef_core::{RecordId, ReleaseId, ReleaseOrigin, Sample, Step, Surface};
use reef_sandbox::{PoolSample, Recipe};
use reef_store::{Pool, StepInputs, Store, StoreError};

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

/// The head and its ancestors by content, newest first. A rollback continues from where it returned to.
pub async fn lineage(store: &Store, scenario: &Scenario, max_staleness: u32) -> Result<Vec<ReleaseId>, StepError> {
    let (tenant, name) = &scenario.key;
    let mut release = scenario.served().release.clone();
    let mut lineage = vec![release.release_id.clone()];
    while lineage.len() <= max_staleness as usize {
        let previous = match (&release.manifest.origin, &release.manifest.parent) {
            (ReleaseOrigin::Rollback { to }, _) => to.clone(),
            (_, Some(parent)) => parent.clone(),
            (_, None) => break,
        };
        let Some(listed) = store.release(tenant, name, &previous).await? else { break };
        release = listed.release;
        lineage.push(previous);
    }
    Ok(lineage)
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
