//! What is measured of the tokens of a batch on the way to its gradient.
//! The accumulation of gradients adds to it chunk by chunk; the sums stay tensors, so that nothing waits for a
//! device, until the call turns them into metrics. Workers' sums add up like their gradients.

use std::collections::BTreeMap;

use tch::{Device, Kind, Tensor, no_grad};

use super::plan::{Plan, Planned, PlannedGradient};
use crate::error::EngineError;

/// A sum over tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sum {
    /// Of the losses.
    Loss,
    /// Action tokens that a bound dropped, over all terms with bounds.
    Dropped,
    /// log π of the action tokens.
    Logp,
    /// |log π − recorded| of the action tokens.
    LogpDifference,
    /// The same of action tokens that the release itself sampled, and how many those are.
    OwnDifference,
    Own,
    /// log π_start − log π over the response tokens of the first micro-batch, and how many those are.
    Drift,
    Compared,
    /// k3, over all terms that have a penalty.
    Kl,
    Entropy,
    /// D, over all distances to a teacher, and the tokens that it was measured on.
    Divergence,
    Taught,
    /// Tokens that have a gradient.
    Effective,
}

pub(super) const SUMS: i64 = Sum::Effective as i64 + 1;

/// The sums of a batch, f64 [SUMS].
#[derive(Debug)]
pub(super) struct Tally {
    sums: Tensor,
}

impl Tally {
    /// Sums of nothing.
    pub fn new(device: Device) -> Result<Self, EngineError> {
        Ok(Self { sums: Tensor::f_zeros([SUMS], (Kind::Double, device))? })
    }

    /// Adds the sum of a tensor, whatever its kind and shape.
    pub fn add(&mut self, which: Sum, amounts: &Tensor) -> Result<(), EngineError> {
        no_grad(|| {
            let mut place = self.sums.f_select(0, which as i64)?;
            let _ = place.f_add_(&amounts.f_detach()?.f_sum(Kind::Double)?)?;
            Ok(())
        })
    }

    /// The tensor of the sums, to add those of other workers to.
    pub fn tensor(&self) -> Tensor {
        self.sums.shallow_clone()
    }

    /// The metrics of one call, see `Trainer::forward_backward`; `first`: the adapter has not moved yet.
    pub fn metrics(
        &self,
        plan: &Plan<'_>,
        gradient_norm: f64,
        first: bool,
    ) -> Result<BTreeMap<String, f64>, EngineError> {
        let sums = Vec::<f64>::try_from(&self.sums)?;
        let sum = |which: Sum| sums.get(which as usize).copied().unwrap_or_default();
        let count = |of: fn(&PlannedGradient) -> bool| plan.gradients().filter(|gradient| of(gradient)).count();
        let mean = |sum: f64, terms: usize| sum / (plan.tokens * terms).max(1) as f64;
        let mut metrics: BTreeMap<String, f64> = [
            ("loss", sum(Sum::Loss)),
            ("gradient_norm", gradient_norm),
            ("masked_share", mean(sum(Sum::Dropped), count(|gradient| gradient.bounded))),
            ("first_step_kl", sum(Sum::Drift) / sum(Sum::Compared).max(1.0)),
            ("logprob_abs_diff", mean(sum(Sum::LogpDifference), 1)),
            ("tokens", plan.tokens as f64),
            ("effective_tokens", sum(Sum::Effective)),
            ("entropy", mean(-sum(Sum::Logp), 1)),
            ("skipped", f64::from(u8::from(gradient_norm == 0.0))),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        let penalties = count(|gradient| gradient.kl.is_some());
        if penalties > 0 {
            metrics.insert("kl".to_owned(), mean(sum(Sum::Kl), penalties));
        }
        if count(|gradient| gradient.entropy != 0.0) > 0 {
            metrics.insert("entropy_exact".to_owned(), mean(sum(Sum::Entropy), 1));
        }
        if plan.terms.iter().any(|term| matches!(term.what, Planned::Distill(_))) {
            metrics.insert("divergence".to_owned(), sum(Sum::Divergence) / sum(Sum::Taught).max(1.0));
        }
        if first && sum(Sum::Own) > 0.0 {
            metrics.insert("own_logprob_abs_diff".to_owned(), sum(Sum::OwnDifference) / sum(Sum::Own));
        }
        Ok(metrics)
    }
}

impl Plan<'_> {
    /// The metrics of a call that had nothing to do.
    pub fn nothing(&self) -> Result<BTreeMap<String, f64>, EngineError> {
        Tally::new(Device::Cpu)?.metrics(self, 0.0, false)
    }
}
