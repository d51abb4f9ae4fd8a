//! `logprobs` and `token_ids` of a choice, read and written.
//! A token's bytes are exact; a token that is a part of a character has the text U+FFFD. Ids without log-probs are not
//! read: a sampled token whose probability nobody knows is of no use to training.

use serde_json::{Map, Value, json};

use crate::fields::present;
use crate::openai::{finite, token_ids};
use crate::reply::TokenInfo;

/// Writes `logprobs`.
pub(super) fn write(tokens: &[TokenInfo]) -> Value {
    let entry =
        |text: &str, bytes: &[u8], logprob: f32| json!({ "token": text, "bytes": bytes, "logprob": finite(logprob) });
    let content: Vec<Value> = tokens
        .iter()
        .map(|token| {
            let mut item = entry(&token.text, &token.bytes, token.logprob);
            item["top_logprobs"] =
                token.top.iter().map(|(text, bytes, logprob)| entry(text, bytes, *logprob)).collect();
            item
        })
        .collect();
    json!({ "content": content, "refusal": null })
}

/// Reads the tokens of a choice, with their ids if there is one for each; log-probs in another form are none.
pub(super) fn read(choice: &Map<String, Value>) -> Vec<TokenInfo> {
    let content = choice.get("logprobs").and_then(|fields| fields.get("content")?.as_array());
    let mut tokens: Vec<TokenInfo> = content.and_then(|list| list.iter().map(token).collect()).unwrap_or_default();
    if let Some(ids) = token_ids(choice, "token_ids").filter(|ids| ids.len() == tokens.len()) {
        tokens.iter_mut().zip(ids).for_each(|(token, id)| token.id = Some(id));
    }
    tokens
}

fn token(item: &Value) -> Option<TokenInfo> {
    let fields = item.as_object()?;
    let (text, bytes, logprob) = entry(fields)?;
    let top = match present(fields, "top_logprobs") {
        None => Vec::new(),
        Some(list) => list.as_array()?.iter().map(|item| entry(item.as_object()?)).collect::<Option<_>>()?,
    };
    Some(TokenInfo { id: None, text, bytes, logprob, top, recorded: Vec::new() })
}

fn entry(fields: &Map<String, Value>) -> Option<(String, Vec<u8>, f32)> {
    let text = fields.get("token")?.as_str()?.to_owned();
    let bytes = match present(fields, "bytes") {
        None => text.clone().into_bytes(),
        Some(list) => list.as_array()?.iter().map(|byte| u8::try_from(byte.as_u64()?).ok()).collect::<Option<_>>()?,
    };
    Some((text, bytes, fields.get("logprob")?.as_f64()? as f32))
}
