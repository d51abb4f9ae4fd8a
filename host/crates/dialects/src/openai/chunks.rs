//! Reading of an upstream's chunks or object: what surrounds the content of a choice.
//! A whole object is read as a stream of one chunk. Nothing in it is trusted: a broken frame, a number out of bounds or
//! a stream that stops in the middle is an error in words; what is only unknown is passed over, since the answer stands
//! without it. Usage is told once, at the end.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::request::CHOICES_MAX;
use crate::fields::{count, present};
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
    cache_writes: u64,
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
            events.push(Event::Started { prompt: prompt_ids(body, choices) });
        }
        for (position, choice) in choices.iter().enumerate() {
            let choice = choice.as_object().ok_or("the provider sent a choice that is not an object")?;
            let number = choice_number(choice, position)?;
            let content = read(number, choice)?;
            self.add(number, choice, content, &mut events)?;
        }
        if let Some(usage) = body.get("usage").and_then(Value::as_object) {
            self.usage = Some(read_usage(usage));
            self.cache_writes = detail(usage, "prompt_tokens_details", "cache_write_tokens");
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
        // What is said after the end belongs to nothing.
        if self.ended.get(&number).is_some_and(|ended| *ended) {
            return Ok(());
        }
        if !pieces.is_empty() || !tokens.is_empty() {
            events.push(Event::Delta { choice: number, pieces, tokens });
        }
        let ended = self.ended.entry(number).or_default();
        if let Some(stop) = read_stop(choice)? {
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
            None => {
                let writes = (self.cache_writes > 0).then_some(Event::CacheWrites(self.cache_writes));
                Ok(writes.into_iter().chain(self.usage.map(Event::Usage)).collect())
            }
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

/// A reason that is not known ends the choice as any other does; no word, or an empty one, does not end it.
fn read_stop(choice: &Map<String, Value>) -> Result<Option<Stop>, String> {
    let reason = choice.get("finish_reason").and_then(Value::as_str).filter(|reason| !reason.is_empty());
    let Some(reason) = reason else { return Ok(None) };
    let stop = match reason {
        "length" | "model_length" | "max_tokens" => Stop::Length,
        "tool_calls" | "function_call" => Stop::Calls,
        "content_filter" => Stop::Filtered,
        "cancelled" | "abort" => Stop::Cancelled,
        // OpenRouter's and DeepSeek's words for an answer that broke off.
        "error" | "insufficient_system_resource" => {
            return Err(format!("the provider broke a choice off with the reason '{reason}'"));
        }
        _ => match present(choice, "stop_reason").and_then(Value::as_str) {
            Some(matched) => Stop::Sequence(matched.to_owned()),
            None => Stop::End,
        },
    };
    Ok(Some(stop))
}

fn read_usage(usage: &Map<String, Value>) -> Usage {
    let told = |field: &str| usage.get(field).and_then(count).unwrap_or(0);
    Usage {
        input: told("prompt_tokens"),
        cached: detail(usage, "prompt_tokens_details", "cached_tokens"),
        output: told("completion_tokens"),
        reasoning: detail(usage, "completion_tokens_details", "reasoning_tokens"),
    }
}

fn detail(usage: &Map<String, Value>, group: &str, field: &str) -> u64 {
    usage.get(group).and_then(|details| details.get(field)).and_then(count).unwrap_or(0)
}

/// At the top in chat completions, in the choices in completions.
fn prompt_ids(body: &Map<String, Value>, choices: &[Value]) -> Option<Vec<u32>> {
    const FIELD: &str = "prompt_token_ids";
    token_ids(body, FIELD).or_else(|| token_ids(choices.first()?.as_object()?, FIELD))
}

/// A list of token ids.
pub(crate) fn token_ids(map: &Map<String, Value>, field: &str) -> Option<Vec<u32>> {
    let id = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok());
    map.get(field)?.as_array()?.iter().map(id).collect()
}

fn error_sentence(error: &Value) -> String {
    let message =
        error.get("message").and_then(Value::as_str).or(error.as_str()).unwrap_or("an error without a message");
    let message: String = message.chars().take(ERROR_CHARS_MAX).collect();
    format!("the provider reports: {message}")
}
