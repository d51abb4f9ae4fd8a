//! Events of an answer become the frames of a messages stream.
//! Blocks leave one after the other, each opened and closed once; `message_delta` and `message_stop`, which end the
//! answer, leave only with `close`. Choices after the first are left out: the dialect has one.

use serde_json::{Value, json};

use super::{REDACTED, whole};
use crate::ask::Ask;
use crate::order::{Block, InOrder, Step};
use crate::receipt::Ids;
use crate::reply::{Envelope, Event, Frame, FrameData, Stop, Usage};

/// Writes one answer.
#[derive(Debug)]
pub struct Writer {
    envelope: Envelope,
    ids: Ids,
    order: InOrder,
    /// Number of the open block, or of the next.
    index: u32,
    /// What a delta of the open block is called, and its field.
    delta: (&'static str, &'static str),
    started: bool,
    called: bool,
    refused: bool,
    stop: Option<Stop>,
    usage: Usage,
    cache_writes: u64,
    ended: bool,
}

impl Writer {
    /// The writer of an answer to `ask`.
    pub fn new(ask: &Ask, envelope: Envelope) -> Self {
        Self {
            envelope,
            ids: Ids::new(ask),
            order: InOrder::new(),
            index: 0,
            delta: ("text_delta", "text"),
            started: false,
            called: false,
            refused: false,
            stop: None,
            usage: Usage::default(),
            cache_writes: 0,
            ended: false,
        }
    }

    /// The frames that may leave at once.
    pub fn push(&mut self, event: &Event) -> Vec<Frame> {
        let mut frames = Vec::new();
        if self.ended {
            return frames;
        }
        self.ids.push(event);
        match event {
            Event::Started { prompt } => self.start(prompt.as_ref().map_or(0, Vec::len), &mut frames),
            Event::Delta { choice: 0, pieces, .. } if self.stop.is_none() => {
                self.start(0, &mut frames);
                let mut steps = Vec::new();
                pieces.iter().for_each(|piece| self.order.push(piece, &mut steps));
                self.take(steps, &mut frames);
            }
            Event::Finished { choice: 0, stop } if self.stop.is_none() => {
                self.stop = Some(stop.clone());
                self.finish(&mut frames);
            }
            Event::CacheWrites(tokens) => self.cache_writes = *tokens,
            Event::Usage(usage) => self.usage = *usage,
            Event::Delta { .. } | Event::Finished { .. } => {}
        }
        frames
    }

    /// What may leave once the record is durable: the stop reason, usage and the receipt.
    pub fn close(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        if self.ended {
            return frames;
        }
        self.finish(&mut frames);
        self.ended = true;
        let (reason, sequence) = whole::stop_reason(self.stop.as_ref(), self.called, self.refused);
        frames.push(frame(
            "message_delta",
            json!({
                "delta": { "stop_reason": reason, "stop_sequence": sequence },
                "usage": whole::usage(&self.usage, self.cache_writes),
            }),
        ));
        frames.push(frame("message_stop", json!({ "reef": self.ids.reef(&self.envelope) })));
        frames
    }

    /// The end of an answer that failed. The dialect has no place for `code`.
    pub fn fail(&mut self, _code: &str, message: &str, kind: &str) -> Vec<Frame> {
        let (mut frames, mut steps) = (Vec::new(), Vec::new());
        if self.ended {
            return frames;
        }
        self.ended = true;
        self.order.abandon(&mut steps);
        self.take(steps, &mut frames);
        let kind = if kind == "server_error" { "api_error" } else { kind };
        frames.push(frame("error", json!({ "error": { "type": kind, "message": message } })));
        frames
    }

    fn start(&mut self, prompt_tokens: usize, frames: &mut Vec<Frame>) {
        if self.started {
            return;
        }
        self.started = true;
        let mut message = whole::head(&self.envelope);
        message["usage"] = whole::usage(&Usage { input: prompt_tokens as u64, ..Usage::default() }, 0);
        frames.push(frame("message_start", json!({ "message": message })));
    }

    fn finish(&mut self, frames: &mut Vec<Frame>) {
        self.start(0, frames);
        let mut steps = Vec::new();
        self.order.finish(&mut steps);
        self.take(steps, frames);
    }

    fn take(&mut self, steps: Vec<Step>, frames: &mut Vec<Frame>) {
        for step in steps {
            match step {
                Step::Open(block) => self.open(block, frames),
                Step::More(text) => {
                    let (kind, field) = self.delta;
                    frames.push(self.block_delta(json!({ "type": kind, field: text })));
                }
                Step::Signature(signature) => frames.push(self.sign(&signature)),
                Step::Close => {
                    frames.push(frame("content_block_stop", json!({ "index": self.index })));
                    self.index += 1;
                }
            }
        }
    }

    fn open(&mut self, block: Block, frames: &mut Vec<Frame>) {
        let thinking = json!({ "type": "thinking", "thinking": "", "signature": "" });
        let mut signature = None;
        let (content, delta) = match block {
            Block::Text => (json!({ "type": "text", "text": "" }), ("text_delta", "text")),
            Block::Refusal => {
                self.refused = true;
                (json!({ "type": "text", "text": "" }), ("text_delta", "text"))
            }
            Block::Reasoning => (thinking, ("thinking_delta", "thinking")),
            Block::Sealed(sealed) => match sealed.strip_prefix(REDACTED) {
                Some(data) => (json!({ "type": "redacted_thinking", "data": data }), self.delta),
                None => {
                    signature = Some(sealed);
                    (thinking, self.delta)
                }
            },
            // `Dialect::check_says` lets no custom call come here.
            Block::Call { id, name } | Block::Custom { id, name } => {
                self.called = true;
                let call = json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
                (call, ("input_json_delta", "partial_json"))
            }
        };
        self.delta = delta;
        frames.push(frame("content_block_start", json!({ "index": self.index, "content_block": content })));
        frames.extend(signature.map(|signature| self.sign(&signature)));
    }

    fn sign(&self, signature: &str) -> Frame {
        self.block_delta(json!({ "type": "signature_delta", "signature": signature }))
    }

    fn block_delta(&self, delta: Value) -> Frame {
        frame("content_block_delta", json!({ "index": self.index, "delta": delta }))
    }
}

fn frame(name: &'static str, mut data: Value) -> Frame {
    data["type"] = json!(name);
    Frame { event: Some(name), data: FrameData::Json(data) }
}
