//! Reading of an upstream's chunks or object: what surrounds the content of a choice.
//! A whole object is read as a stream of one chunk. Nothing in it is trusted: a wrong type, a number out of bounds or
//! a stream that stops in the middle is an error in words, and usage is told once, at the end.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::request::CHOICES_MAX;
use crate::fields::{present, shown};
use crate::reply::{Event, Piece, Stop, TokenInfo, Usage};
use crate::sse::SseEvent;

/// Characters of an upstream's error that are repeated.
const ERROR_CHARS_MAX: usize = 500;

/// What one chunk adds to a choice.
#[derive(Debug, Default)]
pub(crate) struct Content {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) tokens: Vec<TokenInfo>,
    /// The choice holds calls, from this chunk or an earlier one.
    pub(crate) calls: bool,
}

/// The state of one answer's reading.
#[derive(Debug, Default)]
pub(crate) struct Chunks {
    started: bool,
    done: bool,
    usage: Option<Usage>,
    /// The choices that were seen, and whether they have ended.
    ended: BTreeMap<u32, bool>,
}

impl Chunks {
    /// Reads one event of a stream; `read` reads the content of a choice.
    pub(crate) fn push(
        &mut self,
        event: &SseEvent,
        read: impl FnMut(u32, &Map<String, Value>) -> Result<Content, String>,
    ) -> Result<Vec<Event>, String> {
        let data = event.data.trim();
        if self.done || data.is_empty() {
            return Ok(Vec::new());
        }
        if data == "[DONE]" {
            self.done = true;
            return Ok(Vec::new());
        }
        let body: Value = serde_json::from_str(data).map_err(|_| "the provider sent a chunk that is not JSON")?;
        if event.event.as_deref() == Some("error") {
            return Err(error_sentence(body.get("error").unwrap_or(&body)));
        }
        self.body(&body, read)
    }

    /// Reads a chunk, or a whole object.
    pub(crate) fn body(
        &mut self,
        whole: &Value,
        mut read: impl FnMut(u32, &Map<String, Value>) -> Result<Content, String>,
    ) -> Result<Vec<Event>, String> {
        let body = whole.as_object().ok_or("the provider sent a chunk that is not an object")?;
        if let Some(error) = present(body, "error") {
            return Err(error_sentence(error));
        }
        if body.get("object").is_some_and(|object| object == "error") {
            return Err(error_sentence(whole));
        }
        let mut events = Vec::new();
        let choices = match present(body, "choices") {
            None => &[],
            Some(Value::Array(choices)) => choices.as_slice(),
            Some(_) => return Err("the provider sent choices that are not a list".to_owned()),
        };
        if !std::mem::replace(&mut self.started, true) {
            events.push(Event::Started { prompt: prompt_ids(body, choices)? });
        }
        for (position, choice) in choices.iter().enumerate() {
            let choice = choice.as_object().ok_or("the provider sent a choice that is not an object")?;
            let number = choice_number(choice, position)?;
            let content = read(number, choice)?;
            self.add(number, choice, content, &mut events)?;
        }
        if let Some(usage) = present(body, "usage") {
            self.usage = Some(read_usage(usage)?);
        }
        Ok(events)
    }

    fn add(
        &mut self,
        number: u32,
        choice: &Map<String, Value>,
        content: Content,
        events: &mut Vec<Event>,
    ) -> Result<(), String> {
        let Content { pieces, tokens, calls } = content;
        if !pieces.is_empty() || !tokens.is_empty() {
            events.push(Event::Delta { choice: number, pieces, tokens });
        }
        let ended = self.ended.entry(number).or_default();
        if let (Some(stop), false) = (read_stop(choice)?, *ended) {
            *ended = true;
            // A forced call ends with "stop" in OpenAI's API; what counts is that it waits for results.
            let stop = if calls && stop == Stop::End { Stop::Calls } else { stop };
            events.push(Event::Finished { choice: number, stop });
        }
        Ok(())
    }

    /// The end of the stream.
    pub(crate) fn finish(self) -> Result<Vec<Event>, String> {
        if self.ended.is_empty() {
            return Err("the provider sent no answer".to_owned());
        }
        match self.ended.iter().find(|(_, ended)| !**ended) {
            Some((number, _)) => Err(format!("the provider ended in the middle of choice {number}")),
            None => Ok(self.usage.map(Event::Usage).into_iter().collect()),
        }
    }
}

fn choice_number(choice: &Map<String, Value>, position: usize) -> Result<u32, String> {
    let number = match present(choice, "index") {
        None => Some(position as u64),
        Some(index) => index.as_u64(),
    };
    match number {
        Some(number) if number < CHOICES_MAX => Ok(number as u32),
        _ => Err(format!("the provider sent a choice without an index from 0 to {}", CHOICES_MAX - 1)),
    }
}

fn read_stop(choice: &Map<String, Value>) -> Result<Option<Stop>, String> {
    let Some(reason) = present(choice, "finish_reason") else { return Ok(None) };
    let stop = match reason.as_str() {
        Some("stop" | "stop_sequence" | "eos" | "eos_token" | "end_turn") => {
            match present(choice, "stop_reason").and_then(Value::as_str) {
                Some(matched) => Stop::Sequence(matched.to_owned()),
                None => Stop::End,
            }
        }
        Some("length" | "model_length" | "max_tokens") => Stop::Length,
        Some("tool_calls" | "function_call") => Stop::Calls,
        Some("content_filter") => Stop::Filtered,
        Some("cancelled" | "abort") => Stop::Cancelled,
        Some(other) => return Err(format!("the provider ended a choice with the reason '{}'", shown(other))),
        None => return Err("the provider sent a finish_reason that is not text".to_owned()),
    };
    Ok(Some(stop))
}

fn read_usage(usage: &Value) -> Result<Usage, String> {
    let usage = usage.as_object().ok_or("the provider sent usage that is not an object")?;
    let count = |map: &Map<String, Value>, field: &str| match present(map, field) {
        None => Ok(0),
        Some(value) => value.as_u64().ok_or_else(|| format!("the provider sent usage whose {field} is no count")),
    };
    let detail = |group: &str, field: &str| match present(usage, group) {
        None => Ok(0),
        Some(Value::Object(details)) => count(details, field),
        Some(_) => Err(format!("the provider sent usage whose {group} is not an object")),
    };
    Ok(Usage {
        input: count(usage, "prompt_tokens")?,
        cached: detail("prompt_tokens_details", "cached_tokens")?,
        output: count(usage, "completion_tokens")?,
        reasoning: detail("completion_tokens_details", "reasoning_tokens")?,
    })
}

/// At the top in chat completions, in the choices in completions.
fn prompt_ids(body: &Map<String, Value>, choices: &[Value]) -> Result<Option<Vec<u32>>, String> {
    let first = choices.first().and_then(Value::as_object);
    match token_ids(body, "prompt_token_ids")? {
        None => first.map_or(Ok(None), |choice| token_ids(choice, "prompt_token_ids")),
        ids => Ok(ids),
    }
}

/// A list of token ids.
pub(crate) fn token_ids(map: &Map<String, Value>, field: &str) -> Result<Option<Vec<u32>>, String> {
    let Some(value) = present(map, field) else { return Ok(None) };
    let id = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok());
    match value.as_array().and_then(|list| list.iter().map(id).collect()) {
        Some(ids) => Ok(Some(ids)),
        None => Err(format!("the provider sent {field} that are not a list of token ids")),
    }
}

fn error_sentence(error: &Value) -> String {
    let message =
        error.get("message").and_then(Value::as_str).or(error.as_str()).unwrap_or("an error without a message");
    let message: String = message.chars().take(ERROR_CHARS_MAX).collect();
    format!("the provider reports: {message}")
}
