//! The messages of a body become turns.
//! A text and a list of one text part are the same; an assistant message that says nothing is left out. Fields that
//! change nothing in the prompt are tolerated, all others are refused with their path.

use serde_json::{Map, Value};

use super::reasoning::reasoning;
use crate::ask::{Part, Refusal, Role, Turn};
use crate::fields::{present, text};
use crate::items::{named, object, only, required};

const MESSAGES_MAX: usize = 4096;
const MESSAGE_FIELDS: [&str; 17] = [
    "role",
    "content",
    "tool_calls",
    "tool_call_id",
    "reasoning_content",
    "reasoning",
    "reasoning_details",
    "refusal",
    "name",
    "annotations",
    "cache_control",
    "encrypted_content",
    "id",
    "index",
    "status",
    "type",
    // Added by the parsing helpers of OpenAI's clients.
    "parsed",
];
const PART_FIELDS: [&str; 8] =
    ["type", "text", "refusal", "annotations", "cache_control", "prompt_cache_breakpoint", "id", "index"];
const CALL_FIELDS: [&str; 7] = ["id", "type", "function", "index", "status", "cache_control", "extra_content"];

/// Reads `messages`.
pub(super) fn turns(body: &Map<String, Value>) -> Result<Vec<Turn>, Refusal> {
    let list = match present(body, "messages") {
        Some(Value::Array(list)) if !list.is_empty() => list,
        _ => return Err(Refusal::new("messages", "messages must be a list with at least one message")),
    };
    if list.len() > MESSAGES_MAX {
        return Err(Refusal::new("messages", format!("messages holds more than {MESSAGES_MAX} messages")));
    }
    let mut turns = Vec::with_capacity(list.len());
    for (index, item) in list.iter().enumerate() {
        let turn = turn(item, &format!("messages[{index}]"))?;
        if turn.role != Role::Assistant || !turn.parts.is_empty() {
            turns.push(turn);
        }
    }
    if turns.is_empty() {
        return Err(Refusal::new("messages", "messages holds no text"));
    }
    Ok(turns)
}

fn turn(value: &Value, at: &str) -> Result<Turn, Refusal> {
    let fields = object(value, at)?;
    let refuse = |field: &str, reason: &str| {
        let path = format!("{at}.{field}");
        Refusal::new(path.as_str(), format!("{path} {reason}"))
    };
    let role = match present(fields, "role").and_then(Value::as_str) {
        Some("system" | "developer") => Role::System,
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some("tool") => Role::Tool,
        _ => return Err(refuse("role", "must be system, developer, user, assistant or tool")),
    };
    only(fields, &MESSAGE_FIELDS, at)?;
    let content = content(fields, at)?;
    let calls = calls(fields, at)?;
    if role != Role::Assistant && !calls.is_empty() {
        return Err(refuse("tool_calls", "may stand only in a message of the assistant"));
    }
    let parts = match role {
        Role::Assistant => {
            let thoughts = reasoning(fields).map_err(|field| refuse(field, "has a wrong type"))?;
            let thoughts = thoughts.into_iter().map(|(text, signature)| Part::Reasoning { text, signature });
            thoughts.chain(said(fields, content, at)?).chain(calls).collect()
        }
        Role::Tool => {
            let text = joined(&content).ok_or_else(|| refuse("content", "must be text in a message of a tool"))?;
            let id = named(fields, "tool_call_id", at)?;
            vec![Part::Result { id, text, failed: false }]
        }
        Role::System | Role::User => content,
    };
    Ok(Turn { role, parts })
}

fn text_at(fields: &Map<String, Value>, field: &str, at: &str) -> Result<Option<String>, Refusal> {
    text(fields, field).map_err(|refusal| refusal.under(at))
}

/// What the assistant said instead of an answer is still what it said.
fn said(fields: &Map<String, Value>, content: Vec<Part>, at: &str) -> Result<Vec<Part>, Refusal> {
    if !content.is_empty() {
        return Ok(content);
    }
    let refusal = text_at(fields, "refusal", at)?.filter(|text| !text.is_empty());
    Ok(refusal.map(Part::Text).into_iter().collect())
}

/// The texts as one; `None` if something else is among them.
fn joined(parts: &[Part]) -> Option<String> {
    let texts = parts.iter().map(|part| match part {
        Part::Text(text) => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

fn content(fields: &Map<String, Value>, at: &str) -> Result<Vec<Part>, Refusal> {
    let at = format!("{at}.content");
    match present(fields, "content") {
        None => Ok(Vec::new()),
        Some(Value::String(text)) if text.is_empty() => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![Part::Text(text.clone())]),
        Some(Value::Array(list)) => {
            let parts = list.iter().enumerate().map(|(index, item)| content_part(item, &format!("{at}[{index}]")));
            parts.filter_map(Result::transpose).collect()
        }
        Some(_) => Err(Refusal::new(at.as_str(), format!("{at} must be text, a list of parts or null"))),
    }
}

fn content_part(value: &Value, at: &str) -> Result<Option<Part>, Refusal> {
    let fields = object(value, at)?;
    let kind = required(fields, "type", at)?;
    if kind != "text" && kind != "refusal" {
        return Ok(Some(Part::Other { kind, value: value.clone() }));
    }
    only(fields, &PART_FIELDS, at)?;
    let said = required(fields, &kind, at)?;
    Ok((!said.is_empty()).then_some(Part::Text(said)))
}

fn calls(fields: &Map<String, Value>, at: &str) -> Result<Vec<Part>, Refusal> {
    let at = format!("{at}.tool_calls");
    match present(fields, "tool_calls") {
        None => Ok(Vec::new()),
        Some(Value::Array(list)) => {
            list.iter().enumerate().map(|(index, item)| call(item, &format!("{at}[{index}]"))).collect()
        }
        Some(_) => Err(Refusal::new(at.as_str(), format!("{at} must be a list"))),
    }
}

fn call(value: &Value, at: &str) -> Result<Part, Refusal> {
    let fields = object(value, at)?;
    if let Some(kind) = text_at(fields, "type", at)?.filter(|kind| kind != "function") {
        return Ok(Part::Other { kind, value: value.clone() });
    }
    only(fields, &CALL_FIELDS, at)?;
    let id = named(fields, "id", at)?;
    let at = format!("{at}.function");
    let function = object(fields.get("function").unwrap_or(&Value::Null), &at)?;
    only(function, &["name", "arguments", "parsed_arguments"], &at)?;
    let arguments = text_at(function, "arguments", &at)?.unwrap_or_default();
    Ok(Part::Call { id, name: named(function, "name", &at)?, arguments })
}
