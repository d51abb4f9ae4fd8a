//! Reading of an upstream's chat completions, streamed or whole.
//! Calls are numbered anew in the order of their start, whatever indices the upstream gives them: some servers give
//! every call the index 0, or none. Calls of what is no function are passed over: a client of the same dialect gets them
//! in the upstream's own words.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{logprobs, reasoning::reasoning};
use crate::fields::present;
use crate::openai::{Chunks, Content};
use crate::reply::{Event, Piece};
use crate::sse::SseEvent;

/// Calls of one choice.
const CALLS_MAX: usize = 1024;

/// Turns a stream into events.
#[derive(Debug, Default)]
pub struct Reader {
    chunks: Chunks,
    choices: BTreeMap<u32, Calls>,
}

impl Reader {
    /// A reader at the beginning of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads one event; the error is a sentence about the upstream.
    pub fn push(&mut self, event: &SseEvent) -> Result<Vec<Event>, String> {
        let choices = &mut self.choices;
        self.chunks.push(event, |number, choice| {
            let calls = choices.entry(number).or_insert_with(|| Calls::new(number, false));
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
    let mut chunks = Chunks::default();
    let mut events = chunks.body(body, |number, choice| content(&mut Calls::new(number, true), choice, "message"))?;
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
    Ok(Content { pieces, tokens: logprobs::read(choice), calls: !calls.started.is_empty() })
}

fn read_fields(calls: &mut Calls, fields: &Map<String, Value>, pieces: &mut Vec<Piece>) -> Result<(), String> {
    // In a form that is not known, it is none.
    for (text, signature) in reasoning(fields).unwrap_or_default() {
        pieces.extend((!text.is_empty()).then_some(Piece::Reasoning(text)));
        pieces.extend(signature.map(Piece::Signature));
    }
    pieces.extend(said(fields)?.map(Piece::Text));
    pieces.extend(plain(fields, "refusal")?.map(Piece::Refusal));
    match present(fields, "tool_calls") {
        None => Ok(()),
        Some(Value::Array(list)) => {
            list.iter().enumerate().try_for_each(|(position, item)| calls.read(position, item, pieces))
        }
        Some(_) => Err("the provider sent tool_calls that are not a list".to_owned()),
    }
}

/// `content`: a text, or a list of parts, of which the texts are joined.
fn said(fields: &Map<String, Value>) -> Result<Option<String>, String> {
    let Some(Value::Array(parts)) = present(fields, "content") else { return plain(fields, "content") };
    let texts = parts.iter().filter_map(|part| part.as_str().or_else(|| part.get("text")?.as_str()));
    Ok(Some(texts.collect::<String>()).filter(|text| !text.is_empty()))
}

/// A text that says something.
fn plain(fields: &Map<String, Value>, field: &str) -> Result<Option<String>, String> {
    match present(fields, field) {
        None => Ok(None),
        Some(Value::String(text)) => Ok((!text.is_empty()).then(|| text.clone())),
        Some(_) => Err(format!("the provider sent a {field} that is not text")),
    }
}

/// A later piece of a custom call has no type.
fn is_function(item: &Map<String, Value>) -> bool {
    present(item, "custom").is_none() && present(item, "type").is_none_or(|kind| kind == "function")
}

/// The calls of one choice, in order of their start.
#[derive(Debug)]
struct Calls {
    choice: u32,
    /// In a whole message every entry is a call of its own.
    whole: bool,
    /// The upstream's index and id of each.
    started: Vec<(Option<u64>, String)>,
}

impl Calls {
    fn new(choice: u32, whole: bool) -> Self {
        Self { choice, whole, started: Vec::new() }
    }

    fn read(&mut self, position: usize, item: &Value, pieces: &mut Vec<Piece>) -> Result<(), String> {
        let item = item.as_object().ok_or("the provider sent a tool call that is not an object")?;
        let empty = Map::new();
        let function = match present(item, "function") {
            None if is_function(item) => &empty,
            Some(Value::Object(function)) => function,
            None => return Ok(()),
            Some(_) => return Err("the provider sent a tool call whose function is not an object".to_owned()),
        };
        let index = match present(item, "index") {
            _ if self.whole => Some(position as u64),
            None => None,
            Some(index) => Some(index.as_u64().ok_or("the provider sent a tool call whose index is no number")?),
        };
        let (id, name) = (plain(item, "id")?, plain(function, "name")?);
        let call = match self.find(index, id.as_deref()) {
            // A new id and a name under a known index: another call.
            Some(call) if id.is_none() || name.is_none() || self.is_named(call, id.as_deref()) => call,
            _ => self.start(index, id, name, pieces)?,
        };
        pieces.extend(plain(function, "arguments")?.map(|text| Piece::CallArguments { call, text }));
        Ok(())
    }

    fn find(&self, index: Option<u64>, id: Option<&str>) -> Option<usize> {
        match (index, id) {
            (Some(_), _) => self.started.iter().rposition(|(known, _)| *known == index),
            (None, Some(id)) => self.started.iter().rposition(|(_, known)| known == id),
            (None, None) => self.started.len().checked_sub(1),
        }
    }

    fn is_named(&self, call: usize, id: Option<&str>) -> bool {
        self.started.get(call).is_some_and(|(_, known)| Some(known.as_str()) == id)
    }

    fn start(
        &mut self,
        index: Option<u64>,
        id: Option<String>,
        name: Option<String>,
        pieces: &mut Vec<Piece>,
    ) -> Result<usize, String> {
        let call = self.started.len();
        if call >= CALLS_MAX {
            return Err(format!("the provider sent more than {CALLS_MAX} tool calls in one choice"));
        }
        let name = name.ok_or("the provider sent a tool call without a name")?;
        // Some servers give no ids; results need one.
        let id = id.unwrap_or_else(|| format!("call_{}_{call}", self.choice));
        self.started.push((index, id.clone()));
        pieces.push(Piece::CallStart { call, id, name });
        Ok(call)
    }
}
