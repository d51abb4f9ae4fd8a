//! What a call of the corpus works on, all by rule: samples, a trainer and held-out tasks. The rules never change,
//! because what was recorded follows from them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use reef_core::{Message, RecordId, ReleaseId, Sample, Trajectory, TurnSpan};
use reef_sandbox::{
    ChatRequest, Completion, Finish, Models, ModelsError, Objective, Optimizer, Policy, PoolSample, RatioSource,
    Reduction, Term, Training, TrainingError, Usage, Weight,
};
use serde_json::{Map, Value, json};

/// Handles that the scripted trainer gives out.
const TRAINER: u32 = 3;
pub(crate) const CANDIDATE: u32 = 5;
/// Held-out tasks.
const TASKS: u32 = 4;

/// Sample `i` of the rule in the README.
pub(crate) fn sample(i: u32) -> PoolSample {
    let mask: Vec<u8> = (0..=i).map(|t| u8::from(t % 3 != 1)).collect();
    let logprob = |(t, action): (usize, &u8)| if *action == 1 { -0.5 - t as f32 / 8.0 } else { 0.0 };
    let trajectory = Trajectory {
        tokens: [1, 2].into_iter().chain((0..=i).map(|t| 10 + t)).collect(),
        prompt_length: 2,
        logprobs: mask.iter().enumerate().map(logprob).collect(),
        turns: vec![TurnSpan { start: 0, length: i + 1 }],
        alternatives: reef_core::Alternatives::default(),
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

/// What the trainer was asked, in order.
#[derive(Clone, Default)]
pub(crate) struct Trace(pub(crate) Arc<Mutex<Vec<Value>>>);

impl Trace {
    fn note(&self, asked: Value) {
        self.0.lock().expect("no panic").push(asked);
    }
}

/// A trainer whose numbers follow from the lengths of its samples.
pub(crate) struct Scripted(pub(crate) Trace);

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
pub(crate) struct HeldOut;

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
