//! A whole answer as one object of the responses dialect, and the objects that it shares with the stream.

use serde_json::{Value, json};

use super::parse::INSTRUCTIONS;
use super::{logprobs, tools, write};
use crate::ask::{Ask, Part};
use crate::custom;
use crate::fields::decimal;
use crate::receipt::reef_of;
use crate::reply::{Choice, Envelope, Reply, Stop, Usage};

/// The answer of `POST /v1/responses`; the dialect has one choice.
pub fn whole(ask: &Ask, envelope: &Envelope, reply: &Reply) -> Value {
    let nothing = Choice::default();
    let choice = reply.choices.first().unwrap_or(&nothing);
    let items = choice.parts.len() + usize::from(choice.refusal.is_some());
    let mut output = Vec::with_capacity(items);
    // The tokens of an answer are not told apart; they stand beside the first text.
    let mut tokens = ask.logprobs.map(|_| logprobs::write(&choice.tokens));
    for part in &choice.parts {
        let (index, cut) = (output.len(), unended(choice) && output.len() + 1 == items);
        let item = match part {
            Part::Text(text) => {
                let part = text_part(text, tokens.take().unwrap_or_default());
                message(envelope, index, status(cut), vec![part])
            }
            Part::Reasoning { text, signature } => {
                reasoning(envelope, index, status(cut), (text, signature.as_deref()))
            }
            Part::Call { id, name, arguments } => {
                call(envelope, index, arguments_status(arguments), (id, name, arguments))
            }
            Part::Other { kind, value } => match custom::read(kind, value) {
                Some(called) => custom_call(envelope, index, status(cut), called),
                None => continue,
            },
            Part::Result { .. } => continue,
        };
        output.push(item);
    }
    if let Some(refusal) = &choice.refusal {
        let (index, cut) = (output.len(), unended(choice));
        output.push(message(envelope, index, status(cut), vec![refusal_part(refusal)]));
    }
    let mut answer = head(ask, envelope);
    if choice.stop.is_none() {
        answer["status"] = json!("failed");
        answer["output"] = Value::Array(output);
        answer["reef"] = reef_of(ask, envelope, reply);
        return answer;
    }
    ended(
        answer,
        reef_of(ask, envelope, reply),
        choice.stop.as_ref(),
        output,
        (reply.usage.as_ref(), reply.cache_writes),
    )
}

/// An answer that has not ended.
pub(super) fn head(ask: &Ask, envelope: &Envelope) -> Value {
    let metadata = ask.descriptive.get("metadata").cloned().unwrap_or_else(|| json!({}));
    let mut text = json!({ "format": write::format(&ask.format) });
    if let Some(verbosity) = ask.descriptive.get("text").and_then(|text| text.get("verbosity")) {
        text["verbosity"] = verbosity.clone();
    }
    json!({
        "id": format!("resp_{}", envelope.receipt),
        "object": "response",
        "created_at": envelope.created_s,
        "status": "in_progress",
        "background": false,
        "error": null,
        "incomplete_details": null,
        "instructions": ask.descriptive.get(INSTRUCTIONS),
        "max_output_tokens": ask.tokens_max,
        "metadata": metadata,
        "model": envelope.model,
        "output": [],
        "parallel_tool_calls": ask.parallel_calls.unwrap_or(true),
        "previous_response_id": null,
        "reasoning": { "effort": ask.effort(), "summary": ask.reasoning.as_ref().and_then(|sent| sent.get("summary")) },
        "store": false,
        "temperature": ask.temperature.map(decimal),
        "text": text,
        "tool_choice": tools::write_choice(ask, true).unwrap_or_else(|| json!("auto")),
        "tools": tools::write_tools(ask, true),
        "top_logprobs": ask.logprobs.unwrap_or(0),
        "top_p": ask.top_p.map(decimal),
        "truncation": "disabled",
        "usage": null,
        "user": ask.descriptive.get("user"),
    })
}

/// The answer at its end, with its receipt `reef`.
pub(super) fn ended(
    mut answer: Value,
    reef: Value,
    stop: Option<&Stop>,
    output: Vec<Value>,
    (usage, cache_writes): (Option<&Usage>, u64),
) -> Value {
    let (status, reason) = match stop {
        Some(Stop::Length) => ("incomplete", Some("max_output_tokens")),
        Some(Stop::Filtered) => ("incomplete", Some("content_filter")),
        Some(Stop::Cancelled) => ("cancelled", None),
        Some(Stop::End | Stop::Sequence(_) | Stop::Calls) | None => ("completed", None),
    };
    answer["status"] = json!(status);
    answer["incomplete_details"] = reason.map_or(Value::Null, |reason| json!({ "reason": reason }));
    answer["output"] = Value::Array(output);
    if let Some(usage) = usage {
        answer["usage"] = json!({
            "input_tokens": usage.input,
            "input_tokens_details": { "cached_tokens": usage.cached, "cache_write_tokens": cache_writes },
            "output_tokens": usage.output,
            "output_tokens_details": { "reasoning_tokens": usage.reasoning },
            "total_tokens": usage.input.saturating_add(usage.output),
        });
    }
    answer["reef"] = reef;
    answer
}

/// Was the last item of a whole answer cut off? Without a stop, the answer failed.
fn unended(choice: &Choice) -> bool {
    choice.stop.as_ref().is_none_or(|stop| is_cut(Some(stop)))
}

/// Was the last item cut off?
pub(super) fn is_cut(stop: Option<&Stop>) -> bool {
    matches!(stop, Some(Stop::Length | Stop::Filtered | Stop::Cancelled))
}

/// `status` of an item that has ended.
pub(super) fn status(cut: bool) -> &'static str {
    if cut { "incomplete" } else { "completed" }
}

/// `status` of a call: arguments that are no JSON were cut off, and stay as the model wrote them.
pub(super) fn arguments_status(arguments: &str) -> &'static str {
    status(!arguments.is_empty() && serde_json::from_str::<Value>(arguments).is_err())
}

/// Id of the item of this kind and place.
pub(super) fn item_id(kind: &str, envelope: &Envelope, index: usize) -> String {
    format!("{kind}_{}_{index}", envelope.receipt)
}

/// A message item.
pub(super) fn message(envelope: &Envelope, index: usize, status: &str, content: Vec<Value>) -> Value {
    json!({
        "id": item_id("msg", envelope, index),
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": content,
    })
}

/// The part of a message that is text.
pub(super) fn text_part(text: &str, logprobs: Vec<Value>) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": logprobs })
}

/// The part of a message that refuses.
pub(super) fn refusal_part(refusal: &str) -> Value {
    json!({ "type": "refusal", "refusal": refusal })
}

/// The part of a reasoning item.
pub(super) fn reasoning_part(text: &str) -> Value {
    json!({ "type": "reasoning_text", "text": text })
}

/// A reasoning item: its text, and its signature.
pub(super) fn reasoning(
    envelope: &Envelope,
    index: usize,
    status: &str,
    (text, signature): (&str, Option<&str>),
) -> Value {
    let content = if text.is_empty() { json!([]) } else { json!([reasoning_part(text)]) };
    json!({
        "id": item_id("rs", envelope, index),
        "type": "reasoning",
        "status": status,
        "summary": [],
        "content": content,
        "encrypted_content": signature,
    })
}

/// An item of a custom tool's call: the call's id, the tool, its input.
pub(super) fn custom_call(envelope: &Envelope, index: usize, status: &str, called: (&str, &str, &str)) -> Value {
    let mut item = custom::to_responses(called);
    item["id"] = json!(item_id("ctc", envelope, index));
    item["status"] = json!(status);
    item
}

/// A call item: the call's id, the function, the arguments.
pub(super) fn call(
    envelope: &Envelope,
    index: usize,
    status: &str,
    (id, name, arguments): (&str, &str, &str),
) -> Value {
    json!({
        "id": item_id("fc", envelope, index),
        "type": "function_call",
        "status": status,
        "call_id": id,
        "name": name,
        "arguments": arguments,
    })
}
