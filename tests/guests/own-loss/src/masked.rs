//! The masked policy gradient, token by token and over a batch: the same definition that the host computes on its
//! tensors (DIS, arXiv 2607.07508). Pure functions in f64.

use reef_recipe::maths::exp;
use reef_recipe::prelude::*;

/// The strict bounds of the ratio.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Masked {
    /// Tokens count while the ratio is above this.
    pub low: f64,
    /// Tokens count while the ratio is below this.
    pub high: f64,
}

/// What one sample gives to the loss, T numbers each.
#[derive(Debug, Clone, Copy)]
pub struct Columns<'a> {
    /// 1 on action tokens.
    pub mask: &'a [u8],
    /// log π.
    pub current: &'a [f32],
    /// log π_rollout.
    pub rollout: &'a [f32],
    /// A.
    pub advantages: &'a [f32],
}

impl Masked {
    /// f(r)·A with f = r inside the bounds, else 0; r = exp(log π − log π_rollout).
    fn credit(self, current: f64, rollout: f64, advantage: f64) -> f64 {
        let ratio = exp(current - rollout);
        if self.low < ratio && ratio < self.high { ratio * advantage } else { 0.0 }
    }

    /// dL/d(log π) of a sample's tokens, f(r) held constant: −f(r)·A/(actions·samples) on action tokens, 0 on
    /// observations. Summed over `samples` samples, L is the mean over samples of their mean over action tokens.
    pub fn gradient(self, columns: Columns<'_>, samples: usize) -> Vec<f64> {
        let actions = columns.mask.iter().filter(|&&action| action != 0).count();
        let share = 1.0 / (actions * samples).max(1) as f64;
        self.credits(columns).into_iter().map(|credit| -credit * share).collect()
    }

    /// −f(r)·A·log π of a sample's tokens, before the reduction.
    pub fn losses(self, columns: Columns<'_>) -> Vec<f64> {
        let credits = self.credits(columns).into_iter();
        credits.zip(columns.current).map(|(credit, &current)| -credit * f64::from(current)).collect()
    }

    /// f(r)·A of every token; 0 on observations, whatever their columns hold.
    fn credits(self, columns: Columns<'_>) -> Vec<f64> {
        let tokens = columns.mask.iter().zip(columns.current).zip(columns.rollout).zip(columns.advantages);
        tokens
            .map(|(((&action, &current), &rollout), &advantage)| match action {
                0 => 0.0,
                _ => self.credit(current.into(), rollout.into(), advantage.into()),
            })
            .collect()
    }
}
