//! A whole answer as one object of the messages dialect, and the parts that it shares with the stream.

use serde_json::{Value, json};

use super::{arguments, write};
use crate::ask::{Ask, Part};
use crate::receipt::reef_of;
use crate::reply::{Choice, Envelope, Reply, Stop, Usage};

/// The answer of `POST /v1/messages`; the dialect has one choice.
pub fn whole(ask: &Ask, envelope: &Envelope, reply: &Reply) -> Value {
    let nothing = Choice::default();
    let choice = reply.choices.first().unwrap_or(&nothing);
    let mut content: Vec<Value> = choice.parts.iter().filter_map(block).collect();
    content.extend(choice.refusal.iter().map(|text| json!({ "type": "text", "text": text })));
    let called = choice.parts.iter().any(|part| matches!(part, Part::Call { .. }));
    let (reason, sequence) = stop_reason(choice.stop.as_ref(), called, choice.refusal.is_some());
    let mut message = head(envelope);
    message["content"] = Value::Array(content);
    message["stop_reason"] = reason;
    message["stop_sequence"] = sequence;
    message["usage"] = usage(&reply.usage.unwrap_or_default(), reply.cache_writes);
    message["reef"] = reef_of(ask, envelope, reply);
    message
}

/// The answer of `POST /v1/messages/count_tokens`.
pub fn token_count(tokens: u64) -> Value {
    json!({ "input_tokens": tokens })
}

/// A message that says nothing yet.
pub(super) fn head(envelope: &Envelope) -> Value {
    json!({
        "id": format!("msg_{}", envelope.receipt),
        "type": "message",
        "role": "assistant",
        "model": envelope.model,
        "content": [],
        "stop_reason": null,
        "stop_sequence": null,
    })
}

/// The dialect counts tokens that were read from a cache, or written into one, apart from the others.
pub(super) fn usage(usage: &Usage, cache_writes: u64) -> Value {
    json!({
        "input_tokens": usage.input.saturating_sub(usage.cached).saturating_sub(cache_writes),
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": cache_writes,
        "output_tokens": usage.output,
        "output_tokens_details": { "thinking_tokens": usage.reasoning },
    })
}

/// `stop_reason` and `stop_sequence`. Clients run tools only after `tool_use`, whatever word the provider had.
pub(super) fn stop_reason(stop: Option<&Stop>, called: bool, refused: bool) -> (Value, Value) {
    let reason = match stop {
        None => return (Value::Null, Value::Null),
        Some(Stop::Sequence(sequence)) => return (json!("stop_sequence"), json!(sequence)),
        Some(Stop::End) if called => "tool_use",
        Some(Stop::End) if refused => "refusal",
        Some(Stop::End) => "end_turn",
        Some(Stop::Calls) => "tool_use",
        Some(Stop::Length) => "max_tokens",
        Some(Stop::Filtered) => "refusal",
        Some(Stop::Cancelled) => "cancelled",
    };
    (json!(reason), Value::Null)
}

fn block(part: &Part) -> Option<Value> {
    match part {
        Part::Text(text) => Some(json!({ "type": "text", "text": text })),
        Part::Reasoning { text, signature } => Some(write::thinking(text, signature.as_deref().unwrap_or_default())),
        Part::Call { id, name, arguments } => {
            Some(json!({ "type": "tool_use", "id": id, "name": name, "input": arguments::to_input(arguments) }))
        }
        Part::Result { .. } | Part::Other { .. } => None,
    }
}
