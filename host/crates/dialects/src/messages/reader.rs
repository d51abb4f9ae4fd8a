//! A messages upstream's stream or object becomes events.
//! Everything in it is checked, since it comes from outside; kinds of event that are not known are passed over, as the
//! dialect asks of its clients, and kinds of block that are not known are foreign to every other dialect.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{REDACTED, arguments};
use crate::fields::{count, shown};
use crate::reply::{Event, Piece, Stop, Usage};
use crate::sse::SseEvent;

/// Calls of one answer.
const CALLS_MAX: usize = 1024;
/// Blocks that are open at the same time; the dialect has one.
const OPEN_BLOCKS_MAX: usize = 4096;
/// A signature, which comes in pieces and is told as one; those of long reasoning have some 100 KiB.
const SIGNATURE_BYTES_MAX: usize = 4 << 20;
/// Characters of an upstream's error that are repeated.
const ERROR_CHARS_MAX: usize = 500;

/// Reads one stream.
#[derive(Debug, Default)]
pub struct Reader {
    started: bool,
    open: BTreeMap<u64, Open>,
    calls: usize,
    stopped: bool,
    usage: Usage,
    counts: Counts,
}

/// A block that has begun.
#[derive(Debug)]
enum Open {
    Text,
    Thinking { signature: String },
    Call { call: usize, arguments: Arguments },
    Other,
}

/// How the arguments of a call come: in deltas, or whole at its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arguments {
    None,
    Deltas,
    Whole,
}

/// Counts as the dialect has them; a later one replaces an earlier one.
#[derive(Debug, Default)]
struct Counts {
    input: u64,
    cache_read: u64,
    cache_creation: u64,
}

impl Reader {
    /// A reader at the beginning of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// The events in one event of the stream; an error of the provider is a sentence.
    pub fn push(&mut self, event: &SseEvent) -> Result<Vec<Event>, String> {
        if event.data.trim() == "[DONE]" {
            return Ok(Vec::new());
        }
        let data: Value = serde_json::from_str(&event.data)
            .map_err(|error| format!("the provider sent an event that is no JSON: {error}"))?;
        let kind = data.get("type").and_then(Value::as_str).or(event.event.as_deref()).unwrap_or_default();
        match kind {
            "message_start" => {
                self.count(data.pointer("/message/usage"));
                Ok(self.start())
            }
            "content_block_start" => self.block_start(&data),
            "content_block_delta" => self.block_delta(&data),
            "content_block_stop" => self.block_stop(&data),
            "message_delta" => self.message_delta(&data),
            "error" => Err(error_of(&data)),
            _ => Ok(Vec::new()),
        }
    }

    /// The stream has ended.
    pub fn finish(self) -> Result<Vec<Event>, String> {
        if !self.stopped {
            return Err("the provider's stream ended before its answer was complete".to_owned());
        }
        Ok(self.used())
    }

    fn used(&self) -> Vec<Event> {
        let writes = self.counts.cache_creation;
        (writes > 0).then_some(Event::CacheWrites(writes)).into_iter().chain([Event::Usage(self.usage)]).collect()
    }

    fn start(&mut self) -> Vec<Event> {
        if std::mem::replace(&mut self.started, true) { Vec::new() } else { vec![Event::Started { prompt: None }] }
    }

    fn say(&mut self, pieces: Vec<Piece>) -> Vec<Event> {
        let mut events = self.start();
        // What is said after the end belongs to nothing.
        if !pieces.is_empty() && !self.stopped {
            events.push(Event::Delta { choice: 0, pieces, tokens: Vec::new() });
        }
        events
    }

    fn block_start(&mut self, data: &Value) -> Result<Vec<Event>, String> {
        let index = index(data)?;
        let block = data.get("content_block").ok_or("the provider began a content block without content_block")?;
        let mut pieces = Vec::new();
        let open = match kind(block) {
            "tool_use" => {
                let (id, name, input) = call(block)?;
                let call = self.calls;
                self.calls = next_call(call)?;
                pieces.push(Piece::CallStart { call, id, name });
                if input.is_empty() {
                    Open::Call { call, arguments: Arguments::None }
                } else {
                    pieces.push(Piece::CallArguments { call, text: arguments::from_input(&input) });
                    Open::Call { call, arguments: Arguments::Whole }
                }
            }
            "text" => {
                pieces.extend(some_text(block, "text").map(Piece::Text));
                Open::Text
            }
            "thinking" => {
                pieces.extend(some_text(block, "thinking").map(Piece::Reasoning));
                Open::Thinking { signature: some_text(block, "signature").unwrap_or_default() }
            }
            "redacted_thinking" => {
                pieces.push(redacted(block)?);
                Open::Other
            }
            other => {
                pieces.push(Piece::Foreign(shown(other)));
                Open::Other
            }
        };
        if self.open.len() >= OPEN_BLOCKS_MAX {
            return Err(format!("the provider has more than {OPEN_BLOCKS_MAX} content blocks open"));
        }
        self.open.insert(index, open);
        Ok(self.say(pieces))
    }

    fn block_delta(&mut self, data: &Value) -> Result<Vec<Event>, String> {
        let index = index(data)?;
        let delta = data.get("delta").ok_or("the provider sent a content_block_delta without delta")?;
        let open = self
            .open
            .get_mut(&index)
            .ok_or_else(|| format!("the provider sent a delta of content block {index}, which is not open"))?;
        let piece = match (kind(delta), open) {
            ("text_delta", Open::Text) => Piece::Text(text(delta, "text")?),
            ("thinking_delta", Open::Thinking { .. }) => Piece::Reasoning(text(delta, "thinking")?),
            ("signature_delta", Open::Thinking { signature }) => {
                let more = text(delta, "signature")?;
                if signature.len() + more.len() > SIGNATURE_BYTES_MAX {
                    return Err(format!("the provider sent a signature of more than {SIGNATURE_BYTES_MAX} bytes"));
                }
                signature.push_str(&more);
                return Ok(Vec::new());
            }
            ("input_json_delta", Open::Call { call, arguments }) if *arguments != Arguments::Whole => {
                let text = text(delta, "partial_json")?;
                if !text.is_empty() {
                    *arguments = Arguments::Deltas;
                }
                Piece::CallArguments { call: *call, text }
            }
            _ => return Ok(Vec::new()),
        };
        Ok(self.say(vec![piece]))
    }

    fn block_stop(&mut self, data: &Value) -> Result<Vec<Event>, String> {
        let piece = match self.open.remove(&index(data)?) {
            Some(Open::Call { call, arguments: Arguments::None }) => {
                Some(Piece::CallArguments { call, text: "{}".to_owned() })
            }
            Some(Open::Thinking { signature }) if !signature.is_empty() => Some(Piece::Signature(signature)),
            _ => None,
        };
        Ok(self.say(piece.into_iter().collect()))
    }

    fn message_delta(&mut self, data: &Value) -> Result<Vec<Event>, String> {
        self.count(data.get("usage"));
        let delta = data.get("delta").ok_or("the provider sent a message_delta without delta")?;
        let mut events = self.say(paused(delta).into_iter().collect());
        if let (Some(stop), false) = (stop(delta), self.stopped) {
            self.stopped = true;
            events.push(Event::Finished { choice: 0, stop });
        }
        Ok(events)
    }

    fn count(&mut self, usage: Option<&Value>) {
        let number = |path: &str| usage.and_then(|usage| usage.pointer(path)).and_then(count);
        let replace = |path: &str, count: &mut u64| *count = number(path).unwrap_or(*count);
        replace("/input_tokens", &mut self.counts.input);
        replace("/cache_read_input_tokens", &mut self.counts.cache_read);
        replace("/cache_creation_input_tokens", &mut self.counts.cache_creation);
        replace("/output_tokens", &mut self.usage.output);
        replace("/output_tokens_details/thinking_tokens", &mut self.usage.reasoning);
        let Counts { input, cache_read, cache_creation } = self.counts;
        self.usage.input = input.saturating_add(cache_read).saturating_add(cache_creation);
        self.usage.cached = cache_read;
    }
}

/// The events of a whole answer.
pub fn read_whole(body: &Value) -> Result<Vec<Event>, String> {
    if kind(body) == "error" {
        return Err(error_of(body));
    }
    let content = body.get("content").and_then(Value::as_array).ok_or("the provider's answer has no content")?;
    let mut reader = Reader::new();
    reader.count(body.get("usage"));
    let mut pieces = Vec::new();
    for block in content {
        match kind(block) {
            "text" => pieces.push(Piece::Text(text(block, "text")?)),
            "thinking" => {
                pieces.push(Piece::Reasoning(text(block, "thinking")?));
                pieces.extend(some_text(block, "signature").map(Piece::Signature));
            }
            "redacted_thinking" => pieces.push(redacted(block)?),
            "tool_use" => {
                let (id, name, input) = call(block)?;
                let call = reader.calls;
                reader.calls = next_call(call)?;
                pieces.push(Piece::CallStart { call, id, name });
                pieces.push(Piece::CallArguments { call, text: arguments::from_input(&input) });
            }
            other => pieces.push(Piece::Foreign(shown(other))),
        }
    }
    pieces.extend(paused(body));
    let stop = stop(body).ok_or("the provider's answer has no stop_reason")?;
    let mut events = reader.say(pieces);
    events.push(Event::Finished { choice: 0, stop });
    events.extend(reader.used());
    Ok(events)
}

fn kind(value: &Value) -> &str {
    value.get("type").and_then(Value::as_str).unwrap_or_default()
}

fn index(data: &Value) -> Result<u64, String> {
    let index = data.get("index").and_then(Value::as_u64);
    index.ok_or_else(|| format!("the provider sent a {} without index", shown(kind(data))))
}

fn text(value: &Value, field: &str) -> Result<String, String> {
    let text = value.get(field).and_then(Value::as_str).map(str::to_owned);
    text.ok_or_else(|| format!("the provider sent a {} whose {field} is no text", shown(kind(value))))
}

fn some_text(value: &Value, field: &str) -> Option<String> {
    value.get(field).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
}

fn redacted(block: &Value) -> Result<Piece, String> {
    Ok(Piece::Signature(format!("{REDACTED}{}", text(block, "data")?)))
}

fn call(block: &Value) -> Result<(String, String, Map<String, Value>), String> {
    let input = match block.get("input") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(input)) => input.clone(),
        Some(_) => return Err("the provider sent a tool_use whose input is no object".to_owned()),
    };
    Ok((text(block, "id")?, text(block, "name")?, input))
}

fn next_call(call: usize) -> Result<usize, String> {
    if call >= CALLS_MAX {
        return Err(format!("the provider's answer has more than {CALLS_MAX} calls"));
    }
    Ok(call + 1)
}

/// A turn that waits to be continued, for which other dialects have no word.
fn paused(value: &Value) -> Option<Piece> {
    let reason = value.get("stop_reason").and_then(Value::as_str)?;
    (reason == "pause_turn").then(|| Piece::Foreign(reason.to_owned()))
}

/// A reason that is not known ends the answer as any other does.
fn stop(value: &Value) -> Option<Stop> {
    let reason = value.get("stop_reason").and_then(Value::as_str)?;
    Some(match reason {
        "stop_sequence" => match value.get("stop_sequence").and_then(Value::as_str) {
            Some(sequence) => Stop::Sequence(sequence.to_owned()),
            None => Stop::End,
        },
        "tool_use" => Stop::Calls,
        "max_tokens" | "model_context_window_exceeded" => Stop::Length,
        "refusal" => Stop::Filtered,
        "cancelled" => Stop::Cancelled,
        _ => Stop::End,
    })
}

fn error_of(data: &Value) -> String {
    let message = data.pointer("/error/message").and_then(Value::as_str).unwrap_or("an error without a message");
    format!("the provider reports: {}", message.chars().take(ERROR_CHARS_MAX).collect::<String>())
}
