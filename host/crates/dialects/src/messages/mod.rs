//! Anthropic's dialect: `POST /v1/messages` and `/v1/messages/count_tokens`.
//! Its conversation has no system turns: when written for an upstream, leading ones become `system`, and later ones are
//! joined to it after a blank line; only a body that came in this dialect keeps them in place. Reasoning without a
//! signature is not written, since the dialect takes back only what its provider signed; `max_tokens`, which it demands,
//! is 8192 where the client gives none.

mod arguments;
mod content;
mod parse;
mod reader;
mod whole;
mod write;
mod writer;

#[cfg(test)]
mod tests;

pub(crate) use arguments::to_input;
pub use parse::{parse, parse_count_tokens};
pub use reader::{Reader, read_whole};
pub use whole::{token_count, whole};
pub use write::{write, write_count_tokens};
pub use writer::Writer;

/// Begins the signature of reasoning that the provider shows to nobody; what follows is the block's `data`.
const REDACTED: &str = "redacted_thinking:";
