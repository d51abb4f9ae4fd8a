//! Makes every recorded call again and compares the answers.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use reef_core::sha256_hex;
use reef_sandbox::{
    Call, Choice, Context, FaultKind, Grants, Outcome, Proposal, Recipe, Sandbox, SandboxConfig, Selection, Verdict,
};
use serde_json::{Value, json};

use crate::script::{CANDIDATE, HeldOut, Scripted, Trace, sample};

/// Bytes of a component of the corpus.
const COMPONENT_BYTES_MAX: usize = 128 * 1024;
/// Set to add what is missing.
const WRITE: &str = "REEF_CORPUS_WRITE";
#[tokio::test]
async fn every_component_of_the_corpus_answers_as_it_did() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/corpus");
    let components = components(&root);
    assert!(components.len() >= 3, "{} holds {} components", root.display(), components.len());
    let sandbox = Sandbox::new(SandboxConfig::default()).expect("the sandbox starts");
    for component in components {
        check(&sandbox, &component).await;
    }
}

/// Every `.wasm` under the root, by path.
fn components(root: &Path) -> Vec<PathBuf> {
    let list = |folder: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        entries.map(|entry| entry.expect("readable").path()).collect()
    };
    let generations = list(root).into_iter().filter(|path| path.is_dir());
    let mut found: Vec<PathBuf> = generations
        .flat_map(|generation| list(&generation))
        .filter(|path| path.extension().is_some_and(|ending| ending == "wasm"))
        .collect();
    found.sort();
    found
}

async fn check(sandbox: &Sandbox, path: &Path) {
    let (shown, described) = (path.display().to_string(), path.with_extension("json"));
    let bytes = fs::read(path).expect("readable");
    assert!(bytes.len() <= COMPONENT_BYTES_MAX, "{shown} has {} bytes", bytes.len());
    let text = fs::read_to_string(&described).unwrap_or_else(|error| panic!("{}: {error}", described.display()));
    let mut corpus: Value = serde_json::from_str(&text).expect("JSON");

    let writing = std::env::var_os(WRITE).is_some();
    let digest = sha256_hex(&bytes);
    if writing && corpus["sha256"] == "" {
        corpus["sha256"] = json!(digest);
    }
    assert_eq!(corpus["sha256"], json!(digest), "{shown} is not the component that was recorded");
    let recipe = sandbox.load(bytes, &Grants::all()).await.unwrap_or_else(|error| panic!("{shown}: {error}"));
    assert_eq!(corpus["generation"], json!(recipe.generation()), "{shown} was built for another generation");

    for (number, call) in corpus["calls"].as_array_mut().expect("a list of calls").iter_mut().enumerate() {
        let answered = answer(&recipe, call).await;
        match call.get("expect") {
            Some(expected) => assert_eq!(&answered, expected, "{shown}, call {number}: {}", call["function"]),
            None if writing => call["expect"] = answered,
            None => panic!("{shown}, call {number} has no expectation; {WRITE}=1 adds it"),
        }
    }
    if writing {
        let text = serde_json::to_string_pretty(&corpus).expect("JSON") + "\n";
        fs::write(&described, text).expect("writable");
    }
}

/// Makes the call and tells everything that must stay the same.
async fn answer(recipe: &Recipe, call: &Value) -> Value {
    let trace = Trace::default();
    match call["function"].as_str().expect("a function") {
        "describe" => manifest(recipe),
        "select-samples" => told(recipe.select_samples(made(call, &trace)).await, &trace, selection),
        "propose-update" => told(recipe.propose_update(made(call, &trace)).await, &trace, proposal),
        "evaluate" => told(recipe.evaluate(made(call, &trace), CANDIDATE).await, &trace, verdict),
        other => panic!("'{other}' is no function of a recipe"),
    }
}

fn made(call: &Value, trace: &Trace) -> Call {
    let count = call["samples"].as_u64().expect("a number of samples") as u32;
    let state = call["state"].as_object().expect("an object");
    let context = Context {
        tenant: "default".into(),
        scenario: "corpus".into(),
        step: 3,
        now_ms: 1_700_000_000_000,
        seed: 7,
        head: "a".repeat(40),
        max_staleness: 4,
    };
    Call {
        samples: Arc::new((0..count).map(sample).collect()),
        batch: (0..count).collect(),
        config: call["config"].as_object().expect("an object").clone(),
        state: state.iter().map(|(key, value)| (key.clone(), unhex(value.as_str().expect("digits")))).collect(),
        training: Some(Box::new(Scripted(trace.clone()))),
        models: Some(Box::new(HeldOut)),
        ..Call::new(context)
    }
}

fn told<T>(outcome: Outcome<T>, trace: &Trace, decision: impl FnOnce(&T) -> Value) -> Value {
    let report = &outcome.report;
    // When these end depends on a clock, or on the size of native stack frames.
    let exact = |kind: FaultKind| {
        use FaultKind::{Cancelled, Deadline, HostLimit, StackOverflow};
        !matches!(kind, HostLimit(_) | Deadline | Cancelled | StackOverflow)
    };
    let (decision, fuel) = match &outcome.result {
        Ok(answer) => (decision(answer), json!(report.fuel)),
        Err(fault) => {
            // Of a fault only the kind is promised, but a recipe that gives up speaks for itself.
            let reason = (fault.kind == FaultKind::Declined).then_some(&fault.message);
            (json!({ "fault": fault.kind, "reason": reason }), json!(exact(fault.kind).then_some(report.fuel)))
        }
    };
    let state: BTreeMap<_, _> =
        outcome.state.iter().map(|(key, value)| (key, value.as_ref().map(|bytes| hex(bytes)))).collect();
    let trace = std::mem::take(&mut *trace.0.lock().expect("no panic"));
    json!({ "decision": decision, "trace": trace, "state": state, "metrics": outcome.metrics, "fuel": fuel })
}

fn manifest(recipe: &Recipe) -> Value {
    let manifest = recipe.manifest();
    let key = |key: &reef_sandbox::ConfigKey| json!([key.name, key.kind, key.default, key.doc]);
    json!({
        "name": manifest.name,
        "version": manifest.version,
        "surface": manifest.surface,
        "needs_score": manifest.needs_score,
        "capabilities": manifest.capabilities,
        "config": manifest.config.iter().map(key).collect::<Vec<_>>(),
        "report_fields": manifest.report_fields.len(),
        "top_k": manifest.top_k,
    })
}

fn selection(selection: &Selection) -> Value {
    let choice = match &selection.choice {
        Choice::Wait(reason) => json!({ "wait": reason }),
        Choice::Train(samples) => json!({ "train": samples }),
        Choice::TrainGroups(groups) => {
            json!({ "train_groups": groups.iter().map(|group| json!([group.name, group.slots])).collect::<Vec<_>>() })
        }
    };
    json!({ "choice": choice, "retire": selection.retire })
}

fn proposal(proposal: &Proposal) -> Value {
    match proposal {
        Proposal::Weights(candidate) => json!({ "weights": candidate }),
        Proposal::Harness(changes) => json!({ "harness": changes }),
        Proposal::Skip(reason) => json!({ "skip": reason }),
    }
}

fn verdict(verdict: &Verdict) -> Value {
    json!({ "verdict": verdict.decision, "reason": verdict.reason, "measurements": verdict.measurements })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes everything");
        text
    })
}

fn unhex(digits: &str) -> Vec<u8> {
    let pair = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal digits");
    (0..digits.len()).step_by(2).map(pair).collect()
}
