//! The chunks of a streamed completion, and the whole one.
//! Per chunk, text, ids and log-probs belong together. A finish reason appears once per choice, and it and all that
//! follows leaves only at `close`; a choice that was never finished ends there as cancelled.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::logprobs;
use crate::ask::{Ask, Part};
use crate::openai::{Frames, error_frames, finish_name, ids_of, set, stop_reason, usage};
use crate::reply::{Choice, Envelope, Event, Frame, Piece, Reply, Stop, TokenInfo, Usage};

const OBJECT: &str = "text_completion";

/// Turns events into frames.
#[derive(Debug)]
pub struct Writer {
    frames: Frames,
    logprobs: bool,
    token_ids: bool,
    choices: BTreeMap<u32, State>,
    usage: Option<Usage>,
    cache_writes: u64,
    ended: bool,
}

/// Where a choice stands.
#[derive(Debug, Default)]
struct State {
    stop: Option<Stop>,
    /// Characters of its tokens so far.
    offset: usize,
}

impl Writer {
    /// A writer of the answer to `ask`.
    pub fn new(ask: &Ask, envelope: Envelope) -> Self {
        Self {
            frames: Frames::new("cmpl", ask, &envelope),
            logprobs: ask.logprobs.is_some(),
            token_ids: ask.return_token_ids,
            choices: (0..ask.n).map(|number| (number, State::default())).collect(),
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
            Event::Started { prompt: Some(ids) } if self.token_ids => {
                self.choices.keys().map(|number| self.opening(*number, ids)).collect()
            }
            Event::Started { .. } => Vec::new(),
            // What is said after the end belongs to nothing.
            Event::Delta { choice, .. } if self.choices.get(choice).is_some_and(|state| state.stop.is_some()) => {
                Vec::new()
            }
            Event::Delta { choice, pieces, tokens } => self.delta(*choice, pieces, tokens).into_iter().collect(),
            Event::Finished { choice, stop } => {
                self.choices.entry(*choice).or_default().stop.get_or_insert_with(|| stop.clone());
                Vec::new()
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
        let finishes = self.choices.iter().map(|(number, state)| {
            let stop = state.stop.as_ref().unwrap_or(&Stop::Cancelled);
            let mut choice = choice(*number, "", Value::Null);
            set(&mut choice, "finish_reason", json!(finish_name(stop)));
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

    fn opening(&self, number: u32, prompt: &[u32]) -> Frame {
        let mut choice = choice(number, "", Value::Null);
        set(&mut choice, "prompt_token_ids", json!(prompt));
        self.chunk(choice)
    }

    /// None if it would say nothing.
    fn delta(&mut self, number: u32, pieces: &[Piece], tokens: &[TokenInfo]) -> Option<Frame> {
        let texts = pieces.iter().filter_map(|piece| match piece {
            Piece::Text(text) => Some(text.as_str()),
            _ => None,
        });
        let text: String = texts.collect();
        let shows_tokens = !tokens.is_empty() && (self.logprobs || self.token_ids);
        if text.is_empty() && !shows_tokens {
            return None;
        }
        let offset = &mut self.choices.entry(number).or_default().offset;
        let logprobs = (shows_tokens && self.logprobs).then(|| logprobs::write(tokens, offset));
        let mut choice = choice(number, &text, json!(logprobs));
        if shows_tokens && self.token_ids {
            set(&mut choice, "token_ids", ids_of(tokens));
        }
        Some(self.chunk(choice))
    }
}

fn choice(number: u32, text: &str, logprobs: Value) -> Value {
    json!({ "index": number, "text": text, "logprobs": logprobs, "finish_reason": null })
}

/// The answer to `ask` as one object. A choice of which nothing came is there all the same.
pub fn whole(ask: &Ask, envelope: &Envelope, reply: &Reply) -> Value {
    let frames = Frames::new("cmpl", ask, envelope);
    let missing = (ask.n as usize).saturating_sub(reply.choices.len());
    let nothing = Choice::default();
    let choices = reply.choices.iter().chain(std::iter::repeat_n(&nothing, missing)).zip(0..);
    let choices = choices.map(|(choice, number)| whole_choice(ask, number, choice, reply.prompt.as_deref())).collect();
    let mut body = frames.body(OBJECT, choices);
    if let Some(used) = &reply.usage {
        set(&mut body, "usage", usage(used, reply.cache_writes));
    }
    set(&mut body, "reef", frames.reef());
    body
}

fn whole_choice(ask: &Ask, number: u32, answer: &Choice, prompt: Option<&[u32]>) -> Value {
    let texts = answer.parts.iter().filter_map(|part| match part {
        Part::Text(text) => Some(text.as_str()),
        _ => None,
    });
    let logprobs = ask.logprobs.map(|_| logprobs::write(&answer.tokens, &mut 0));
    let mut written = choice(number, &texts.collect::<String>(), json!(logprobs));
    set(&mut written, "finish_reason", json!(answer.stop.as_ref().map(finish_name)));
    stop_reason(&mut written, answer.stop.as_ref());
    if ask.return_token_ids {
        set(&mut written, "token_ids", ids_of(&answer.tokens));
        if let Some(ids) = prompt {
            set(&mut written, "prompt_token_ids", json!(ids));
        }
    }
    written
}
