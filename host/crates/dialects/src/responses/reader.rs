//! A responses upstream's stream or object becomes events.
//! Everything in it is checked, since it comes from outside. An upstream that leaves out deltas is read from what it
//! says when an item, or the answer, is done; items that are neither message,
//! call nor reasoning are passed over, or foreign if the provider acted by them.

use std::collections::BTreeMap;

use serde_json::Value;

use super::logprobs;
use crate::custom;
use crate::fields::{self, shown};
use crate::reply::{Event, Piece, Stop, TokenInfo, Usage};
use crate::sse::SseEvent;

/// Items of one answer, and calls among them.
const ITEMS_MAX: usize = 4096;
const CALLS_MAX: usize = 1024;
/// Characters of an upstream's error that are repeated.
const ERROR_CHARS_MAX: usize = 500;

/// Reads one stream.
#[derive(Debug, Default)]
pub struct Reader {
    started: bool,
    items: BTreeMap<u64, Item>,
    /// Place of the item that began last, for upstreams that do not repeat it.
    last: u64,
    calls: usize,
    stopped: bool,
}

/// What is known of an item that has begun.
#[derive(Debug)]
struct Item {
    /// Its number, if it is a call.
    call: Option<usize>,
    /// The field of its arguments, if it is a call.
    arguments: &'static str,
    /// Where its text comes from, once there is any.
    source: Option<Source>,
    done: bool,
}

/// Reasoning may be told twice, as it is and in summary: the first that comes is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Content,
    Summary,
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
            "response.created" => Ok(self.start()),
            "response.output_item.added" => self.item_added(&data),
            "response.output_item.done" => self.item_done(&data),
            "response.output_text.delta" => self.delta(&data, Source::Content, Piece::Text),
            "response.refusal.delta" => self.delta(&data, Source::Content, Piece::Refusal),
            "response.reasoning_text.delta" => self.delta(&data, Source::Content, Piece::Reasoning),
            "response.reasoning_summary_text.delta" => self.delta(&data, Source::Summary, Piece::Reasoning),
            "response.reasoning_summary_part.added" => self.summary_part(&data),
            "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta" => self.arguments(&data),
            "response.failed" => Err(error_of(data.get("response").unwrap_or(&data))),
            "response.completed" | "response.incomplete" | "response.cancelled" => {
                self.end(data.get("response").ok_or_else(|| format!("the provider sent {kind} without response"))?)
            }
            "error" => Err(error_of(&data)),
            _ => Ok(Vec::new()),
        }
    }

    /// The stream has ended.
    pub fn finish(self) -> Result<Vec<Event>, String> {
        if self.stopped {
            Ok(Vec::new())
        } else {
            Err("the provider's stream ended before its answer was complete".to_owned())
        }
    }

    fn start(&mut self) -> Vec<Event> {
        if std::mem::replace(&mut self.started, true) { Vec::new() } else { vec![Event::Started { prompt: None }] }
    }

    fn say(&mut self, pieces: Vec<Piece>, tokens: Vec<TokenInfo>) -> Vec<Event> {
        let mut events = self.start();
        if !pieces.is_empty() || !tokens.is_empty() {
            events.push(Event::Delta { choice: 0, pieces, tokens });
        }
        events
    }

    fn place(&self, data: &Value) -> u64 {
        data.get("output_index").and_then(Value::as_u64).unwrap_or(self.last)
    }

    fn item_added(&mut self, data: &Value) -> Result<Vec<Event>, String> {
        let item = data.get("item").ok_or("the provider sent response.output_item.added without item")?;
        let next = self.items.last_key_value().map_or(0, |(place, _)| place.saturating_add(1));
        self.last = data.get("output_index").and_then(Value::as_u64).unwrap_or(next);
        let pieces = self.begin(self.last, item)?;
        Ok(self.say(pieces.into_iter().collect(), Vec::new()))
    }

    /// Notes the item; a call's beginning is a piece.
    fn begin(&mut self, place: u64, item: &Value) -> Result<Option<Piece>, String> {
        if self.items.contains_key(&place) {
            return Ok(None);
        }
        if self.items.len() >= ITEMS_MAX {
            return Err(format!("the provider's answer has more than {ITEMS_MAX} items"));
        }
        let mut noted = Item { call: None, arguments: "arguments", source: None, done: false };
        let mut piece = None;
        let custom = kind(item) == custom::CALL;
        if kind(item) == "function_call" || custom {
            if self.calls >= CALLS_MAX {
                return Err(format!("the provider's answer has more than {CALLS_MAX} calls"));
            }
            noted.call = Some(self.calls);
            let (call, id, name) = (self.calls, text(item, "call_id")?, text(item, "name")?);
            piece =
                Some(if custom { Piece::CustomStart { call, id, name } } else { Piece::CallStart { call, id, name } });
            if custom {
                noted.arguments = "input";
            }
            self.calls += 1;
        } else if kind(item).ends_with("_call") {
            piece = Some(Piece::Foreign(shown(kind(item))));
        }
        self.items.insert(place, noted);
        Ok(piece)
    }

    fn delta(&mut self, data: &Value, source: Source, piece: fn(String) -> Piece) -> Result<Vec<Event>, String> {
        let item = self.item(data)?;
        if *item.source.get_or_insert(source) != source {
            return Ok(Vec::new());
        }
        let piece = piece(text(data, "delta")?);
        Ok(self.say(vec![piece], logprobs::read(data.get("logprobs"))))
    }

    /// Parts of a summary are paragraphs.
    fn summary_part(&mut self, data: &Value) -> Result<Vec<Event>, String> {
        let later = data.get("summary_index").and_then(Value::as_u64).is_some_and(|index| index > 0);
        let item = self.item(data)?;
        if !later || item.source != Some(Source::Summary) {
            return Ok(Vec::new());
        }
        Ok(self.say(vec![Piece::Reasoning("\n\n".to_owned())], Vec::new()))
    }

    fn arguments(&mut self, data: &Value) -> Result<Vec<Event>, String> {
        let text = text(data, "delta")?;
        let item = self.item(data)?;
        let call = item.call.ok_or("the provider sent arguments of an item that is no call")?;
        item.source = Some(Source::Content);
        Ok(self.say(vec![Piece::CallArguments { call, text }], Vec::new()))
    }

    fn item(&mut self, data: &Value) -> Result<&mut Item, String> {
        let place = self.place(data);
        self.items
            .get_mut(&place)
            .ok_or_else(|| format!("the provider sent {} of item {place}, which has not begun", shown(kind(data))))
    }

    fn item_done(&mut self, data: &Value) -> Result<Vec<Event>, String> {
        let item = data.get("item").ok_or("the provider sent response.output_item.done without item")?;
        let place = self.place(data);
        self.complete(place, item)
    }

    /// What the item says that no delta said.
    fn complete(&mut self, place: u64, value: &Value) -> Result<Vec<Event>, String> {
        let mut pieces: Vec<Piece> = self.begin(place, value)?.into_iter().collect();
        let Some(item) = self.items.get_mut(&place).filter(|item| !item.done) else { return Ok(Vec::new()) };
        item.done = true;
        let mut tokens = Vec::new();
        if item.source.is_none() {
            match item.call {
                Some(call) => pieces.push(Piece::CallArguments { call, text: text(value, item.arguments)? }),
                None => tokens = contents(value, &mut pieces)?,
            }
        }
        let signature = value.get("encrypted_content").and_then(Value::as_str).filter(|_| kind(value) == "reasoning");
        let signature = signature.filter(|signature| !signature.is_empty());
        pieces.extend(signature.map(|signature| Piece::Signature(signature.to_owned())));
        Ok(self.say(pieces, tokens))
    }

    fn end(&mut self, response: &Value) -> Result<Vec<Event>, String> {
        if self.stopped {
            return Ok(Vec::new());
        }
        let status = response.get("status").and_then(Value::as_str);
        if status == Some("failed") {
            return Err(error_of(response));
        }
        let mut events = self.start();
        if self.items.is_empty() {
            for (place, item) in output(response).iter().enumerate() {
                events.extend(self.complete(place as u64, item)?);
            }
        }
        self.stopped = true;
        let stop = match (status, response.pointer("/incomplete_details/reason").and_then(Value::as_str)) {
            (Some("cancelled"), _) => Stop::Cancelled,
            (Some("incomplete"), Some("content_filter")) => Stop::Filtered,
            (Some("incomplete"), _) => Stop::Length,
            _ if self.calls > 0 => Stop::Calls,
            _ => Stop::End,
        };
        events.push(Event::Finished { choice: 0, stop });
        let writes = response.pointer("/usage/input_tokens_details/cache_write_tokens").and_then(fields::count);
        events.extend(writes.filter(|writes| *writes > 0).map(Event::CacheWrites));
        events.extend(usage(response).map(Event::Usage));
        Ok(events)
    }
}

/// The events of a whole answer.
pub fn read_whole(body: &Value) -> Result<Vec<Event>, String> {
    if body.get("error").is_some_and(|error| !error.is_null()) {
        return Err(error_of(body));
    }
    if !body.get("output").is_some_and(Value::is_array) {
        return Err("the provider's answer has no output".to_owned());
    }
    Reader::new().end(body)
}

fn output(response: &Value) -> &[Value] {
    response.get("output").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// What a message or a reasoning item says, and the tokens that it is made of.
fn contents(item: &Value, pieces: &mut Vec<Piece>) -> Result<Vec<TokenInfo>, String> {
    let list = |field: &str| item.get(field).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let mut tokens = Vec::new();
    if !matches!(kind(item), "message" | "reasoning") {
        return Ok(tokens);
    }
    for part in list("content") {
        match kind(part) {
            "output_text" => {
                pieces.push(Piece::Text(text(part, "text")?));
                tokens.extend(logprobs::read(part.get("logprobs")));
            }
            "refusal" => pieces.push(Piece::Refusal(text(part, "refusal")?)),
            "reasoning_text" => pieces.push(Piece::Reasoning(text(part, "text")?)),
            _ => {}
        }
    }
    if list("content").is_empty() {
        let summary = list("summary").iter().map(|part| text(part, "text")).collect::<Result<Vec<_>, _>>()?;
        pieces.extend((!summary.is_empty()).then(|| Piece::Reasoning(summary.join("\n\n"))));
    }
    Ok(tokens)
}

fn kind(value: &Value) -> &str {
    value.get("type").and_then(Value::as_str).unwrap_or_default()
}

fn text(value: &Value, field: &str) -> Result<String, String> {
    let text = value.get(field).and_then(Value::as_str).map(str::to_owned);
    text.ok_or_else(|| format!("the provider sent a {} whose {field} is no text", shown(kind(value))))
}

fn usage(response: &Value) -> Option<Usage> {
    let usage = response.get("usage").filter(|usage| usage.is_object())?;
    let count = |path: &str| usage.pointer(path).and_then(fields::count).unwrap_or(0);
    Some(Usage {
        input: count("/input_tokens"),
        cached: count("/input_tokens_details/cached_tokens"),
        output: count("/output_tokens"),
        reasoning: count("/output_tokens_details/reasoning_tokens"),
    })
}

/// The message stands in `error`, or, in the stream's own event, beside the type.
fn error_of(data: &Value) -> String {
    let nested = data.pointer("/error/message").or_else(|| data.get("message"));
    let message = nested.and_then(Value::as_str).unwrap_or("an error without a message");
    format!("the provider reports: {}", message.chars().take(ERROR_CHARS_MAX).collect::<String>())
}
