//! The frame of an answer in OpenAI's two older dialects: envelope, usage, finish reasons, errors, the end.
//! The terminal frames are made by `ending` alone, so that nothing terminal leaves before the record is durable.

use serde_json::{Map, Value, json};

use crate::ask::Ask;
use crate::receipt::reef;
use crate::reply::{Envelope, Frame, FrameData, Stop, TokenInfo, Usage};

/// What OpenAI sends for a probability of 0, whose logarithm JSON cannot say.
const LOGPROB_MIN: f32 = -9999.0;

/// What is the same in every chunk and in the object of one answer.
#[derive(Debug, Clone)]
pub(crate) struct Frames {
    id: String,
    envelope: Envelope,
    include_usage: bool,
}

impl Frames {
    /// `prefix` stands before the receipt in the answer's id.
    pub(crate) fn new(prefix: &str, ask: &Ask, envelope: &Envelope) -> Self {
        Self {
            id: format!("{prefix}-{}", envelope.receipt),
            envelope: envelope.clone(),
            include_usage: ask.include_usage,
        }
    }

    /// A chunk or a whole object.
    pub(crate) fn body(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.envelope.created_s,
            "model": self.envelope.model,
            "choices": choices,
        })
    }

    /// `reef`: the receipt, and what answered.
    pub(crate) fn reef(&self) -> Value {
        reef(&self.envelope)
    }

    /// After the finish reasons: the receipt, usage if asked for and known, the end. Usage is the last chunk, since OpenAI's SDK
    /// takes what the last chunk says.
    pub(crate) fn ending(&self, object: &str, used: Option<&Usage>, cache_writes: u64) -> Vec<Frame> {
        let mut frames = Vec::with_capacity(3);
        let mut receipt = self.body(object, Vec::new());
        set(&mut receipt, "reef", self.reef());
        frames.push(Frame::json(receipt));
        if let Some(used) = used.filter(|_| self.include_usage) {
            let mut last = self.body(object, Vec::new());
            set(&mut last, "usage", usage(used, cache_writes));
            frames.push(Frame::json(last));
        }
        frames.push(Frame { event: None, data: FrameData::Done });
        frames
    }
}

/// The frames of a stream that failed.
pub(crate) fn error_frames(code: &str, message: &str, kind: &str) -> Vec<Frame> {
    let error = json!({ "error": { "message": message, "type": kind, "param": null, "code": code } });
    vec![Frame::json(error), Frame { event: None, data: FrameData::Done }]
}

/// OpenAI's name of a stop.
pub(crate) fn finish_name(stop: &Stop) -> &'static str {
    match stop {
        Stop::End | Stop::Sequence(_) => "stop",
        Stop::Length => "length",
        Stop::Calls => "tool_calls",
        Stop::Filtered => "content_filter",
        Stop::Cancelled => "cancelled",
    }
}

/// The stop string that matched, under the name that vLLM gave it.
pub(crate) fn stop_reason(choice: &mut Value, stop: Option<&Stop>) {
    if let Some(Stop::Sequence(matched)) = stop {
        set(choice, "stop_reason", json!(matched));
    }
}

/// Usage on the wire.
pub(crate) fn usage(used: &Usage, cache_writes: u64) -> Value {
    let mut prompt = json!({ "cached_tokens": used.cached });
    if cache_writes > 0 {
        prompt["cache_write_tokens"] = json!(cache_writes);
    }
    json!({
        "prompt_tokens": used.input,
        "completion_tokens": used.output,
        "total_tokens": used.input.saturating_add(used.output),
        "prompt_tokens_details": prompt,
        "completion_tokens_details": { "reasoning_tokens": used.reasoning },
    })
}

/// A log-prob that JSON can say.
pub(crate) fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { LOGPROB_MIN }
}

/// The ids of tokens; a token without one has none to show.
pub(crate) fn ids_of(tokens: &[TokenInfo]) -> Value {
    tokens.iter().filter_map(|token| token.id).collect()
}

/// Sets a key of an object.
pub(crate) fn set(object: &mut Value, key: &str, value: Value) {
    if let Some(map) = Value::as_object_mut(object) {
        Map::insert(map, key.to_owned(), value);
    }
}
