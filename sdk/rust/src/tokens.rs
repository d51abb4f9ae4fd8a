//! The tokenizer and the chat template of the scenario's model.

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
