//! Log-probs of output text, in both directions.
//! A log-prob that JSON cannot say is −9999, the number that OpenAI's API has for it.

use serde_json::{Value, json};

use crate::reply::TokenInfo;

const IMPOSSIBLE: f32 = -9999.0;

/// The entries of these tokens.
pub(super) fn write(tokens: &[TokenInfo]) -> Vec<Value> {
    let entry = |text: &str, bytes: &[u8], logprob: f32| {
        let logprob = if logprob.is_finite() { logprob } else { IMPOSSIBLE };
        json!({ "token": text, "bytes": bytes, "logprob": logprob })
    };
    let entries = tokens.iter().map(|token| {
        let mut written = entry(&token.text, &token.bytes, token.logprob);
        written["top_logprobs"] = token.top.iter().map(|(text, bytes, logprob)| entry(text, bytes, *logprob)).collect();
        written
    });
    entries.collect()
}

/// The tokens of these entries; what is no entry is left out.
pub(super) fn read(entries: Option<&Value>) -> Vec<TokenInfo> {
    let entries = entries.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let tokens = entries.iter().filter_map(|value| {
        let (text, bytes, logprob) = entry(value)?;
        let top = value.get("top_logprobs").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        Some(TokenInfo {
            id: None,
            text,
            bytes,
            logprob,
            top: top.iter().filter_map(entry).collect(),
            recorded: Vec::new(),
        })
    });
    tokens.collect()
}

fn entry(value: &Value) -> Option<(String, Vec<u8>, f32)> {
    let text = value.get("token")?.as_str()?.to_owned();
    let logprob = value.get("logprob")?.as_f64()? as f32;
    let bytes = match value.get("bytes").and_then(Value::as_array) {
        Some(bytes) => bytes.iter().filter_map(|byte| u8::try_from(byte.as_u64()?).ok()).collect(),
        None => text.clone().into_bytes(),
    };
    Some((text, bytes, logprob))
}
