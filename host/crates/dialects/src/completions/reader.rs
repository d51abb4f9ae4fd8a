//! Reading of an upstream's completions, streamed or whole.
//! A chunk and the object have the same form.

use serde_json::{Map, Value};

use super::logprobs;
use crate::fields::present;
use crate::openai::{Chunks, Content};
use crate::reply::{Event, Piece};
use crate::sse::SseEvent;

/// Turns a stream into events.
#[derive(Debug, Default)]
pub struct Reader {
    chunks: Chunks,
}

impl Reader {
    /// A reader at the beginning of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads one event; the error is a sentence about the upstream.
    pub fn push(&mut self, event: &SseEvent) -> Result<Vec<Event>, String> {
        self.chunks.push(event, |_, choice| content(choice))
    }

    /// The end of the stream; an answer that was cut is an error.
    pub fn finish(self) -> Result<Vec<Event>, String> {
        self.chunks.finish()
    }
}

/// Reads a whole answer.
pub fn read_whole(body: &Value) -> Result<Vec<Event>, String> {
    let mut chunks = Chunks::default();
    let mut events = chunks.body(body, |_, choice| content(choice))?;
    events.extend(chunks.finish()?);
    Ok(events)
}

fn content(choice: &Map<String, Value>) -> Result<Content, String> {
    let pieces = match present(choice, "text") {
        None => Vec::new(),
        Some(Value::String(text)) if text.is_empty() => Vec::new(),
        Some(Value::String(text)) => vec![Piece::Text(text.clone())],
        Some(_) => return Err("the provider sent a choice whose text is no text".to_owned()),
    };
    Ok(Content { pieces, tokens: logprobs::read(choice), calls: false })
}
