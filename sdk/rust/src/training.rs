//! The trainer: forward and backward passes on a private copy of the scenario's adapter.

use alloc::format;
use alloc::vec::Vec;

use crate::host::{self, Host};
use crate::{
    CriticOptimizer, Loss, Measurement, Optimizer, PerToken, Policy, Proposal, Result, Sample, Samples, metrics,
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

    /// A sample with another prompt, another response or both, as token ids; `None` keeps the sample's own. A new
    /// response is all action tokens and has no recorded log-probs: [`Trainer::forward`] and `nll` make sense on
    /// it, other losses do not. Valid for this call.
    pub fn derive(sample: Sample, prompt: Option<&[u32]>, response: Option<&[u32]>) -> Result<Sample> {
        host::call(|host| Host::derive(host, sample, prompt, response))
    }

    /// Log-probs of the response tokens.
    pub fn forward(&self, which: Policy, samples: &Samples) -> Result<PerToken<f32>> {
        let column = host::call(|host| Host::forward(host, self.handle, &which, samples.handles()))?;
        PerToken::new(column, &samples.response_lengths()?)
    }

    /// One optimizer step on a loss, or on a weighted sum of several. Measures `loss`, `gradient_norm`,
    /// `masked_share`, `first_step_kl`, `logprob_abs_diff`, `tokens`, `entropy` and `skipped`.
    pub fn train(&self, samples: &Samples, what: impl Into<Loss>, how: Optimizer) -> Result<Measurements> {
        let what = what.into();
        host::call(|host| Host::train(host, self.handle, samples.handles(), what.terms(), how)).map(Measurements)
    }

    /// One optimizer step on a loss and what comes of it: the checkpoint, or a skip when the gradient was exactly 0;
    /// then only the critic of the checkpoint stays. Publishes the measurements; the recipe asks for
    /// [`crate::Capability::Metrics`].
    pub fn learn(&self, samples: &Samples, what: impl Into<Loss>, how: Optimizer) -> Result<Proposal> {
        let measured = self.train(samples, what, how)?;
        measured.publish();
        let checkpoint = self.checkpoint()?;
        Ok(match measured.get("skipped") {
            Some(1.0) => Proposal::skip("the gradient of the batch is zero: nothing to learn from"),
            _ => checkpoint.into(),
        })
    }

    /// Adds the gradient of a loss to the trainer's, without a step. Measures as [`Trainer::train`].
    pub fn forward_backward(&self, samples: &Samples, what: impl Into<Loss>) -> Result<Measurements> {
        let what = what.into();
        host::call(|host| Host::forward_backward(host, self.handle, samples.handles(), what.terms())).map(Measurements)
    }

    /// Adds the gradient of a loss of the recipe's own: dL/d(log π) of every response token, used as given, on
    /// observations too. Measures `tokens` and `gradient_norm` of the trainer's gradient so far.
    pub fn backward(&self, samples: &Samples, gradients: &PerToken<f32>) -> Result<Measurements> {
        host::call(|host| Host::backward(host, self.handle, samples.handles(), gradients.values())).map(Measurements)
    }

    /// One step on the trainer's gradient, which is then 0. Measures `gradient_norm` before clipping and
    /// `skipped`: 1 when the gradient was exactly 0, and nothing changed.
    pub fn optimizer_step(&self, how: Optimizer) -> Result<Measurements> {
        host::call(|host| Host::optimizer_step(host, self.handle, how)).map(Measurements)
    }

    /// Moves the moving average, [`Policy::Ema`], towards the adapter: ema ← (1 − rate)·ema + rate·adapter.
    pub fn update_ema(&self, rate: f64) -> Result<()> {
        host::call(|host| Host::update_ema(host, self.handle, rate))
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

    /// Gauges under the field's names: `pg_clipfrac` (share of tokens masked by the ratio's bounds),
    /// `train_rollout_logprob_abs_diff`, and `policy/…` for the others.
    pub fn publish(&self) {
        for (name, value) in self.iter() {
            match name {
                "masked_share" => metrics::gauge("pg_clipfrac", value),
                "logprob_abs_diff" => metrics::gauge("train_rollout_logprob_abs_diff", value),
                other => metrics::gauge(&format!("policy/{other}"), value),
            }
        }
    }

    /// Names and numbers.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|measurement| (measurement.name.as_str(), measurement.value))
    }
}

impl Optimizer {
    /// AdamW without weight decay: β 0.9 and 0.95, ε 1e-8, gradient norm clipped to 1.
    pub const fn adamw(learning_rate: f64) -> Self {
        Self { learning_rate, beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.0, gradient_norm_max: 1.0 }
    }
}
