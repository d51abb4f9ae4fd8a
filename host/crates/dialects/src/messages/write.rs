//! An `Ask` becomes a body for an upstream that speaks the messages dialect.
//! What the dialect cannot say is refused by name. Tools that are no functions are offered only to an upstream of the
//! dialect they came in: to leave one out changes nothing but what the model may choose from.

use serde_json::{Map, Value, json};

use super::{REDACTED, arguments};
use crate::ask::{Ask, Format, Input, Part, Refusal, Role, Tool, ToolChoice, Turn};
use crate::carry::carried;
use crate::dialect::Dialect;
use crate::fields::decimal;
use crate::image::Image;
use crate::items::join;
use crate::places;

/// `max_tokens` for a client that sets no limit, which other dialects allow: an answer of several pages.
const TOKENS_DEFAULT: u32 = 8192;

/// The body of `POST /v1/messages`.
pub fn write(ask: &Ask, model: &str, same_dialect: bool) -> Result<Value, Refusal> {
    refuse(ask)?;
    let mut body = counted(ask, model, same_dialect)?;
    let mut set = |name: &str, value: Value| body.insert(name.to_owned(), value);
    set("max_tokens", json!(ask.tokens_max.unwrap_or(TOKENS_DEFAULT)));
    if let Some(temperature) = ask.temperature {
        set("temperature", decimal(temperature));
    }
    if let Some(share) = ask.top_p {
        set("top_p", decimal(share));
    }
    if let Some(k) = ask.top_k.filter(|k| *k > 0) {
        set("top_k", json!(k));
    }
    if !ask.stop.is_empty() {
        set("stop_sequences", json!(ask.stop));
    }
    if ask.stream {
        set("stream", json!(true));
    }
    if same_dialect {
        join(&mut body, &ask.descriptive);
    } else {
        join(&mut body, &carried(ask, Dialect::Messages)?);
    }
    Ok(Value::Object(body))
}

/// The body of `POST /v1/messages/count_tokens`: what makes up the prompt.
pub fn write_count_tokens(ask: &Ask, model: &str, same_dialect: bool) -> Result<Value, Refusal> {
    counted(ask, model, same_dialect).map(Value::Object)
}

/// What both bodies have.
fn counted(ask: &Ask, model: &str, same_dialect: bool) -> Result<Map<String, Value>, Refusal> {
    let Input::Turns(turns) = &ask.input else {
        return Err(Refusal::new("prompt", "this model's provider takes messages, not a prompt; send messages"));
    };
    if !same_dialect {
        places::check(ask, false)?;
    }
    let (system, messages) = conversation(turns, same_dialect)?;
    let mut body = Map::new();
    body.insert("model".to_owned(), json!(model));
    body.insert("messages".to_owned(), messages);
    if let Some(system) = system {
        body.insert("system".to_owned(), system);
    }
    let tools: Vec<Value> = ask.tools.iter().filter_map(|offered| tool(offered, same_dialect)).collect();
    if let Some(choice) = tool_choice(ask, !tools.is_empty(), same_dialect)? {
        body.insert("tool_choice".to_owned(), choice);
    }
    if !tools.is_empty() {
        body.insert("tools".to_owned(), Value::Array(tools));
    }
    let mut output = Map::new();
    match &ask.format {
        Format::Text => {}
        Format::Json => {
            let message = "this model's provider gives JSON only for a schema; send a JSON schema";
            return Err(Refusal::new(ask.named("response_format"), message));
        }
        Format::Schema { schema, .. } => {
            output.insert("format".to_owned(), json!({ "type": "json_schema", "schema": schema }));
        }
    }
    reasoning(ask, same_dialect, &mut body, &mut output);
    if !output.is_empty() {
        body.insert("output_config".to_owned(), Value::Object(output));
    }
    if same_dialect {
        join(&mut body, &ask.unknown);
    } else {
        ask.refuse_unknown()?;
    }
    Ok(body)
}

fn refuse(ask: &Ask) -> Result<(), Refusal> {
    let asked = |penalty: Option<f32>| penalty.is_some_and(|penalty| penalty != 0.0);
    let beyond = [
        ("n", ask.n > 1),
        ("seed", ask.seed.is_some()),
        ("frequency_penalty", asked(ask.frequency_penalty)),
        ("presence_penalty", asked(ask.presence_penalty)),
        ("logit_bias", !ask.logit_bias.is_empty()),
        ("logprobs", ask.logprobs.is_some()),
        ("return_token_ids", ask.return_token_ids),
    ];
    if let Some((name, _)) = beyond.iter().find(|(_, asked)| *asked) {
        return Err(ask.unsupported(name));
    }
    if ask.temperature.is_some_and(|temperature| temperature > 1.0) {
        let message = "temperature may be at most 1 with this model's provider; lower it";
        return Err(Refusal::new("temperature", message));
    }
    Ok(())
}

fn reasoning(ask: &Ask, same_dialect: bool, body: &mut Map<String, Value>, output: &mut Map<String, Value>) {
    let mut effort = ask.effort();
    if let (true, Some(Value::Object(thinking))) = (same_dialect, &ask.reasoning) {
        effort = thinking.get("effort").and_then(Value::as_str);
        let thinking: Map<String, Value> = thinking.clone().into_iter().filter(|(name, _)| name != "effort").collect();
        if !thinking.is_empty() {
            body.insert("thinking".to_owned(), Value::Object(thinking));
        }
    }
    match effort {
        Some("none") => {
            body.insert("thinking".to_owned(), json!({ "type": "disabled" }));
        }
        // The least effort that this dialect has a word for.
        Some("minimal") => {
            output.insert("effort".to_owned(), json!("low"));
        }
        Some(effort) => {
            output.insert("effort".to_owned(), json!(effort));
        }
        None => {}
    }
}

fn tool(tool: &Tool, same_dialect: bool) -> Option<Value> {
    if let Some(sent) = &tool.hosted {
        return same_dialect.then(|| sent.clone());
    }
    let mut written = json!({ "name": tool.name, "input_schema": tool.parameters });
    if let Some(description) = &tool.description {
        written["description"] = json!(description);
    }
    if tool.strict {
        written["strict"] = json!(true);
    }
    Some(written)
}

fn tool_choice(ask: &Ask, tools: bool, same_dialect: bool) -> Result<Option<Value>, Refusal> {
    let mut choice = match &ask.tool_choice {
        ToolChoice::Auto | ToolChoice::None if !tools => return Ok(None),
        ToolChoice::Auto if ask.parallel_calls.is_none() => return Ok(None),
        ToolChoice::Auto => json!({ "type": "auto" }),
        ToolChoice::None => return Ok(Some(json!({ "type": "none" }))),
        ToolChoice::Required if tools => json!({ "type": "any" }),
        ToolChoice::Named(name) if same_dialect || ask.tools.iter().any(|t| t.hosted.is_none() && t.is(name)) => {
            json!({ "type": "tool", "name": name })
        }
        _ => {
            let message = "tool_choice asks for a tool that this model's provider does not have; choose a function";
            return Err(Refusal::new("tool_choice", message));
        }
    };
    if let Some(parallel) = ask.parallel_calls {
        choice["disable_parallel_tool_use"] = json!(!parallel);
    }
    Ok(Some(choice))
}

/// `system` and `messages`.
fn conversation(turns: &[Turn], same_dialect: bool) -> Result<(Option<Value>, Value), Refusal> {
    let mut system: Vec<&Turn> = Vec::new();
    let mut messages: Vec<(Role, Vec<Value>)> = Vec::new();
    for turn in turns {
        if turn.role == Role::System && (!same_dialect || messages.is_empty()) {
            system.push(turn);
            continue;
        }
        let blocks = blocks(turn, same_dialect)?;
        match messages.last_mut() {
            _ if blocks.is_empty() => {}
            // All results of one answer's calls stand in one message, with what the user says after them.
            Some((last @ Role::Tool, so_far)) if matches!(turn.role, Role::Tool | Role::User) => {
                *last = turn.role;
                so_far.extend(blocks);
            }
            _ => messages.push((turn.role, blocks)),
        }
    }
    if messages.is_empty() {
        let message = "this model's provider needs a message of the user; send at least one that says something";
        return Err(Refusal::new("messages", message));
    }
    let messages = messages.into_iter().map(|(role, blocks)| message(role, blocks)).collect();
    Ok((system_of(&system), Value::Array(messages)))
}

fn message(role: Role, blocks: Vec<Value>) -> Value {
    let role = match role {
        Role::System => "system",
        Role::Assistant => "assistant",
        Role::User | Role::Tool => "user",
    };
    json!({ "role": role, "content": blocks })
}

/// One turn keeps its blocks; several become one text.
fn system_of(turns: &[&Turn]) -> Option<Value> {
    let texts = |turn: &Turn| -> Vec<String> {
        let texts = turn.parts.iter().filter_map(|part| match part {
            Part::Text(text) => Some(text.clone()),
            _ => None,
        });
        texts.collect()
    };
    let turns: Vec<Vec<String>> = turns.iter().map(|turn| texts(turn)).filter(|texts| !texts.is_empty()).collect();
    match turns.as_slice() {
        [] => None,
        [texts] if texts.len() > 1 => Some(texts.iter().map(|text| json!({ "type": "text", "text": text })).collect()),
        turns => {
            let turns: Vec<String> = turns.iter().map(|texts| texts.concat()).collect();
            Some(json!(turns.join("\n\n")))
        }
    }
}

fn blocks(turn: &Turn, same_dialect: bool) -> Result<Vec<Value>, Refusal> {
    let mut blocks: Vec<Value> = Vec::with_capacity(turn.parts.len());
    for part in &turn.parts {
        let other = match part {
            Part::Other { kind, value } => other(kind, value, same_dialect)?,
            part => {
                blocks.extend(block(part));
                continue;
            }
        };
        let result = blocks.last_mut().filter(|_| turn.role == Role::Tool);
        match result.and_then(|result| result.get_mut("content")).and_then(Value::as_array_mut) {
            Some(content) => content.push(other),
            None => blocks.push(other),
        }
    }
    Ok(blocks)
}

fn other(kind: &str, value: &Value, same_dialect: bool) -> Result<Value, Refusal> {
    if same_dialect {
        return Ok(value.clone());
    }
    match Image::of(kind, value) {
        Some(image) => Ok(image.to_messages()),
        None => {
            let message = format!("content of type '{kind}' is not supported by this model's provider; leave it out");
            Err(Refusal::new("messages", message))
        }
    }
}

/// `None` for reasoning that nobody signed.
fn block(part: &Part) -> Option<Value> {
    match part {
        Part::Reasoning { signature: None, .. } | Part::Other { .. } => None,
        Part::Text(text) => Some(json!({ "type": "text", "text": text })),
        Part::Reasoning { text, signature: Some(signature) } => Some(thinking(text, signature)),
        Part::Call { id, name, arguments } => {
            let input = arguments::to_input(arguments);
            Some(json!({ "type": "tool_use", "id": plain_id(id), "name": name, "input": input }))
        }
        Part::Result { id, text, failed } => {
            let content = if text.is_empty() { json!([]) } else { json!([{ "type": "text", "text": text }]) };
            let mut result = json!({ "type": "tool_result", "tool_use_id": plain_id(id), "content": content });
            if *failed {
                result["is_error"] = json!(true);
            }
            Some(result)
        }
    }
}

/// The block of signed reasoning.
pub(super) fn thinking(text: &str, signature: &str) -> Value {
    match signature.strip_prefix(REDACTED) {
        Some(data) => json!({ "type": "redacted_thinking", "data": data }),
        None => json!({ "type": "thinking", "thinking": text, "signature": signature }),
    }
}

/// The dialect's ids hold letters, digits, `_` and `-`; other providers also use dots and colons.
fn plain_id(id: &str) -> String {
    id.chars().map(|char| if char.is_ascii_alphanumeric() || char == '-' { char } else { '_' }).collect()
}
