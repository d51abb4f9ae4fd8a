//! A body of the messages dialect becomes an `Ask`, or a refusal that names the parameter.
//! The conversation is read by `content`; everything else is read here.

use serde_json::{Map, Value};

use super::content;
use crate::ask::{Ask, Format, Input, Refusal, Tool, ToolChoice};
use crate::dialect::Dialect;
use crate::fields::{flag, integer, model, number, present, split_unknown, text};
use crate::items::{list, named, object, only, required, rest};
use crate::places::places;

const TOOLS_MAX: usize = 4096;
/// Stop strings of one request, and bytes of each.
const STOPS_MAX: usize = 16;
const STOP_BYTES_MAX: usize = 256;

/// Fields that are read below.
const READ: [&str; 14] = [
    "model",
    "messages",
    "system",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "stop_sequences",
    "stream",
    "tools",
    "tool_choice",
    "thinking",
    "output_config",
    "return_token_ids",
];
/// Fields that describe the client or the billing and change nothing in the answer.
const DESCRIPTIVE: [&str; 8] = [
    "metadata",
    "service_tier",
    "speed",
    "cache_control",
    "inference_geo",
    "diagnostics",
    "user_profile_id",
    "workspace_id",
];
/// Fields of a function; those that are not read change nothing in what the model may answer.
const TOOL_FIELDS: [&str; 9] = [
    "type",
    "name",
    "description",
    "input_schema",
    "strict",
    "cache_control",
    "eager_input_streaming",
    "input_examples",
    "allowed_callers",
];

/// Reads the body of `POST /v1/messages`.
pub fn parse(body: &Map<String, Value>) -> Result<Ask, Refusal> {
    let ask = parse_count_tokens(body)?;
    if ask.tokens_max.is_none() {
        return Err(Refusal::new("max_tokens", "max_tokens is missing; give the most tokens that the answer may have"));
    }
    Ok(ask)
}

/// Reads the body of `POST /v1/messages/count_tokens`, which needs no `max_tokens`.
pub fn parse_count_tokens(body: &Map<String, Value>) -> Result<Ask, Refusal> {
    let (mut descriptive, mut unknown) = split_unknown(body, &READ, &DESCRIPTIVE);
    // Without edits there is nothing to manage.
    let edits = unknown.get("context_management").map(|management| management["edits"].as_array());
    if edits.is_some_and(|edits| edits.is_none_or(Vec::is_empty)) {
        descriptive.extend(unknown.remove_entry("context_management"));
    }
    let turns = content::turns(body)?;
    let tools = tools(body)?;
    let (tool_choice, parallel_calls) = tool_choice(body, &tools)?;
    let (format, effort) = output_config(body, &mut unknown)?;
    Ok(Ask {
        dialect: Some(Dialect::Messages),
        places: places(&turns, body.get("messages"), "messages"),
        tools,
        tool_choice,
        parallel_calls,
        format,
        temperature: number(body, "temperature", 0.0, 1.0)?,
        top_p: top_p(body)?,
        top_k: integer(body, "top_k", 0, u64::from(u32::MAX))?.map(|k| k as u32),
        tokens_max: integer(body, "max_tokens", 1, u64::from(u32::MAX))?.map(|tokens| tokens as u32),
        stop: stops(body)?,
        reasoning: reasoning(body, effort)?,
        stream: flag(body, "stream")?.unwrap_or(false),
        return_token_ids: flag(body, "return_token_ids")?.unwrap_or(false),
        descriptive,
        unknown,
        ..Ask::new(model(body)?, Input::Turns(turns))
    })
}

fn top_p(body: &Map<String, Value>) -> Result<Option<f32>, Refusal> {
    match number(body, "top_p", 0.0, 1.0)? {
        Some(share) if share <= 0.0 => Err(Refusal::new("top_p", "top_p must be over 0 and up to 1")),
        share => Ok(share),
    }
}

fn stops(body: &Map<String, Value>) -> Result<Vec<String>, Refusal> {
    let wrong = || {
        let message = format!("stop_sequences must be up to {STOPS_MAX} texts of 1 to {STOP_BYTES_MAX} bytes");
        Refusal::new("stop_sequences", message)
    };
    let Some(value) = present(body, "stop_sequences") else { return Ok(Vec::new()) };
    let list = value.as_array().filter(|list| list.len() <= STOPS_MAX).ok_or_else(wrong)?;
    list.iter()
        .map(|stop| match stop.as_str() {
            Some(stop) if (1..=STOP_BYTES_MAX).contains(&stop.len()) => Ok(stop.to_owned()),
            _ => Err(wrong()),
        })
        .collect()
}

fn tools(body: &Map<String, Value>) -> Result<Vec<Tool>, Refusal> {
    match present(body, "tools") {
        None => return Ok(Vec::new()),
        Some(Value::Array(tools)) if tools.is_empty() => return Ok(Vec::new()),
        Some(_) => {}
    }
    let tools = list(body, "tools", TOOLS_MAX)?;
    tools.iter().enumerate().map(|(index, value)| tool(value, &format!("tools[{index}]"))).collect()
}

fn tool(value: &Value, at: &str) -> Result<Tool, Refusal> {
    let fields = object(value, at)?;
    let kind = text(fields, "type").map_err(|refusal| refusal.under(at))?;
    if let Some(kind) = kind.filter(|kind| kind != "custom") {
        let parameters = Value::Object(Map::new());
        return Ok(Tool { name: kind, description: None, parameters, strict: false, hosted: Some(value.clone()) });
    }
    only(fields, &TOOL_FIELDS, at)?;
    let schema = present(fields, "input_schema").filter(|schema| schema.is_object()).ok_or_else(|| {
        let path = format!("{at}.input_schema");
        Refusal::new(path.clone(), format!("{path} must be a JSON schema of an object"))
    })?;
    Ok(Tool {
        name: named(fields, "name", at)?,
        description: text(fields, "description").map_err(|refusal| refusal.under(at))?,
        parameters: schema.clone(),
        strict: flag(fields, "strict").map_err(|refusal| refusal.under(at))?.unwrap_or(false),
        hosted: None,
    })
}

/// The choice, and whether one answer may hold several calls.
fn tool_choice(body: &Map<String, Value>, tools: &[Tool]) -> Result<(ToolChoice, Option<bool>), Refusal> {
    let at = "tool_choice";
    let Some(value) = present(body, at) else { return Ok((ToolChoice::Auto, None)) };
    let fields = object(value, at)?;
    only(fields, &["type", "name", "disable_parallel_tool_use"], at)?;
    let alone = flag(fields, "disable_parallel_tool_use").map_err(|refusal| refusal.under(at))?;
    let choice = match required(fields, "type", at)?.as_str() {
        "auto" => ToolChoice::Auto,
        "none" => ToolChoice::None,
        "any" if !tools.is_empty() => ToolChoice::Required,
        "any" => return Err(Refusal::new(at, "tool_choice asks for a call, but there are no tools; send tools")),
        "tool" => ToolChoice::Named(named_tool(fields, tools)?),
        _ => {
            let message = "tool_choice.type must be auto, any, tool or none";
            return Err(Refusal::new("tool_choice.type", message));
        }
    };
    Ok((choice, alone.map(|alone| !alone)))
}

fn named_tool(fields: &Map<String, Value>, tools: &[Tool]) -> Result<String, Refusal> {
    let name = required(fields, "name", "tool_choice")?;
    if tools.iter().any(|tool| tool.is(&name)) {
        return Ok(name);
    }
    Err(Refusal::new("tool_choice.name", "tool_choice.name must be the name of one of the tools"))
}

/// The format and the effort; what else stands there is kept for an upstream that knows it.
fn output_config(
    body: &Map<String, Value>,
    unknown: &mut Map<String, Value>,
) -> Result<(Format, Option<Value>), Refusal> {
    let at = "output_config";
    let Some(value) = present(body, at) else { return Ok((Format::Text, None)) };
    let fields = object(value, at)?;
    if let Some(rest) = rest(fields, &["format", "effort"]) {
        unknown.insert(at.to_owned(), rest);
    }
    let effort = text(fields, "effort").map_err(|refusal| refusal.under(at))?;
    let format = match present(fields, "format") {
        None => Format::Text,
        Some(format) => schema(object(format, "output_config.format")?)?,
    };
    Ok((format, effort.map(Value::String)))
}

fn schema(format: &Map<String, Value>) -> Result<Format, Refusal> {
    let at = "output_config.format";
    only(format, &["type", "schema"], at)?;
    let schema = present(format, "schema").filter(|schema| schema.is_object());
    match (required(format, "type", at)?.as_str(), schema) {
        ("json_schema", Some(schema)) => {
            Ok(Format::Schema { name: "output".to_owned(), schema: schema.clone(), strict: true })
        }
        _ => Err(Refusal::new(at, format!("{at} must be {{\"type\": \"json_schema\", \"schema\": {{…}}}}"))),
    }
}

/// `thinking` with `output_config.effort` beside its own fields.
fn reasoning(body: &Map<String, Value>, effort: Option<Value>) -> Result<Option<Value>, Refusal> {
    let at = "thinking";
    let mut reasoning = match present(body, at) {
        None => Map::new(),
        Some(value) => {
            let fields = object(value, at)?;
            let kind = required(fields, "type", at)?;
            let budget = integer(fields, "budget_tokens", 1, u64::from(u32::MAX));
            if budget.map_err(|refusal| refusal.under(at))?.is_none() && kind == "enabled" {
                let message = "thinking.budget_tokens is missing; give the most tokens that thinking may take";
                return Err(Refusal::new("thinking.budget_tokens", message));
            }
            fields.clone()
        }
    };
    if let Some(effort) = effort {
        reasoning.insert("effort".to_owned(), effort);
    }
    Ok((!reasoning.is_empty()).then_some(Value::Object(reasoning)))
}
