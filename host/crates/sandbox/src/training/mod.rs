//! Capability `training`: the trait that the binary implements, and the words that it speaks.
//! Every argument of a guest is checked before the trainer sees it (`terms.rs`), and every answer of the trainer
//! before the guest does (`calls.rs`).

mod calls;
mod derived;
mod terms;

use std::collections::BTreeMap;

pub(crate) use calls::TrainingRefusal;
pub(crate) use derived::Derived;
pub(crate) use terms::{Advantages, Draft, DraftTerm};

use crate::traffic::Bytes;

/// Whose distribution a pass reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Policy {
    /// The trainer's adapter as it is now.
    Current,
    /// The frozen base model.
    Base,
    /// The exponential moving average of the trainer's adapter.
    Ema,
    /// A model binding of the operator: 1 to 64 letters, digits, `_` and `-`.
    Named(String),
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

/// What π_old is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RatioSource {
    /// The log-probs recorded when the tokens were sampled.
    Rollout,
    /// The log-probs of the head release, computed by the trainer.
    Recomputed,
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

/// Adds coefficient·k3 to every token's loss, k3 = exp(d) − d − 1, d = log π_reference − log π.
#[derive(Debug, Clone, PartialEq)]
pub struct KlPenalty {
    /// Finite, at least 0.
    pub coefficient: f32,
    /// What the policy stays close to.
    pub reference: Policy,
}

/// A policy-gradient objective.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyGradient {
    /// The factor.
    pub weight: Weight,
    /// What the factor compares the policy with.
    pub old: RatioSource,
    /// One per response token, concatenated in the order of the items; finite.
    pub advantages: Vec<f32>,
    /// The reduction.
    pub reduction: Reduction,
    /// The penalty, if any.
    pub kl: Option<KlPenalty>,
    /// Coefficient of the entropy bonus; finite, 0 = off.
    pub entropy: f32,
    /// Centre the score over the recorded alternatives (arXiv 2609.20807).
    pub score_centering: bool,
}

/// Which divergence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DivergenceKind {
    /// KL(teacher ‖ student).
    Forward,
    /// KL(student ‖ teacher).
    Reverse,
    /// Jensen-Shannon with β.
    JensenShannon,
}

/// D(teacher, student) per token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Divergence {
    /// Which.
    pub kind: DivergenceKind,
    /// β of Jensen-Shannon, in (0, 1); ignored otherwise.
    pub beta: f32,
}

/// Which part of the vocabulary is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// All of it.
    Exact,
    /// The student's K most likely ids, renormalised; 1 to 1,024.
    TopKRenormalised(u32),
    /// The student's K most likely ids and one bucket for the rest; 1 to 1,024.
    TopKTail(u32),
    /// The sampled id only.
    Sampled,
}

/// How off-policy tokens are weighted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Importance {
    /// Not at all.
    Off,
    /// Per token, capped; the cap is above 0.
    Token(f32),
    /// Masked mean of the capped token ratios; the cap is above 0.
    Sequence(f32),
}

/// Distillation from a teacher.
#[derive(Debug, Clone, PartialEq)]
pub struct Distillation {
    /// Who teaches.
    pub teacher: Policy,
    /// The item whose prompt the teacher reads, one per item; empty = the item itself.
    pub contexts: Vec<u32>,
    /// What is minimised.
    pub divergence: Divergence,
    /// Over which ids.
    pub support: Support,
    /// Off-policy weights.
    pub importance: Importance,
    /// One finite factor per item; empty = 1.
    pub weights: Vec<f32>,
    /// Response tokens at the start of each item that do not count.
    pub skip: u32,
}

/// On-policy distillation over the recorded alternatives.
#[derive(Debug, Clone, PartialEq)]
pub struct TopKDistillation {
    /// Who teaches.
    pub teacher: Policy,
    /// The item whose prompt the teacher reads, one per item; empty = the item itself.
    pub contexts: Vec<u32>,
    /// Clamp of the log-prob difference; above 0.
    pub advantage_max: f32,
    /// Bounds of the ratio.
    pub bounds: Bounds,
}

/// What is descended.
#[derive(Debug, Clone, PartialEq)]
pub enum Objective {
    /// Policy gradient.
    PolicyGradient(PolicyGradient),
    /// Negative log-likelihood of the action tokens, sample-token-mean.
    Nll,
    /// Distillation.
    Distill(Distillation),
    /// Distillation over the recorded alternatives.
    DistillTopK(TopKDistillation),
}

impl Objective {
    /// Its name in the interface.
    pub fn name(&self) -> &'static str {
        match self {
            Self::PolicyGradient(_) => "policy-gradient",
            Self::Nll => "nll",
            Self::Distill(_) => "distill",
            Self::DistillTopK(_) => "distill-top-k",
        }
    }
}

/// One term of a weighted sum of objectives.
#[derive(Debug, Clone, PartialEq)]
pub struct Term {
    /// Finite.
    pub factor: f32,
    /// The objective.
    pub objective: Objective,
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
    /// This trainer cannot do it; names it.
    #[error("{0}")]
    Unsupported(String),
    /// The step was cancelled.
    #[error("the step was cancelled")]
    Cancelled,
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl Bytes for Optimizer {
    const EACH: Option<u64> = Some(size_of::<Self>() as u64);

    fn bytes(&self) -> u64 {
        size_of::<Self>() as u64
    }
}

/// Numbers by name, finite.
pub(crate) type Measured = BTreeMap<String, f64>;

/// The trainer behind one call. Items are indices into the samples of the call, or indices that `derive` gave out;
/// known and, where several are named, without duplicates. Trainers are handles that this trainer gave out.
/// Every method may block.
pub trait Training: Send {
    /// A trainer that starts from the head release.
    fn open(&mut self) -> Result<u32, TrainingError>;
    /// A new item: sample `item` of the call with another prompt, another response (all action tokens, log-probs 0)
    /// or both. `item` is never a derived one. The index is new: not below the number of samples of the call.
    fn derive(&mut self, item: u32, prompt: Option<Vec<u32>>, response: Option<Vec<u32>>)
    -> Result<u32, TrainingError>;
    /// Log-probs of the response tokens, concatenated.
    fn forward(&mut self, trainer: u32, which: Policy, items: &[u32]) -> Result<Vec<f32>, TrainingError>;
    /// One optimizer step on the sum of the terms.
    fn train(
        &mut self,
        trainer: u32,
        items: &[u32],
        terms: Vec<Term>,
        optimizer: Optimizer,
    ) -> Result<BTreeMap<String, f64>, TrainingError>;
    /// Adds the gradient of the sum of the terms to the trainer's gradient.
    fn forward_backward(
        &mut self,
        trainer: u32,
        items: &[u32],
        terms: Vec<Term>,
    ) -> Result<BTreeMap<String, f64>, TrainingError>;
    /// Adds a gradient: dL/d(log π), one finite number per response token, concatenated.
    fn backward(
        &mut self,
        trainer: u32,
        items: &[u32],
        gradients: Vec<f32>,
    ) -> Result<BTreeMap<String, f64>, TrainingError>;
    /// One step on the trainer's gradient, which is then 0.
    fn optimizer_step(&mut self, trainer: u32, optimizer: Optimizer) -> Result<BTreeMap<String, f64>, TrainingError>;
    /// ema ← (1 − rate)·ema + rate·adapter; the rate is in [0, 1].
    fn update_ema(&mut self, trainer: u32, rate: f64) -> Result<(), TrainingError>;
    /// Critic values of the response tokens, concatenated; 0 before the first fit.
    fn values(&mut self, trainer: u32, items: &[u32]) -> Result<Vec<f32>, TrainingError>;
    /// Regresses the critic on `returns` (concatenated).
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
    derived: BTreeMap<u32, Derived>,
    pub(crate) candidates: Vec<u32>,
}

impl TrainingHost {
    pub(crate) fn new(worker: Option<Box<dyn Training>>) -> Self {
        Self { worker, ..Self::default() }
    }
}

#[cfg(test)]
mod tests;
