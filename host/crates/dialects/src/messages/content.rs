//! The conversation of a messages body becomes turns.
//! Results of calls, which stand in user messages, become turns of their own, one each; what follows a result in its
//! turn and is no text belongs to it.

use serde_json::{Map, Value};

use super::{REDACTED, arguments};
use crate::ask::{Part, Refusal, Role, Turn};
use crate::fields::{flag, present, shown, text};
use crate::items::{list, named, object, only, required};

const MESSAGES_MAX: usize = 4096;

/// What a content block is.
enum Block {
    Part(Part),
    /// Of a call, with what belongs to it.
    Result(Vec<Part>),
}

/// `system` and `messages`.
pub(super) fn turns(body: &Map<String, Value>) -> Result<Vec<Turn>, Refusal> {
    let mut turns = Vec::new();
    let system = texts(body.get("system"), "system")?;
    if !system.is_empty() {
        turns.push(Turn { role: Role::System, parts: system });
    }
    for (index, item) in list(body, "messages", MESSAGES_MAX)?.iter().enumerate() {
        message(item, &format!("messages[{index}]"), &mut turns)?;
    }
    // A user may say nothing, as in the other dialects.
    if turns.iter().all(|turn| turn.parts.is_empty() && turn.role != Role::User) {
        return Err(Refusal::new("messages", "messages holds no text; send at least one message that says something"));
    }
    Ok(turns)
}

fn message(item: &Value, at: &str, turns: &mut Vec<Turn>) -> Result<(), Refusal> {
    let fields = object(item, at)?;
    only(fields, &["role", "content"], at)?;
    let path = format!("{at}.content");
    let content = fields.get("content");
    match present(fields, "role").and_then(Value::as_str) {
        Some("system") => turns.push(Turn { role: Role::System, parts: texts(content, &path)? }),
        Some("assistant") => {
            let parts = blocks(content, &path)?
                .into_iter()
                .map(|block| match block {
                    Block::Part(part) => Ok(part),
                    Block::Result(_) => {
                        Err(Refusal::new(path.as_str(), format!("{path}: a tool_result belongs in a user message")))
                    }
                })
                .collect::<Result<_, _>>()?;
            turns.push(Turn { role: Role::Assistant, parts });
        }
        Some("user") => user(blocks(content, &path)?, &path, turns)?,
        _ => {
            let path = format!("{at}.role");
            return Err(Refusal::new(path.as_str(), format!("{path} must be user, assistant or system")));
        }
    }
    Ok(())
}

fn user(blocks: Vec<Block>, at: &str, turns: &mut Vec<Turn>) -> Result<(), Refusal> {
    let mut said = Vec::new();
    let mut results = false;
    for block in blocks {
        match block {
            Block::Part(Part::Call { .. } | Part::Reasoning { .. }) => {
                let message = format!("{at}: tool_use and thinking belong in an assistant message");
                return Err(Refusal::new(at, message));
            }
            Block::Part(part) => said.push(part),
            Block::Result(parts) => {
                if !said.is_empty() {
                    turns.push(Turn { role: Role::User, parts: std::mem::take(&mut said) });
                }
                turns.push(Turn { role: Role::Tool, parts });
                results = true;
            }
        }
    }
    if !said.is_empty() || !results {
        turns.push(Turn { role: Role::User, parts: said });
    }
    Ok(())
}

/// Content that may be only text: of the system, of a result.
fn texts(value: Option<&Value>, at: &str) -> Result<Vec<Part>, Refusal> {
    let parts = blocks(value, at)?.into_iter().map(|block| match block {
        Block::Part(part @ Part::Text(_)) => Ok(part),
        _ => Err(Refusal::new(at, format!("{at} must be a text or a list of text blocks"))),
    });
    parts.collect()
}

fn blocks(value: Option<&Value>, at: &str) -> Result<Vec<Block>, Refusal> {
    let text = |text: &str| Block::Part(Part::Text(text.to_owned()));
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(said)) if said.is_empty() => Ok(Vec::new()),
        Some(Value::String(said)) => Ok(vec![text(said)]),
        Some(Value::Array(list)) => {
            let mut blocks = Vec::with_capacity(list.len());
            for (index, item) in list.iter().enumerate() {
                blocks.extend(block(item, &format!("{at}[{index}]"))?);
            }
            Ok(blocks)
        }
        Some(_) => Err(Refusal::new(at, format!("{at} must be a text, a list of content blocks or null"))),
    }
}

/// `None` for a text that says nothing.
fn block(item: &Value, at: &str) -> Result<Option<Block>, Refusal> {
    let fields = object(item, at)?;
    let part = match required(fields, "type", at)?.as_str() {
        "text" => {
            only(fields, &["type", "text", "cache_control", "citations"], at)?;
            let text = required(fields, "text", at)?;
            return Ok((!text.is_empty()).then_some(Block::Part(Part::Text(text))));
        }
        "thinking" => {
            only(fields, &["type", "thinking", "signature", "cache_control"], at)?;
            let signature = text(fields, "signature").map_err(|refusal| refusal.under(at))?;
            let signature = signature.filter(|signature| !signature.is_empty());
            Part::Reasoning { text: required(fields, "thinking", at)?, signature }
        }
        "redacted_thinking" => {
            let signature = Some(format!("{REDACTED}{}", required(fields, "data", at)?));
            Part::Reasoning { text: String::new(), signature }
        }
        "tool_use" => call(fields, at)?,
        "tool_result" => return result(fields, at).map(Some),
        kind => Part::Other { kind: shown(kind), value: item.clone() },
    };
    Ok(Some(Block::Part(part)))
}

fn call(fields: &Map<String, Value>, at: &str) -> Result<Part, Refusal> {
    only(fields, &["type", "id", "name", "input", "cache_control", "caller", "toolset_name"], at)?;
    let arguments = match fields.get("input") {
        None | Some(Value::Null) => "{}".to_owned(),
        Some(Value::Object(input)) => arguments::from_input(input),
        Some(_) => return Err(Refusal::new(format!("{at}.input"), format!("{at}.input must be an object"))),
    };
    Ok(Part::Call { id: named(fields, "id", at)?, name: named(fields, "name", at)?, arguments })
}

fn result(fields: &Map<String, Value>, at: &str) -> Result<Block, Refusal> {
    only(fields, &["type", "tool_use_id", "content", "is_error", "cache_control", "toolset_name"], at)?;
    let id = named(fields, "tool_use_id", at)?;
    let failed = flag(fields, "is_error").map_err(|refusal| refusal.under(at))?.unwrap_or(false);
    let path = format!("{at}.content");
    let (mut text, mut others) = (String::new(), Vec::new());
    for block in blocks(fields.get("content"), &path)? {
        match block {
            Block::Part(Part::Text(more)) => text.push_str(&more),
            Block::Part(other @ Part::Other { .. }) => others.push(other),
            _ => return Err(Refusal::new(path.as_str(), format!("{path} must hold texts, images or documents"))),
        }
    }
    let mut parts = vec![Part::Result { id, text, failed }];
    parts.extend(others);
    Ok(Block::Result(parts))
}
