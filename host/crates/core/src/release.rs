//! Releases: immutable, named by commit and content, chained by parent.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{ContentId, RecordId, ReleaseId, ScenarioName, TenantId};

/// What a release changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Surface {
    /// Model weights (a LoRA adapter).
    Weights,
    /// The agent's prompts, rules, skills and tools.
    Harness,
    /// The routing policy.
    Router,
}

impl Surface {
    /// Every surface.
    pub const ALL: [Self; 3] = [Self::Weights, Self::Harness, Self::Router];

    /// Its name, as in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::Harness => "harness",
            Self::Router => "router",
        }
    }
}

/// Why a release exists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum ReleaseOrigin {
    /// The start of a scenario: the named base without any update.
    Base,
    /// A training step.
    Step {
        /// Its number.
        step: u32,
    },
    /// A return to the content of an earlier release.
    Rollback {
        /// That release.
        to: ReleaseId,
    },
    /// A candidate that a person promoted.
    Promotion {
        /// The step that made it.
        step: u32,
    },
    /// A change of the harness that was admitted and waits for a person.
    Proposal {
        /// The proposal.
        id: RecordId,
    },
    /// A proposal that a person promoted.
    Acceptance {
        /// The release that waited.
        of: ReleaseId,
    },
}

impl ReleaseOrigin {
    /// The step that made the content, if a step did.
    pub fn step(&self) -> Option<u32> {
        match self {
            Self::Step { step } | Self::Promotion { step } => Some(*step),
            Self::Base | Self::Rollback { .. } | Self::Proposal { .. } | Self::Acceptance { .. } => None,
        }
    }
}

/// How a candidate did on held-out tasks, and how what served did on the same ones.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReleaseEvaluation {
    /// SHA-256 of the tasks as JSON.
    pub tasks: String,
    /// Tasks that both answered.
    pub compared: u32,
    /// Mean score of the candidate in [0, 1]; none without such tasks.
    pub candidate: Option<f64>,
    /// Mean score of what served.
    pub incumbent: Option<f64>,
    /// The weights that answered while a harness was measured; either may be rolled back alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<ReleaseId>,
}

/// What was decided about a candidate when its release was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReleaseVerdict {
    /// It serves.
    Promoted,
    /// It waits for a person; what the person decides is a release of its own, or a rejection in the database.
    Held,
}

/// Who decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum DecidedBy {
    /// The server, which starts every scenario from its base.
    Host,
    /// The recipe.
    Recipe,
    /// The operator's gate, after the recipe; the reason says by which rule.
    Gate,
    /// A person with the right to administer the scenario.
    Person {
        /// Name of the person's token, if it has one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
}

/// A decision, who made it and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseDecision {
    /// What was decided.
    pub verdict: ReleaseVerdict,
    /// Who decided.
    pub by: DecidedBy,
    /// Why, in words.
    pub reason: String,
}

/// What is written beside the files of a release; hashed into its identity. Fields that older releases lack are left
/// out of the JSON when they are empty, so that an older manifest is written again byte for byte.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReleaseManifest {
    /// Owner.
    pub tenant: TenantId,
    /// Scenario.
    pub scenario: ScenarioName,
    /// Surface.
    pub surface: Surface,
    /// Position in the chain, from 0.
    pub sequence: u32,
    /// Previous release.
    pub parent: Option<ReleaseId>,
    /// Why it exists.
    pub origin: ReleaseOrigin,
    /// SHA-256 of the base model file.
    pub base_model: String,
    /// Digest and version of the recipe, if a recipe made it.
    pub recipe: Option<String>,
    /// Seed of the step.
    pub seed: Option<u32>,
    /// SHA-256 over the ordered record ids it was trained on.
    pub records: Option<String>,
    /// Numbers of the step and its evaluation.
    pub metrics: BTreeMap<String, f64>,
    /// What was measured before it was decided upon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<ReleaseEvaluation>,
    /// The decision, and who made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<ReleaseDecision>,
    /// Milliseconds since the Unix epoch.
    pub created_at_ms: i64,
}

/// A release as it is listed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Release {
    /// Commit.
    pub release_id: ReleaseId,
    /// Hash of the manifest of file hashes.
    pub content_id: ContentId,
    /// What is written in the commit.
    #[serde(flatten)]
    pub manifest: ReleaseManifest,
}
