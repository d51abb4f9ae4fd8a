//! The corpus: components that were compiled once must load and answer for ever as they did then.
//! Reads every file of `tests/corpus` at the root of the repository; the format is in its README.
//! Expectations are only ever added, by `REEF_CORPUS_WRITE=1`, and never changed.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use reef_core::{Message, RecordId, ReleaseId, Sample, Trajectory, TurnSpan, sha256_hex};
use reef_sandbox::{
    Call, ChatRequest, Choice, Completion, Context, FaultKind, Finish, Grants, Models, ModelsError, Objective,
    Optimizer, Outcome, Policy, PoolSample, Proposal, RatioSource, Recipe, Reduction, Sandbox, SandboxConfig,
    Selection, Term, Training, TrainingError, Usage, Verdict, Weight,
};
use serde_json::{Map, Value, json};

/// Bytes of a component of the corpus.
const COMPONENT_BYTES_MAX: usize = 128 * 1024;
/// Set to add what is missing.
const WRITE: &str = "REEF_CORPUS_WRITE";
/// Handles that the scripted trainer gives out.
const TRAINER: u32 = 3;
const CANDIDATE: u32 = 5;
/// Held-out tasks.
const TASKS: u32 = 4;

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

/// Sample `i` of the rule in the README.
fn sample(i: u32) -> PoolSample {
    let mask: Vec<u8> = (0..=i).map(|t| u8::from(t % 3 != 1)).collect();
    let logprob = |(t, action): (usize, &u8)| if *action == 1 { -0.5 - t as f32 / 8.0 } else { 0.0 };
    let trajectory = Trajectory {
        tokens: [1, 2].into_iter().chain((0..=i).map(|t| 10 + t)).collect(),
        prompt_length: 2,
        logprobs: mask.iter().enumerate().map(logprob).collect(),
        turns: vec![TurnSpan { start: 0, length: i + 1 }],
        mask,
    };
    let sample = Sample {
        report: RecordId::parse(format!("report-{i}")).expect("id"),
        records: vec![RecordId::parse(format!("record-{i}")).expect("id")],
        score: (i % 5 != 4).then_some(f64::from(i % 2)),
        metadata: Map::new(),
        trajectory,
        temperature: 1.0,
        release: ReleaseId::parse("a".repeat(40)).expect("id"),
        release_sequence: 0,
        prompt_key: format!("prompt-{}", i / 2),
        sequence: i64::from(i),
    };
    PoolSample { sample, lag: i % 3 }
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
        Proposal::Skip(reason) => json!({ "skip": reason }),
    }
}

fn verdict(verdict: &Verdict) -> Value {
    json!({ "verdict": verdict.decision, "reason": verdict.reason, "measurements": verdict.measurements })
}

/// What the trainer was asked, in order.
#[derive(Clone, Default)]
struct Trace(Arc<Mutex<Vec<Value>>>);

impl Trace {
    fn note(&self, asked: Value) {
        self.0.lock().expect("no panic").push(asked);
    }
}

/// A trainer whose numbers follow from the lengths of its samples.
struct Scripted(Trace);

/// One number a response token, from 0 upwards in eighths, over and over from 0 after `period`.
fn column(items: &[u32], period: usize) -> Vec<f32> {
    let tokens: u32 = items.iter().map(|item| item + 1).sum();
    (0..tokens as usize).map(|t| (t % period) as f32 / 8.0).collect()
}

fn measured(numbers: &[(&str, f64)]) -> BTreeMap<String, f64> {
    numbers.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

fn optimizer(how: Optimizer) -> Value {
    let betas = [how.beta1, how.beta2];
    json!([how.learning_rate, betas, how.epsilon, how.weight_decay, how.gradient_norm_max])
}

fn weight(weight: Weight) -> Value {
    match weight {
        Weight::Reinforce => json!("reinforce"),
        Weight::Ratio => json!("ratio"),
        Weight::Truncated(cap) => json!({ "truncated": cap }),
        Weight::Masked(bounds) => json!({ "masked": [bounds.low, bounds.high] }),
        Weight::Ppo(bounds) => json!({ "ppo": [bounds.low, bounds.high] }),
    }
}

fn reduction(reduction: Reduction) -> &'static str {
    match reduction {
        Reduction::TokenSum => "token-sum",
        Reduction::SampleTokenMean => "sample-token-mean",
        Reduction::GlobalTokenMean => "global-token-mean",
    }
}

/// A sum of one term is written as that term.
fn terms(terms: &[Term]) -> Value {
    match terms {
        [Term { factor: 1.0, objective: only }] => objective(only),
        several => several.iter().map(|term| json!([term.factor, objective(&term.objective)])).collect(),
    }
}

/// What 0.1.0 could say is written as it was then; the rest is added where it is used.
fn objective(what: &Objective) -> Value {
    let Objective::PolicyGradient(loss) = what else {
        return json!(what.name());
    };
    let mut told = vec![json!(weight(loss.weight)), json!(reduction(loss.reduction)), json!(loss.advantages)];
    if loss.old == RatioSource::Recomputed {
        told.push(json!("recomputed"));
    }
    if let Some(penalty) = &loss.kl {
        told.push(json!({ "kl": penalty.coefficient, "reference": policy(&penalty.reference) }));
    }
    if loss.entropy != 0.0 || loss.score_centering {
        told.push(json!({ "entropy": loss.entropy, "score_centering": loss.score_centering }));
    }
    Value::Array(told)
}

fn policy(which: &Policy) -> String {
    match which {
        Policy::Current => "current".to_owned(),
        Policy::Base => "base".to_owned(),
        Policy::Ema => "ema".to_owned(),
        Policy::Named(name) => format!("named {name}"),
    }
}

type Measured = Result<BTreeMap<String, f64>, TrainingError>;

fn trained() -> Measured {
    Ok(measured(&[("loss", 0.25), ("gradient_norm", 1.5), ("masked_share", 0.125), ("entropy", 2.0)]))
}

impl Training for Scripted {
    fn open(&mut self) -> Result<u32, TrainingError> {
        self.0.note(json!("open"));
        Ok(TRAINER)
    }
    fn derive(&mut self, _: u32, _: Option<Vec<u32>>, _: Option<Vec<u32>>) -> Result<u32, TrainingError> {
        Err(TrainingError::Unsupported("the rule of the corpus has no derived samples".to_owned()))
    }
    fn forward(&mut self, _: u32, which: Policy, items: &[u32]) -> Result<Vec<f32>, TrainingError> {
        self.0.note(json!({ "forward": policy(&which), "items": items }));
        Ok(column(items, 7).into_iter().map(|number| -number).collect())
    }
    fn train(&mut self, _: u32, items: &[u32], what: Vec<Term>, how: Optimizer) -> Measured {
        self.0.note(json!({ "train": terms(&what), "items": items, "optimizer": optimizer(how) }));
        trained()
    }
    fn forward_backward(&mut self, _: u32, items: &[u32], what: Vec<Term>) -> Measured {
        self.0.note(json!({ "forward_backward": terms(&what), "items": items }));
        trained()
    }
    fn backward(&mut self, _: u32, items: &[u32], gradients: Vec<f32>) -> Measured {
        self.0.note(json!({ "backward": gradients, "items": items }));
        trained()
    }
    fn optimizer_step(&mut self, _: u32, how: Optimizer) -> Measured {
        self.0.note(json!({ "optimizer_step": optimizer(how) }));
        trained()
    }
    fn update_ema(&mut self, _: u32, rate: f64) -> Result<(), TrainingError> {
        self.0.note(json!({ "update_ema": rate }));
        Ok(())
    }
    fn values(&mut self, _: u32, items: &[u32]) -> Result<Vec<f32>, TrainingError> {
        self.0.note(json!({ "values": items }));
        Ok(column(items, 5))
    }
    fn fit_values(&mut self, _: u32, items: &[u32], returns: Vec<f32>, learning_rate: f64, updates: u32) -> Measured {
        self.0.note(json!({ "fit_values": returns, "items": items, "how": [json!(learning_rate), json!(updates)] }));
        Ok(measured(&[("value_loss", 0.5), ("explained_variance", 0.25)]))
    }
    fn checkpoint(&mut self, _: u32) -> Result<u32, TrainingError> {
        self.0.note(json!("checkpoint"));
        Ok(CANDIDATE)
    }
}

/// The candidate solves every second task, the served release every fourth.
struct HeldOut;

impl Models for HeldOut {
    fn bindings(&mut self) -> Result<Vec<String>, ModelsError> {
        Ok(vec!["candidate".to_owned(), "served".to_owned()])
    }
    fn chat(&mut self, _: &str, requests: Vec<ChatRequest>) -> Result<Vec<Vec<Completion>>, ModelsError> {
        let yes = || Completion { text: "yes".to_owned(), finish: Finish::Stop, tokens: 1, mean_logprob: -0.5 };
        Ok(requests.iter().map(|request| (0..request.sampling.n).map(|_| yes()).collect()).collect())
    }
    fn score(&mut self, _: &str, _: &[Message], answer: &str) -> Result<Vec<f32>, ModelsError> {
        Ok(vec![-0.5; answer.split_whitespace().count()])
    }
    fn spent(&mut self) -> Result<Usage, ModelsError> {
        Ok(Usage { calls: 1, prompt_tokens: 2, answer_tokens: 3, cost_usd: 0.25 })
    }
    fn held_out_count(&mut self) -> Result<u32, ModelsError> {
        Ok(TASKS)
    }
    fn held_out_scores(&mut self, binding: &str, first: u32, count: u32) -> Result<Vec<f64>, ModelsError> {
        let every = match binding {
            "candidate" => 2,
            "served" => 4,
            other => return Err(ModelsError::UnknownBinding(other.to_owned())),
        };
        Ok((first..first + count).map(|task| f64::from(u8::from(task % every == 0))).collect())
    }
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
