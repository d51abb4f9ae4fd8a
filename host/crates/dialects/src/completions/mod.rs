//! OpenAI completions: plain text is continued, without roles, tools or a template.
//! It knows only text: reasoning and calls of an answer have no place in it, and no upstream of this dialect sends any.
//! Log-probs have the older form, in which a token that is no character is named by its bytes, as OpenAI does.

mod logprobs;
mod reader;
mod request;
#[cfg(test)]
mod tests;
mod writer;

pub use reader::{Reader, read_whole};
pub use request::{parse, write};
pub use writer::{Writer, whole};
