//! `reef recipe test`: a few steps of a recipe on generated experience, call by call. A pool grows, the recipe
//! selects, proposes and judges, its state is carried from step to step, and every call's cost is told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use reef_core::CallReport;
use reef_sandbox::{Blame, Call, Choice, Fault, Outcome, PoolSample, Proposal, Recipe, Selection};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{call, pool};
use crate::jobs::learn_scenario::chosen;

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
    /// Samples that were retired, and why.
    pub retired: Vec<(String, String)>,
    /// Gauges and measurements.
    pub metrics: BTreeMap<String, f64>,
    /// What the calls used.
    pub calls: Vec<CallReport>,
    /// Did a call end in a fault that is the recipe's?
    pub failed: bool,
}

/// Runs the trial.
pub async fn run(recipe: &Recipe, trial: &Trial) -> Vec<TrialStep> {
    let all = pool(u64::from(trial.seed), trial.samples.saturating_mul(trial.steps as usize));
    let mut bench = Bench { recipe, trial, state: BTreeMap::new(), gone: BTreeSet::new() };
    let mut steps = Vec::new();
    for number in 1..=trial.steps {
        let arrived = trial.samples.saturating_mul(number as usize);
        let left: Vec<_> =
            all.iter().take(arrived).filter(|pooled| !bench.gone.contains(&pooled.sample.sequence)).cloned().collect();
        steps.push(bench.step(number, &Arc::new(left)).await);
    }
    steps
}

struct Bench<'a> {
    recipe: &'a Recipe,
    trial: &'a Trial,
    state: BTreeMap<String, Vec<u8>>,
    /// Sequences of samples that were consumed or retired.
    gone: BTreeSet<i64>,
}

impl Bench<'_> {
    async fn step(&mut self, number: u32, samples: &Arc<Vec<PoolSample>>) -> TrialStep {
        let mut step = TrialStep { step: number, pool: samples.len(), ..TrialStep::default() };
        let selected = self.recipe.select_samples(self.call(number, samples)).await;
        let Some(selection) = self.take(&mut step, selected, told_selection) else { return step };
        for (handle, reason) in &selection.retire {
            if let Some(pooled) = samples.get(*handle as usize) {
                step.retired.push((pooled.sample.report.to_string(), reason.clone()));
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
        if let Proposal::Weights(candidate) = proposal {
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
                step.failed |= is_the_recipes(&fault);
                step.decisions.push((function, fault.to_string()));
                None
            }
        }
    }
}

fn is_the_recipes(fault: &Fault) -> bool {
    fault.blame() == Blame::Recipe
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
        "failed": steps.iter().any(|step| step.failed),
        "steps": steps,
    })
}
