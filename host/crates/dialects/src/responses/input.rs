//! `instructions` and `input` of a responses body become turns.
//! Neighbouring items of the model are one turn; each output of a call is a turn of its own. An item that is neither
//! message, call, output nor reasoning is kept as sent, with the role that its type ends in.

use serde_json::{Map, Value};

use crate::ask::{Part, Refusal, Role, Turn};
use crate::fields::{present, shown, text};
use crate::items::{list, named, object, only, required};

const ITEMS_MAX: usize = 4096;

/// The conversation.
pub(super) fn turns(body: &Map<String, Value>) -> Result<Vec<Turn>, Refusal> {
    let mut turns = Vec::new();
    let say = |role: Role, text: String| Turn { role, parts: vec![Part::Text(text)] };
    turns.extend(text(body, "instructions")?.filter(|text| !text.is_empty()).map(|text| say(Role::System, text)));
    match present(body, "input") {
        Some(Value::String(text)) if !text.is_empty() => turns.push(say(Role::User, text.clone())),
        Some(Value::Array(_)) => {
            for (index, value) in list(body, "input", ITEMS_MAX)?.iter().enumerate() {
                item(value, &format!("input[{index}]"), &mut turns)?;
            }
        }
        _ => return Err(Refusal::new("input", "input must be a text or a list of items, and not empty")),
    }
    if turns.iter().all(|turn| turn.parts.is_empty()) {
        return Err(Refusal::new("input", "input holds no text; send at least one item that says something"));
    }
    Ok(turns)
}

fn item(value: &Value, at: &str, turns: &mut Vec<Turn>) -> Result<(), Refusal> {
    let fields = object(value, at)?;
    let kind = text(fields, "type").map_err(|refusal| refusal.under(at))?;
    match kind.as_deref().unwrap_or("message") {
        "message" => message(fields, at, turns)?,
        "function_call" => assistant(turns, vec![call(fields, at)?]),
        "function_call_output" => turns.push(Turn { role: Role::Tool, parts: output(fields, at)? }),
        "reasoning" => assistant(turns, vec![reasoning(fields, at)?]),
        other => {
            let part = Part::Other { kind: shown(other), value: value.clone() };
            if other.ends_with("_output") {
                turns.push(Turn { role: Role::Tool, parts: vec![part] });
            } else {
                assistant(turns, vec![part]);
            }
        }
    }
    Ok(())
}

/// Adds to what the model says.
fn assistant(turns: &mut Vec<Turn>, parts: Vec<Part>) {
    match turns.last_mut() {
        _ if parts.is_empty() => {}
        Some(Turn { role: Role::Assistant, parts: so_far }) => so_far.extend(parts),
        _ => turns.push(Turn { role: Role::Assistant, parts }),
    }
}

fn message(fields: &Map<String, Value>, at: &str, turns: &mut Vec<Turn>) -> Result<(), Refusal> {
    only(fields, &["type", "role", "content", "id", "status", "phase"], at)?;
    let role = match present(fields, "role").and_then(Value::as_str) {
        Some("system" | "developer") => Role::System,
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        _ => {
            let path = format!("{at}.role");
            return Err(Refusal::new(path.as_str(), format!("{path} must be system, developer, user or assistant")));
        }
    };
    let path = format!("{at}.content");
    let parts = content(fields.get("content"), &path)?;
    if role != Role::Assistant {
        turns.push(Turn { role, parts });
        return Ok(());
    }
    if parts.iter().any(|part| matches!(part, Part::Other { .. })) {
        return Err(Refusal::new(path.as_str(), format!("{path} of the assistant must be a text or a list of texts")));
    }
    assistant(turns, parts);
    Ok(())
}

fn content(value: Option<&Value>, at: &str) -> Result<Vec<Part>, Refusal> {
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(text)) if text.is_empty() => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![Part::Text(text.clone())]),
        Some(Value::Array(list)) => {
            let parts = list.iter().enumerate().map(|(index, item)| part(item, &format!("{at}[{index}]")));
            let mut parts = parts.collect::<Result<Vec<Part>, _>>()?;
            parts.retain(|part| !matches!(part, Part::Text(text) if text.is_empty()));
            Ok(parts)
        }
        Some(_) => Err(Refusal::new(at, format!("{at} must be a text, a list of parts or null"))),
    }
}

fn part(item: &Value, at: &str) -> Result<Part, Refusal> {
    let fields = object(item, at)?;
    match required(fields, "type", at)?.as_str() {
        "input_text" | "output_text" | "text" => {
            only(fields, &["type", "text", "annotations", "logprobs", "parsed", "prompt_cache_breakpoint"], at)?;
            Ok(Part::Text(required(fields, "text", at)?))
        }
        "refusal" => {
            only(fields, &["type", "refusal"], at)?;
            Ok(Part::Text(required(fields, "refusal", at)?))
        }
        kind => Ok(Part::Other { kind: shown(kind), value: item.clone() }),
    }
}

fn call(fields: &Map<String, Value>, at: &str) -> Result<Part, Refusal> {
    only(
        fields,
        &["type", "id", "call_id", "name", "arguments", "status", "namespace", "caller", "async", "parsed_arguments"],
        at,
    )?;
    Ok(Part::Call {
        id: named(fields, "call_id", at)?,
        name: named(fields, "name", at)?,
        arguments: required(fields, "arguments", at)?,
    })
}

fn output(fields: &Map<String, Value>, at: &str) -> Result<Vec<Part>, Refusal> {
    only(fields, &["type", "id", "call_id", "output", "status", "name", "namespace", "caller"], at)?;
    let (mut text, mut others) = (String::new(), Vec::new());
    for part in content(fields.get("output"), &format!("{at}.output"))? {
        match part {
            Part::Text(more) => text.push_str(&more),
            other => others.push(other),
        }
    }
    let mut parts = vec![Part::Result { id: named(fields, "call_id", at)?, text, failed: false }];
    parts.extend(others);
    Ok(parts)
}

fn reasoning(fields: &Map<String, Value>, at: &str) -> Result<Part, Refusal> {
    only(fields, &["type", "id", "summary", "content", "encrypted_content", "status"], at)?;
    let texts = |field: &str| -> Result<Vec<String>, Refusal> {
        let path = format!("{at}.{field}");
        match present(fields, field) {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) => list.iter().map(|part| required(object(part, &path)?, "text", &path)).collect(),
            Some(_) => Err(Refusal::new(path.as_str(), format!("{path} must be a list of texts"))),
        }
    };
    let (summary, content) = (texts("summary")?, texts("content")?);
    let signature = text(fields, "encrypted_content").map_err(|refusal| refusal.under(at))?;
    Ok(Part::Reasoning {
        text: if content.is_empty() { summary.join("\n\n") } else { content.concat() },
        signature: signature.filter(|signature| !signature.is_empty()),
    })
}
