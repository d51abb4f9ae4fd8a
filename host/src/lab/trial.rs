//! `reef recipe test`: a few steps of a recipe on generated experience, call by call. A pool grows, the recipe
//! selects, proposes and judges, its state is carried from step to step, and every call's cost is told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use reef_core::CallReport;
use reef_sandbox::{Blame, Call, Choice, Outcome, PoolSample, Proposal, Recipe, Selection};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::experience::stream;
use super::{call, told_fault};
use crate::jobs::learn_scenario::chosen;
use crate::jobs::step_harness::CANDIDATE;

/// Samples in memory, whatever the configuration says.
const WAITING_MAX: usize = 100_000;
/// Retired samples that a step lists.
const RETIRED_LISTED_MAX: usize = 64;

/// What to try.
#[derive(Debug, Clone)]
pub struct Trial {
    /// Samples that arrive before each step.
    pub samples: usize,
    /// Steps.
    pub steps: u32,
    /// Names the pool and the seeds.
    pub seed: u32,
    /// The recipe's configuration.
    pub config: Map<String, Value>,
    /// Samples that one selection sees, as `training.pool_max` of a server.
    pub pool_max: u32,
}

/// One step of a trial.
#[derive(Debug, Clone, Default, Serialize)]
pub struct TrialStep {
    /// From 1.
    pub step: u32,
    /// Samples in the pool.
    pub pool: usize,
    /// What became of each call, in a sentence.
    pub decisions: Vec<(String, String)>,
    /// Samples that were retired, and why; the first of them.
    pub retired: Vec<(String, String)>,
    /// Gauges and measurements.
    pub metrics: BTreeMap<String, f64>,
    /// What the calls used.
    pub calls: Vec<CallReport>,
    /// Did a call end in a fault that is the recipe's?
    pub failed: bool,
    /// Did a call end without a value, whosever doing that is?
    pub faulted: bool,
}

/// Why a recipe with this trial should not be used.
pub fn failure(steps: &[TrialStep]) -> Option<&'static str> {
    if steps.iter().any(|step| step.failed) {
        return Some("a call of the recipe failed; its line says how");
    }
    let never = !steps.is_empty() && steps.iter().all(|step| step.faulted);
    never.then_some("no step ended well, so nothing would ever be learned; the lines say why")
}

/// Runs the trial.
pub async fn run(recipe: &Recipe, trial: &Trial) -> Vec<TrialStep> {
    let mut bench = Bench { recipe, trial, state: BTreeMap::new(), gone: BTreeSet::new() };
    let mut arriving = stream(u64::from(trial.seed), recipe.manifest().top_k);
    let pool_max = WAITING_MAX.min(trial.pool_max as usize);
    let (mut waiting, mut taken, mut steps) = (Vec::<PoolSample>::new(), 0, Vec::new());
    for number in 1..=trial.steps {
        // A sample is made when there is room for it, so memory does not grow with what has arrived.
        let arrived = trial.samples.saturating_mul(number as usize);
        let room = pool_max.saturating_sub(waiting.len()).min(arrived.saturating_sub(taken));
        waiting.extend(arriving.by_ref().take(room));
        taken += room;
        steps.push(bench.step(number, &Arc::new(waiting.clone())).await);
        let gone = std::mem::take(&mut bench.gone);
        waiting.retain(|pooled| !gone.contains(&pooled.sample.sequence));
    }
    steps
}

struct Bench<'a> {
    recipe: &'a Recipe,
    trial: &'a Trial,
    state: BTreeMap<String, Vec<u8>>,
    /// Sequences of samples that the step consumed or retired.
    gone: BTreeSet<i64>,
}

impl Bench<'_> {
    async fn step(&mut self, number: u32, samples: &Arc<Vec<PoolSample>>) -> TrialStep {
        let mut step = TrialStep { step: number, pool: samples.len(), ..TrialStep::default() };
        let selected = self.recipe.select_samples(self.call(number, samples)).await;
        let Some(selection) = self.take(&mut step, selected, told_selection) else { return step };
        for (handle, reason) in &selection.retire {
            if let Some(pooled) = samples.get(*handle as usize) {
                if step.retired.len() < RETIRED_LISTED_MAX {
                    step.retired.push((pooled.sample.report.to_string(), reason.clone()));
                }
                self.gone.insert(pooled.sample.sequence);
            }
        }
        let batch: Vec<PoolSample> = chosen(selection.clone())
            .unwrap_or_default()
            .iter()
            .filter_map(|handle| samples.get(*handle as usize))
            .cloned()
            .collect();
        if batch.is_empty() {
            return step;
        }
        let batch = Arc::new(batch);
        let proposed = self.recipe.propose_update(self.call(number, &batch)).await;
        let Some(proposal) = self.take(&mut step, proposed, told_proposal) else { return step };
        self.gone.extend(batch.iter().map(|pooled| pooled.sample.sequence));
        let candidate = match proposal {
            Proposal::Weights(candidate) => Some(candidate),
            Proposal::Harness(_) => Some(CANDIDATE),
            Proposal::Skip(_) => None,
        };
        if let Some(candidate) = candidate {
            let judged = self.recipe.evaluate(self.call(number, &batch), candidate).await;
            let verdict = self.take(&mut step, judged, |verdict| format!("{:?}: {}", verdict.decision, verdict.reason));
            step.metrics.extend(verdict.into_iter().flat_map(|verdict| verdict.measurements));
        }
        step
    }

    fn call(&self, number: u32, samples: &Arc<Vec<PoolSample>>) -> Call {
        let seed = self.trial.seed.wrapping_add(number);
        Call { state: self.state.clone(), ..call(number, seed, samples, &self.trial.config) }
    }

    /// Books a call; a failed one leaves no state behind.
    fn take<T>(&mut self, step: &mut TrialStep, ended: Outcome<T>, told: impl Fn(&T) -> String) -> Option<T> {
        let function = ended.report.function.clone();
        step.calls.push(ended.report);
        step.metrics.extend(ended.metrics);
        match ended.result {
            Ok(value) => {
                step.decisions.push((function, told(&value)));
                for (key, written) in ended.state {
                    match written {
                        Some(bytes) => drop(self.state.insert(key, bytes)),
                        None => drop(self.state.remove(&key)),
                    }
                }
                Some(value)
            }
            Err(fault) => {
                step.failed |= fault.blame() == Blame::Recipe;
                step.faulted = true;
                step.decisions.push((function, told_fault(&fault)));
                None
            }
        }
    }
}

/// A selection in a sentence.
pub fn told_selection(selection: &Selection) -> String {
    let choice = match &selection.choice {
        Choice::Wait(reason) => format!("waits: {reason}"),
        Choice::Train(handles) => format!("trains on {} samples", handles.len()),
        Choice::TrainGroups(groups) => {
            let samples: usize = groups.iter().map(|group| group.slots.len()).sum();
            format!("trains on {samples} samples in {} groups", groups.len())
        }
    };
    if selection.retire.is_empty() { choice } else { format!("{choice}; retires {}", selection.retire.len()) }
}

fn told_proposal(proposal: &Proposal) -> String {
    match proposal {
        Proposal::Weights(candidate) => format!("proposes checkpoint {candidate}"),
        Proposal::Harness(changes) => format!("proposes {} changes of the harness", changes.len()),
        Proposal::Skip(reason) => format!("skips: {reason}"),
    }
}

/// The trial for machines.
pub fn to_json(recipe: &Recipe, trial: &Trial, steps: &[TrialStep]) -> Value {
    json!({
        "recipe": recipe.label(),
        "generation": recipe.generation(),
        "seed": trial.seed,
        "samples_per_step": trial.samples,
        "config": trial.config,
        "failed": failure(steps).is_some(),
        "steps": steps,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(failed: bool, faulted: bool) -> TrialStep {
        TrialStep { failed, faulted, ..TrialStep::default() }
    }

    #[test]
    fn a_trial_fails_by_one_fault_of_the_recipe_or_by_refusals_only() {
        let (fine, refused, broken) = (step(false, false), step(false, true), step(true, true));
        assert_eq!(failure(&[fine.clone(), refused.clone()]), None);
        assert!(failure(&[refused.clone(), refused]).is_some_and(|told| told.contains("no step ended well")));
        assert!(failure(&[fine, broken]).is_some_and(|told| told.contains("a call of the recipe failed")));
    }
}
