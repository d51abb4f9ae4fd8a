//! Reasoning in a message or a delta, which OpenAI's dialect has no word for.
//! `reasoning_content` (or `reasoning`) is its text; `reasoning_details` holds what a provider wants back with it, and
//! is preferred where it holds the text as well.

use serde_json::{Map, Value, json};

use crate::fields::present;

/// Pairs of text and signature, in order; the error is the field that has a wrong type.
pub(super) fn reasoning(fields: &Map<String, Value>) -> Result<Vec<(String, Option<String>)>, &'static str> {
    let mut details = details(fields)?;
    if details.iter().all(|(text, _)| text.is_empty()) {
        let text = match plain(fields, "reasoning_content")? {
            text if text.is_empty() => plain(fields, "reasoning")?,
            text => text,
        };
        match details.first_mut() {
            Some(first) => first.0 = text,
            None => details.push((text, None)),
        }
    }
    details.retain(|(text, signature)| !text.is_empty() || signature.is_some());
    Ok(details)
}

fn plain(fields: &Map<String, Value>, field: &'static str) -> Result<String, &'static str> {
    match present(fields, field) {
        None => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(field),
    }
}

fn details(fields: &Map<String, Value>) -> Result<Vec<(String, Option<String>)>, &'static str> {
    const FIELD: &str = "reasoning_details";
    let Some(value) = present(fields, FIELD) else { return Ok(Vec::new()) };
    let read = |detail: &Value| {
        let fields = detail.as_object().ok_or(FIELD)?;
        let text = plain(fields, "text")?;
        let signature = plain(fields, "signature")?;
        Ok((text, (!signature.is_empty()).then_some(signature)))
    };
    value.as_array().ok_or(FIELD)?.iter().map(read).collect()
}

/// One entry of `reasoning_details`.
pub(super) fn detail(index: usize, text: &str, signature: Option<&str>) -> Value {
    let mut detail = json!({ "type": "reasoning.text", "index": index });
    if !text.is_empty() {
        detail["text"] = json!(text);
    }
    if let Some(signature) = signature {
        detail["signature"] = json!(signature);
    }
    detail
}

/// Puts reasoning into a message: its text joined, and the details if one of them is signed.
pub(super) fn put(message: &mut Map<String, Value>, reasoning: &[(String, Option<String>)]) {
    let text: String = reasoning.iter().map(|(text, _)| text.as_str()).collect();
    if !text.is_empty() {
        message.insert("reasoning_content".to_owned(), Value::String(text));
    }
    if reasoning.iter().any(|(_, signature)| signature.is_some()) {
        let details = reasoning.iter().enumerate();
        let details = details.map(|(index, (text, signature))| detail(index, text, signature.as_deref()));
        message.insert("reasoning_details".to_owned(), details.collect());
    }
}
