//! The recipe sao in Rust, TypeScript and Python in the real sandbox: on the same generated calls each decides, trains,
//! remembers and measures the same. The one in Rust ships, and is held to the paper's numbers by its own tests.

use std::collections::BTreeMap;
use std::sync::Arc;

use reef_core::{Alternatives, Message, RecordId, ReleaseId, Sample, Trajectory};
use reef_sandbox::{
    Call, ChatRequest, Completion, Context, Models, ModelsError, Objective, Optimizer, Outcome, Policy, PoolSample,
    Recipe, Term, Training, TrainingError, Usage,
};
use serde_json::{Map, Value, json};

use crate::trainer::Notes;

/// Samples of a pool that a selection sees.
const POOL: u32 = 24;
/// Samples that a step learns from.
const BATCH: u32 = 12;
/// Pools that are generated, each with other scores, lengths, masks and lags.
const POOLS: u64 = 6;

type Measured = Result<BTreeMap<String, f64>, TrainingError>;

/// What a call showed of itself, as one value that can be compared and printed.
pub async fn seen(recipe: &Recipe) -> Vec<(String, Value)> {
    let mut seen = Vec::new();
    for seed in 0..POOLS {
        for (name, config) in configurations() {
            let call = |entry: &str| format!("{entry}, pool {seed}, {name}");
            let selected = recipe.select_samples(prepared(seed, POOL, &config, &Notes::default())).await;
            seen.push((call("select"), told(selected, &Notes::default(), |choice| json!(format!("{choice:?}")))));
            for done in [0u32, 1] {
                let notes = Notes::default();
                let mut prepared = prepared(seed, BATCH, &config, &notes);
                prepared.state.insert("critic_warmup_done".to_owned(), done.to_le_bytes().to_vec());
                let proposed = recipe.propose_update(prepared).await;
                let words = |proposal: &reef_sandbox::Proposal| json!(format!("{proposal:?}"));
                seen.push((call(&format!("propose after {done} steps")), told(proposed, &notes, words)));
            }
        }
        let judged = recipe.evaluate(prepared(seed, 0, &Map::new(), &Notes::default()), 900).await;
        let words = |verdict: &reef_sandbox::Verdict| {
            json!([
                verdict.decision,
                verdict.reason,
                verdict.measurements.iter().map(|(name, value)| (name.clone(), *value)).collect::<BTreeMap<_, _>>()
            ])
        };
        seen.push((format!("evaluate {seed}"), told(judged, &Notes::default(), words)));
    }
    seen
}

/// The defaults, and what changes the maths.
fn configurations() -> [(&'static str, Map<String, Value>); 3] {
    let of = |config: Value| config.as_object().cloned().unwrap_or_default();
    [
        ("the defaults but the batch", of(json!({ "batch_size": BATCH }))),
        (
            "by length",
            of(json!({ "batch_size": BATCH, "lambda": 0.0, "gamma": 0.99, "eps_low": 0.8, "eps_high": 3.0 })),
        ),
        ("one decay", of(json!({ "batch_size": 40, "lambda": 0.95, "policy_lr": 1e-5, "gradient_norm_max": 0.0 }))),
    ]
}

fn prepared(seed: u64, count: u32, config: &Map<String, Value>, notes: &Notes) -> Call {
    let context = Context {
        tenant: "t".to_owned(),
        scenario: "s".to_owned(),
        step: 1,
        now_ms: 0,
        seed: 1,
        head: "0".repeat(40),
        max_staleness: 2,
    };
    let mut chance = Chance(seed.wrapping_mul(977) + 1);
    // Only a selection sees what cannot be used: a batch was selected.
    let usable = count <= BATCH;
    let samples: Vec<PoolSample> = (0..count).map(|index| sample(index, usable, seed, &mut chance)).collect();
    Call {
        batch: (0..count).collect(),
        samples: Arc::new(samples),
        config: config.clone(),
        training: Some(Box::new(Critic { notes: notes.clone(), seed })),
        models: Some(Box::new(HeldOut { seed })),
        ..Call::new(context)
    }
}

/// The last pool teaches nothing: every answer scored 0, as its critic says.
fn teaches_nothing(seed: u64) -> bool {
    seed + 1 == POOLS
}

fn sample(index: u32, usable: bool, seed: u64, chance: &mut Chance) -> PoolSample {
    let length = 1 + chance.below(7) as usize;
    let mut mask: Vec<u8> = (0..length).map(|_| u8::from(chance.below(4) > 0)).collect();
    // The last token of an answer is the policy's own.
    mask.last_mut().into_iter().for_each(|action| *action = 1);
    let logprobs = mask.iter().map(|&action| if action == 1 { -chance.unit() as f32 } else { 0.0 }).collect();
    let score = if teaches_nothing(seed) { 0.0 } else { (chance.unit() - 0.3) * 4.0 };
    let (score, records, lag) = match chance.below(8) {
        0 if !usable => (None, 1, 0),
        1 if !usable => (Some(2e6), 1, 0),
        2 if !usable => (Some(score), 2, 0),
        3 if !usable => (Some(score), 1, 3),
        other => (Some(score), 1, other as u32 % 3),
    };
    let id = |text: String| RecordId::parse(text).expect("an id");
    let trajectory = Trajectory {
        tokens: (0..2 + length as u32).collect(),
        prompt_length: 2,
        mask,
        logprobs,
        turns: Vec::new(),
        alternatives: Alternatives::default(),
    };
    let sample = Sample {
        report: id(format!("report-{index}")),
        records: (0..records).map(|part| id(format!("record-{index}-{part}"))).collect(),
        score,
        metadata: Map::new(),
        trajectory,
        temperature: 1.0,
        release: ReleaseId::parse("0".repeat(40)).expect("an id"),
        release_sequence: 0,
        prompt_key: index.to_string(),
        sequence: i64::from(index),
    };
    PoolSample { sample, lag }
}

fn told<T>(outcome: Outcome<T>, notes: &Notes, words: impl Fn(&T) -> Value) -> Value {
    // Without a description each language is free to log as it likes; what it decides and does is compared.
    json!({
        "answer": outcome.result.as_ref().map(words).map_err(|fault| fault.message.clone()),
        "training": notes.read(),
        "state": outcome.state,
        "gauges": outcome.metrics,
    })
}

/// Numbers without end from a seed (Steele, Lea and Flood 2014, SplitMix64).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// In [0, 1).
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Held-out scores of candidate and served release; the first seeds end in a tie of the fourth decimal place.
#[derive(Debug)]
struct HeldOut {
    seed: u64,
}

impl Models for HeldOut {
    fn held_out_count(&mut self) -> Result<u32, ModelsError> {
        Ok(if self.seed == 1 { 0 } else { 40 })
    }

    fn held_out_scores(&mut self, binding: &str, first: u32, count: u32) -> Result<Vec<f64>, ModelsError> {
        let mut chance = Chance(self.seed + u64::from(binding == "candidate"));
        let one_of_all = |index: u32| f64::from(u8::from(index == u32::from(binding == "served")));
        Ok((first..first + count)
            .map(|index| match self.seed {
                0 => one_of_all(index),
                2 if binding == "candidate" => 0.0,
                _ => chance.unit(),
            })
            .collect())
    }

    fn bindings(&mut self) -> Result<Vec<String>, ModelsError> {
        unreachable!("sao reads no bindings")
    }

    fn chat(&mut self, _: &str, _: Vec<ChatRequest>) -> Result<Vec<Vec<Completion>>, ModelsError> {
        unreachable!("sao asks no model")
    }

    fn score(&mut self, _: &str, _: &[Message], _: &str) -> Result<Vec<f32>, ModelsError> {
        unreachable!("sao scores no text")
    }

    fn spent(&mut self) -> Result<Usage, ModelsError> {
        unreachable!("sao spends nothing")
    }
}

/// A trainer whose critic has an opinion on every token, and which notes what it is asked.
#[derive(Debug)]
struct Critic {
    notes: Notes,
    seed: u64,
}

impl Critic {
    fn lengths(items: &[u32], seed: u64) -> usize {
        let mut chance = Chance(seed.wrapping_mul(977) + 1);
        (0..items.len() as u32).map(|index| sample(index, true, seed, &mut chance).sample.trajectory.mask.len()).sum()
    }
}

impl Training for Critic {
    fn open(&mut self) -> Result<u32, TrainingError> {
        self.notes.add(json!(["open"]));
        Ok(700)
    }

    fn values(&mut self, trainer: u32, items: &[u32]) -> Result<Vec<f32>, TrainingError> {
        self.notes.add(json!(["values", trainer, items]));
        let mut chance = Chance(self.seed + 7);
        let silent = if teaches_nothing(self.seed) { 0.0 } else { 1.0 };
        Ok((0..Self::lengths(items, self.seed)).map(|_| (silent * (chance.unit() - 0.5)) as f32).collect())
    }

    fn fit_values(&mut self, trainer: u32, items: &[u32], returns: Vec<f32>, rate: f64, updates: u32) -> Measured {
        self.notes.add(json!(["fit_values", trainer, items, returns, rate, updates]));
        Ok(BTreeMap::from([("value_loss".to_owned(), 0.25), ("explained_variance".to_owned(), 0.5)]))
    }

    fn train(&mut self, trainer: u32, items: &[u32], terms: Vec<Term>, optimizer: Optimizer) -> Measured {
        let objectives = terms.iter().map(|term| match &term.objective {
            Objective::PolicyGradient(gradient) => format!("{} {gradient:?}", term.factor),
            other => other.name().to_owned(),
        });
        let objectives: Vec<String> = objectives.collect();
        self.notes.add(json!(["train", trainer, items, objectives, format!("{optimizer:?}")]));
        // One pool's gradient is exactly 0.
        let skipped = f64::from(u8::from(self.seed == 3));
        let measured = [("loss", 0.5), ("masked_share", 0.125), ("logprob_abs_diff", 1e-5), ("skipped", skipped)];
        Ok(measured.map(|(name, value)| (name.to_owned(), value)).into())
    }

    fn checkpoint(&mut self, trainer: u32) -> Result<u32, TrainingError> {
        self.notes.add(json!(["checkpoint", trainer]));
        Ok(900)
    }

    fn derive(&mut self, _: u32, _: Option<Vec<u32>>, _: Option<Vec<u32>>) -> Result<u32, TrainingError> {
        unreachable!("sao derives no samples")
    }

    fn forward(&mut self, _: u32, _: Policy, _: &[u32]) -> Result<Vec<f32>, TrainingError> {
        unreachable!("sao reads no log-probs")
    }

    fn forward_backward(&mut self, _: u32, _: &[u32], _: Vec<Term>) -> Measured {
        unreachable!("sao trains in one call")
    }

    fn backward(&mut self, _: u32, _: &[u32], _: Vec<f32>) -> Measured {
        unreachable!("sao makes no gradients")
    }

    fn optimizer_step(&mut self, _: u32, _: Optimizer) -> Measured {
        unreachable!("sao trains in one call")
    }

    fn update_ema(&mut self, _: u32, _: f64) -> Result<(), TrainingError> {
        unreachable!("sao averages nothing")
    }
}
