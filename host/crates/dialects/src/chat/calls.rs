//! The calls of one choice of an upstream's answer, numbered in the order of their start.
//! Some servers give every call the index 0, or none, and no ids. The reader and `mend` ask here which call an entry
//! belongs to, so that what a client gets and what is recorded name the same calls.

use serde_json::{Map, Value, json};

use crate::custom::CUSTOM;
use crate::fields::present;
use crate::reply::Piece;

/// Calls of one choice.
const CALLS_MAX: usize = 1024;
/// What a call is without a type, but for one that says `custom`.
const FUNCTION: &str = "function";

/// See the module.
#[derive(Debug)]
pub(crate) struct Calls {
    /// Makes ids that the upstream left out differ from those of every other answer.
    answer: String,
    choice: u32,
    /// In a whole message every entry is a call of its own.
    whole: bool,
    started: Vec<Started>,
}

#[derive(Debug)]
struct Started {
    /// As the upstream has it.
    index: Option<u64>,
    /// As the client gets it.
    shown: u64,
    id: String,
}

/// A call, and its beginning if it is new.
struct Found {
    call: usize,
    begins: Option<String>,
}

impl Calls {
    pub(crate) fn new(answer: &str, choice: u32, whole: bool) -> Self {
        Self { answer: answer.to_owned(), choice, whole, started: Vec::new() }
    }

    /// Did any begin?
    pub(super) fn is_empty(&self) -> bool {
        self.started.is_empty()
    }

    /// The pieces in an entry of `tool_calls`.
    pub(super) fn read(&mut self, position: usize, item: &Value, pieces: &mut Vec<Piece>) -> Result<(), String> {
        let item = item.as_object().ok_or("the provider sent a tool call that is not an object")?;
        let kind = kind(item);
        if kind != FUNCTION && kind != CUSTOM {
            pieces.push(Piece::Foreign(kind.to_owned()));
            return Ok(());
        }
        let body = body(item, kind)?;
        let Found { call, begins } = self.find(position, item, &body)?;
        if let Some(id) = begins {
            let name = plain(&body, "name")?.ok_or("the provider sent a tool call without a name")?;
            let start = if kind == CUSTOM {
                Piece::CustomStart { call, id, name }
            } else {
                Piece::CallStart { call, id, name }
            };
            pieces.push(start);
        }
        let field = if kind == CUSTOM { "input" } else { "arguments" };
        pieces.extend(plain(&body, field)?.map(|text| Piece::CallArguments { call, text }));
        Ok(())
    }

    /// The older form of a call, of which a choice has one.
    pub(super) fn read_older(&mut self, value: &Value, pieces: &mut Vec<Piece>) -> Result<(), String> {
        let entry = json!({ "index": 0, "function": value });
        self.read(0, &entry, pieces)
    }

    /// Puts into an entry of `tool_calls` what a client has to find there: the call's own index, and where it begins
    /// an id and a type. What cannot be read stays as it is. True if anything changed.
    pub(crate) fn mend(&mut self, position: usize, item: &mut Value) -> bool {
        let Some(fields) = item.as_object_mut() else { return false };
        let kind = kind(fields).to_owned();
        if kind != FUNCTION && kind != CUSTOM {
            return false;
        }
        let found = body(fields, &kind).and_then(|body| self.find(position, fields, &body));
        let Ok(Found { call, begins }) = found else { return false };
        let mut changed = false;
        let mut put = |field: &str, value: Value| {
            if fields.get(field) != Some(&value) {
                fields.insert(field.to_owned(), value);
                changed = true;
            }
        };
        if let (false, Some(started)) = (self.whole, self.started.get(call)) {
            put("index", json!(started.shown));
        }
        if let Some(id) = begins {
            put("id", json!(id));
            put("type", json!(kind));
        }
        changed
    }

    fn find(&mut self, position: usize, item: &Map<String, Value>, body: &Map<String, Value>) -> Result<Found, String> {
        let index = match present(item, "index") {
            _ if self.whole => Some(position as u64),
            None => None,
            Some(index) => Some(index.as_u64().ok_or("the provider sent a tool call whose index is no number")?),
        };
        let (id, named) = (plain(item, "id")?, plain(body, "name")?.is_some());
        match self.known(index, id.as_deref(), named) {
            // A new id and a name under a known index: another call.
            Some(call) if id.is_none() || !named || self.is_named(call, id.as_deref()) => {
                Ok(Found { call, begins: None })
            }
            _ => self.start(index, id),
        }
    }

    fn known(&self, index: Option<u64>, id: Option<&str>, named: bool) -> Option<usize> {
        match (index, id) {
            (Some(_), _) => self.started.iter().rposition(|known| known.index == index),
            (None, Some(id)) => self.started.iter().rposition(|known| known.id == id),
            // Without either, a name begins a call and everything else goes on with the last.
            (None, None) if named => None,
            (None, None) => self.started.len().checked_sub(1),
        }
    }

    fn is_named(&self, call: usize, id: Option<&str>) -> bool {
        self.started.get(call).is_some_and(|known| Some(known.id.as_str()) == id)
    }

    fn start(&mut self, index: Option<u64>, id: Option<String>) -> Result<Found, String> {
        let call = self.started.len();
        if call >= CALLS_MAX {
            return Err(format!("the provider sent more than {CALLS_MAX} tool calls in one choice"));
        }
        // Results need an id, and one of their own.
        let id = id.filter(|id| self.started.iter().all(|known| known.id != *id));
        let id = id.unwrap_or_else(|| {
            let answer = if self.answer.is_empty() { String::new() } else { format!("{}_", self.answer) };
            format!("call_{answer}{}_{call}", self.choice)
        });
        let shown = index.filter(|index| self.started.iter().all(|known| known.shown != *index));
        let shown = shown.unwrap_or_else(|| {
            self.started.iter().map(|known| known.shown).max().map_or(0, |last| last.saturating_add(1))
        });
        self.started.push(Started { index, shown, id: id.clone() });
        Ok(Found { call, begins: Some(id) })
    }
}

/// A later piece of a custom call has no type.
fn kind(item: &Map<String, Value>) -> &str {
    match present(item, "type").and_then(Value::as_str) {
        Some(kind) => kind,
        None if present(item, CUSTOM).is_some() => CUSTOM,
        None => FUNCTION,
    }
}

fn body(item: &Map<String, Value>, kind: &str) -> Result<Map<String, Value>, String> {
    match present(item, kind) {
        None => Ok(Map::new()),
        Some(Value::Object(body)) => Ok(body.clone()),
        Some(_) => Err(format!("the provider sent a tool call whose {kind} is not an object")),
    }
}

/// A text that says something.
pub(super) fn plain(fields: &Map<String, Value>, field: &str) -> Result<Option<String>, String> {
    match present(fields, field) {
        None => Ok(None),
        Some(Value::String(text)) => Ok((!text.is_empty()).then(|| text.clone())),
        Some(_) => Err(format!("the provider sent '{field}' with a value that is not text")),
    }
}
