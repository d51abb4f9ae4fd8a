//! Capability `training`: the trait that the binary implements, and the host functions in front of it.
//! Every argument of a guest is checked before the trainer sees it, and every answer of the trainer before the
//! guest does. The work blocks and runs off the guest's threads.

use std::collections::BTreeMap;

use crate::bindings::reef::recipe::training as wit;
use crate::bindings::reef::recipe::types::Measurement;
use crate::call_state::{CallState, terms};
use crate::offload::{Lost, offload};
use crate::{Capability, FaultKind};

/// Trainers of one call: each is a copy of adapter, moments and critic.
const TRAINERS_MAX: usize = 4;
/// Candidates of one call.
const CANDIDATES_MAX: usize = 8;
/// Updates of the critic in one host call.
const CRITIC_UPDATES_MAX: u32 = 64;

/// Whose distribution a forward pass reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The trainer's adapter as it is now.
    Current,
    /// The frozen base model.
    Base,
}

/// Strict bounds of the ratio: kept iff low < ratio < high.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// At least 0.
    pub low: f32,
    /// Above `low`.
    pub high: f32,
}

/// The detached factor f(r) in the loss −f(r)·A·log π, r = exp(log π − log π_old).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Weight {
    /// f = 1.
    Reinforce,
    /// f = r.
    Ratio,
    /// f = min(r, cap); the cap is above 0.
    Truncated(f32),
    /// f = r inside the bounds, else 0.
    Masked(Bounds),
    /// The clipped surrogate −min(r·A, clip(r, low, high)·A).
    Ppo(Bounds),
}

/// How token losses become one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// Sum over all action tokens.
    TokenSum,
    /// Mean over the action tokens of a sample, then mean over samples.
    SampleTokenMean,
    /// Mean over all action tokens of the batch.
    GlobalTokenMean,
}

/// A policy-gradient objective.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyGradient {
    /// The factor.
    pub weight: Weight,
    /// One per response token, concatenated in the order of the items; finite.
    pub advantages: Vec<f32>,
    /// The reduction.
    pub reduction: Reduction,
}

/// What one optimizer step descends.
#[derive(Debug, Clone, PartialEq)]
pub enum Objective {
    /// Policy gradient.
    PolicyGradient(PolicyGradient),
    /// Negative log-likelihood of the action tokens, sample-token-mean.
    Nll,
}

/// AdamW; every number is finite and in the range that its comment says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Optimizer {
    /// [0, 1].
    pub learning_rate: f64,
    /// [0, 1).
    pub beta1: f64,
    /// [0, 1).
    pub beta2: f64,
    /// Above 0, at most 1.
    pub epsilon: f64,
    /// [0, 1].
    pub weight_decay: f64,
    /// Global gradient norm is clipped to this; 0 = off.
    pub gradient_norm_max: f64,
}

/// Why the trainer refuses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TrainingError {
    /// An argument, named.
    #[error("{0}")]
    Invalid(String),
    /// More work than the step may do.
    #[error("{0}")]
    Budget(String),
    /// The step was cancelled.
    #[error("the step was cancelled")]
    Cancelled,
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

/// The trainer behind one call. Items are indices into the samples of the call, known and without duplicates;
/// trainers are handles that this trainer gave out. Every method may block.
pub trait Training: Send {
    /// A trainer that starts from the head release.
    fn open(&mut self) -> Result<u32, TrainingError>;
    /// Log-probs of the response tokens, concatenated.
    fn forward(&mut self, trainer: u32, which: Policy, items: &[u32]) -> Result<Vec<f32>, TrainingError>;
    /// One optimizer step; metrics by name, finite.
    fn train(
        &mut self,
        trainer: u32,
        items: &[u32],
        objective: Objective,
        optimizer: Optimizer,
    ) -> Result<BTreeMap<String, f64>, TrainingError>;
    /// Critic values of the response tokens, concatenated; 0 before the first fit.
    fn values(&mut self, trainer: u32, items: &[u32]) -> Result<Vec<f32>, TrainingError>;
    /// Regresses the critic on `returns` (concatenated); metrics by name, finite.
    #[expect(clippy::too_many_arguments, reason = "the same arguments as in the WIT, without a record for two numbers")]
    fn fit_values(
        &mut self,
        trainer: u32,
        items: &[u32],
        returns: Vec<f32>,
        learning_rate: f64,
        updates: u32,
    ) -> Result<BTreeMap<String, f64>, TrainingError>;
    /// Freezes the trainer's state as a candidate; its handle.
    fn checkpoint(&mut self, trainer: u32) -> Result<u32, TrainingError>;
}

/// The trainer of a call and the handles it gave out.
#[derive(Default)]
pub(crate) struct TrainingHost {
    pub(crate) worker: Option<Box<dyn Training>>,
    trainers: Vec<u32>,
    pub(crate) candidates: Vec<u32>,
}

impl TrainingHost {
    pub(crate) fn new(worker: Option<Box<dyn Training>>) -> Self {
        Self { worker, trainers: Vec::new(), candidates: Vec::new() }
    }
}

impl From<TrainingError> for wit::TrainingError {
    fn from(error: TrainingError) -> Self {
        match error {
            TrainingError::Invalid(told) => Self::Invalid(told),
            TrainingError::Budget(told) => Self::Budget(told),
            TrainingError::Cancelled => Self::Cancelled,
            TrainingError::Other(told) => Self::Other(told),
        }
    }
}

fn invalid<T>(told: impl Into<String>) -> Result<T, wit::TrainingError> {
    Err(wit::TrainingError::Invalid(told.into()))
}

impl CallState {
    fn trainer(&self, on: u32) -> Result<u32, wit::TrainingError> {
        if self.training.trainers.contains(&on) { Ok(on) } else { Err(wit::TrainingError::UnknownTrainer(on)) }
    }

    /// Known samples without duplicates; returns their response tokens in all.
    fn items(&self, items: &[u32]) -> Result<usize, wit::TrainingError> {
        if items.is_empty() {
            return invalid("items: no samples");
        }
        let mut seen = vec![false; self.samples.len()];
        let mut tokens = 0_usize;
        for item in items {
            let sample = self.sample(*item).ok_or(wit::TrainingError::UnknownSample(*item))?;
            match seen.get_mut(*item as usize) {
                Some(seen) if !*seen => *seen = true,
                _ => return invalid(format!("items: sample {item} is named twice")),
            }
            tokens = tokens.saturating_add(sample.sample.trajectory.mask.len());
        }
        Ok(tokens)
    }

    async fn ask<R: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut dyn Training) -> Result<R, TrainingError> + Send + 'static,
    ) -> Result<R, wit::TrainingError> {
        let answer = offload(&mut self.training.worker, terms!(self), move |worker| work(worker.as_mut())).await;
        match answer {
            Ok(answer) => Ok(answer?),
            Err(Lost::Cancelled) => Err(wit::TrainingError::Cancelled),
            Err(Lost::Absent) => Err(wit::TrainingError::Other("training is not available in this call".to_owned())),
            Err(Lost::Panicked) => Err(self.host_bug("the trainer panicked")),
        }
    }

    fn host_bug(&mut self, told: &str) -> wit::TrainingError {
        self.cut(FaultKind::HostBug, told);
        wit::TrainingError::Other(told.to_owned())
    }

    fn answered(&mut self, column: Vec<f32>, tokens: usize) -> Result<Vec<f32>, wit::TrainingError> {
        if column.len() == tokens {
            return Ok(column);
        }
        Err(self.host_bug(&format!("the trainer answered {} numbers for {tokens} tokens", column.len())))
    }
}

fn column(name: &str, values: &[f32], tokens: usize) -> Result<(), wit::TrainingError> {
    if values.len() != tokens {
        return invalid(format!("{name}: {} numbers for {tokens} response tokens", values.len()));
    }
    match values.iter().position(|value| !value.is_finite()) {
        Some(index) => invalid(format!("{name}: number {index} is not finite")),
        None => Ok(()),
    }
}

fn range(name: &str, value: f64, holds: bool, wanted: &str) -> Result<(), wit::TrainingError> {
    if value.is_finite() && holds { Ok(()) } else { invalid(format!("{name}: {value} is not {wanted}")) }
}

fn bounds(raw: wit::Bounds) -> Result<Bounds, wit::TrainingError> {
    let (low, high) = (f64::from(raw.low), f64::from(raw.high));
    range("bounds.low", low, low >= 0.0, "a finite number of at least 0")?;
    range("bounds.high", high, high > low, "a finite number above bounds.low")?;
    Ok(Bounds { low: raw.low, high: raw.high })
}

fn weight(raw: wit::Weight) -> Result<Weight, wit::TrainingError> {
    Ok(match raw {
        wit::Weight::Reinforce => Weight::Reinforce,
        wit::Weight::Ratio => Weight::Ratio,
        wit::Weight::Truncated(cap) => {
            range("weight.truncated", f64::from(cap), cap > 0.0, "a finite number above 0")?;
            Weight::Truncated(cap)
        }
        wit::Weight::Masked(raw) => Weight::Masked(bounds(raw)?),
        wit::Weight::Ppo(raw) => Weight::Ppo(bounds(raw)?),
    })
}

fn objective(raw: wit::Objective, tokens: usize) -> Result<Objective, wit::TrainingError> {
    let raw = match raw {
        wit::Objective::Nll => return Ok(Objective::Nll),
        wit::Objective::PolicyGradient(raw) => raw,
    };
    column("advantages", &raw.advantages, tokens)?;
    let reduction = match raw.reduction {
        wit::Reduction::TokenSum => Reduction::TokenSum,
        wit::Reduction::SampleTokenMean => Reduction::SampleTokenMean,
        wit::Reduction::GlobalTokenMean => Reduction::GlobalTokenMean,
    };
    Ok(Objective::PolicyGradient(PolicyGradient { weight: weight(raw.weight)?, advantages: raw.advantages, reduction }))
}

fn optimizer(raw: wit::Optimizer) -> Result<Optimizer, wit::TrainingError> {
    let unit = |name: &str, value: f64| range(name, value, (0.0..=1.0).contains(&value), "in [0, 1]");
    unit("learning-rate", raw.learning_rate)?;
    range("beta1", raw.beta1, (0.0..1.0).contains(&raw.beta1), "in [0, 1)")?;
    range("beta2", raw.beta2, (0.0..1.0).contains(&raw.beta2), "in [0, 1)")?;
    range("epsilon", raw.epsilon, raw.epsilon > 0.0 && raw.epsilon <= 1.0, "in (0, 1]")?;
    unit("weight-decay", raw.weight_decay)?;
    range("gradient-norm-max", raw.gradient_norm_max, raw.gradient_norm_max >= 0.0, "a finite number of at least 0")?;
    Ok(Optimizer {
        learning_rate: raw.learning_rate,
        beta1: raw.beta1,
        beta2: raw.beta2,
        epsilon: raw.epsilon,
        weight_decay: raw.weight_decay,
        gradient_norm_max: raw.gradient_norm_max,
    })
}

fn measurements(metrics: BTreeMap<String, f64>) -> Result<Vec<Measurement>, wit::TrainingError> {
    if let Some((name, value)) = metrics.iter().find(|(_, value)| !value.is_finite()) {
        return Err(wit::TrainingError::Other(format!("training diverged: {name} is {value}")));
    }
    Ok(metrics.into_iter().map(|(name, value)| Measurement { name, value }).collect())
}

impl wit::Host for CallState {
    async fn open(&mut self) -> Result<u32, wit::TrainingError> {
        self.admit(Capability::Training).map_err(wit::TrainingError::Budget)?;
        if self.training.trainers.len() >= TRAINERS_MAX {
            return Err(wit::TrainingError::Budget(format!("a call may open {TRAINERS_MAX} trainers")));
        }
        let trainer = self.ask(|worker| worker.open()).await?;
        self.training.trainers.push(trainer);
        Ok(trainer)
    }

    async fn forward(&mut self, on: u32, which: wit::Policy, items: Vec<u32>) -> Result<Vec<f32>, wit::TrainingError> {
        self.admit(Capability::Training).map_err(wit::TrainingError::Budget)?;
        let (trainer, tokens) = (self.trainer(on)?, self.items(&items)?);
        let which = match which {
            wit::Policy::Current => Policy::Current,
            wit::Policy::Base => Policy::Base,
        };
        let column = self.ask(move |worker| worker.forward(trainer, which, &items)).await?;
        self.answered(column, tokens)
    }

    async fn train(
        &mut self,
        on: u32,
        items: Vec<u32>,
        what: wit::Objective,
        how: wit::Optimizer,
    ) -> Result<Vec<Measurement>, wit::TrainingError> {
        self.admit(Capability::Training).map_err(wit::TrainingError::Budget)?;
        let (trainer, tokens) = (self.trainer(on)?, self.items(&items)?);
        let (objective, optimizer) = (objective(what, tokens)?, optimizer(how)?);
        measurements(self.ask(move |worker| worker.train(trainer, &items, objective, optimizer)).await?)
    }

    async fn values(&mut self, on: u32, items: Vec<u32>) -> Result<Vec<f32>, wit::TrainingError> {
        self.admit(Capability::Training).map_err(wit::TrainingError::Budget)?;
        let (trainer, tokens) = (self.trainer(on)?, self.items(&items)?);
        let column = self.ask(move |worker| worker.values(trainer, &items)).await?;
        self.answered(column, tokens)
    }

    async fn fit_values(
        &mut self,
        on: u32,
        items: Vec<u32>,
        returns: Vec<f32>,
        how: wit::CriticOptimizer,
    ) -> Result<Vec<Measurement>, wit::TrainingError> {
        self.admit(Capability::Training).map_err(wit::TrainingError::Budget)?;
        let (trainer, tokens) = (self.trainer(on)?, self.items(&items)?);
        column("returns", &returns, tokens)?;
        range("learning-rate", how.learning_rate, (0.0..=1.0).contains(&how.learning_rate), "in [0, 1]")?;
        if how.updates == 0 || how.updates > CRITIC_UPDATES_MAX {
            return invalid(format!("updates: {} is not in 1 to {CRITIC_UPDATES_MAX}", how.updates));
        }
        measurements(
            self.ask(move |worker| worker.fit_values(trainer, &items, returns, how.learning_rate, how.updates)).await?,
        )
    }

    async fn checkpoint(&mut self, on: u32) -> Result<u32, wit::TrainingError> {
        self.admit(Capability::Training).map_err(wit::TrainingError::Budget)?;
        let trainer = self.trainer(on)?;
        if self.training.candidates.len() >= CANDIDATES_MAX {
            return Err(wit::TrainingError::Budget(format!("a call may make {CANDIDATES_MAX} checkpoints")));
        }
        let candidate = self.ask(move |worker| worker.checkpoint(trainer)).await?;
        self.training.candidates.push(candidate);
        Ok(candidate)
    }
}

#[cfg(test)]
#[path = "training_tests.rs"]
mod tests;
