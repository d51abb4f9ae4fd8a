//! An `Ask` becomes a body for an upstream that speaks the responses dialect.
//! What the dialect cannot say is refused by name, but for `failed` of a result, which its text tells. A conversation
//! that came in another dialect is not stored by the upstream unless its client asks for it.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::parse::{INCLUDE_LOGPROBS, INSTRUCTIONS};
use super::tools;
use crate::ask::{Ask, Format, Input, Part, Refusal, Role, ToolChoice, Turn};
use crate::carry::carried;
use crate::custom;
use crate::dialect::Dialect;
use crate::fields::decimal;
use crate::image::Image;
use crate::items::join;
use crate::places;

/// The body of `POST /v1/responses`.
pub fn write(ask: &Ask, model: &str, same_dialect: bool) -> Result<Value, Refusal> {
    refuse(ask)?;
    let Input::Turns(turns) = &ask.input else {
        return Err(Refusal::new("prompt", "this model's provider takes messages, not a prompt; send messages"));
    };
    if !same_dialect {
        places::check(ask, true)?;
    }
    let mut body = Map::new();
    let mut set = |name: &str, value: Value| body.insert(name.to_owned(), value);
    set("model", json!(model));
    set("input", Value::Array(items(turns, same_dialect)?));
    if let Some(tokens) = ask.tokens_max {
        set("max_output_tokens", json!(tokens));
    }
    if let Some(temperature) = ask.temperature {
        set("temperature", decimal(temperature));
    }
    if let Some(share) = ask.top_p {
        set("top_p", decimal(share));
    }
    if let Some(parallel) = ask.parallel_calls {
        set("parallel_tool_calls", json!(parallel));
    }
    if ask.stream {
        set("stream", json!(true));
    }
    if ask.format != Format::Text {
        set("text", json!({ "format": format(&ask.format) }));
    }
    if let Some(reasoning) = reasoning(ask, same_dialect) {
        set("reasoning", reasoning);
    }
    write_tools(ask, same_dialect, &mut body)?;
    if let Some(top) = ask.logprobs {
        body.insert("top_logprobs".to_owned(), json!(top));
    }
    if same_dialect {
        join(&mut body, &ask.descriptive);
        body.remove(INSTRUCTIONS);
        join(&mut body, &ask.unknown);
    } else {
        ask.refuse_unknown()?;
        join(&mut body, &carried(ask, Dialect::Responses)?);
        body.entry("store").or_insert(json!(false));
        if ask.logprobs.is_some() {
            body.insert("include".to_owned(), json!([INCLUDE_LOGPROBS]));
        }
    }
    Ok(Value::Object(body))
}

fn refuse(ask: &Ask) -> Result<(), Refusal> {
    let asked = |penalty: Option<f32>| penalty.is_some_and(|penalty| penalty != 0.0);
    let beyond = [
        ("n", ask.n > 1),
        ("seed", ask.seed.is_some()),
        ("stop", !ask.stop.is_empty()),
        ("top_k", ask.top_k.is_some_and(|k| k > 0)),
        ("frequency_penalty", asked(ask.frequency_penalty)),
        ("presence_penalty", asked(ask.presence_penalty)),
        ("logit_bias", !ask.logit_bias.is_empty()),
        ("return_token_ids", ask.return_token_ids),
    ];
    match beyond.iter().find(|(_, asked)| *asked) {
        None => Ok(()),
        Some((name, _)) => Err(ask.unsupported(name)),
    }
}

/// `text.format`, of a body or of an answer.
pub(super) fn format(format: &Format) -> Value {
    match format {
        Format::Text => json!({ "type": "text" }),
        Format::Json => json!({ "type": "json_object" }),
        Format::Schema { name, schema, strict } => {
            json!({ "type": "json_schema", "name": name, "schema": schema, "strict": strict })
        }
    }
}

fn reasoning(ask: &Ask, same_dialect: bool) -> Option<Value> {
    if same_dialect {
        return ask.reasoning.clone();
    }
    ask.effort().map(|effort| json!({ "effort": effort }))
}

fn write_tools(ask: &Ask, same_dialect: bool, body: &mut Map<String, Value>) -> Result<(), Refusal> {
    let tools = tools::write_tools(ask, same_dialect);
    let choice = tools::write_choice(ask, same_dialect).filter(|_| {
        let must = !matches!(ask.tool_choice, ToolChoice::Auto | ToolChoice::None);
        !must || !tools.is_empty()
    });
    let Some(choice) = choice else {
        let message = "tool_choice asks for a tool that this model's provider does not have; choose a function";
        return Err(Refusal::new("tool_choice", message));
    };
    if !tools.is_empty() {
        body.insert("tools".to_owned(), Value::Array(tools));
        if ask.tool_choice != ToolChoice::Auto {
            body.insert("tool_choice".to_owned(), choice);
        }
    }
    Ok(())
}

fn items(turns: &[Turn], same_dialect: bool) -> Result<Vec<Value>, Refusal> {
    let mut items = Vec::with_capacity(turns.len());
    let customs = customs(turns);
    for turn in turns {
        match turn.role {
            Role::System => said("system", turn, same_dialect, &mut items)?,
            Role::User => said("user", turn, same_dialect, &mut items)?,
            Role::Assistant => assistant(turn, same_dialect, &mut items)?,
            Role::Tool => results(turn, (same_dialect, &customs), &mut items)?,
        }
    }
    if items.is_empty() {
        return Err(Refusal::new("messages", "messages holds no text; send at least one message that says something"));
    }
    Ok(items)
}

fn said(role: &str, turn: &Turn, same_dialect: bool, items: &mut Vec<Value>) -> Result<(), Refusal> {
    let mut content = Vec::with_capacity(turn.parts.len());
    for part in &turn.parts {
        match part {
            Part::Text(text) => content.push(json!({ "type": "input_text", "text": text })),
            Part::Other { kind, value } => content.push(other(kind, value, same_dialect)?),
            Part::Reasoning { .. } | Part::Call { .. } | Part::Result { .. } => {}
        }
    }
    if !content.is_empty() {
        items.push(json!({ "type": "message", "role": role, "content": content }));
    }
    Ok(())
}

fn assistant(turn: &Turn, same_dialect: bool, items: &mut Vec<Value>) -> Result<(), Refusal> {
    let mut content: Vec<Value> = Vec::new();
    for part in &turn.parts {
        let item = match part {
            Part::Text(text) => {
                content.push(json!({ "type": "output_text", "text": text, "annotations": [] }));
                continue;
            }
            Part::Call { id, name, arguments } => {
                json!({ "type": "function_call", "call_id": id, "name": name, "arguments": arguments })
            }
            Part::Reasoning { text, signature } => reasoning_item(text, signature.as_deref()),
            Part::Other { value, .. } if same_dialect => value.clone(),
            Part::Other { kind, value } => match custom::read(kind, value) {
                Some(called) => custom::to_responses(called),
                None => return Err(unsupported(kind)),
            },
            Part::Result { .. } => continue,
        };
        flush(&mut content, items);
        items.push(item);
    }
    flush(&mut content, items);
    Ok(())
}

/// The text so far becomes a message.
fn flush(content: &mut Vec<Value>, items: &mut Vec<Value>) {
    if !content.is_empty() {
        let content = std::mem::take(content);
        items.push(json!({ "type": "message", "role": "assistant", "content": content }));
    }
}

/// A provider that signs its reasoning shows only a summary of it; one that does not shows the reasoning itself.
fn reasoning_item(text: &str, signature: Option<&str>) -> Value {
    let texts = |kind: &str| if text.is_empty() { json!([]) } else { json!([{ "type": kind, "text": text }]) };
    match signature {
        Some(signature) => {
            json!({ "type": "reasoning", "summary": texts("summary_text"), "encrypted_content": signature })
        }
        None => json!({ "type": "reasoning", "summary": [], "content": texts("reasoning_text") }),
    }
}

/// Ids of the calls of custom tools, whose results are items of another type.
fn customs(turns: &[Turn]) -> BTreeSet<&str> {
    let parts = turns.iter().flat_map(|turn| &turn.parts);
    let ids = parts.filter_map(|part| match part {
        Part::Other { kind, value } => custom::read(kind, value).map(|(id, _, _)| id),
        _ => None,
    });
    ids.collect()
}

fn results(
    turn: &Turn,
    (same_dialect, customs): (bool, &BTreeSet<&str>),
    items: &mut Vec<Value>,
) -> Result<(), Refusal> {
    let result = |told: (&str, Cow<'_, str>, Vec<Value>)| {
        let kind = if customs.contains(told.0) { custom::OUTPUT } else { "function_call_output" };
        result(kind, told)
    };
    let mut current: Option<(&str, Cow<'_, str>, Vec<Value>)> = None;
    for part in &turn.parts {
        match (part, &mut current) {
            (Part::Result { id, text, failed }, _) => {
                items.extend(current.take().map(result));
                current = Some((id, Part::told(text, *failed), Vec::new()));
            }
            (Part::Other { kind, value }, Some((_, _, others))) => others.push(other(kind, value, same_dialect)?),
            (Part::Other { value, .. }, None) if same_dialect => items.push(value.clone()),
            (Part::Other { kind, .. }, None) => return Err(unsupported(kind)),
            _ => {}
        }
    }
    items.extend(current.map(result));
    Ok(())
}

fn result(kind: &str, (id, text, others): (&str, Cow<'_, str>, Vec<Value>)) -> Value {
    let output = if others.is_empty() {
        json!(text)
    } else {
        let said = (!text.is_empty()).then(|| json!({ "type": "input_text", "text": text }));
        Value::Array(said.into_iter().chain(others).collect())
    };
    json!({ "type": kind, "call_id": id, "output": output })
}

fn other(kind: &str, value: &Value, same_dialect: bool) -> Result<Value, Refusal> {
    if same_dialect {
        return Ok(value.clone());
    }
    Image::of(kind, value).map(|image| image.to_responses()).ok_or_else(|| unsupported(kind))
}

fn unsupported(kind: &str) -> Refusal {
    let message = format!("content of type '{kind}' is not supported by this model's provider; leave it out");
    Refusal::new("messages", message)
}
