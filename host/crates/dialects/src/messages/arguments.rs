//! Arguments of calls: JSON text in an `Ask` or a `Reply`, an object in this dialect.
//! Text that is no object, such as what a token limit cut off, stands under one key that Anthropic's documentation
//! names for it, and comes back unchanged.

use serde_json::{Map, Value, json};

const INVALID: &str = "INVALID_JSON";

/// The object `input` of a call.
pub(crate) fn to_input(arguments: &str) -> Value {
    if arguments.trim().is_empty() {
        return Value::Object(Map::new());
    }
    match serde_json::from_str(arguments) {
        Ok(Value::Object(input)) => Value::Object(input),
        _ => json!({ INVALID: arguments }),
    }
}

/// The JSON text of `input`.
pub(super) fn from_input(input: &Map<String, Value>) -> String {
    match input.get(INVALID) {
        Some(Value::String(raw)) if input.len() == 1 => raw.clone(),
        _ => Value::Object(input.clone()).to_string(),
    }
}
