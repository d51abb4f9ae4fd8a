//! OpenAI chat completions, as a client's dialect and as an upstream's.
//! System and developer turns keep their places, both as system turns; an assistant message's reasoning stands before
//! its text, its text before its calls. Beyond OpenAI's fields it reads and writes what open servers agree on:
//! `reasoning_content`, `reasoning_details` (signatures), `top_k`, `return_token_ids`, `stop_reason`.

pub(crate) mod calls;
mod delta;
mod logprobs;
mod parse;
mod reader;
mod reasoning;
#[cfg(test)]
mod tests;
mod tools;
mod turns;
mod whole;
mod write;
mod writer;

pub use parse::parse;
pub use reader::{Reader, read_whole, read_whole_of};
pub use whole::whole;
pub use write::write;
pub use writer::Writer;
