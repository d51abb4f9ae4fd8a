//! The wire dialects of model APIs: OpenAI chat completions, completions and responses, and Anthropic messages.
//! The host's handlers parse a body into an `Ask`, and turn the `Event`s of an answer back into the dialect's
//! frames or object; a provider writes the same `Ask` in the upstream's dialect and reads its stream. Everything
//! here is a pure function or a state machine over values and bytes: no I/O, no clock, no randomness.
#![deny(missing_docs)]

#[cfg(test)]
mod answers;
mod ask;
mod assembly;
mod carry;
pub mod chat;
pub mod completions;
#[cfg(test)]
mod crossing_tests;
mod custom;
mod dialect;
mod fields;
mod image;
mod items;
mod mend;
pub mod messages;
mod openai;
mod order;
mod places;
mod receipt;
pub mod relay;
#[cfg(test)]
mod relay_tests;
mod reply;
pub mod responses;
mod sse;
#[cfg(test)]
mod translation_tests;
mod trouble;

pub use ask::{Ask, Format, Input, Part, Refusal, Role, Tool, ToolChoice, Turn};
pub use dialect::{Dialect, Reader, Writer};
pub use mend::Mender;
pub use relay::Relay;
pub use reply::{Choice, Envelope, Event, Frame, FrameData, Piece, Reply, Stop, TokenInfo, Usage};
pub use sse::{SseEvent, SseReader, SseTooLong};
pub use trouble::{OVERFLOW, is_overflow, reported};
