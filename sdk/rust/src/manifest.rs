//! Building a manifest: what a recipe says of itself before it is given anything.

use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use crate::{ConfigKey, Manifest, ReportField, Surface};

/// An interface of the host that a recipe may ask for. Called without having been asked for, it is refused
/// before any code of the recipe runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capability {
    /// Columns of the samples.
    Experience,
    /// Forward and backward passes.
    Training,
    /// Model calls and held-out tasks.
    Models,
    /// The harness tree and its episodes.
    Harness,
    /// The operator's verifiers.
    Verify,
    /// The tokenizer and the chat template.
    Tokens,
    /// Values that survive the call.
    State,
    /// Configuration; [`Manifest::key`] asks for it.
    Config,
    /// Log lines; every recipe asks for it, since a panic is logged.
    Log,
    /// Gauges.
    Metrics,
}

impl Capability {
    /// The name of the interface.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Experience => "experience",
            Self::Training => "training",
            Self::Models => "models",
            Self::Harness => "harness",
            Self::Verify => "verify",
            Self::Tokens => "tokens",
            Self::State => "state",
            Self::Config => "config",
            Self::Log => "log",
            Self::Metrics => "metrics",
        }
    }
}

impl Manifest {
    /// A recipe that evolves weights and asks for nothing but [`Capability::Log`]. `version` is semantic.
    pub fn weights(name: &str, version: &str) -> Self {
        Self::of(Surface::Weights, name, version)
    }

    /// A recipe that evolves the harness tree.
    pub fn harness(name: &str, version: &str) -> Self {
        Self::of(Surface::Harness, name, version)
    }

    /// A recipe that evolves the routing policy.
    pub fn router(name: &str, version: &str) -> Self {
        Self::of(Surface::Router, name, version)
    }

    fn of(surface: Surface, name: &str, version: &str) -> Self {
        Self {
            name: name.to_string(),
            version: version.to_string(),
            surface,
            needs_score: false,
            report_fields: Vec::new(),
            config: Vec::new(),
            capabilities: vec![Capability::Log.name().to_string()],
            top_k: 0,
            re_evaluate_every: 0,
        }
    }

    /// Reports without a finite score are of no use to this recipe.
    #[must_use]
    pub fn needs_score(mut self) -> Self {
        self.needs_score = true;
        self
    }

    /// Asks for capabilities of the host.
    #[must_use]
    pub fn asks(mut self, capabilities: &[Capability]) -> Self {
        for capability in capabilities {
            let name: String = capability.name().to_string();
            if !self.capabilities.contains(&name) {
                self.capabilities.push(name);
            }
        }
        self
    }

    /// Declares a configuration key, and asks for [`Capability::Config`].
    #[must_use]
    pub fn key(mut self, key: impl Into<ConfigKey>) -> Self {
        self.config.push(key.into());
        self.asks(&[Capability::Config])
    }

    /// Declares a field of the `metadata` of a report.
    #[must_use]
    pub fn field(mut self, field: impl Into<ReportField>) -> Self {
        self.report_fields.push(field.into());
        self
    }

    /// The sampler must record this many alternatives per token.
    #[must_use]
    pub fn top_k(mut self, alternatives: u32) -> Self {
        self.top_k = alternatives;
        self
    }

    /// An evaluation of the head is worth repeating after this many releases.
    #[must_use]
    pub fn re_evaluate_every(mut self, releases: u32) -> Self {
        self.re_evaluate_every = releases;
        self
    }
}
