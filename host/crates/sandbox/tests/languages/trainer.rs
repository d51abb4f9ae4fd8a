//! A trainer that trains nothing: it notes what it is asked in the words of `best-of.json`, and refuses what the case
//! says. Functions that best-of has no use for end the test.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use reef_sandbox::{Objective, Optimizer, Policy, RatioSource, Reduction, Term, Training, TrainingError, Weight};
use serde_json::{Value, json};

use crate::golden::{Refusal, floats};

/// The handles that the file uses.
const TRAINER: u32 = 700;
const CANDIDATE: u32 = 900;

type Measured = Result<BTreeMap<String, f64>, TrainingError>;

/// Notes of a trainer, readable while it is away in a call.
#[derive(Debug, Clone, Default)]
pub struct Notes(Arc<Mutex<Vec<Value>>>);

impl Notes {
    pub fn read(&self) -> Vec<Value> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn add(&self, note: Value) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(floats(note));
    }
}

/// The trainer.
#[derive(Debug)]
pub struct Scripted {
    pub notes: Notes,
    pub refusal: Option<Refusal>,
}

impl Training for Scripted {
    fn open(&mut self) -> Result<u32, TrainingError> {
        self.notes.add(json!(["open"]));
        Ok(TRAINER)
    }

    fn train(&mut self, trainer: u32, items: &[u32], terms: Vec<Term>, optimizer: Optimizer) -> Measured {
        if let Some(Refusal::Train(told)) = &self.refusal {
            return Err(TrainingError::Unsupported(told.clone()));
        }
        let terms: Vec<Value> = terms.iter().map(term).collect();
        self.notes.add(json!(["train", trainer, items, terms, adamw(optimizer)]));
        Ok(BTreeMap::from([("loss".to_owned(), 0.5)]))
    }

    fn checkpoint(&mut self, trainer: u32) -> Result<u32, TrainingError> {
        if self.refusal == Some(Refusal::Checkpoint) {
            return Err(TrainingError::Cancelled);
        }
        self.notes.add(json!(["checkpoint", trainer]));
        Ok(CANDIDATE)
    }

    fn derive(&mut self, _: u32, _: Option<Vec<u32>>, _: Option<Vec<u32>>) -> Result<u32, TrainingError> {
        unreachable!("best-of derives no samples")
    }

    fn forward(&mut self, _: u32, _: Policy, _: &[u32]) -> Result<Vec<f32>, TrainingError> {
        unreachable!("best-of reads no log-probs")
    }

    fn forward_backward(&mut self, _: u32, _: &[u32], _: Vec<Term>) -> Measured {
        unreachable!("best-of trains in one call")
    }

    fn backward(&mut self, _: u32, _: &[u32], _: Vec<f32>) -> Measured {
        unreachable!("best-of makes no gradients")
    }

    fn optimizer_step(&mut self, _: u32, _: Optimizer) -> Measured {
        unreachable!("best-of trains in one call")
    }

    fn update_ema(&mut self, _: u32, _: f64) -> Result<(), TrainingError> {
        unreachable!("best-of averages nothing")
    }

    fn values(&mut self, _: u32, _: &[u32]) -> Result<Vec<f32>, TrainingError> {
        unreachable!("best-of has no critic")
    }

    fn fit_values(&mut self, _: u32, _: &[u32], _: Vec<f32>, _: f64, _: u32) -> Measured {
        unreachable!("best-of has no critic")
    }
}

/// A term in the words of the file; what best-of must not do reads as something that the file never has.
fn term(term: &Term) -> Value {
    let what = match &term.objective {
        Objective::PolicyGradient(gradient) => json!({
            "weight": if gradient.weight == Weight::Reinforce { json!({"tag": "reinforce"}) } else { json!("another") },
            "old": if gradient.old == RatioSource::Rollout { "rollout" } else { "recomputed" },
            "advantages": gradient.advantages,
            "reduction": if gradient.reduction == Reduction::SampleTokenMean { "sample-token-mean" } else { "another" },
            "kl": gradient.kl.as_ref().map(|kl| kl.coefficient),
            "entropy": gradient.entropy,
            "scoreCentering": gradient.score_centering,
        }),
        _ => Value::Null,
    };
    json!({ "factor": term.factor, "what": { "tag": term.objective.name(), "val": what } })
}

fn adamw(optimizer: Optimizer) -> Value {
    json!({
        "learningRate": optimizer.learning_rate,
        "beta1": optimizer.beta1,
        "beta2": optimizer.beta2,
        "epsilon": optimizer.epsilon,
        "weightDecay": optimizer.weight_decay,
        "gradientNormMax": optimizer.gradient_norm_max,
    })
}
