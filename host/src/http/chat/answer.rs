//! The OpenAI shapes of an answer: one object, or chunks of a stream.
//! The exchange driver feeds it tokens and asks for bodies. Per chunk, text, ids and log-probs belong
//! together; a finish reason appears exactly once.

use reef_engine::{Engine, FinishReason, Token};
use serde_json::{Map, Value, json};

use super::request::ChatRequest;

/// What is the same in every chunk of one answer.
#[derive(Debug, Clone)]
pub struct Answer {
    receipt: String,
    release: String,
    model: String,
    created_s: i64,
    include_usage: bool,
    logprobs: bool,
    token_ids: bool,
}

/// Everything that was generated.
#[derive(Debug, Clone, Default)]
pub struct Generated {
    /// Sampled tokens in order.
    pub tokens: Vec<Token>,
    /// The answer's text.
    pub text: String,
    /// Why it ended; `None` if it did not.
    pub finish: Option<FinishReason>,
}

impl Answer {
    /// The frame of an answer to `request`.
    pub fn new(request: &ChatRequest, receipt: &str, release: &str, created_ms: i64) -> Self {
        Self {
            receipt: receipt.to_owned(),
            release: release.to_owned(),
            model: request.model.clone(),
            created_s: created_ms / 1000,
            include_usage: request.include_usage,
            logprobs: request.logprobs.is_some(),
            token_ids: request.return_token_ids,
        }
    }

    /// The whole answer as one object.
    pub fn whole(&self, engine: &Engine, prompt: &[u32], generated: &Generated) -> Value {
        let ids: Vec<u32> = generated.tokens.iter().map(|token| token.id).collect();
        let mut choice = json!({
            "index": 0,
            "message": { "role": "assistant", "content": generated.text, "refusal": null },
            "logprobs": self.logprobs.then(|| logprobs(engine, &generated.tokens)),
            "finish_reason": generated.finish.as_ref().map(finish_name),
        });
        let mut body = self.envelope("chat.completion");
        if self.token_ids {
            set(&mut choice, "token_ids", json!(ids));
            body.insert("prompt_token_ids".to_owned(), json!(prompt));
        }
        body.insert("choices".to_owned(), json!([choice]));
        body.insert("usage".to_owned(), usage(prompt.len(), ids.len()));
        body.insert("reef".to_owned(), self.reef());
        Value::Object(body)
    }

    /// The first chunk: the role.
    pub fn opening(&self, prompt: &[u32]) -> Value {
        let mut body = self.chunk(json!([{ "index": 0, "delta": { "role": "assistant", "content": "" }, "logprobs": null, "finish_reason": null }]));
        if self.token_ids {
            set(&mut body, "prompt_token_ids", json!(prompt));
        }
        body
    }

    /// One token's chunk; none if it would say nothing.
    pub fn delta(&self, engine: &Engine, token: &Token) -> Option<Value> {
        if token.text.is_empty() && !self.logprobs && !self.token_ids {
            return None;
        }
        let mut choice = json!({
            "index": 0,
            "delta": { "content": token.text },
            "logprobs": self.logprobs.then(|| logprobs(engine, std::slice::from_ref(token))),
            "finish_reason": null,
        });
        if self.token_ids {
            set(&mut choice, "token_ids", json!([token.id]));
        }
        Some(self.chunk(json!([choice])))
    }

    /// The chunks after the last token: held-back text, the finish reason, usage if asked for, the receipt.
    pub fn closing(&self, prompt: &[u32], generated: &Generated, rest: &str) -> Vec<Value> {
        let mut chunks = Vec::with_capacity(4);
        if !rest.is_empty() {
            chunks.push(
                self.chunk(
                    json!([{ "index": 0, "delta": { "content": rest }, "logprobs": null, "finish_reason": null }]),
                ),
            );
        }
        let finish = generated.finish.as_ref().map(finish_name);
        chunks.push(self.chunk(json!([{ "index": 0, "delta": {}, "logprobs": null, "finish_reason": finish }])));
        if self.include_usage {
            let mut body = self.chunk(json!([]));
            set(&mut body, "usage", usage(prompt.len(), generated.tokens.len()));
            chunks.push(body);
        }
        let mut receipt = self.chunk(json!([]));
        set(&mut receipt, "reef", self.reef());
        chunks.push(receipt);
        chunks
    }

    fn chunk(&self, choices: Value) -> Value {
        let mut body = self.envelope("chat.completion.chunk");
        body.insert("choices".to_owned(), choices);
        Value::Object(body)
    }

    fn envelope(&self, object: &str) -> Map<String, Value> {
        let mut body = Map::new();
        body.insert("id".to_owned(), json!(format!("chatcmpl-{}", self.receipt)));
        body.insert("object".to_owned(), json!(object));
        body.insert("created".to_owned(), json!(self.created_s));
        body.insert("model".to_owned(), json!(self.model));
        body
    }

    fn reef(&self) -> Value {
        json!({ "agent_record_id": self.receipt, "release_id": self.release })
    }
}

fn set(object: &mut Value, key: &str, value: Value) {
    if let Some(map) = object.as_object_mut() {
        map.insert(key.to_owned(), value);
    }
}

/// OpenAI's name of a finish reason.
pub fn finish_name(reason: &FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop { .. } => "stop",
        FinishReason::Length => "length",
        FinishReason::Cancelled => "cancelled",
    }
}

fn usage(prompt: usize, output: usize) -> Value {
    json!({ "prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output })
}

/// `bytes` are exact; a token that is a part of a character has the text U+FFFD.
fn logprobs(engine: &Engine, tokens: &[Token]) -> Value {
    let entry = |id: u32, logprob: f32| {
        let text = engine.decode(&[id]).unwrap_or_default();
        json!({ "token": text, "logprob": logprob, "bytes": engine.token_bytes(id) })
    };
    let content: Vec<Value> = tokens
        .iter()
        .map(|token| {
            let mut item = entry(token.id, token.logprob);
            let top: Vec<Value> = token.top.iter().map(|(id, logprob)| entry(*id, *logprob)).collect();
            set(&mut item, "top_logprobs", json!(top));
            item
        })
        .collect();
    json!({ "content": content, "refusal": null })
}
