//! The trainer: forward and backward passes on a private copy of the scenario's adapter.

use alloc::vec::Vec;

use crate::host::{self, Host};
use crate::{
    CriticOptimizer, Measurement, Objective, Optimizer, PerToken, Policy, PolicyGradient, Reduction, Result, Samples,
    Weight,
};

/// A trainer that started from the head release. Valid for this call.
#[derive(Debug, PartialEq, Eq)]
pub struct Trainer {
    handle: u32,
}

impl Trainer {
    /// Opens one: adapter, optimizer state and critic of the head release.
    pub fn open() -> Result<Self> {
        let handle = host::call(Host::open)?;
        Ok(Self { handle })
    }

    /// Log-probs of the recorded response tokens.
    pub fn forward(&self, which: Policy, samples: &Samples) -> Result<PerToken<f32>> {
        let column = host::call(|host| Host::forward(host, self.handle, which, samples.handles()))?;
        PerToken::new(column, &samples.response_lengths()?)
    }

    /// One optimizer step. Measures `loss`, `gradient_norm`, `masked_share`, `first_step_kl`,
    /// `logprob_abs_diff`, `tokens` and `entropy`.
    pub fn train(&self, samples: &Samples, what: impl Into<Objective>, how: Optimizer) -> Result<Measurements> {
        let what = what.into();
        host::call(|host| Host::train(host, self.handle, samples.handles(), &what, how)).map(Measurements)
    }

    /// The critic's values of the response tokens; 0 before its first fit.
    pub fn values(&self, samples: &Samples) -> Result<PerToken<f32>> {
        let column = host::call(|host| Host::values(host, self.handle, samples.handles()))?;
        PerToken::new(column, &samples.response_lengths()?)
    }

    /// Regresses the critic on returns. Measures `value_loss` and `explained_variance`.
    pub fn fit_values(&self, samples: &Samples, returns: &PerToken<f32>, how: CriticOptimizer) -> Result<Measurements> {
        host::call(|host| Host::fit_values(host, self.handle, samples.handles(), returns.values(), how))
            .map(Measurements)
    }

    /// Freezes the state as a candidate.
    pub fn checkpoint(&self) -> Result<Candidate> {
        host::call(|host| Host::checkpoint(host, self.handle)).map(Candidate)
    }
}

/// Trained weights that may become a release. Valid to the end of the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate(u32);

impl Candidate {
    /// The handle.
    pub fn handle(self) -> u32 {
        self.0
    }
}

impl From<u32> for Candidate {
    fn from(handle: u32) -> Self {
        Self(handle)
    }
}

/// What the host measured while it trained.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Measurements(Vec<Measurement>);

impl Measurements {
    /// The number of that name, if the host gave it.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.iter().find(|&(known, _)| known == name).map(|(_, value)| value)
    }

    /// Names and numbers.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|measurement| (measurement.name.as_str(), measurement.value))
    }
}

impl PolicyGradient {
    /// −f(r)·A·log π with one advantage per response token; mean over the action tokens of a sample, then
    /// over samples.
    pub fn new(weight: Weight, advantages: PerToken<f32>) -> Self {
        Self { weight, advantages: advantages.into_values(), reduction: Reduction::SampleTokenMean }
    }
}

impl From<PolicyGradient> for Objective {
    fn from(objective: PolicyGradient) -> Self {
        Self::PolicyGradient(objective)
    }
}

impl Optimizer {
    /// AdamW without weight decay: β 0.9 and 0.95, ε 1e-8, gradient norm clipped to 1.
    pub const fn adamw(learning_rate: f64) -> Self {
        Self { learning_rate, beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.0, gradient_norm_max: 1.0 }
    }
}
