//! Fields of a body that is a JSON object: which there may be, and what they hold. Each refusal names the field.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::error::ApiError;

/// Characters of a field's name that an error repeats.
const NAME_CHARS_SHOWN: usize = 64;

/// Refuses a field that is none of these.
pub fn known(body: &Map<String, Value>, fields: &[&str]) -> Result<(), ApiError> {
    let Some(field) = body.keys().find(|field| !fields.contains(&field.as_str())) else { return Ok(()) };
    let field: String = field.chars().take(NAME_CHARS_SHOWN).collect();
    let told = format!("'{field}' is not known; use {}", fields.join(", "));
    Err(ApiError::invalid(field, told))
}

/// A text of the body; null is absent.
pub fn text(body: &Map<String, Value>, field: &str, bytes_max: usize) -> Result<Option<String>, ApiError> {
    match body.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.len() <= bytes_max => Ok(Some(text.clone())),
        Some(Value::String(text)) => {
            let told = format!("'{field}' has {} bytes; the limit is {bytes_max}", text.len());
            Err(ApiError::invalid(field, told))
        }
        Some(_) => Err(ApiError::invalid(field, format!("'{field}' is a text"))),
    }
}

/// The whole body as a type. `told` says what is wrong where it is not one; the reason follows.
pub fn typed<T: DeserializeOwned>(body: Map<String, Value>, told: &str) -> Result<T, ApiError> {
    serde_json::from_value(Value::Object(body)).map_err(|error| ApiError::invalid("body", format!("{told}: {error}")))
}
