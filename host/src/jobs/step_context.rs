//! What the calls of a step are given beside data, and how they are booked. Steps, live exchanges, requests, replays and
//! backtests share it.

use std::collections::BTreeMap;

use reef_core::{CallReport, Gate, Step};
use reef_sandbox::{Context, Fault, FaultKind, HOST_STATE_PREFIX};
use reef_store::{Bytes, StepTranscript, StoreError};

use super::run_step::{HEAD_MOVED, StepError, Work, Workshop};
use super::transcript::Recorder;
use crate::clock::now_ms;
use crate::scenarios::Scenario;

/// What the calls of a step write of its state, the last write of a key; `None` deletes it.
pub type Staged = BTreeMap<String, Option<Vec<u8>>>;

/// Puts a call of the sandbox, whichever it is, into the metrics.
pub fn record_call(report: &CallReport) {
    metrics::counter!("reef_recipe_fuel_total", "function" => report.function.clone()).increment(report.fuel);
    if report.fault.is_some() {
        metrics::counter!("reef_recipe_faults_total", "function" => report.function.clone()).increment(1);
    }
}

/// The part of a state bucket that is the recipe's own.
pub fn guest_state(mut state: BTreeMap<String, Vec<u8>>) -> BTreeMap<String, Vec<u8>> {
    state.retain(|key, _| !key.starts_with(HOST_STATE_PREFIX));
    state
}

/// The bucket as a later call of the same step sees it: what was staged lies over it, `None` takes a key away.
pub fn overlaid(mut state: BTreeMap<String, Vec<u8>>, staged: &Staged) -> BTreeMap<String, Vec<u8>> {
    for (key, value) in staged {
        match value {
            Some(value) => drop(state.insert(key.clone(), value.clone())),
            None => drop(state.remove(key)),
        }
    }
    state
}

/// Why a step has failed that the store does not end as it was decided: the head moved, or what was to be written breaks
/// a rule. The latter is the recipe's doing and its fault: it would be refused at each retry. Other errors pass.
pub fn refusal(error: StoreError) -> Result<(String, Option<Fault>), StepError> {
    match error {
        StoreError::HeadMoved { .. } => Ok((HEAD_MOVED.to_owned(), None)),
        StoreError::Invalid(told) => {
            let fault = unstorable(&told);
            Ok((fault.to_string(), Some(fault)))
        }
        error => Err(error.into()),
    }
}

/// The fault of a recipe that wrote what the store refuses.
pub fn unstorable(told: &str) -> Fault {
    Fault { kind: FaultKind::InvalidOutput, message: format!("what the recipe wrote cannot be stored: {told}") }
}

/// What a replay needs beside the inputs; `state`: what the step writes.
pub fn transcript(
    (workshop, work): (&Workshop, &Work),
    gate: Option<Gate>,
    recorder: &Recorder,
    state: &[(String, Option<Vec<u8>>)],
) -> StepTranscript {
    let (calls, complete) = recorder.heard();
    let written = |(key, value): &(String, Option<Vec<u8>>)| (key.clone(), value.clone().map(Bytes));
    StepTranscript {
        environment: workshop.environment.clone(),
        gate,
        held_out: work.held_out.0.fingerprint(),
        calls,
        complete,
        state: state.iter().map(written).collect(),
    }
}

/// The inputs of a call that are not data.
pub fn context(scenario: &Scenario, step: &Step) -> Context {
    Context {
        tenant: scenario.key.0.to_string(),
        scenario: scenario.key.1.to_string(),
        step: step.step,
        now_ms: step.now_ms,
        seed: step.seed,
        head: step.parent.to_string(),
        max_staleness: scenario.settings().max_staleness,
    }
}

/// Key and value of a state bucket as they are recorded, and back.
pub fn recorded_state(state: BTreeMap<String, Vec<u8>>) -> reef_store::RecordedState {
    state.into_iter().map(|(key, value)| (key, Bytes(value))).collect()
}

/// The context of a call that belongs to no step.
pub fn context_outside(scenario: &Scenario) -> Context {
    Context {
        tenant: scenario.key.0.to_string(),
        scenario: scenario.key.1.to_string(),
        step: 0,
        now_ms: now_ms(),
        seed: 0,
        head: scenario.served().release.release_id.to_string(),
        max_staleness: scenario.settings().max_staleness,
    }
}

#[cfg(test)]
mod tests {
    use reef_core::ScenarioName;
    use reef_sandbox::Blame;

    use super::*;

    #[test]
    fn what_the_store_refuses_for_good_ends_the_step_at_the_cost_of_the_recipe() {
        let (reason, fault) = refusal(StoreError::Invalid("20017 state writes in one step".to_owned())).expect("ends");
        let fault = fault.expect("a fault");
        assert_eq!((fault.blame(), fault.to_string()), (Blame::Recipe, reason.clone()));
        assert!(reason.ends_with("cannot be stored: 20017 state writes in one step"), "{reason}");
        let scenario = ScenarioName::parse("spell").expect("valid");
        let moved = refusal(StoreError::HeadMoved { scenario, expected: None, actual: None }).expect("ends");
        assert_eq!(moved, (HEAD_MOVED.to_owned(), None), "which is nobody's fault");
        assert!(refusal(StoreError::Closed).is_err(), "what may pass is tried again");
    }
}
