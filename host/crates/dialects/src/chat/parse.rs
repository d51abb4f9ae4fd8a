//! A chat-completions body becomes an `Ask`, or a refusal that names the parameter.
//! Null means absent; what this file does not know is kept apart in the `Ask`, for whoever can forward it.

use serde_json::{Map, Value};

use super::{tools, turns};
use crate::ask::{Ask, Format, Input, Refusal, ToolChoice};
use crate::dialect::Dialect;
use crate::fields::{flag, integer, present, text};
use crate::items::{object, only, required};
use crate::openai::read_common;
use crate::places::places;

/// Alternatives per token, as in OpenAI's API.
const TOP_LOGPROBS_MAX: u64 = 20;

pub(super) const READ: [&str; 12] = [
    "messages",
    "max_completion_tokens",
    "logprobs",
    "top_logprobs",
    "response_format",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "reasoning_effort",
    "functions",
    "function_call",
    "modalities",
];

/// Reads a body.
pub fn parse(body: &Map<String, Value>) -> Result<Ask, Refusal> {
    refuse_older_forms(body)?;
    let turns = turns::turns(body)?;
    let places = places(&turns, body.get("messages"), "messages");
    let mut tools = tools::tools(body)?;
    let tool_choice = tools::choice(body, &mut tools)?;
    match &tool_choice {
        ToolChoice::Required if tools.is_empty() => {
            return Err(Refusal::new("tool_choice", "tool_choice needs tools; send at least one"));
        }
        ToolChoice::Named(name) if !tools::has_function(&tools, name) => {
            return Err(Refusal::new("tool_choice", "tool_choice names a function that is not among the tools"));
        }
        _ => {}
    }
    let common = read_common(body, (Dialect::Chat, Input::Turns(turns)), &READ)?;
    // The newer name of the two wins, as in OpenAI's API.
    let tokens_max = integer(body, "max_completion_tokens", 1, u64::from(u32::MAX))?.map(|tokens| tokens as u32);
    Ok(Ask {
        places,
        tools,
        tool_choice,
        parallel_calls: flag(body, "parallel_tool_calls")?,
        format: format(body)?,
        tokens_max: tokens_max.or(common.tokens_max),
        logprobs: logprobs(body)?,
        reasoning: text(body, "reasoning_effort")?.map(Value::String),
        ..common
    })
}

/// The forms that came before tools, and answers in sound: accepted only with the value that asks for nothing.
fn refuse_older_forms(body: &Map<String, Value>) -> Result<(), Refusal> {
    if !matches!(present(body, "functions"), None | Some(Value::Array(_)))
        || present(body, "functions").and_then(Value::as_array).is_some_and(|list| !list.is_empty())
    {
        return Err(Refusal::new("functions", "functions is the older form of tools; send tools instead"));
    }
    if !matches!(present(body, "function_call").map(Value::as_str), None | Some(Some("none" | "auto"))) {
        return Err(Refusal::new("function_call", "function_call is the older form of tool_choice; send that instead"));
    }
    match present(body, "modalities") {
        None => Ok(()),
        Some(Value::Array(list)) if list.iter().all(|kind| kind == "text") => Ok(()),
        Some(_) => Err(Refusal::new("modalities", "modalities may hold only \"text\"")),
    }
}

fn format(body: &Map<String, Value>) -> Result<Format, Refusal> {
    let wrong = || {
        Refusal::new("response_format", "response_format must be an object of type text, json_object or json_schema")
    };
    let Some(value) = present(body, "response_format") else { return Ok(Format::Text) };
    let fields = value.as_object().ok_or_else(wrong)?;
    only(fields, &["type", "json_schema"], "response_format")?;
    match present(fields, "type").and_then(Value::as_str) {
        Some("text") => Ok(Format::Text),
        Some("json_object") => Ok(Format::Json),
        Some("json_schema") => schema(fields.get("json_schema").unwrap_or(&Value::Null)),
        _ => Err(wrong()),
    }
}

fn schema(value: &Value) -> Result<Format, Refusal> {
    let at = "response_format.json_schema";
    let fields = object(value, at)?;
    only(fields, &["name", "description", "schema", "strict"], at)?;
    let schema = fields.get("schema").unwrap_or(&Value::Null);
    let mut schema = object(schema, &format!("{at}.schema"))?.clone();
    // JSON schema has a place of its own for what the format's description says.
    if let Some(description) = text(fields, "description").map_err(|refusal| refusal.under(at))? {
        schema.entry("description").or_insert(Value::String(description));
    }
    let strict = flag(fields, "strict").map_err(|refusal| refusal.under(at))?.unwrap_or(false);
    Ok(Format::Schema { name: required(fields, "name", at)?, schema: Value::Object(schema), strict })
}

fn logprobs(body: &Map<String, Value>) -> Result<Option<u32>, Refusal> {
    let wanted = flag(body, "logprobs")?.unwrap_or(false);
    let top = integer(body, "top_logprobs", 0, TOP_LOGPROBS_MAX)?.unwrap_or(0);
    if top > 0 && !wanted {
        return Err(Refusal::new("top_logprobs", "top_logprobs needs logprobs: true"));
    }
    Ok(wanted.then_some(top as u32))
}
