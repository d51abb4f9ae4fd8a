//! Double-sided importance sampling (arXiv 2607.07508): the loss of the policy, token by token.
//! The host computes it on its tensors; [`Dis::token`] is the definition that the host is held to.

use crate::maths::exp;
use crate::{Bounds, Weight};

/// The strict bounds of the ratio.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dis {
    low: f64,
    high: f64,
}

/// One token under the loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenLoss {
    /// r = exp(log π − log π_rollout).
    pub ratio: f64,
    /// Does the token count?
    pub kept: bool,
    /// −f(r)·A·log π.
    pub loss: f64,
    /// The derivative by log π, f(r) held constant: −f(r)·A.
    pub gradient: f64,
}

impl Dis {
    /// Keeps ratios strictly between 1 − ε_l and 1 + ε_h.
    pub fn new(eps_low: f64, eps_high: f64) -> Self {
        Self { low: 1.0 - eps_low, high: 1.0 + eps_high }
    }

    /// What the host is asked to compute.
    pub fn weight(self) -> Weight {
        Weight::Masked(Bounds { low: self.low as f32, high: self.high as f32 })
    }

    /// The loss of one token: f(r) = r inside the bounds, else 0. No minimum, no entropy, no KL.
    pub fn token(self, logprob: f64, rollout_logprob: f64, advantage: f64) -> TokenLoss {
        let ratio = exp(logprob - rollout_logprob);
        let kept = self.low < ratio && ratio < self.high;
        let gradient = if kept { -ratio * advantage } else { 0.0 };
        TokenLoss { ratio, kept, loss: gradient * logprob, gradient }
    }
}
