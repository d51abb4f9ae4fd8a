//! The tokenizer and the chat template of the scenario's model.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;

use crate::host::{self, Host};
use crate::{Message, Result};

/// Ids of a text, without special tokens being added.
pub fn encode(text: &str) -> Result<Vec<u32>> {
    host::call(|host| Host::encode(host, text))
}

/// Text of ids; partial characters become U+FFFD.
pub fn decode(ids: &[u32]) -> Result<String> {
    host::call(|host| Host::decode(host, ids))
}

/// Ids of a conversation through the chat template, up to where the assistant answers.
pub fn render(messages: &[Message]) -> Result<Vec<u32>> {
    host::call(|host| Host::render(host, messages))
}

/// Ids of a conversation, or why this one has none, e.g. that it is longer than the model's context. Somebody else's
/// conversation is then a sample to give up, and no failure of the call.
///
/// # Errors
/// The host's refusal, if it refuses any conversation.
pub fn try_render(messages: &[Message]) -> Result<Result<Vec<u32>, String>> {
    let refusal = match render(messages) {
        Ok(ids) => return Ok(Ok(ids)),
        Err(refusal) => refusal,
    };
    match render(&[Message::user("?")]) {
        Ok(_) => Ok(Err(refusal.message().to_owned())),
        Err(_) => Err(refusal),
    }
}
