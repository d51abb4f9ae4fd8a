//! `logprobs` of a choice in the older form: parallel lists instead of objects.
//! A token has no bytes of its own there; one whose text is not its bytes is named `bytes:\x..`, as OpenAI does, so
//! that nothing is lost.

use serde_json::{Map, Value, json};

use crate::fields::present;
use crate::openai::{finite, token_ids};
use crate::reply::TokenInfo;

/// Writes `logprobs`; `offset` is where the tokens begin in the answer, in characters, and moves behind them.
pub(super) fn write(tokens: &[TokenInfo], offset: &mut usize) -> Value {
    let offsets: Vec<usize> = tokens
        .iter()
        .map(|token| {
            let here = *offset;
            *offset += token.text.chars().count();
            here
        })
        .collect();
    json!({
        "tokens": tokens.iter().map(|token| name(&token.text, &token.bytes)).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|token| finite(token.logprob)).collect::<Vec<_>>(),
        "top_logprobs": tokens.iter().map(write_top).collect::<Vec<_>>(),
        "text_offset": offsets,
    })
}

fn write_top(token: &TokenInfo) -> Value {
    let top = token.top.iter().map(|(text, bytes, logprob)| (name(text, bytes), json!(finite(*logprob))));
    Value::Object(top.collect())
}

fn name(text: &str, bytes: &[u8]) -> String {
    if text.as_bytes() == bytes {
        return text.to_owned();
    }
    let hex: String = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
    format!("bytes:{hex}")
}

/// Text and bytes of a token's name.
fn named(name: &str) -> (String, Vec<u8>) {
    let hex = name.strip_prefix("bytes:\\x");
    let bytes = hex.and_then(|hex| hex.split("\\x").map(|byte| u8::from_str_radix(byte, 16).ok()).collect());
    let bytes: Vec<u8> = bytes.unwrap_or_else(|| name.as_bytes().to_vec());
    (String::from_utf8_lossy(&bytes).into_owned(), bytes)
}

/// Reads the tokens of a choice, with their ids if there is one for each; log-probs in another form are none.
pub(super) fn read(choice: &Map<String, Value>) -> Vec<TokenInfo> {
    let fields = choice.get("logprobs").and_then(Value::as_object);
    let mut tokens = fields.and_then(tokens).unwrap_or_default();
    if let Some(ids) = token_ids(choice, "token_ids").filter(|ids| ids.len() == tokens.len()) {
        tokens.iter_mut().zip(ids).for_each(|(token, id)| token.id = Some(id));
    }
    tokens
}

fn tokens(fields: &Map<String, Value>) -> Option<Vec<TokenInfo>> {
    let list = |field: &str| present(fields, field).map_or(Some(&[][..]), |list| list.as_array().map(Vec::as_slice));
    let (names, logprobs, tops) = (list("tokens")?, list("token_logprobs")?, list("top_logprobs")?);
    if names.len() != logprobs.len() || !(tops.is_empty() || tops.len() == names.len()) {
        return None;
    }
    let tops = tops.iter().map(Some).chain(std::iter::repeat(None));
    let tokens = names.iter().zip(logprobs).zip(tops).map(|((name, logprob), top)| {
        let (text, bytes) = named(name.as_str()?);
        Some(TokenInfo {
            id: None,
            text,
            bytes,
            logprob: logprob.as_f64()? as f32,
            top: read_top(top)?,
            recorded: Vec::new(),
        })
    });
    tokens.collect()
}

/// Best first; the object has no order of its own.
fn read_top(top: Option<&Value>) -> Option<Vec<(String, Vec<u8>, f32)>> {
    let Some(top) = top.filter(|top| !top.is_null()) else { return Some(Vec::new()) };
    let entry = |(name, logprob): (&String, &Value)| {
        let (text, bytes) = named(name);
        Some((text, bytes, logprob.as_f64()? as f32))
    };
    let mut top = top.as_object()?.iter().map(entry).collect::<Option<Vec<_>>>()?;
    top.sort_by(|a, b| b.2.total_cmp(&a.2));
    Some(top)
}
