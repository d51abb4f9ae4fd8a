//! Pieces of a choice become `delta` objects, as few as keep their order.
//! Within one delta a client reads reasoning, text, refusal and calls in this order, so a piece that comes later in
//! the answer but earlier in it begins a new delta.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::reasoning::detail;
use crate::custom::CUSTOM;
use crate::reply::Piece;

/// What the deltas of a choice told so far and later ones need.
#[derive(Debug, Default)]
pub(super) struct Told {
    signatures: usize,
    /// Calls of custom tools.
    customs: BTreeSet<usize>,
}

/// What one chunk adds, kind by kind.
#[derive(Debug, Default)]
struct Delta {
    reasoning: String,
    signature: Option<String>,
    text: String,
    refusal: String,
    calls: Vec<CallDelta>,
}

#[derive(Debug)]
struct CallDelta {
    call: usize,
    custom: bool,
    /// Id and name, where it begins.
    start: Option<(String, String)>,
    arguments: String,
}

/// The deltas of `pieces`.
pub(super) fn deltas(pieces: &[Piece], told: &mut Told) -> Vec<Value> {
    let mut deltas: Vec<Delta> = Vec::new();
    let mut last_place = None;
    for piece in pieces {
        let Some(place) = place(piece) else { continue };
        // Two signatures belong to two parts, which one delta could not tell apart.
        let fits = last_place.is_some_and(|last| last < place || (last == place && place != Place::Signature));
        if !fits {
            deltas.push(Delta::default());
        }
        last_place = Some(place);
        if let Some(delta) = deltas.last_mut() {
            delta.add(piece, told);
        }
    }
    deltas.into_iter().map(|delta| delta.write(&mut told.signatures)).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Reasoning,
    Signature,
    Text,
    Refusal,
    Call,
}

/// Where a delta holds a piece; nowhere if it says nothing.
fn place(piece: &Piece) -> Option<Place> {
    match piece {
        Piece::Reasoning(text) => (!text.is_empty()).then_some(Place::Reasoning),
        Piece::Signature(_) => Some(Place::Signature),
        Piece::Text(text) => (!text.is_empty()).then_some(Place::Text),
        Piece::Refusal(text) => (!text.is_empty()).then_some(Place::Refusal),
        Piece::CallStart { .. } | Piece::CustomStart { .. } => Some(Place::Call),
        Piece::Foreign(_) => None,
        Piece::CallArguments { text, .. } => (!text.is_empty()).then_some(Place::Call),
    }
}

impl Delta {
    fn add(&mut self, piece: &Piece, told: &mut Told) {
        match piece {
            Piece::Reasoning(text) => self.reasoning.push_str(text),
            Piece::Signature(signature) => self.signature = Some(signature.clone()),
            Piece::Text(text) => self.text.push_str(text),
            Piece::Refusal(text) => self.refusal.push_str(text),
            Piece::CallStart { call, id, name } | Piece::CustomStart { call, id, name } => {
                let start = Some((id.clone(), name.clone()));
                let custom = matches!(piece, Piece::CustomStart { .. });
                if custom {
                    told.customs.insert(*call);
                }
                self.calls.push(CallDelta { call: *call, custom, start, arguments: String::new() });
            }
            Piece::Foreign(_) => {}
            Piece::CallArguments { call, text } => match self.calls.iter_mut().find(|open| open.call == *call) {
                Some(open) => open.arguments.push_str(text),
                None => {
                    let custom = told.customs.contains(call);
                    self.calls.push(CallDelta { call: *call, custom, start: None, arguments: text.clone() });
                }
            },
        }
    }

    fn write(self, signatures: &mut usize) -> Value {
        let mut delta = Map::new();
        for (field, text) in [("reasoning_content", self.reasoning), ("content", self.text), ("refusal", self.refusal)]
        {
            if !text.is_empty() {
                delta.insert(field.to_owned(), Value::String(text));
            }
        }
        if let Some(signature) = self.signature {
            let detail = detail(*signatures, "", Some(&signature));
            *signatures += 1;
            delta.insert("reasoning_details".to_owned(), json!([detail]));
        }
        if !self.calls.is_empty() {
            let calls = self.calls.into_iter().map(CallDelta::write).collect();
            delta.insert("tool_calls".to_owned(), calls);
        }
        Value::Object(delta)
    }
}

impl CallDelta {
    /// Only the first delta of a call names it.
    fn write(self) -> Value {
        let Self { call, custom, start, arguments } = self;
        match start {
            Some((id, name)) if custom => {
                json!({ "index": call, "id": id, "type": CUSTOM, CUSTOM: { "name": name, "input": arguments } })
            }
            None if custom => json!({ "index": call, CUSTOM: { "input": arguments } }),
            Some((id, name)) => {
                let function = json!({ "name": name, "arguments": arguments });
                json!({ "index": call, "id": id, "type": "function", "function": function })
            }
            None => json!({ "index": call, "function": { "arguments": arguments } }),
        }
    }
}
