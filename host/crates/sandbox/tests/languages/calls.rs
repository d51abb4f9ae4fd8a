//! Plays a case in the sandbox, and compares what came of it with what `best-of.json` says.

use std::collections::BTreeMap;
use std::sync::Arc;

use reef_core::{CallReport, RecordId, ReleaseId, Sample, Trajectory};
use reef_sandbox::{
    Call, Choice, Context, FaultKind, Outcome, PoolSample, Proposal, Recipe, SandboxConfig, Selection, Verdict,
};
use serde_json::{Map, Value, json};

use crate::golden::{Case, Effects, Entry, Expected, Refusal, floats, response_length};
use crate::trainer::{Notes, Scripted};

/// Bytes of a full value of the state.
const VALUE_BYTES: u64 = 64 * 1024;
/// Bytes that an entry counts beside its key and its value.
const ENTRY_BYTES: u64 = 64;

/// All that a call shows of itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// The answer in the words of the file, or the fault's message.
    pub answer: Result<Value, String>,
    /// Nothing of a call that failed but what the trainer was asked.
    pub effects: Effects,
}

/// Plays one case.
pub async fn run(recipe: &Recipe, case: &Case) -> (Seen, CallReport) {
    let notes = Notes::default();
    let call = call(case, &notes);
    match case.entry {
        Entry::Select => seen(recipe.select_samples(call).await, &notes, selection),
        Entry::Propose => seen(recipe.propose_update(call).await, &notes, proposal),
        Entry::Evaluate(candidate) => seen(recipe.evaluate(call, candidate).await, &notes, verdict),
    }
}

/// Compares with the file; a configuration that the host refuses by the manifest never reaches the guest.
pub fn agrees(language: &str, case: &Case, recipe: &Recipe, seen: &Seen) {
    let place = format!("{language}: {}", case.name);
    if let Err(told) = recipe.manifest().check_config(&case.config) {
        assert!(
            matches!(&case.expected, Expected::Failure { message, .. } if message.contains("batch_size")),
            "{place}"
        );
        assert!(told.contains("batch_size"), "{place}: {told}");
        assert_eq!(seen.answer, Err(told), "{place}");
        return;
    }
    match &case.expected {
        Expected::Answer { answer, effects } => {
            assert_eq!(seen.answer.as_ref(), Ok(answer), "{place}");
            assert_eq!(&seen.effects, effects, "{place}");
        }
        Expected::Failure { message, open_ended: true } => {
            let told = seen.answer.as_ref().expect_err(&place);
            assert!(told.starts_with(message) && told.len() > message.len(), "{place}: {told}");
        }
        Expected::Failure { message, open_ended: false } => {
            assert_eq!(seen.answer.as_ref(), Err(message), "{place}");
        }
    }
}

/// What a recipe says of itself, in the form of [`crate::golden::Golden`].
pub fn described(recipe: &Recipe) -> Value {
    let manifest = serde_json::to_value(recipe.manifest()).expect("JSON");
    let keys = manifest["config"].as_array().expect("keys").iter();
    let keys: Vec<Value> =
        keys.map(|k| json!([k["name"], k["kind"], k["default"], k["minimum"], k["maximum"]])).collect();
    let mut capabilities: Vec<_> =
        recipe.manifest().capabilities.iter().map(|capability| capability.as_str()).collect();
    capabilities.sort_unstable();
    let mut described: Map<String, Value> = manifest.as_object().expect("fields").clone();
    described.insert("config".to_owned(), json!(keys));
    described.insert("capabilities".to_owned(), json!(capabilities));
    floats(Value::Object(described))
}

fn call(case: &Case, notes: &Notes) -> Call {
    let context = Context {
        tenant: "t".to_owned(),
        scenario: "s".to_owned(),
        step: 1,
        now_ms: 0,
        seed: 1,
        head: "0".repeat(40),
        max_staleness: 4,
    };
    let batch: Vec<u32> = case.samples.iter().map(|(handle, ..)| *handle).collect();
    // A handle is a place among the samples; those between are of no batch.
    let count = batch.iter().max().map_or(0, |most| most + 1);
    let row = |handle: u32| case.samples.iter().find(|(known, ..)| *known == handle);
    let samples = (0..count).map(|handle| sample(handle, row(handle))).collect();
    let mut state = case.state.clone();
    if case.refusal == Some(Refusal::Write) {
        state.extend(full());
    }
    Call {
        batch,
        samples: Arc::new(samples),
        config: case.config.clone(),
        state,
        training: Some(Box::new(Scripted { notes: notes.clone(), refusal: case.refusal.clone() })),
        ..Call::new(context)
    }
}

fn sample(handle: u32, row: Option<&(u32, Option<f64>, String)>) -> PoolSample {
    let length = response_length(handle);
    let trajectory = Trajectory {
        tokens: (0..2 + length as u32).collect(),
        prompt_length: 2,
        mask: vec![1; length],
        logprobs: vec![-0.5; length],
        turns: Vec::new(),
        alternatives: reef_core::Alternatives::default(),
    };
    let sample = Sample {
        report: RecordId::parse(format!("report-{handle}")).expect("an id"),
        records: vec![RecordId::parse(format!("record-{handle}")).expect("an id")],
        score: row.and_then(|(_, score, _)| *score),
        metadata: Map::new(),
        trajectory,
        temperature: 1.0,
        release: ReleaseId::parse("0".repeat(40)).expect("an id"),
        release_sequence: 0,
        prompt_key: row.map_or_else(String::new, |(.., key)| key.clone()),
        sequence: i64::from(handle),
    };
    PoolSample { sample, lag: 0 }
}

/// A state that has no room for one more byte.
fn full() -> BTreeMap<String, Vec<u8>> {
    let mut left = SandboxConfig::default().state_bytes_max;
    let mut entries = BTreeMap::new();
    while left > 0 {
        let key = format!("{left:012}");
        let value = vec![0; left.saturating_sub(key.len() as u64 + ENTRY_BYTES).min(VALUE_BYTES) as usize];
        left = left.saturating_sub((key.len() + value.len()) as u64 + ENTRY_BYTES);
        entries.insert(key, value);
    }
    entries
}

fn seen<T>(outcome: Outcome<T>, notes: &Notes, words: impl Fn(&T) -> Value) -> (Seen, CallReport) {
    let answer = outcome.result.as_ref().map(|answer| floats(words(answer))).map_err(|fault| {
        assert_eq!(fault.kind, FaultKind::Declined, "{fault}");
        fault.message.clone()
    });
    let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let state = outcome.state.into_iter().map(|(key, value)| (key, value.map_or("deleted".to_owned(), hex)));
    let effects = Effects {
        training: notes.read(),
        state: state.collect(),
        gauges: outcome.metrics,
        log_lines: outcome.report.host_calls.get("log").copied().unwrap_or(0),
    };
    (Seen { answer, effects }, outcome.report)
}

fn selection(selection: &Selection) -> Value {
    let choice = match &selection.choice {
        Choice::Wait(why) => json!({ "tag": "wait", "val": why }),
        Choice::Train(samples) => json!({ "tag": "train", "val": samples }),
        Choice::TrainGroups(groups) => json!({ "tag": "train-groups", "val": groups }),
    };
    let retire = selection.retire.iter().map(|(sample, reason)| json!({ "sample": sample, "reason": reason }));
    json!({ "choice": choice, "retire": retire.collect::<Vec<_>>() })
}

fn proposal(proposal: &Proposal) -> Value {
    match proposal {
        Proposal::Weights(candidate) => json!({ "tag": "weights", "val": candidate }),
        Proposal::Harness(changes) => json!({ "tag": "harness", "val": changes }),
        Proposal::Skip(why) => json!({ "tag": "skip", "val": why }),
    }
}

fn verdict(verdict: &Verdict) -> Value {
    let measurements = verdict.measurements.iter().map(|(name, value)| json!({ "name": name, "value": value }));
    json!({ "decision": verdict.decision, "reason": verdict.reason, "measurements": measurements.collect::<Vec<_>>() })
}
