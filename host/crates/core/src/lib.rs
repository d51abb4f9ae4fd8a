//! The nouns of Reef, without I/O: names, records, samples, releases, steps and gates.
//! Every other crate speaks in these types; they are validated once, at the edge, and cannot be
//! wrong afterwards. Nothing here reads a file, a clock or a socket.
#![deny(missing_docs)]

mod evaluation;
mod gate;
mod hex;
mod instruction;
mod name;
mod record;
mod release;
mod rollout;
mod routing;
mod sample;
mod step;

pub use evaluation::{Grader, HeldOutTask, Message};
pub use gate::{
    ALPHA_MAX, ALPHA_MIN, Evidence, FAILED_SHARE_MAX, Gate, GateDecision, Interval, Measurement, Method, PAIRS_MAX,
    Progress, Recheck, Sequential, SequentialPlan, Tested, gate_decision, recheck, recheck_due,
};
pub use hex::{framed, hex, unframed, unhex};
pub use instruction::{INSTRUCTION_FIELD, INSTRUCTION_TEXT_BYTES_MAX, Instruction, InstructionError, REQUIRES_MAX};
pub use name::{ContentId, InvalidName, RecordId, ReleaseId, ScenarioName, Tag, TenantId, sha256_hex};
pub use record::{
    Alternatives, CALL_REASON_TAG, CALL_TAG, Inference, LIVE_REPORT_PREFIX, RecordStatus, ReleaseSpan, Report,
    ReportError, Sampling, TokenTrace,
};
pub use release::{
    DecidedBy, Release, ReleaseDecision, ReleaseEvaluation, ReleaseManifest, ReleaseOrigin, ReleaseVerdict, Surface,
};
pub use rollout::{
    Arm, ArmFigures, ArmScore, CanaryPlan, CanaryVerdict, Rollout, RolloutEnd, RolloutFigures, RolloutOutcome,
    RolloutPlan, Sticky,
};
pub use routing::{RouteCondition, RouteFacts, RoutingPolicy, RoutingRule};
pub use sample::{AssemblyError, Sample, Trajectory, Turn, TurnSpan, assemble, lag};
pub use step::{CallReport, Step, StepOutcome};
