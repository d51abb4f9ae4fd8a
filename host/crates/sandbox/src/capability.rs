//! Capabilities: the interfaces a recipe may import, and what an operator grants.
//! Which of them a version of the interface has is known to its generation, not here.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

/// One interface of the host that a recipe may be granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Capability {
    /// Columns of the samples of a call.
    Experience,
    /// Forward and backward passes on a private copy of the adapter.
    Training,
    /// Model calls and held-out scores.
    Models,
    /// The tree of the agent's harness, and episodes that try it.
    Harness,
    /// Verifiers that the operator installed.
    Verify,
    /// The tokenizer and the chat template.
    Tokens,
    /// Key-value state of (tenant, scenario, recipe).
    State,
    /// The recipe's configuration.
    Config,
    /// Log lines.
    Log,
    /// Named numbers stored with the step.
    Metrics,
    /// The export `transform-request`, which changes what users send: granted by name only.
    Requests,
}

impl Capability {
    /// Every capability.
    pub const ALL: [Self; 11] = [
        Self::Experience,
        Self::Training,
        Self::Models,
        Self::Harness,
        Self::Verify,
        Self::Tokens,
        Self::State,
        Self::Config,
        Self::Log,
        Self::Metrics,
        Self::Requests,
    ];

    /// Name in WIT, in the manifest and in the configuration.
    pub fn as_str(self) -> &'static str {
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
            Self::Requests => "requests",
        }
    }

    /// The capability of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|capability| capability.as_str() == name)
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Capabilities that the operator allows a recipe.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Grants(pub BTreeSet<Capability>);

impl Grants {
    /// Everything, except `requests`: changing what users send is granted by name.
    pub fn all() -> Self {
        Capability::ALL.into_iter().filter(|capability| *capability != Capability::Requests).collect()
    }

    /// Nothing.
    pub fn none() -> Self {
        Self::default()
    }

    /// Is it granted?
    pub fn contains(&self, capability: Capability) -> bool {
        self.0.contains(&capability)
    }
}

impl FromIterator<Capability> for Grants {
    fn from_iter<I: IntoIterator<Item = Capability>>(capabilities: I) -> Self {
        Self(capabilities.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_capability_is_found_by_its_name() {
        for capability in Capability::ALL {
            assert_eq!(Capability::parse(capability.as_str()), Some(capability));
            assert_eq!(serde_json::to_value(capability).expect("json"), capability.as_str());
        }
        assert_eq!(Capability::parse("network"), None);
        assert!(Grants::all().contains(Capability::Models) && !Grants::none().contains(Capability::Log));
    }

    #[test]
    fn changing_requests_is_granted_by_name_only() {
        let all = Grants::all();
        assert!(!all.contains(Capability::Requests) && all.contains(Capability::Harness));
        assert!(all.contains(Capability::Verify) && all.contains(Capability::Tokens));
        let named: Grants = serde_json::from_str(r#"["requests"]"#).expect("known");
        assert!(named.contains(Capability::Requests));
    }
}
