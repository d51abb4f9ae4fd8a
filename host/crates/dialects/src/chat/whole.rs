//! A whole chat completion.
//! The object has one place for each kind of part, so their order is lost: reasoning, text and calls each keep only
//! their own. A choice that was asked for and of which nothing came is there all the same.

use serde_json::{Map, Value, json};

use super::{logprobs, reasoning, write::call};
use crate::ask::{Ask, Part};
use crate::custom;
use crate::openai::{Frames, finish_name, ids_of, set, stop_reason, usage};
use crate::reply::{Choice, Envelope, Reply};

/// The answer to `ask` as one object.
pub fn whole(ask: &Ask, envelope: &Envelope, reply: &Reply) -> Value {
    let frames = Frames::new("chatcmpl", ask, envelope);
    let missing = (ask.n as usize).saturating_sub(reply.choices.len());
    let nothing = Choice::default();
    let choices = reply.choices.iter().chain(std::iter::repeat_n(&nothing, missing));
    let choices = choices.enumerate().map(|(index, choice)| write_choice(ask, index, choice)).collect();
    let mut body = frames.body("chat.completion", choices);
    if let Some(ids) = reply.prompt.as_ref().filter(|_| ask.return_token_ids) {
        set(&mut body, "prompt_token_ids", json!(ids));
    }
    if let Some(used) = &reply.usage {
        set(&mut body, "usage", usage(used, reply.cache_writes));
    }
    set(&mut body, "reef", frames.reef());
    body
}

fn write_choice(ask: &Ask, index: usize, choice: &Choice) -> Value {
    let mut written = json!({
        "index": index,
        "message": message(choice),
        "logprobs": ask.logprobs.map(|_| logprobs::write(&choice.tokens)),
        "finish_reason": choice.stop.as_ref().map(finish_name),
    });
    stop_reason(&mut written, choice.stop.as_ref());
    if ask.return_token_ids {
        set(&mut written, "token_ids", ids_of(&choice.tokens));
    }
    written
}

fn message(choice: &Choice) -> Value {
    let (mut text, mut calls) = (String::new(), Vec::new());
    let mut thoughts: Vec<(String, Option<String>)> = Vec::new();
    for part in &choice.parts {
        match part {
            Part::Text(more) => text.push_str(more),
            Part::Call { id, name, arguments } => calls.push(call(id, name, arguments)),
            Part::Reasoning { text, signature } => match thoughts.last_mut() {
                // Neighbours without a signature between them are one.
                Some((last, signed @ None)) => {
                    last.push_str(text);
                    signed.clone_from(signature);
                }
                _ => thoughts.push((text.clone(), signature.clone())),
            },
            Part::Other { kind, value } => calls.extend(custom::read(kind, value).map(custom::to_chat)),
            Part::Result { .. } => {}
        }
    }
    let nothing = text.is_empty() && (!calls.is_empty() || choice.refusal.is_some());
    let mut message = Map::new();
    message.insert("role".to_owned(), json!("assistant"));
    message.insert("content".to_owned(), if nothing { Value::Null } else { json!(text) });
    message.insert("refusal".to_owned(), json!(choice.refusal));
    reasoning::put(&mut message, &thoughts);
    if !calls.is_empty() {
        message.insert("tool_calls".to_owned(), Value::Array(calls));
    }
    Value::Object(message)
}
