//! A chat-completions body becomes a typed request, or a 400 that names the parameter.
//! Null means absent; a field that Reef does not know or cannot honour is refused, never ignored.

use reef_core::{Message, Sampling};
use reef_engine::MESSAGES_MAX;
use serde_json::{Map, Value};

use crate::http::error::ApiError;

/// Stop strings of one request, and bytes of each.
const STOPS_MAX: usize = 16;
const STOP_BYTES_MAX: usize = 256;
/// Alternatives per token, as in OpenAI's API.
const TOP_LOGPROBS_MAX: u64 = 20;

/// What a client asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatRequest {
    /// `model`, as sent.
    pub model: String,
    /// The conversation, roles mapped to those of the template.
    pub messages: Vec<Message>,
    /// Temperature 1 and top_p 1 unless given.
    pub sampling: Sampling,
    /// `max_completion_tokens`, else `max_tokens`.
    pub tokens_max: Option<u32>,
    /// Stop strings.
    pub stop: Vec<String>,
    /// Answer as server-sent events.
    pub stream: bool,
    /// `stream_options.include_usage`.
    pub include_usage: bool,
    /// Log-probs of the answer's tokens, with this many alternatives.
    pub logprobs: Option<u32>,
    /// Prompt and output ids in the answer.
    pub return_token_ids: bool,
}

/// Fields that are read below.
const READ: [&str; 16] = [
    "model",
    "messages",
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "stop",
    "max_tokens",
    "max_completion_tokens",
    "stream",
    "stream_options",
    "logprobs",
    "top_logprobs",
    "return_token_ids",
    "n",
    "response_format",
];
/// Fields of a message; those beside role, content and tool_calls change nothing in the prompt and are recorded.
const MESSAGE_FIELDS: [&str; 8] =
    ["role", "content", "tool_calls", "tool_call_id", "name", "refusal", "annotations", "reasoning_content"];
/// Fields that describe the client and change nothing in the answer; they are recorded with the body.
const DESCRIPTIVE: [&str; 6] = ["user", "metadata", "store", "safety_identifier", "prompt_cache_key", "service_tier"];
/// Fields that are accepted only with the value that changes nothing.
const NEUTRAL_ONLY: [&str; 7] =
    ["frequency_penalty", "presence_penalty", "logit_bias", "tools", "functions", "parallel_tool_calls", "tool_choice"];

impl ChatRequest {
    /// Reads a body; `fresh_seed` is used when the client gives none.
    pub fn parse(body: &Map<String, Value>, fresh_seed: u64) -> Result<Self, ApiError> {
        refuse_unsupported(body)?;
        let model = match body.get("model") {
            Some(Value::String(model)) if !model.trim().is_empty() => model.clone(),
            _ => {
                return Err(ApiError::invalid("model", "model must be the name of a model; GET /v1/models lists them"));
            }
        };
        let tokens_max = match integer(body, "max_completion_tokens", 1, u64::from(u32::MAX))? {
            Some(tokens) => Some(tokens),
            None => integer(body, "max_tokens", 1, u64::from(u32::MAX))?,
        };
        Ok(Self {
            model,
            messages: messages(body)?,
            sampling: Sampling {
                temperature: number(body, "temperature", 0.0, 2.0)?.unwrap_or(1.0),
                top_p: positive_share(body)?,
                top_k: integer(body, "top_k", 0, 1 << 20)?.map_or(0, |k| k as u32),
                seed: integer(body, "seed", 0, u64::MAX)?.unwrap_or(fresh_seed),
            },
            tokens_max: tokens_max.map(|tokens| tokens as u32),
            stop: stops(body)?,
            stream: flag(body, "stream")?,
            include_usage: include_usage(body)?,
            logprobs: logprobs(body)?,
            return_token_ids: flag(body, "return_token_ids")?,
        })
    }
}

fn present<'a>(body: &'a Map<String, Value>, field: &str) -> Option<&'a Value> {
    body.get(field).filter(|value| !value.is_null())
}

fn refuse_unsupported(body: &Map<String, Value>) -> Result<(), ApiError> {
    for (field, value) in body {
        let name = field.as_str();
        if value.is_null() || READ.contains(&name) || DESCRIPTIVE.contains(&name) {
            continue;
        }
        let shown: String = name.chars().take(64).collect();
        if !NEUTRAL_ONLY.contains(&name) {
            return Err(ApiError::invalid(
                shown.clone(),
                format!("the parameter '{shown}' is not known to this server"),
            ));
        }
        let neutral = match value {
            Value::Number(number) => number.as_f64() == Some(0.0),
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            Value::String(choice) => name == "tool_choice" && (choice == "none" || choice == "auto"),
            Value::Bool(_) => name == "parallel_tool_calls",
            Value::Null => true,
        };
        if !neutral {
            return Err(ApiError::invalid(
                shown.clone(),
                format!("'{shown}' is not supported by this model; leave it out"),
            ));
        }
    }
    if integer(body, "n", 1, 128)?.is_some_and(|n| n != 1) {
        return Err(ApiError::invalid("n", "n is not supported above 1; send the request n times"));
    }
    match present(body, "response_format").map(|format| format.get("type").and_then(Value::as_str)) {
        None | Some(Some("text")) => Ok(()),
        Some(_) => Err(ApiError::invalid("response_format", "only response_format {\"type\":\"text\"} is supported")),
    }
}

fn messages(body: &Map<String, Value>) -> Result<Vec<Message>, ApiError> {
    let list = match present(body, "messages") {
        Some(Value::Array(list)) if !list.is_empty() => list,
        _ => return Err(ApiError::invalid("messages", "messages must be a list with at least one message")),
    };
    if list.len() > MESSAGES_MAX {
        return Err(ApiError::invalid("messages", format!("messages holds more than {MESSAGES_MAX} messages")));
    }
    let mut messages = Vec::with_capacity(list.len());
    for (index, item) in list.iter().enumerate() {
        if let Some(message) = message(item, &format!("messages[{index}]"))? {
            messages.push(message);
        }
    }
    if messages.is_empty() {
        return Err(ApiError::invalid("messages", "messages holds no text"));
    }
    Ok(messages)
}

/// `None` for a turn that says nothing, such as an assistant turn with empty content.
fn message(item: &Value, at: &str) -> Result<Option<Message>, ApiError> {
    let fields = item.as_object().ok_or_else(|| ApiError::invalid(at, format!("{at} must be an object")))?;
    // `developer` is the newer name of `system`; the template of this model knows only the latter.
    let role = match present(fields, "role").and_then(Value::as_str) {
        Some("system" | "developer") => "system",
        Some("user") => "user",
        Some("assistant") => "assistant",
        Some("tool") => "tool",
        _ => {
            return Err(ApiError::invalid(
                format!("{at}.role"),
                format!("{at}.role must be system, developer, user, assistant or tool"),
            ));
        }
    };
    if let Some(unknown) =
        fields.iter().find(|(key, value)| !value.is_null() && !MESSAGE_FIELDS.contains(&key.as_str()))
    {
        let shown: String = unknown.0.chars().take(64).collect();
        return Err(ApiError::invalid(
            format!("{at}.{shown}"),
            format!("'{shown}' of {at} is not known to this server"),
        ));
    }
    if present(fields, "tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty()) {
        return Err(ApiError::invalid(format!("{at}.tool_calls"), "tool calls are not supported by this model"));
    }
    let content = content(fields.get("content"), at)?;
    if content.is_empty() && role == "assistant" {
        return Ok(None);
    }
    Ok(Some(Message { role: role.to_owned(), content }))
}

fn content(value: Option<&Value>, at: &str) -> Result<String, ApiError> {
    let wrong = || {
        ApiError::invalid(format!("{at}.content"), format!("{at}.content must be text, a list of text parts or null"))
    };
    match value {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => parts
            .iter()
            .map(|part| match (part.get("type").and_then(Value::as_str), part.get("text").and_then(Value::as_str)) {
                (Some("text"), Some(text)) => Ok(text),
                (Some(kind), _) if kind != "text" => Err(ApiError::invalid(
                    format!("{at}.content"),
                    format!("{at}.content: parts of type '{}' are not supported by this model", kind.escape_default()),
                )),
                _ => Err(wrong()),
            })
            .collect(),
        Some(_) => Err(wrong()),
    }
}

fn number(body: &Map<String, Value>, field: &str, low: f64, high: f64) -> Result<Option<f32>, ApiError> {
    let Some(value) = present(body, field) else { return Ok(None) };
    match value.as_f64() {
        Some(number) if (low..=high).contains(&number) => Ok(Some(number as f32)),
        _ => Err(ApiError::invalid(field, format!("{field} must be a number from {low} to {high}"))),
    }
}

fn positive_share(body: &Map<String, Value>) -> Result<f32, ApiError> {
    let share = number(body, "top_p", 0.0, 1.0)?.unwrap_or(1.0);
    if share > 0.0 { Ok(share) } else { Err(ApiError::invalid("top_p", "top_p must be over 0 and up to 1")) }
}

fn integer(body: &Map<String, Value>, field: &str, low: u64, high: u64) -> Result<Option<u64>, ApiError> {
    let Some(value) = present(body, field) else { return Ok(None) };
    match value.as_u64() {
        Some(number) if (low..=high).contains(&number) => Ok(Some(number)),
        _ => Err(ApiError::invalid(field, format!("{field} must be a whole number from {low} to {high}"))),
    }
}

fn flag(body: &Map<String, Value>, field: &str) -> Result<bool, ApiError> {
    match present(body, field) {
        None => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(_) => Err(ApiError::invalid(field, format!("{field} must be true or false"))),
    }
}

fn stops(body: &Map<String, Value>) -> Result<Vec<String>, ApiError> {
    let wrong = || {
        ApiError::invalid(
            "stop",
            format!("stop must be a text or up to {STOPS_MAX} texts of 1 to {STOP_BYTES_MAX} bytes"),
        )
    };
    let stops: Vec<String> = match present(body, "stop") {
        None => return Ok(Vec::new()),
        Some(Value::String(stop)) => vec![stop.clone()],
        Some(Value::Array(list)) => {
            list.iter().map(|stop| stop.as_str().map(str::to_owned).ok_or_else(wrong)).collect::<Result<_, _>>()?
        }
        Some(_) => return Err(wrong()),
    };
    let fits = stops.len() <= STOPS_MAX && stops.iter().all(|stop| (1..=STOP_BYTES_MAX).contains(&stop.len()));
    if fits { Ok(stops) } else { Err(wrong()) }
}

fn include_usage(body: &Map<String, Value>) -> Result<bool, ApiError> {
    match present(body, "stream_options") {
        None => Ok(false),
        Some(Value::Object(options)) => flag(options, "include_usage"),
        Some(_) => Err(ApiError::invalid("stream_options", "stream_options must be an object")),
    }
}

fn logprobs(body: &Map<String, Value>) -> Result<Option<u32>, ApiError> {
    let wanted = flag(body, "logprobs")?;
    let top = match present(body, "top_logprobs") {
        None => 0,
        Some(value) => value.as_u64().filter(|top| *top <= TOP_LOGPROBS_MAX).ok_or_else(|| {
            ApiError::invalid(
                "top_logprobs",
                format!("top_logprobs must be a whole number from 0 to {TOP_LOGPROBS_MAX}"),
            )
        })?,
    };
    if top > 0 && !wanted {
        return Err(ApiError::invalid("top_logprobs", "top_logprobs needs logprobs: true"));
    }
    Ok(wanted.then_some(top as u32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(body: Value) -> Result<ChatRequest, ApiError> {
        ChatRequest::parse(body.as_object().expect("object"), 7)
    }

    fn with(field: &str, value: Value) -> Result<ChatRequest, ApiError> {
        let mut body = json!({ "model": "m", "messages": [{ "role": "user", "content": "hi" }] });
        body.as_object_mut().expect("object").insert(field.to_owned(), value);
        parse(body)
    }

    fn refused(field: &str, value: Value) -> String {
        with(field, value.clone()).expect_err(&format!("{field}: {value}")).param.unwrap_or_default()
    }

    #[test]
    fn null_means_absent_for_every_optional_field() {
        for field in
            READ.iter().chain(&DESCRIPTIVE).chain(&NEUTRAL_ONLY).filter(|f| **f != "model" && **f != "messages")
        {
            assert!(with(field, Value::Null).is_ok(), "{field}");
        }
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_name() {
        assert_eq!(refused("n", json!(2)), "n");
        assert_eq!(refused("tools", json!([{}])), "tools");
        assert_eq!(refused("logit_bias", json!({ "1": 2 })), "logit_bias");
        assert_eq!(refused("response_format", json!({ "type": "json_object" })), "response_format");
        assert_eq!(refused("temprature", json!(1)), "temprature");
        assert!(with("tools", json!([])).is_ok() && with("presence_penalty", json!(0)).is_ok());
    }

    #[test]
    fn token_limits_have_one_precedence() {
        assert_eq!(with("max_tokens", json!(5)).expect("ok").tokens_max, Some(5));
        let both = json!({ "model": "m", "messages": [{ "role": "user", "content": "x" }], "max_tokens": 5, "max_completion_tokens": 6 });
        assert_eq!(parse(both).expect("ok").tokens_max, Some(6));
        for bad in [json!(0), json!(-1), json!("5"), json!(1.5)] {
            assert_eq!(refused("max_tokens", bad), "max_tokens");
        }
    }

    #[test]
    fn content_is_text_parts_or_nothing() {
        let content = |value: Value| parse(json!({ "model": "m", "messages": [{ "role": "user", "content": value }] }));
        let text = content(json!("hi")).expect("text").messages;
        assert_eq!(text, content(json!([{ "type": "text", "text": "hi" }])).expect("part").messages);
        assert!(content(json!([])).is_ok() && content(Value::Null).is_ok());
        assert!(content(json!([{ "type": "image_url" }])).expect_err("image").message.contains("image_url"));
        assert!(content(json!(5)).is_err());
    }

    #[test]
    fn an_empty_assistant_turn_is_not_rendered() {
        let body = json!({ "model": "m", "messages": [{ "role": "user", "content": "a" }, { "role": "assistant", "content": "", "tool_calls": [] }, { "role": "developer", "content": "b" }] });
        let roles: Vec<String> = parse(body).expect("ok").messages.into_iter().map(|m| m.role).collect();
        assert_eq!(roles, ["user", "system"]);
    }

    #[test]
    fn wrong_models_and_ranges_are_400() {
        for bad in [json!(123), Value::Null, json!(" ")] {
            assert_eq!(with("model", bad).expect_err("refused").param.as_deref(), Some("model"));
        }
        assert_eq!(refused("temperature", json!(2.5)), "temperature");
        assert_eq!(refused("top_p", json!(0)), "top_p");
        assert_eq!(refused("top_logprobs", json!(3)), "top_logprobs");
        assert_eq!(refused("stop", json!([""])), "stop");
        assert_eq!(with("temperature", json!(0)).expect("greedy").sampling.temperature, 0.0);
    }
}
