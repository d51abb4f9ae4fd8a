//! Events of an answer become the frames of a responses stream.
//! Items leave one after the other under ids that never change; every frame has its place and its number. The terminal
//! frame, which holds the whole answer, leaves only with `close`. Choices after the first are left out: the dialect has
//! one.

use serde_json::{Value, json};

use super::{logprobs, whole};
use crate::ask::Ask;
use crate::order::{Block, InOrder, Step};
use crate::receipt::Ids;
use crate::reply::{Envelope, Event, Frame, FrameData, Stop, TokenInfo, Usage};

/// Writes one answer.
#[derive(Debug)]
pub struct Writer {
    envelope: Envelope,
    ids: Ids,
    /// The answer as it was at its beginning.
    head: Value,
    order: InOrder,
    open: Option<Open>,
    /// Items that have ended.
    output: Vec<Value>,
    /// Log-probs of tokens that no text has carried yet; `None` if nobody asked for any.
    logprobs: Option<Vec<Value>>,
    sequence: u64,
    started: bool,
    stop: Option<Stop>,
    usage: Option<Usage>,
    cache_writes: u64,
    ended: bool,
}

/// The item that is being written.
#[derive(Debug)]
struct Open {
    block: Block,
    id: String,
    text: String,
    signature: Option<String>,
    logprobs: Vec<Value>,
}

impl Writer {
    /// The writer of an answer to `ask`.
    pub fn new(ask: &Ask, envelope: Envelope) -> Self {
        Self {
            head: whole::head(ask, &envelope),
            envelope,
            ids: Ids::new(ask),
            order: InOrder::new(),
            open: None,
            output: Vec::new(),
            logprobs: ask.logprobs.map(|_| Vec::new()),
            sequence: 0,
            started: false,
            stop: None,
            usage: None,
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
            Event::Started { .. } => self.start(&mut frames),
            Event::Delta { choice: 0, pieces, tokens } if self.stop.is_none() => {
                self.start(&mut frames);
                self.hold(tokens);
                let mut steps = Vec::new();
                pieces.iter().for_each(|piece| self.order.push(piece, &mut steps));
                self.take(steps, &mut frames);
                self.release(&mut frames);
            }
            Event::Finished { choice: 0, stop } if self.stop.is_none() => {
                self.stop = Some(stop.clone());
                self.finish(&mut frames);
            }
            Event::CacheWrites(tokens) => self.cache_writes = *tokens,
            Event::Usage(usage) => self.usage = Some(*usage),
            Event::Delta { .. } | Event::Finished { .. } => {}
        }
        frames
    }

    /// What may leave once the record is durable: the whole answer and the receipt.
    pub fn close(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        if self.ended {
            return frames;
        }
        self.finish(&mut frames);
        self.ended = true;
        let output = std::mem::take(&mut self.output);
        let reef = self.ids.reef(&self.envelope);
        let used = (self.usage.as_ref(), self.cache_writes);
        let answer = whole::ended(self.head.take(), reef.clone(), self.stop.as_ref(), output, used);
        let name = if whole::is_cut(self.stop.as_ref()) { "response.incomplete" } else { "response.completed" };
        frames.push(self.frame(name, json!({ "response": answer, "reef": reef })));
        frames
    }

    /// The end of an answer that failed: the error by itself, and in the answer.
    pub fn fail(&mut self, code: &str, message: &str, kind: &str) -> Vec<Frame> {
        let (mut frames, mut steps) = (Vec::new(), Vec::new());
        if self.ended {
            return frames;
        }
        self.ended = true;
        self.stop = Some(Stop::Cancelled);
        self.order.abandon(&mut steps);
        self.take(steps, &mut frames);
        frames.push(self.frame("error", json!({ "code": code, "message": message, "param": null })));
        let mut answer = self.head.take();
        answer["status"] = json!("failed");
        answer["error"] = json!({ "code": code, "message": message, "type": kind });
        answer["output"] = Value::Array(std::mem::take(&mut self.output));
        frames.push(self.frame("response.failed", json!({ "response": answer })));
        frames
    }

    fn start(&mut self, frames: &mut Vec<Frame>) {
        if std::mem::replace(&mut self.started, true) {
            return;
        }
        for name in ["response.created", "response.in_progress"] {
            let response = self.head.clone();
            frames.push(self.frame(name, json!({ "response": response })));
        }
    }

    fn finish(&mut self, frames: &mut Vec<Frame>) {
        self.start(frames);
        let mut steps = Vec::new();
        self.order.finish(&mut steps);
        self.take(steps, frames);
    }

    fn hold(&mut self, tokens: &[TokenInfo]) {
        if let Some(held) = &mut self.logprobs {
            held.extend(logprobs::write(tokens));
        }
    }

    /// Tokens without text, such as a part of a character, leave with the text that is open.
    fn release(&mut self, frames: &mut Vec<Frame>) {
        let writes_text = self.open.as_ref().is_some_and(|open| open.block == Block::Text);
        if writes_text && self.logprobs.as_ref().is_some_and(|held| !held.is_empty()) {
            self.more("", frames);
        }
    }

    fn take(&mut self, steps: Vec<Step>, frames: &mut Vec<Frame>) {
        for step in steps {
            match step {
                Step::Open(block) => self.begin(block, frames),
                Step::More(text) => self.more(&text, frames),
                Step::Signature(signature) => {
                    if let Some(open) = &mut self.open {
                        open.signature = Some(signature);
                    }
                }
                Step::Close => self.end(frames),
            }
        }
    }

    fn begin(&mut self, block: Block, frames: &mut Vec<Frame>) {
        let index = self.output.len();
        let item = match &block {
            Block::Text | Block::Refusal => whole::message(&self.envelope, index, "in_progress", Vec::new()),
            Block::Reasoning | Block::Sealed(_) => whole::reasoning(&self.envelope, index, "in_progress", ("", None)),
            Block::Call { id, name } => whole::call(&self.envelope, index, "in_progress", (id, name, "")),
            Block::Custom { id, name } => whole::custom_call(&self.envelope, index, "in_progress", (id, name, "")),
        };
        let id = item.get("id").and_then(Value::as_str).unwrap_or_default().to_owned();
        let signature = match &block {
            Block::Sealed(signature) => Some(signature.clone()),
            _ => None,
        };
        frames.push(self.frame("response.output_item.added", json!({ "output_index": index, "item": item })));
        if let Some(part) = part(&block, "", Vec::new()) {
            let added = json!({ "item_id": id, "output_index": index, "content_index": 0, "part": part });
            frames.push(self.frame("response.content_part.added", added));
        }
        self.open = Some(Open { block, id, text: String::new(), signature, logprobs: Vec::new() });
    }

    fn more(&mut self, text: &str, frames: &mut Vec<Frame>) {
        let index = self.output.len();
        let Some(open) = &mut self.open else { return };
        open.text.push_str(text);
        let mut data = json!({ "item_id": open.id, "output_index": index, "delta": text });
        let name = match &open.block {
            Block::Text => {
                let logprobs = self.logprobs.as_mut().map(std::mem::take).unwrap_or_default();
                open.logprobs.extend_from_slice(&logprobs);
                data["logprobs"] = Value::Array(logprobs);
                "response.output_text.delta"
            }
            Block::Refusal => "response.refusal.delta",
            Block::Reasoning | Block::Sealed(_) => "response.reasoning_text.delta",
            Block::Call { .. } => "response.function_call_arguments.delta",
            Block::Custom { .. } => "response.custom_tool_call_input.delta",
        };
        if !matches!(open.block, Block::Call { .. } | Block::Custom { .. }) {
            data["content_index"] = json!(0);
        }
        frames.push(self.frame(name, data));
    }

    fn end(&mut self, frames: &mut Vec<Frame>) {
        let Some(open) = self.open.take() else { return };
        let index = self.output.len();
        if let Some((name, mut done)) = open.done() {
            done["item_id"] = json!(open.id);
            done["output_index"] = json!(index);
            frames.push(self.frame(name, done));
        }
        let part = part(&open.block, &open.text, open.logprobs);
        if let Some(part) = &part {
            let done = json!({ "item_id": open.id, "output_index": index, "content_index": 0, "part": part });
            frames.push(self.frame("response.content_part.done", done));
        }
        let status = whole::status(whole::is_cut(self.stop.as_ref()));
        let (text, signature) = (open.text.as_str(), open.signature.as_deref());
        let item = match &open.block {
            Block::Text | Block::Refusal => whole::message(&self.envelope, index, status, part.into_iter().collect()),
            Block::Reasoning | Block::Sealed(_) => whole::reasoning(&self.envelope, index, status, (text, signature)),
            Block::Call { id, name } => {
                whole::call(&self.envelope, index, whole::arguments_status(text), (id, name, text))
            }
            Block::Custom { id, name } => whole::custom_call(&self.envelope, index, status, (id, name, text)),
        };
        frames.push(self.frame("response.output_item.done", json!({ "output_index": index, "item": item })));
        self.output.push(item);
    }

    fn frame(&mut self, name: &'static str, mut data: Value) -> Frame {
        data["type"] = json!(name);
        data["sequence_number"] = json!(self.sequence);
        self.sequence += 1;
        Frame { event: Some(name), data: FrameData::Json(data) }
    }
}

impl Open {
    /// The end of the text: the frame's name, and what was said.
    fn done(&self) -> Option<(&'static str, Value)> {
        let text = &self.text;
        match &self.block {
            Block::Text => Some((
                "response.output_text.done",
                json!({ "content_index": 0, "text": text, "logprobs": self.logprobs }),
            )),
            Block::Refusal => Some(("response.refusal.done", json!({ "content_index": 0, "refusal": text }))),
            Block::Reasoning => Some(("response.reasoning_text.done", json!({ "content_index": 0, "text": text }))),
            Block::Call { name, .. } => {
                Some(("response.function_call_arguments.done", json!({ "name": name, "arguments": text })))
            }
            Block::Custom { .. } => Some(("response.custom_tool_call_input.done", json!({ "input": text }))),
            Block::Sealed(_) => None,
        }
    }
}

/// The one part of an item that has parts.
fn part(block: &Block, text: &str, logprobs: Vec<Value>) -> Option<Value> {
    match block {
        Block::Text => Some(whole::text_part(text, logprobs)),
        Block::Refusal => Some(whole::refusal_part(text)),
        Block::Reasoning => Some(whole::reasoning_part(text)),
        Block::Sealed(_) | Block::Call { .. } | Block::Custom { .. } => None,
    }
}
