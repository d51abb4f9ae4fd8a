//! Instructions: what a person asks of the agent's harness, in words, kept like any other record.
//! Proposals answer them; what a client must have for the change is said in the same breath.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{LIVE_REPORT_PREFIX, RecordId, ReleaseId};

/// The field of reports in which recipes of the harness read what a person asks for.
pub const INSTRUCTION_FIELD: &str = "instruction";
/// Bytes of the text.
pub const INSTRUCTION_TEXT_BYTES_MAX: usize = 64 << 10;
/// Bytes of the name of a session.
const SESSION_BYTES_MAX: usize = 512;
/// Requirements of one instruction.
pub const REQUIRES_MAX: usize = 32;

/// What a person asks of the harness.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instruction {
    /// Given by the client, or fresh.
    pub id: RecordId,
    /// Milliseconds since the Unix epoch.
    pub created_at_ms: i64,
    /// The request in words.
    pub text: String,
    /// The session that it is about.
    pub session: Option<String>,
    /// The harness release that the person used.
    pub release: Option<ReleaseId>,
    /// What a client must have for the change: kind, name and reason, as the harness crate reads them.
    pub requires: Vec<Value>,
    /// W3C `traceparent` of the request.
    pub traceparent: Option<String>,
}

/// Why the body of an instruction is refused; names the field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("instruction field '{field}' {problem}")]
pub struct InstructionError {
    /// The field.
    pub field: String,
    /// What is wrong with it.
    pub problem: String,
}

impl Instruction {
    /// Reads the body of an instruction. Null means absent; unknown fields are refused by name.
    pub fn from_body(body: &Map<String, Value>, now_ms: i64) -> Result<Self, InstructionError> {
        const KNOWN: [&str; 5] = ["text", "session", "release_id", "requires", "agent_record_id"];
        if let Some(field) = body.keys().find(|key| !KNOWN.contains(&key.as_str())) {
            let told = "is not known; use text, session, release_id, requires or agent_record_id";
            return Err(problem(field, told.to_owned()));
        }
        let id = match text(body, "agent_record_id", usize::MAX)? {
            Some(id) => {
                RecordId::parse(id).map_err(|error| problem("agent_record_id", format!("is refused: {error}")))?
            }
            None => RecordId::fresh(),
        };
        if id.as_str().starts_with(LIVE_REPORT_PREFIX) {
            let told = format!("starts with '{LIVE_REPORT_PREFIX}', which is the server's own; use another id");
            return Err(problem("agent_record_id", told));
        }
        let asked = text(body, "text", INSTRUCTION_TEXT_BYTES_MAX)?.filter(|asked| !asked.trim().is_empty());
        let release = text(body, "release_id", usize::MAX)?.map(ReleaseId::parse).transpose();
        Ok(Self {
            id,
            created_at_ms: now_ms,
            text: asked.ok_or_else(|| problem("text", "is missing; say what to change".to_owned()))?,
            session: text(body, "session", SESSION_BYTES_MAX)?,
            release: release.map_err(|error| problem("release_id", format!("is refused: {error}")))?,
            requires: requires(body)?,
            traceparent: None,
        })
    }

    /// The parts that make two instructions the same: everything but the time and the trace.
    pub fn same_content(&self, other: &Self) -> bool {
        self.id == other.id
            && self.text == other.text
            && self.session == other.session
            && self.release == other.release
            && self.requires == other.requires
    }
}

fn problem(field: &str, problem: String) -> InstructionError {
    InstructionError { field: field.chars().take(64).collect(), problem }
}

fn text(body: &Map<String, Value>, field: &str, bytes_max: usize) -> Result<Option<String>, InstructionError> {
    match body.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.len() <= bytes_max => Ok(Some(text.clone())),
        Some(Value::String(text)) => Err(problem(field, format!("has {} bytes; the limit is {bytes_max}", text.len()))),
        Some(_) => Err(problem(field, "must be a text".to_owned())),
    }
}

fn requires(body: &Map<String, Value>) -> Result<Vec<Value>, InstructionError> {
    match body.get("requires") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(list)) if list.len() <= REQUIRES_MAX => Ok(list.clone()),
        Some(Value::Array(list)) => {
            Err(problem("requires", format!("lists {}; the limit is {REQUIRES_MAX}", list.len())))
        }
        Some(_) => Err(problem("requires", "must be a list of {kind, name, reason}".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: Value) -> Result<Instruction, InstructionError> {
        Instruction::from_body(body.as_object().expect("an object"), 7)
    }

    #[test]
    fn a_whole_instruction_is_read_and_kept() {
        let release = "a".repeat(40);
        let body = json!({ "text": "be brief", "session": "s-1", "release_id": release, "agent_record_id": "i-1",
            "requires": [{ "kind": "env", "name": "KEY" }] });
        let instruction = read(body.clone()).expect("read");
        assert_eq!((instruction.text.as_str(), instruction.created_at_ms), ("be brief", 7));
        let again = Instruction::from_body(body.as_object().expect("an object"), 8).expect("read");
        assert!(instruction.same_content(&again) && instruction != again);
        let kept: Instruction = serde_json::from_value(json!(instruction)).expect("read back");
        assert_eq!(kept, instruction);
    }

    #[test]
    fn a_bad_field_is_named() {
        for (body, field) in [
            (json!({}), "text"),
            (json!({ "text": " \n" }), "text"),
            (json!({ "text": 7 }), "text"),
            (json!({ "text": "x".repeat(INSTRUCTION_TEXT_BYTES_MAX + 1) }), "text"),
            (json!({ "text": "x", "session": "s".repeat(513) }), "session"),
            (json!({ "text": "x", "release_id": "short" }), "release_id"),
            (json!({ "text": "x", "requires": {} }), "requires"),
            (json!({ "text": "x", "requires": vec![1; REQUIRES_MAX + 1] }), "requires"),
            (json!({ "text": "x", "agent_record_id": "a b" }), "agent_record_id"),
            (json!({ "text": "x", "agent_record_id": "live-1" }), "agent_record_id"),
            (json!({ "text": "x", "txt": 1 }), "txt"),
        ] {
            assert_eq!(read(body.clone()).expect_err("refused").field, field, "{body}");
        }
    }
}
