//! What happens to an exchange between the wire and the log: secrets are taken out of it, and it is told which session
//! it belongs to and whether it is the conversation itself or a call beside it (a title, a compaction, a sub-agent).
//! The host calls these functions before anything is stored. They are pure but for the index of sessions, which is
//! memory of bounded size; nothing here reads a clock, a file or a socket, and no request is ever refused here.
#![deny(missing_docs)]

mod call;
mod redact;
mod request;
mod session;

pub use call::{CALL_HEADERS, Call, CallKind, KIND_TAG, call_of};
pub use redact::{ConfigError, Counts, Found, OperatorPattern, REDACTED_TAG, RedactionConfig, Redactor, text_bytes};
pub use session::{
    Answer, IndexLimits, Placed, SESSION_HEADERS, SessionIndex, SessionSource, Transcript, named_session,
};
