//! The nouns of Reef, without I/O: names, records, samples, releases, steps and gates.
//! Every other crate speaks in these types; they are validated once, at the edge, and cannot be
//! wrong afterwards. Nothing here reads a file, a clock or a socket.
#![deny(missing_docs)]

mod evaluation;
mod name;
mod record;
mod release;
mod sample;
mod step;

pub use evaluation::{Gate, GateDecision, Grader, HeldOutTask, Message, gate_decision};
pub use name::{ContentId, InvalidName, RecordId, ReleaseId, ScenarioName, Tag, TenantId, sha256_hex};
pub use record::{
    CALL_TAG, Inference, LIVE_REPORT_PREFIX, MAIN_CALL, RecordStatus, ReleaseSpan, Report, ReportError, Sampling,
    TokenTrace,
};
pub use release::{Release, ReleaseManifest, ReleaseOrigin, Surface};
pub use sample::{AssemblyError, Sample, Trajectory, Turn, TurnSpan, assemble, lag};
pub use step::{CallReport, Step, StepOutcome};
