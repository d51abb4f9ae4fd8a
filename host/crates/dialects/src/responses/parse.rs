//! A body of the responses dialect becomes an `Ask`, or a refusal that names the parameter.
//! `input` is read by `input`, tools by `tools`; everything else is read here.

use serde_json::{Map, Value, json};

use super::{input, tools};
use crate::ask::{Ask, Format, Input, Refusal};
use crate::dialect::Dialect;
use crate::fields::{flag, integer, model, number, present, split_unknown, text};
use crate::items::{named, object, only, required, rest};
use crate::places::places;

/// Alternatives per token, as in OpenAI's API.
const TOP_LOGPROBS_MAX: u64 = 20;
/// The field that becomes the first turn.
pub(super) const INSTRUCTIONS: &str = "instructions";
/// The entry of `include` that asks for log-probs.
pub(super) const INCLUDE_LOGPROBS: &str = "message.output_text.logprobs";

/// Fields that are read below.
const READ: [&str; 14] = [
    "model",
    "input",
    "instructions",
    "max_output_tokens",
    "temperature",
    "top_p",
    "top_logprobs",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "text",
    "reasoning",
    "stream",
    "return_token_ids",
];
/// Fields that describe the client, or say what else the answer should show, and change nothing in the model's input.
const DESCRIPTIVE: [&str; 12] = [
    "user",
    "metadata",
    "store",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options",
    "service_tier",
    "client_metadata",
    "include",
    "stream_options",
    "max_tool_calls",
];

/// Reads a body.
pub fn parse(body: &Map<String, Value>) -> Result<Ask, Refusal> {
    let (mut descriptive, mut unknown) = split_unknown(body, &READ, &DESCRIPTIVE);
    for (name, neutral) in [("background", Value::Bool(false)), ("truncation", Value::from("disabled"))] {
        if unknown.get(name) == Some(&neutral) {
            unknown.remove(name);
        }
    }
    // An input that fits is never truncated, and one that does not is refused with its length.
    if unknown.get("truncation") == Some(&Value::from("auto")) {
        descriptive.extend(unknown.remove_entry("truncation"));
    }
    // The answer repeats them; `write` does not, since they are the first turn.
    descriptive.extend(present(body, INSTRUCTIONS).map(|sent| (INSTRUCTIONS.to_owned(), sent.clone())));
    let (tools, tool_choice) = tools::parse(body)?;
    let turns = input::turns(body)?;
    Ok(Ask {
        dialect: Some(Dialect::Responses),
        places: places(&turns, body.get("input"), "input"),
        tools,
        tool_choice,
        parallel_calls: flag(body, "parallel_tool_calls")?,
        format: format(body, (&mut descriptive, &mut unknown))?,
        temperature: number(body, "temperature", 0.0, 2.0)?,
        top_p: top_p(body)?,
        tokens_max: integer(body, "max_output_tokens", 1, u64::from(u32::MAX))?.map(|tokens| tokens as u32),
        logprobs: logprobs(body)?,
        reasoning: reasoning(body)?,
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

fn logprobs(body: &Map<String, Value>) -> Result<Option<u32>, Refusal> {
    let top = integer(body, "top_logprobs", 0, TOP_LOGPROBS_MAX)?.unwrap_or(0);
    let wanted = match present(body, "include") {
        None => false,
        Some(Value::Array(list)) if list.iter().all(Value::is_string) => {
            list.iter().any(|entry| entry == INCLUDE_LOGPROBS)
        }
        Some(_) => return Err(Refusal::new("include", "include must be a list of texts")),
    };
    Ok((wanted || top > 0).then_some(top as u32))
}

/// `text.format`; how wordy an answer should be is a wish, and what else `text` holds is kept for an upstream that knows
/// it.
fn format(
    body: &Map<String, Value>,
    (descriptive, unknown): (&mut Map<String, Value>, &mut Map<String, Value>),
) -> Result<Format, Refusal> {
    let Some(value) = present(body, "text") else { return Ok(Format::Text) };
    let fields = object(value, "text")?;
    match present(fields, "verbosity") {
        None => {}
        Some(Value::String(wordy)) => {
            descriptive.insert("text".to_owned(), json!({ "verbosity": wordy }));
        }
        Some(_) => return Err(Refusal::new("text.verbosity", "text.verbosity must be a text: low, medium or high")),
    }
    if let Some(rest) = rest(fields, &["format", "verbosity"]) {
        unknown.insert("text".to_owned(), rest);
    }
    let Some(format) = present(fields, "format") else { return Ok(Format::Text) };
    let at = "text.format";
    let format = object(format, at)?;
    only(format, &["type", "name", "schema", "strict", "description"], at)?;
    match required(format, "type", at)?.as_str() {
        "text" => Ok(Format::Text),
        "json_object" => Ok(Format::Json),
        "json_schema" => {
            let schema = schema(format)?;
            let strict = flag(format, "strict").map_err(|refusal| refusal.under(at))?.unwrap_or(false);
            Ok(Format::Schema { name: named(format, "name", at)?, schema, strict })
        }
        _ => Err(Refusal::new("text.format.type", "text.format.type must be text, json_object or json_schema")),
    }
}

/// The schema; JSON schema has a place of its own for what the format's description says.
fn schema(format: &Map<String, Value>) -> Result<Value, Refusal> {
    let at = "text.format";
    let mut schema = object(format.get("schema").unwrap_or(&Value::Null), "text.format.schema")?.clone();
    if let Some(description) = text(format, "description").map_err(|refusal| refusal.under(at))? {
        schema.entry("description").or_insert(Value::String(description));
    }
    Ok(Value::Object(schema))
}

/// As sent, without what is null.
fn reasoning(body: &Map<String, Value>) -> Result<Option<Value>, Refusal> {
    let Some(value) = present(body, "reasoning") else { return Ok(None) };
    let fields = object(value, "reasoning")?;
    text(fields, "effort").map_err(|refusal| refusal.under("reasoning"))?;
    Ok(rest(fields, &[]))
}
