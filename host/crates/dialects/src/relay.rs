//! An answer passed on as the upstream wrote it, for a client and an upstream of one dialect.
//! What no code here knows reaches the client unchanged, and `whole` tells the record what was passed on. The frames
//! that end a choice or the answer wait for `close`, which puts the receipt in; usage that the client did not ask for is
//! left out.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::ask::Ask;
use crate::assembly::Assembly;
use crate::dialect::Dialect;
use crate::openai::error_frames;
use crate::receipt::reef;
use crate::reply::{Envelope, Event, Frame, FrameData};
use crate::sse::SseEvent;

/// Frames that say that an answer has ended; some upstreams send them although it has not.
const MESSAGE_ENDS: [&str; 2] = ["message_stop", "message_delta"];
const RESPONSE_ENDS: [&str; 4] = ["response.completed", "response.incomplete", "response.cancelled", "response.failed"];

/// Passes one answer on.
#[derive(Debug)]
pub struct Relay {
    dialect: Dialect,
    envelope: Envelope,
    include_usage: bool,
    /// What the frames add up to.
    answer: Assembly,
    /// Waits for the record; none until a choice, or the answer, has ended.
    held: Option<Vec<SseEvent>>,
    /// Data of the last frame that was passed on.
    last: String,
    /// Content blocks of a messages stream that are open.
    open: BTreeSet<u64>,
    ended: bool,
}

/// A whole answer as the upstream wrote it, with the receipt.
pub fn whole(mut raw: Value, envelope: &Envelope) -> Value {
    if let Some(fields) = raw.as_object_mut() {
        fields.insert("reef".to_owned(), reef(envelope));
    }
    raw
}

impl Relay {
    /// The relay of an answer to `ask`.
    pub fn new(dialect: Dialect, ask: &Ask, envelope: Envelope) -> Self {
        Self {
            dialect,
            envelope,
            include_usage: ask.include_usage,
            answer: Assembly::new(dialect),
            held: None,
            last: String::new(),
            open: BTreeSet::new(),
            ended: false,
        }
    }

    /// What may leave at once of a frame; `events` is what the dialect's reader made of it.
    pub fn push(&mut self, raw: SseEvent, events: &[Event]) -> Vec<String> {
        if self.ended {
            return Vec::new();
        }
        let data = parsed(&raw.data);
        self.answer.push(&data, kind(&data, &raw));
        if self.is_unwanted(&raw) {
            return Vec::new();
        }
        if matches!(self.dialect, Dialect::Chat | Dialect::Completions) {
            return self.push_chunk(raw, &data, events);
        }
        if events.iter().any(|event| matches!(event, Event::Finished { .. })) || self.is_end(&raw) {
            self.held.get_or_insert_default();
        }
        if let Some(held) = &mut self.held {
            held.push(raw);
            return Vec::new();
        }
        self.note_block(&raw);
        vec![self.pass(raw)]
    }

    /// The whole answer so far, in the upstream's words; none before its first frame.
    pub fn whole(&self) -> Option<Value> {
        self.answer.whole().map(|answer| whole(answer, &self.envelope))
    }

    /// Other choices go on while the end of one waits.
    fn push_chunk(&mut self, raw: SseEvent, data: &Value, events: &[Event]) -> Vec<String> {
        let ends = |number: u64| {
            let ends = |event: &Event| matches!(event, Event::Finished { choice, .. } if u64::from(*choice) == number);
            events.iter().any(ends)
        };
        let choices = data.get("choices").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let numbered = choices
            .iter()
            .zip(0_u64..)
            .map(|(choice, position)| (choice, choice.get("index").and_then(Value::as_u64).unwrap_or(position)));
        let (ended, others): (Vec<_>, Vec<_>) = numbered.partition(|(_, number)| ends(*number));
        if ended.is_empty() {
            if is_usage(&raw) || self.is_end(&raw) {
                self.held.get_or_insert_default().push(raw);
                return Vec::new();
            }
            return vec![self.pass(raw)];
        }
        if others.is_empty() {
            self.held.get_or_insert_default().push(raw);
            return Vec::new();
        }
        let only = |choices: &[(&Value, u64)]| {
            let mut body = data.clone();
            body["choices"] = choices.iter().map(|(choice, _)| (*choice).clone()).collect();
            SseEvent { event: raw.event.clone(), data: body.to_string() }
        };
        let (held, passed) = (only(&ended), only(&others));
        self.held.get_or_insert_default().push(held);
        vec![self.pass(passed)]
    }

    fn pass(&mut self, raw: SseEvent) -> String {
        let text = to_sse(&raw);
        self.last = raw.data;
        text
    }

    /// What may leave once the record is durable: what was held, with the receipt in its place.
    pub fn close(&mut self) -> Vec<String> {
        if std::mem::replace(&mut self.ended, true) {
            return Vec::new();
        }
        let held = self.held.take().unwrap_or_default();
        match self.dialect {
            Dialect::Chat | Dialect::Completions => self.close_chunks(held),
            Dialect::Messages => self.close_named(held, &["message_stop"]),
            Dialect::Responses => {
                self.close_named(held, &["response.completed", "response.incomplete", "response.cancelled"])
            }
        }
    }

    /// The end of an answer that failed; what was held is not sent, since it says that the answer is complete.
    pub fn fail(&mut self, code: &str, message: &str, kind: &str) -> Vec<String> {
        if std::mem::replace(&mut self.ended, true) {
            return Vec::new();
        }
        let frames = match self.dialect {
            Dialect::Chat | Dialect::Completions => error_frames(code, message, kind),
            Dialect::Messages => self.fail_message(message, kind),
            Dialect::Responses => self.fail_response(code, message, kind),
        };
        frames.iter().map(Frame::to_sse).collect()
    }

    /// Usage by itself, of which the client wants to know nothing.
    fn is_unwanted(&self, raw: &SseEvent) -> bool {
        matches!(self.dialect, Dialect::Chat | Dialect::Completions)
            && !self.include_usage
            && raw.data.contains("\"usage\"")
            && is_usage(raw)
    }

    /// Says that the answer is complete, whatever the dialect's reader thinks of it.
    fn is_end(&self, raw: &SseEvent) -> bool {
        if raw.data.trim() == "[DONE]" {
            return true;
        }
        let names: &[&str] = match self.dialect {
            Dialect::Chat | Dialect::Completions => &[],
            Dialect::Messages => &MESSAGE_ENDS,
            Dialect::Responses => &RESPONSE_ENDS,
        };
        let told = |name: &&str| raw.event.as_deref() == Some(*name) || raw.data.contains(*name);
        if !names.iter().any(told) {
            return false;
        }
        let data = parsed(&raw.data);
        match kind(&data, raw) {
            "message_delta" => data.pointer("/delta/stop_reason").is_some(),
            kind => names.contains(&kind),
        }
    }

    fn note_block(&mut self, raw: &SseEvent) {
        if self.dialect != Dialect::Messages || !raw.data.contains("\"content_block_st") {
            return;
        }
        let data = parsed(&raw.data);
        let Some(index) = data.get("index").and_then(Value::as_u64) else { return };
        match kind(&data, raw) {
            "content_block_start" => drop(self.open.insert(index)),
            "content_block_stop" => drop(self.open.remove(&index)),
            _ => {}
        }
    }

    /// The receipt is a chunk of its own, before usage and the end.
    fn close_chunks(&self, mut held: Vec<SseEvent>) -> Vec<String> {
        let template = held.iter().find(|raw| raw.data.trim() != "[DONE]").map_or(&self.last, |raw| &raw.data);
        let mut receipt = parsed(template);
        if !receipt.is_object() {
            receipt = json!({ "id": self.envelope.receipt, "model": self.envelope.model });
        }
        receipt["choices"] = json!([]);
        receipt["reef"] = reef(&self.envelope);
        if let Some(fields) = receipt.as_object_mut() {
            fields.remove("usage");
        }
        held.retain(|raw| raw.data.trim() != "[DONE]");
        let place = held.iter().position(is_usage).unwrap_or(held.len());
        let mut texts: Vec<String> = held.iter().map(to_sse).collect();
        texts.insert(place, Frame::json(receipt).to_sse());
        texts.push(Frame { event: None, data: FrameData::Done }.to_sse());
        texts
    }

    /// The receipt is a key of the frame that ends the answer; an upstream that left that frame out is helped.
    fn close_named(&self, held: Vec<SseEvent>, names: &[&'static str]) -> Vec<String> {
        let mut found = false;
        let mut texts = Vec::with_capacity(held.len() + 1);
        for mut raw in held {
            let mut data = parsed(&raw.data);
            if names.contains(&kind(&data, &raw)) {
                found = true;
                data["reef"] = reef(&self.envelope);
                if let Some(response) = data.get_mut("response").and_then(Value::as_object_mut) {
                    response.insert("reef".to_owned(), reef(&self.envelope));
                }
                raw.data = data.to_string();
            }
            texts.push(to_sse(&raw));
        }
        if !found && self.dialect == Dialect::Messages {
            texts.push(named("message_stop", json!({ "reef": reef(&self.envelope) })).to_sse());
        }
        texts
    }

    fn fail_message(&mut self, message: &str, kind: &str) -> Vec<Frame> {
        let open = std::mem::take(&mut self.open);
        let mut frames: Vec<Frame> =
            open.into_iter().map(|index| named("content_block_stop", json!({ "index": index }))).collect();
        let kind = if kind == "server_error" { "api_error" } else { kind };
        frames.push(named("error", json!({ "error": { "type": kind, "message": message } })));
        frames
    }

    fn fail_response(&self, code: &str, message: &str, kind: &str) -> Vec<Frame> {
        let next = parsed(&self.last).get("sequence_number").and_then(Value::as_u64).map_or(0, |last| last + 1);
        let mut answer = self.answer.whole().unwrap_or_else(|| json!({ "object": "response", "output": [] }));
        answer["status"] = json!("failed");
        answer["error"] = json!({ "code": code, "message": message, "type": kind });
        let error = json!({ "code": code, "message": message, "param": null, "sequence_number": next });
        let failed = json!({ "response": answer, "sequence_number": next + 1 });
        vec![named("error", error), named("response.failed", failed)]
    }
}

fn named(name: &'static str, mut data: Value) -> Frame {
    data["type"] = json!(name);
    Frame { event: Some(name), data: FrameData::Json(data) }
}

/// Null for what is no JSON: the reader has refused it before it comes here.
fn parsed(data: &str) -> Value {
    serde_json::from_str(data).unwrap_or_default()
}

fn kind<'a>(data: &'a Value, raw: &'a SseEvent) -> &'a str {
    data.get("type").and_then(Value::as_str).or(raw.event.as_deref()).unwrap_or_default()
}

/// A chunk that tells usage and nothing else.
fn is_usage(raw: &SseEvent) -> bool {
    let data = parsed(&raw.data);
    let empty = data.get("choices").is_none_or(|choices| choices.as_array().is_some_and(Vec::is_empty));
    empty && data.get("usage").is_some_and(Value::is_object)
}

/// The event as it came, its data in as many lines.
fn to_sse(raw: &SseEvent) -> String {
    let name = raw.event.as_ref().map(|name| format!("event: {name}\n")).unwrap_or_default();
    let lines: String = raw.data.split('\n').map(|line| format!("data: {line}\n")).collect();
    format!("{name}{lines}\n")
}
