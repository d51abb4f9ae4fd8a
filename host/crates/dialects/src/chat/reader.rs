//! Reading of an upstream's chat completions, streamed or whole.
//! Calls are numbered anew in the order of their start, as `calls` finds them; the older `function_call` is one of them.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::calls::{Calls, plain};
use super::{logprobs, reasoning::reasoning};
use crate::fields::present;
use crate::openai::{Chunks, Content};
use crate::reply::{Event, Piece};
use crate::sse::SseEvent;

/// Turns a stream into events.
#[derive(Debug, Default)]
pub struct Reader {
    chunks: Chunks,
    choices: BTreeMap<u32, Calls>,
    answer: String,
}

impl Reader {
    /// A reader at the beginning of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same, for the answer of this name, which is part of the ids that an upstream leaves out.
    pub fn of(answer: &str) -> Self {
        Self { answer: answer.to_owned(), ..Self::default() }
    }

    /// Reads one event; the error is a sentence about the upstream.
    pub fn push(&mut self, event: &SseEvent) -> Result<Vec<Event>, String> {
        let (choices, answer) = (&mut self.choices, &self.answer);
        self.chunks.push(event, |number, choice| {
            let calls = choices.entry(number).or_insert_with(|| Calls::new(answer, number, false));
            content(calls, choice, "delta")
        })
    }

    /// The end of the stream; an answer that was cut is an error.
    pub fn finish(self) -> Result<Vec<Event>, String> {
        self.chunks.finish()
    }
}

/// Reads a whole answer.
pub fn read_whole(body: &Value) -> Result<Vec<Event>, String> {
    read_whole_of(body, "")
}

/// The same, for the answer of this name.
pub fn read_whole_of(body: &Value, answer: &str) -> Result<Vec<Event>, String> {
    let mut chunks = Chunks::default();
    let mut events =
        chunks.body(body, |number, choice| content(&mut Calls::new(answer, number, true), choice, "message"))?;
    events.extend(chunks.finish()?);
    Ok(events)
}

fn content(calls: &mut Calls, choice: &Map<String, Value>, field: &str) -> Result<Content, String> {
    let mut pieces = Vec::new();
    match present(choice, field) {
        None => {}
        Some(Value::Object(fields)) => read_fields(calls, fields, &mut pieces)?,
        Some(_) => return Err(format!("the provider sent a {field} that is not an object")),
    }
    Ok(Content { pieces, tokens: logprobs::read(choice), calls: !calls.is_empty() })
}

fn read_fields(calls: &mut Calls, fields: &Map<String, Value>, pieces: &mut Vec<Piece>) -> Result<(), String> {
    // In a form that is not known, it is none.
    for (text, signature) in reasoning(fields).unwrap_or_default() {
        pieces.extend((!text.is_empty()).then_some(Piece::Reasoning(text)));
        pieces.extend(signature.map(Piece::Signature));
    }
    said(fields, pieces)?;
    pieces.extend(plain(fields, "refusal")?.map(Piece::Refusal));
    if let Some(older) = present(fields, "function_call") {
        calls.read_older(older, pieces)?;
    }
    match present(fields, "tool_calls") {
        None => Ok(()),
        Some(Value::Array(list)) => {
            list.iter().enumerate().try_for_each(|(position, item)| calls.read(position, item, pieces))
        }
        Some(_) => Err("the provider sent tool_calls that are not a list".to_owned()),
    }
}

/// `content`: a text, or a list of parts, among them Mistral's `thinking`.
fn said(fields: &Map<String, Value>, pieces: &mut Vec<Piece>) -> Result<(), String> {
    let Some(Value::Array(parts)) = present(fields, "content") else {
        pieces.extend(plain(fields, "content")?.map(Piece::Text));
        return Ok(());
    };
    for part in parts {
        let thinks = part.get("type").is_some_and(|kind| kind == "thinking");
        let text = if thinks { part.get("thinking").map_or_else(String::new, texts) } else { texts(part) };
        if !text.is_empty() {
            pieces.push(if thinks { Piece::Reasoning(text) } else { Piece::Text(text) });
        }
    }
    Ok(())
}

/// A text, or the texts of a part or of a list of parts, joined.
fn texts(value: &Value) -> String {
    let text = |part: &Value| part.as_str().or_else(|| part.get("text")?.as_str()).unwrap_or_default().to_owned();
    match value {
        Value::Array(parts) => parts.iter().map(text).collect(),
        part => text(part),
    }
}
