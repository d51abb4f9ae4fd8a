//! An `Ask` becomes a body for an upstream that speaks chat completions.
//! Three things of other dialects have no word here and change their form: a thinking budget becomes an effort, a failed
//! result says so in its text, and tools that another dialect's providers host are left out. Everything else that the
//! dialect cannot say is refused by name.

use serde_json::{Map, Value, json};

use super::{reasoning, tools};
use crate::ask::{Ask, Format, Input, Part, Refusal, Role, ToolChoice, Turn};
use crate::custom::{self, CUSTOM};
use crate::dialect::Dialect;
use crate::fields::shown;
use crate::image::Image;
use crate::openai::write_common;
use crate::places;

/// Writes a body; `same_dialect` says that `ask` came from this dialect's `parse`.
pub fn write(ask: &Ask, model: &str, same_dialect: bool) -> Result<Value, Refusal> {
    let Input::Turns(turns) = &ask.input else {
        return Err(Refusal::new("prompt", "the provider of this model answers conversations only; send messages"));
    };
    if !same_dialect {
        places::check(ask, true)?;
    }
    let mut body = write_common(ask, model, (Dialect::Chat, same_dialect))?;
    let mut put = |field: &str, value: Option<Value>| drop(value.map(|value| body.insert(field.to_owned(), value)));
    put("messages", Some(messages(turns, same_dialect)?));
    put("max_completion_tokens", ask.tokens_max.map(Value::from));
    put("response_format", format(&ask.format));
    put("reasoning_effort", ask.effort().map(Value::from));
    // Ids without log-probs would leave the record without what training needs.
    let logprobs = ask.logprobs.or(ask.return_token_ids.then_some(0));
    put("logprobs", logprobs.map(|_| json!(true)));
    put("top_logprobs", logprobs.filter(|top| *top > 0).map(Value::from));
    let tools = tools::write_tools(&ask.tools, same_dialect);
    let lacks = match &ask.tool_choice {
        ToolChoice::Required => tools.is_empty(),
        ToolChoice::Named(name) => {
            !tools::has_function(&ask.tools, name)
                && !ask.tools.iter().any(|tool| custom::tool_name(tool) == Some(name))
        }
        ToolChoice::Auto | ToolChoice::None => false,
    };
    if lacks {
        return Err(Refusal::new("tool_choice", "tool_choice names a tool that the provider of this model lacks"));
    }
    if !tools.is_empty() {
        put("tools", Some(Value::Array(tools)));
        put("parallel_tool_calls", ask.parallel_calls.map(Value::from));
        put("tool_choice", tools::write_choice(&ask.tool_choice, &ask.tools));
    }
    Ok(Value::Object(body))
}

fn format(format: &Format) -> Option<Value> {
    match format {
        Format::Text => None,
        Format::Json => Some(json!({ "type": "json_object" })),
        Format::Schema { name, schema, strict } => {
            Some(json!({ "type": "json_schema", "json_schema": { "name": name, "schema": schema, "strict": strict } }))
        }
    }
}

fn messages(turns: &[Turn], same_dialect: bool) -> Result<Value, Refusal> {
    let mut messages = Vec::with_capacity(turns.len());
    for (index, turn) in turns.iter().enumerate() {
        let at = format!("messages[{index}]");
        match turn.role {
            Role::System => messages.push(spoken("system", turn, &at, same_dialect)?),
            Role::User => messages.push(spoken("user", turn, &at, same_dialect)?),
            Role::Assistant if turn.parts.is_empty() => {}
            Role::Assistant => messages.push(assistant(turn, &at, same_dialect)?),
            Role::Tool => {
                for part in &turn.parts {
                    messages.push(result(part, &at)?);
                }
            }
        }
    }
    Ok(Value::Array(messages))
}

fn spoken(role: &str, turn: &Turn, at: &str, same_dialect: bool) -> Result<Value, Refusal> {
    let items = turn.parts.iter().map(|part| item(part, at, same_dialect)).collect::<Result<Vec<_>, _>>()?;
    Ok(json!({ "role": role, "content": content(items).unwrap_or_else(|| json!("")) }))
}

/// One text is a plain text; none at all has no content.
fn content(mut items: Vec<Value>) -> Option<Value> {
    match items.as_mut_slice() {
        [] => None,
        [only] if only["type"] == "text" => Some(only["text"].take()),
        _ => Some(Value::Array(items)),
    }
}

fn assistant(turn: &Turn, at: &str, same_dialect: bool) -> Result<Value, Refusal> {
    let (mut items, mut calls, mut thoughts) = (Vec::new(), Vec::new(), Vec::new());
    for part in &turn.parts {
        match part {
            Part::Reasoning { text, signature } => thoughts.push((text.clone(), signature.clone())),
            Part::Call { id, name, arguments } => calls.push(call(id, name, arguments)),
            // The one call of another type that this dialect has; all others are parts of the content.
            Part::Other { kind, value } if same_dialect && kind == CUSTOM => calls.push(value.clone()),
            Part::Other { kind, value } if let Some(called) = custom::read(kind, value) => {
                calls.push(custom::to_chat(called));
            }
            part => items.push(item(part, at, same_dialect)?),
        }
    }
    let mut message = Map::new();
    message.insert("role".to_owned(), json!("assistant"));
    message.insert("content".to_owned(), content(items).unwrap_or(Value::Null));
    reasoning::put(&mut message, &thoughts);
    if !calls.is_empty() {
        message.insert("tool_calls".to_owned(), Value::Array(calls));
    }
    Ok(Value::Object(message))
}

/// A call in a message.
pub(super) fn call(id: &str, name: &str, arguments: &str) -> Value {
    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
}

fn result(part: &Part, at: &str) -> Result<Value, Refusal> {
    match part {
        Part::Result { id, text, failed } => {
            let mut message = json!({ "role": "tool", "content": Part::told(text, *failed) });
            if !id.is_empty() {
                message["tool_call_id"] = json!(id);
            }
            Ok(message)
        }
        Part::Other { kind, value } if let Some((id, text)) = custom::output(kind, value) => {
            Ok(json!({ "role": "tool", "tool_call_id": id, "content": text }))
        }
        _ => Err(Refusal::new(at, "the provider of this model takes only text as the result of a call")),
    }
}

fn item(part: &Part, at: &str, same_dialect: bool) -> Result<Value, Refusal> {
    match part {
        Part::Text(text) => Ok(json!({ "type": "text", "text": text })),
        Part::Other { value, .. } if same_dialect => Ok(value.clone()),
        Part::Other { kind, value } => match Image::of(kind, value) {
            Some(image) => Ok(image.to_chat()),
            None => {
                let kind = shown(kind);
                let reason = format!("a part of type '{kind}', which the provider of this model cannot take");
                Err(Refusal::new(at, format!("{at} holds {reason}; leave it out")))
            }
        },
        _ => Err(Refusal::new(at, format!("{at} holds reasoning, a call or a result where its role has none"))),
    }
}
