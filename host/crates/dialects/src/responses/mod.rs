//! OpenAI's newer dialect: `POST /v1/responses`.
//! What the model says in one go, reasoning, text and calls, is one turn of an `Ask` and several items here. System and
//! developer items keep their places, `instructions` is the first of them. Everything that needs the upstream's memory
//! (`previous_response_id`, `conversation`, `background`) is unknown to this server, and only an upstream of the same
//! dialect gets it.

mod input;
mod logprobs;
mod parse;
mod reader;
mod tools;
mod whole;
mod write;
mod writer;

#[cfg(test)]
mod tests;

pub use parse::parse;
pub use reader::{Reader, read_whole};
pub use whole::whole;
pub use write::write;
pub use writer::Writer;
