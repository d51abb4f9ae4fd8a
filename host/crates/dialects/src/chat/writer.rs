//! The chunks of a streamed chat completion.
//! Per chunk, text, ids and log-probs belong together; a chunk holds pieces in the order reasoning, text, refusal,
//! calls, so that events in another order become several chunks. A finish reason appears once per choice, and it and
//! all that follows leaves only at `close`; a choice that was never finished ends there as cancelled.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::delta::{self, Told};
use super::logprobs;
use crate::ask::Ask;
use crate::openai::{Frames, error_frames, finish_name, ids_of, set, stop_reason};
use crate::reply::{Envelope, Event, Frame, Piece, Stop, TokenInfo, Usage};

const OBJECT: &str = "chat.completion.chunk";

/// Turns events into frames.
#[derive(Debug)]
pub struct Writer {
    frames: Frames,
    n: u32,
    logprobs: bool,
    token_ids: bool,
    prompt: Option<Vec<u32>>,
    choices: BTreeMap<u32, Choice>,
    usage: Option<Usage>,
    cache_writes: u64,
    ended: bool,
}

/// A choice that has been opened.
#[derive(Debug, Default)]
struct Choice {
    stop: Option<Stop>,
    told: Told,
}

impl Writer {
    /// A writer of the answer to `ask`.
    pub fn new(ask: &Ask, envelope: Envelope) -> Self {
        Self {
            frames: Frames::new("chatcmpl", ask, &envelope),
            n: ask.n,
            logprobs: ask.logprobs.is_some(),
            token_ids: ask.return_token_ids,
            prompt: None,
            choices: BTreeMap::new(),
            usage: None,
            cache_writes: 0,
            ended: false,
        }
    }

    /// The frames that an event makes; none after the end.
    pub fn push(&mut self, event: &Event) -> Vec<Frame> {
        if self.ended {
            return Vec::new();
        }
        match event {
            Event::Started { prompt } => {
                self.prompt = prompt.clone().filter(|_| self.token_ids);
                (0..self.n).filter_map(|number| self.open(number)).collect()
            }
            // What is said after the end belongs to nothing.
            Event::Delta { choice, .. } if self.choices.get(choice).is_some_and(|choice| choice.stop.is_some()) => {
                Vec::new()
            }
            Event::Delta { choice, pieces, tokens } => {
                let opening = self.open(*choice);
                opening.into_iter().chain(self.delta(*choice, pieces, tokens)).collect()
            }
            Event::Finished { choice, stop } => {
                let opening = self.open(*choice);
                self.choices.entry(*choice).or_default().stop.get_or_insert_with(|| stop.clone());
                opening.into_iter().collect()
            }
            Event::CacheWrites(tokens) => {
                self.cache_writes = *tokens;
                Vec::new()
            }
            Event::Usage(usage) => {
                self.usage = Some(*usage);
                Vec::new()
            }
        }
    }

    /// The frames that may leave only after the record is durable.
    pub fn close(&mut self) -> Vec<Frame> {
        if std::mem::replace(&mut self.ended, true) {
            return Vec::new();
        }
        let finishes = self.choices.iter().map(|(number, choice)| {
            let stop = choice.stop.as_ref().unwrap_or(&Stop::Cancelled);
            let mut choice =
                json!({ "index": number, "delta": {}, "logprobs": null, "finish_reason": finish_name(stop) });
            stop_reason(&mut choice, Some(stop));
            self.chunk(choice)
        });
        finishes.chain(self.frames.ending(OBJECT, self.usage.as_ref(), self.cache_writes)).collect()
    }

    /// The frames of an answer that failed.
    pub fn fail(&mut self, code: &str, message: &str, kind: &str) -> Vec<Frame> {
        if std::mem::replace(&mut self.ended, true) { Vec::new() } else { error_frames(code, message, kind) }
    }

    fn chunk(&self, choice: Value) -> Frame {
        Frame::json(self.frames.body(OBJECT, vec![choice]))
    }

    /// The first chunk of a choice tells its role, the first chunk of all the prompt's ids.
    fn open(&mut self, number: u32) -> Option<Frame> {
        if self.choices.contains_key(&number) {
            return None;
        }
        self.choices.insert(number, Choice::default());
        let delta = json!({ "role": "assistant", "content": "" });
        let choice = json!({ "index": number, "delta": delta, "logprobs": null, "finish_reason": null });
        let mut body = self.frames.body(OBJECT, vec![choice]);
        if let Some(ids) = self.prompt.take() {
            set(&mut body, "prompt_token_ids", json!(ids));
        }
        Some(Frame::json(body))
    }

    fn delta(&mut self, number: u32, pieces: &[Piece], tokens: &[TokenInfo]) -> Vec<Frame> {
        let mut deltas = delta::deltas(pieces, &mut self.choices.entry(number).or_default().told);
        if deltas.is_empty() && !tokens.is_empty() && (self.logprobs || self.token_ids) {
            deltas.push(json!({ "content": "" }));
        }
        let mut tokens = Some(tokens).filter(|tokens| !tokens.is_empty());
        let choices = deltas.into_iter().map(|delta| {
            let tokens = tokens.take();
            let logprobs = tokens.filter(|_| self.logprobs).map(logprobs::write);
            let mut choice = json!({ "index": number, "delta": delta, "logprobs": logprobs, "finish_reason": null });
            if let Some(tokens) = tokens.filter(|_| self.token_ids) {
                set(&mut choice, "token_ids", ids_of(tokens));
            }
            self.chunk(choice)
        });
        choices.collect()
    }
}
