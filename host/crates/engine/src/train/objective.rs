//! What a pass minimises: a weighted sum of objectives, in the words of the caller.
//! Columns hold one number per response token or per item, in the order of the items. `Plan` checks them and
//! brings them into the order of a batch. Nothing here computes a loss.

use serde::{Deserialize, Serialize};

use super::divergence::{Divergence, Importance, Support};
use super::loss::{Reduction, Weight};
use super::policies::Policy;

/// One term of a weighted sum of objectives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Term {
    /// What the loss of the objective is multiplied with; finite.
    pub factor: f32,
    /// The objective.
    pub objective: Objective,
}

/// What is minimised.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Objective {
    /// −f(r)·A·log π, see `Weight`.
    PolicyGradient(PolicyGradient),
    /// Negative log-likelihood of the action tokens at the sample's temperature, sample-token-mean.
    Nll,
    /// Distance to a teacher, see `Distillation`.
    Distill(Distillation),
    /// On-policy distillation over the recorded alternatives, see `TopKDistillation`.
    DistillTopK(TopKDistillation),
}

/// A policy gradient with optional penalties: the token loss is
/// −f(r)·A·log π + coefficient·k3(π, π_reference) − entropy·H(π).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PolicyGradient {
    /// The factor f(r).
    pub weight: Weight,
    /// What π_old in the ratio r is.
    pub old: RatioSource,
    /// A: one per response token, concatenated in the order of the items; finite, and ignored where the mask is 0.
    pub advantages: Vec<f32>,
    /// How token losses become one number.
    pub reduction: Reduction,
    /// A penalty for the distance to another policy.
    pub kl: Option<KlPenalty>,
    /// Coefficient of the entropy bonus, finite; H is exact over the whole vocabulary, in nats, at the sample's
    /// temperature. 0 = off.
    pub entropy: f32,
    /// Adds A·Σ sg[q·f(p/q) − α·p]·log p over the recorded alternatives (arXiv 2609.20807), which every item then
    /// needs. Not with `Ppo`, which is no product with a factor, and not with recomputed ratios: q is what sampled.
    pub score_centering: bool,
}

/// What π_old is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RatioSource {
    /// The log-probs recorded when the tokens were sampled.
    Rollout,
    /// The log-probs of the adapter as it was when the trainer was opened.
    Recomputed,
}

/// Adds coefficient·k3 to every token's loss, see `k3`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct KlPenalty {
    /// Finite.
    pub coefficient: f32,
    /// Any but `Current`.
    pub reference: Policy,
}

/// Mean over the items of weight · the mean over the tokens that count of importance · D(teacher, π). The teacher reads
/// a prompt of its own and the same response ids, at the same temperature.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Distillation {
    /// Who teaches. `Current` needs prompts.
    pub teacher: Policy,
    /// Token ids of the prompt that the teacher reads, one per item; empty = the item's own.
    pub prompts: Vec<Vec<u32>>,
    /// D.
    pub divergence: Divergence,
    /// Over which ids.
    pub support: Support,
    /// Weights of off-policy tokens.
    pub importance: Importance,
    /// One finite factor per item; empty = 1.
    pub weights: Vec<f32>,
    /// Response tokens at the start of each item that do not count.
    pub skip: usize,
}

/// The clipped surrogate over the recorded alternatives with the teacher's log-ratio as advantage, sample-token-mean
/// (OpenClaw-RL, arXiv 2603.10165); see `top_k_surrogate`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TopKDistillation {
    /// Who teaches. `Current` needs prompts.
    pub teacher: Policy,
    /// As of `Distillation`.
    pub prompts: Vec<Vec<u32>>,
    /// Clamp of log π_teacher − log π_old, finite and above 0.
    pub advantage_max: f32,
    /// Ends of the clip of the ratio.
    pub bounds: (f32, f32),
}

impl PolicyGradient {
    /// Against the recorded log-probs, without penalties.
    pub fn new(weight: Weight, advantages: Vec<f32>, reduction: Reduction) -> Self {
        Self {
            weight,
            old: RatioSource::Rollout,
            advantages,
            reduction,
            kl: None,
            entropy: 0.0,
            score_centering: false,
        }
    }
}

impl From<Objective> for Term {
    fn from(objective: Objective) -> Self {
        Self { factor: 1.0, objective }
    }
}

impl From<PolicyGradient> for Term {
    fn from(gradient: PolicyGradient) -> Self {
        Objective::PolicyGradient(gradient).into()
    }
}
