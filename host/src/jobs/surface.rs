//! What a learner does differently by the surface of its recipe: on which head a step begins, and what a sample is. A
//! recipe of weights trains on tokens of releases of its own lineage; a recipe of the harness reads texts, whoever gave
//! the answers.

use std::collections::BTreeMap;

use reef_core::{RecordId, ReleaseId, Sample, Step};
use reef_sandbox::{PoolSample, Recipe, Surface};
use reef_store::{Pool, StepInputs, Store, StoreError};

use super::run_step::{StepError, Workshop};
use crate::scenarios::{Scenario, ScenarioKey};

/// Does the recipe evolve the harness?
pub fn is_harness(recipe: &Recipe) -> bool {
    recipe.manifest().surface == Surface::Harness
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
    (tenant, name): &ScenarioKey,
    recipe: &Recipe,
    (step, inputs): (&Step, &StepInputs),
) -> Result<Option<Vec<PoolSample>>, StoreError> {
    let parent = store.release(tenant, name, &step.parent).await?;
    let was_harness = parent.is_some_and(|parent| parent.release.manifest.surface == reef_core::Surface::Harness);
    if was_harness != is_harness(recipe) {
        return Ok(None);
    }
    let lags: BTreeMap<&RecordId, u32> = inputs.pool.iter().map(|entry| (&entry.report, entry.lag)).collect();
    let reports: Vec<RecordId> = inputs.pool.iter().map(|entry| entry.report.clone()).collect();
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
