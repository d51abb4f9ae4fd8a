//! The whole answer that the frames of an upstream's stream add up to, in the upstream's own dialect.
//! The relay feeds it every frame that it passes on, so that the record says what went over the wire: items, blocks and
//! reasons that no code here knows are kept as they were sent. An answer that did not end says so.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::dialect::Dialect;
use crate::messages;
use crate::openai::CHOICES_MAX;

/// Places in one list of an answer; what comes at a later place is not kept.
const PLACES_MAX: u64 = 4096;
/// Texts that are told whole whenever they are told, and never in pieces.
const WHOLE_TEXTS: [&str; 8] = ["role", "id", "type", "index", "name", "finish_reason", "stop_reason", "object"];

/// See the module.
#[derive(Debug)]
pub(crate) struct Assembly {
    dialect: Dialect,
    /// All but choices, blocks and items.
    answer: Map<String, Value>,
    /// Those, by place.
    parts: BTreeMap<u64, Map<String, Value>>,
    /// Arguments of calls in a messages stream, as text.
    inputs: BTreeMap<u64, String>,
    seen: bool,
    ended: bool,
}

impl Assembly {
    pub(crate) fn new(dialect: Dialect) -> Self {
        let (answer, parts, inputs) = (Map::new(), BTreeMap::new(), BTreeMap::new());
        Self { dialect, answer, parts, inputs, seen: false, ended: false }
    }

    /// Takes a frame: its data, and its kind where the dialect has kinds.
    pub(crate) fn push(&mut self, data: &Value, kind: &str) {
        let Some(fields) = data.as_object() else { return };
        self.seen = true;
        match self.dialect {
            Dialect::Chat | Dialect::Completions => self.chunk(fields),
            Dialect::Messages => self.message(fields, kind),
            Dialect::Responses => self.response(fields, kind),
        }
    }

    /// The answer so far; none before the first frame.
    pub(crate) fn whole(&self) -> Option<Value> {
        if !self.seen {
            return None;
        }
        let mut answer = self.answer.clone();
        let list = |parts: &BTreeMap<u64, Map<String, Value>>| parts.values().cloned().map(Value::Object).collect();
        match self.dialect {
            Dialect::Chat | Dialect::Completions => drop(answer.insert("choices".to_owned(), self.choices())),
            Dialect::Messages => drop(answer.insert("content".to_owned(), self.content())),
            Dialect::Responses if !self.ended => {
                let mut parts = self.parts.clone();
                for part in parts.values_mut().filter(|part| part.get("status").is_some_and(|is| is == "in_progress")) {
                    part.insert("status".to_owned(), json!("incomplete"));
                }
                answer.insert("status".to_owned(), json!("incomplete"));
                answer.insert("output".to_owned(), list(&parts));
            }
            Dialect::Responses => {
                let told = answer.get("output").and_then(Value::as_array).is_some_and(|output| !output.is_empty());
                if !told {
                    answer.insert("output".to_owned(), list(&self.parts));
                }
            }
        }
        Some(Value::Object(answer))
    }

    fn part(&mut self, place: Option<u64>) -> Option<&mut Map<String, Value>> {
        place.filter(|place| *place < PLACES_MAX).map(|place| self.parts.entry(place).or_default())
    }

    fn chunk(&mut self, fields: &Map<String, Value>) {
        for (name, value) in fields.iter().filter(|(name, value)| *name != "choices" && !value.is_null()) {
            let value = if value == "chat.completion.chunk" { json!("chat.completion") } else { value.clone() };
            self.answer.insert(name.clone(), value);
        }
        let choices = fields.get("choices").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        for (position, choice) in choices.iter().enumerate() {
            let Some(choice) = choice.as_object() else { continue };
            let number = choice.get("index").and_then(Value::as_u64).unwrap_or(position as u64);
            let Some(whole) = self.part(Some(number).filter(|number| *number < CHOICES_MAX)) else { continue };
            let renamed = choice.iter().map(|(name, value)| {
                (if name == "delta" { "message".to_owned() } else { name.clone() }, value.clone())
            });
            add(whole, &renamed.collect());
        }
    }

    /// The entries of a whole message have no index.
    fn choices(&self) -> Value {
        let choices = self.parts.values().cloned().map(|mut choice| {
            let calls = choice.get_mut("message").and_then(|message| message.get_mut("tool_calls"));
            for call in calls.and_then(Value::as_array_mut).into_iter().flatten() {
                if let Some(call) = call.as_object_mut() {
                    call.remove("index");
                }
            }
            Value::Object(choice)
        });
        choices.collect()
    }

    fn message(&mut self, fields: &Map<String, Value>, kind: &str) {
        let place = fields.get("index").and_then(Value::as_u64);
        match kind {
            "message_start" => {
                self.answer = fields.get("message").and_then(Value::as_object).cloned().unwrap_or_default();
            }
            "content_block_start" => {
                let block = fields.get("content_block").and_then(Value::as_object).cloned();
                if let (Some(place), Some(block)) = (self.part(place), block) {
                    *place = block;
                }
            }
            "content_block_delta" => {
                let Some(delta) = fields.get("delta").and_then(Value::as_object) else { return };
                self.block_delta(place, delta);
            }
            "message_delta" => {
                for (name, value) in fields.iter().filter(|(name, _)| *name != "type") {
                    match (name.as_str(), value) {
                        ("delta", Value::Object(delta)) => self.answer.extend(delta.clone()),
                        ("usage", Value::Object(more)) => {
                            let usage = self.answer.entry("usage").or_insert_with(|| json!({}));
                            if let Some(usage) = usage.as_object_mut() {
                                usage.extend(more.clone().into_iter().filter(|(_, value)| !value.is_null()));
                            }
                        }
                        _ => drop(self.answer.insert(name.clone(), value.clone())),
                    }
                }
            }
            _ => {}
        }
    }

    fn block_delta(&mut self, place: Option<u64>, delta: &Map<String, Value>) {
        if let (Some(place), Some(Value::String(text))) = (place, delta.get("partial_json")) {
            self.inputs.entry(place).or_default().push_str(text);
            return;
        }
        let Some(block) = self.part(place) else { return };
        for (name, value) in delta.iter().filter(|(name, _)| *name != "type") {
            match (name.as_str(), value) {
                ("citation", citation) => {
                    let citations = block.entry("citations").or_insert_with(|| json!([]));
                    if !citations.is_array() {
                        *citations = json!([]);
                    }
                    citations.as_array_mut().into_iter().for_each(|list| list.push(citation.clone()));
                }
                _ => add(block, &[(name.clone(), value.clone())].into_iter().collect()),
            }
        }
    }

    fn content(&self) -> Value {
        let blocks = self.parts.iter().map(|(place, block)| {
            let mut block = block.clone();
            if let Some(input) = self.inputs.get(place).filter(|input| !input.is_empty()) {
                block.insert("input".to_owned(), messages::to_input(input));
            }
            Value::Object(block)
        });
        blocks.collect()
    }

    fn response(&mut self, fields: &Map<String, Value>, kind: &str) {
        if let Some(response) = fields.get("response").and_then(Value::as_object) {
            self.answer.clone_from(response);
            self.ended |= matches!(kind, "response.completed" | "response.incomplete" | "response.cancelled");
            return;
        }
        let Some(item) = self.part(fields.get("output_index").and_then(Value::as_u64)) else { return };
        let number = |field: &str| fields.get(field).and_then(Value::as_u64).filter(|place| *place < PLACES_MAX);
        if let Some(whole) = fields.get("item").and_then(Value::as_object) {
            item.clone_from(whole);
            return;
        }
        let (list, place) = match (number("content_index"), number("summary_index")) {
            (Some(place), _) => ("content", place as usize),
            (None, Some(place)) => ("summary", place as usize),
            (None, None) => {
                if let Some(Value::String(_)) = fields.get("delta") {
                    let field = if kind.contains("arguments") { "arguments" } else { "input" };
                    if kind.ends_with("arguments.delta") || kind.ends_with("input.delta") {
                        add(item, &[(field.to_owned(), fields["delta"].clone())].into_iter().collect());
                    }
                }
                return;
            }
        };
        let parts = item.entry(list).or_insert_with(|| json!([]));
        let Some(parts) = parts.as_array_mut() else { return };
        if parts.len() <= place {
            parts.resize(place + 1, json!({}));
        }
        let Some(part) = parts.get_mut(place) else { return };
        if let Some(whole) = fields.get("part") {
            part.clone_from(whole);
        } else if let (Some(part), Some(delta @ Value::String(_))) = (part.as_object_mut(), fields.get("delta")) {
            let (kind, field) = match kind {
                "response.refusal.delta" => ("refusal", "refusal"),
                "response.reasoning_text.delta" => ("reasoning_text", "text"),
                "response.reasoning_summary_text.delta" => ("summary_text", "text"),
                _ => ("output_text", "text"),
            };
            part.entry("type").or_insert_with(|| json!(kind));
            add(part, &[(field.to_owned(), delta.clone())].into_iter().collect());
        }
    }
}

/// Adds what a delta says to what was said: texts and lists go on, objects are joined, everything else is replaced.
fn add(whole: &mut Map<String, Value>, delta: &Map<String, Value>) {
    for (name, value) in delta {
        match (whole.get_mut(name), value) {
            (Some(_), Value::Null) => {}
            (Some(Value::String(text)), Value::String(more)) if !WHOLE_TEXTS.contains(&name.as_str()) => {
                text.push_str(more);
            }
            (Some(Value::String(text)), Value::String(more)) if !more.is_empty() => text.clone_from(more),
            (Some(Value::String(_)), Value::String(_)) => {}
            (Some(Value::Array(list)), Value::Array(more)) if name == "tool_calls" => add_calls(list, more),
            (Some(Value::Array(list)), Value::Array(more)) => list.extend(more.clone()),
            (Some(Value::Array(list)), Value::String(more)) if !more.is_empty() => list.push(text_part(more)),
            (Some(Value::Array(_)), Value::String(_)) => {}
            (Some(there @ Value::String(_)), Value::Array(more)) => {
                let text = there.as_str().filter(|text| !text.is_empty()).map(text_part);
                *there = text.into_iter().chain(more.clone()).collect();
            }
            (Some(Value::Object(there)), Value::Object(more)) => add(there, more),
            _ => drop(whole.insert(name.clone(), value.clone())),
        }
    }
}

fn text_part(text: impl AsRef<str>) -> Value {
    json!({ "type": "text", "text": text.as_ref() })
}

/// Entries of one index are one call.
fn add_calls(calls: &mut Vec<Value>, more: &[Value]) {
    for entry in more {
        let same = |call: &&mut Value| call.get("index").is_some() && call.get("index") == entry.get("index");
        match (calls.iter_mut().find(same), entry) {
            (Some(Value::Object(call)), Value::Object(entry)) => add(call, entry),
            _ => calls.push(entry.clone()),
        }
    }
}
