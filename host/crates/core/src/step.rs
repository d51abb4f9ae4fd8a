//! Steps: one turn of the learner, and what each sandboxed call of it cost.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{ContentId, GateDecision, RecordId, ReleaseId, Surface};

/// How a step ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum StepOutcome {
    /// The batch is reserved; the step has not ended. A restart re-forms it.
    Running,
    /// The candidate was released.
    Released {
        /// The release.
        release: ReleaseId,
        /// Why.
        reason: String,
    },
    /// The candidate was refused by the recipe or by the gate; serving is untouched.
    Rejected {
        /// Why.
        reason: String,
    },
    /// The candidate waits for a person.
    Held {
        /// Why.
        reason: String,
    },
    /// The recipe consumed the batch without a candidate.
    Skipped {
        /// Why.
        reason: String,
    },
    /// A fault. The batch goes back to the pool.
    Failed {
        /// What happened.
        reason: String,
    },
}

/// What one call into a sandboxed recipe used.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CallReport {
    /// Exported function.
    pub function: String,
    /// Fuel consumed, by the verifiers that it asked too.
    pub fuel: u64,
    /// Processor time of the guest, from instantiating it to dropping it, microseconds.
    pub guest_us: u64,
    /// Time in training, model and other host calls that take long, microseconds.
    pub host_us: u64,
    /// Time from the start of the call to its end, waiting for a thread included, microseconds.
    #[serde(default)]
    pub wall_us: u64,
    /// Bytes that the guest handed to the host: arguments of host calls and the result.
    #[serde(default)]
    pub bytes_in: u64,
    /// Bytes that the host handed to the guest: arguments of the call and answers of host calls.
    #[serde(default)]
    pub bytes_out: u64,
    /// Peak of memories and tables together, bytes.
    pub memory_peak_bytes: u64,
    /// Host calls per capability.
    pub host_calls: BTreeMap<String, u32>,
    /// Bytes of log lines dropped over the budget.
    pub log_dropped_bytes: u64,
    /// The fault, if the call failed.
    pub fault: Option<String>,
}

/// One turn of the learner.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Number within the scenario, from 1.
    pub step: u32,
    /// The surface that the step changes; none in steps of earlier versions, which changed that of their parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub surface: Option<Surface>,
    /// Head of the surface that the step changes, when the batch was formed.
    pub parent: ReleaseId,
    /// Heads of the other surfaces when the batch was formed: what the step measures is measured beside them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub beside: BTreeMap<Surface, ReleaseId>,
    /// Reports that make the batch, in order.
    pub batch: Vec<RecordId>,
    /// `name@version#sha256:…` of the recipe.
    pub recipe: String,
    /// Seed.
    pub seed: u32,
    /// When it began, milliseconds since the Unix epoch.
    pub now_ms: i64,
    /// Numbers from the recipe, the trainer and the evaluation.
    pub metrics: BTreeMap<String, f64>,
    /// Sandboxed calls, in order.
    pub calls: Vec<CallReport>,
    /// W3C `traceparent` of the step's span.
    pub traceparent: Option<String>,
    /// Content of the candidate that the recipe proposed, whatever became of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidate: Option<ContentId>,
    /// What the operator's gate said of the candidate, with its numbers; none = it was not asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<GateDecision>,
    /// How it ended.
    #[serde(flatten)]
    pub outcome: StepOutcome,
}

impl Step {
    /// Why it ended as it did; none while it runs.
    pub fn outcome_reason(&self) -> Option<&str> {
        match &self.outcome {
            StepOutcome::Running => None,
            StepOutcome::Released { reason, .. }
            | StepOutcome::Rejected { reason }
            | StepOutcome::Held { reason }
            | StepOutcome::Skipped { reason }
            | StepOutcome::Failed { reason } => Some(reason),
        }
    }
}
