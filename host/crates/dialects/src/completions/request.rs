//! A completions body becomes an `Ask`, and an `Ask` a body for an upstream that speaks completions.
//! One prompt per request: several would be several exchanges under one receipt.

use serde_json::{Map, Value, json};

use crate::ask::{Ask, Input, Refusal};
use crate::dialect::Dialect;
use crate::fields::{integer, present};
use crate::openai::{read_common, write_common};

/// Alternatives per token: OpenAI's bound is 5, open servers go further.
const LOGPROBS_MAX: u64 = 20;
pub(super) const READ: [&str; 3] = ["prompt", "logprobs", "echo"];

/// Reads a body.
pub fn parse(body: &Map<String, Value>) -> Result<Ask, Refusal> {
    match present(body, "echo") {
        None | Some(Value::Bool(false)) => {}
        Some(_) => return Err(Refusal::new("echo", "echo is not supported; put the prompt before the answer")),
    }
    let mut ask = read_common(body, (Dialect::Completions, input(body)?), &READ)?;
    ask.unknown.retain(|field, value| match field.as_str() {
        "best_of" => value.as_u64() != Some(u64::from(ask.n)),
        "suffix" => value != "",
        _ => true,
    });
    ask.logprobs = integer(body, "logprobs", 0, LOGPROBS_MAX)?.map(|top| top as u32);
    Ok(ask)
}

fn input(body: &Map<String, Value>) -> Result<Input, Refusal> {
    let wrong = || Refusal::new("prompt", "prompt must be a text or a list of token ids with something in it");
    let prompt = present(body, "prompt").ok_or_else(wrong)?;
    let prompt = match prompt.as_array().map(Vec::as_slice) {
        Some([only @ (Value::String(_) | Value::Array(_))]) => only,
        Some([Value::String(_) | Value::Array(_), ..]) => {
            return Err(Refusal::new("prompt", "prompt holds several prompts; send one request for each"));
        }
        _ => prompt,
    };
    match prompt {
        Value::String(text) if !text.is_empty() => Ok(Input::Text(text.clone())),
        Value::Array(ids) if !ids.is_empty() => {
            let id = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok());
            ids.iter().map(id).collect::<Option<_>>().map(Input::Tokens).ok_or_else(wrong)
        }
        _ => Err(wrong()),
    }
}

/// Writes a body; `same_dialect` says that `ask` came from this dialect's `parse`.
pub fn write(ask: &Ask, model: &str, same_dialect: bool) -> Result<Value, Refusal> {
    let prompt = match &ask.input {
        Input::Text(text) => json!(text),
        Input::Tokens(ids) => json!(ids),
        Input::Turns(_) => {
            let message = "the provider of this model continues plain text only; send a prompt to /v1/completions";
            return Err(Refusal::new("messages", message));
        }
    };
    let mut body = write_common(ask, model, (Dialect::Completions, same_dialect))?;
    let mut put = |field: &str, value: Option<Value>| drop(value.map(|value| body.insert(field.to_owned(), value)));
    put("prompt", Some(prompt));
    put("max_tokens", ask.tokens_max.map(Value::from));
    // Ids without log-probs would leave the record without what training needs.
    put("logprobs", ask.logprobs.or(ask.return_token_ids.then_some(0)).map(Value::from));
    Ok(Value::Object(body))
}
