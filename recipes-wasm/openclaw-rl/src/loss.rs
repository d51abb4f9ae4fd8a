//! The two losses (arXiv 2603.10165), token by token. The host computes them on its tensors; these are the definitions
//! that it is held to. Pure functions in f64.

use reef_recipe::maths::exp;
use reef_recipe::prelude::*;

/// K: alternatives per token that the sampler records.
pub const ALTERNATIVES: u32 = 4;
/// Clamp of a log-ratio.
const LOG_RATIO_MAX: f64 = 20.0;

/// The clipped surrogate: max(−ρA, −clip(ρ, low, high)·A).
pub fn ppo(ratio: f64, advantage: f64, (low, high): (f64, f64)) -> f64 {
    (-ratio * advantage).max(-ratio.clamp(low, high) * advantage)
}

/// One token of the distillation over its recorded alternatives S.
#[derive(Debug, Clone, PartialEq)]
pub struct Distilled {
    /// w_v: softmax of ℓ_old over S.
    pub weights: Vec<f64>,
    /// A_v = clamp(ℓ_T(v) − ℓ_old(v), ±advantage_max)·w_v.
    pub advantages: Vec<f64>,
    /// Σ_v of the clipped surrogate with ρ_v = exp(clamp(ℓ(v) − ℓ_old(v), ±20)).
    pub loss: f64,
}

/// Distils one token. `now`, `old`, `teacher`: log-probs of the alternatives under the policy, the policy before the
/// step, and the teacher, which reads the hint.
pub fn distill(now: &[f64], old: &[f64], teacher: &[f64], advantage_max: f64, bounds: (f64, f64)) -> Distilled {
    let most = old.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let unnormalised: Vec<f64> = old.iter().map(|logprob| exp(logprob - most)).collect();
    let sum: f64 = unnormalised.iter().sum();
    let weights: Vec<f64> = unnormalised.iter().map(|weight| weight / sum).collect();
    let gaps = teacher.iter().zip(old).map(|(teacher, old)| (teacher - old).clamp(-advantage_max, advantage_max));
    let advantages: Vec<f64> = gaps.zip(&weights).map(|(gap, weight)| gap * weight).collect();
    let ratios = now.iter().zip(old).map(|(now, old)| exp((now - old).clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX)));
    let loss = ratios.zip(&advantages).map(|(ratio, &advantage)| ppo(ratio, advantage, bounds)).sum();
    Distilled { weights, advantages, loss }
}
