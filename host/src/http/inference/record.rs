//! The record of an exchange: what is stored before the client hears the end.
//! Tokens are kept where the embedded engine gave one answer; of several choices (`n` over 1) only the texts are kept,
//! since a trace is one sequence. A record that did not end well says so in `complete` and, if it failed, in `error`.

use reef_core::{Alternatives, Inference, RecordStatus, ReleaseSpan, TokenTrace};
use reef_dialects::{Choice, Reply, TokenInfo};
use serde_json::{Value, json};

use super::exchange::{Exchange, Origin};
use crate::http::error::ApiError;

/// The record; `response` is the whole answer as the client's dialect says it.
pub fn record(
    exchange: &mut Exchange,
    reply: &Reply,
    status: RecordStatus,
    response: Value,
    traceparent: Option<String>,
) -> Inference {
    Inference {
        id: exchange.receipt.clone(),
        created_at_ms: exchange.created_at_ms,
        path: exchange.dialect.path().to_owned(),
        status,
        capture: exchange.caller.capture,
        session: exchange.caller.session.clone(),
        tags: exchange.caller.tags.clone(),
        traceparent,
        request: Value::Object(std::mem::take(&mut exchange.body)),
        response,
        tokens: trace(exchange, reply),
    }
}

/// The stored form of an answer.
pub fn stored(exchange: &Exchange, mut body: Value, status: RecordStatus, failure: Option<&ApiError>) -> Value {
    if let Some(fields) = body.as_object_mut() {
        fields.insert("complete".to_owned(), json!(status == RecordStatus::Complete));
        if let Some(mut error) = failure.map(|failure| failure.body(exchange.dialect)) {
            fields.insert("error".to_owned(), error["error"].take());
        }
    }
    body
}

fn trace(exchange: &Exchange, reply: &Reply) -> Option<TokenTrace> {
    let Origin::Embedded { prompt, sampling } = &exchange.origin else { return None };
    let [Choice { tokens, .. }] = reply.choices.as_slice() else { return None };
    if exchange.ask.n != 1 || tokens.is_empty() {
        return None;
    }
    let release = &exchange.served.release;
    Some(TokenTrace {
        prompt: prompt.clone(),
        output: tokens.iter().filter_map(|token| token.id).collect(),
        logprobs: tokens.iter().map(|token| token.logprob).collect(),
        spans: vec![ReleaseSpan { start: 0, release: release.release_id.clone(), sequence: release.manifest.sequence }],
        sampling: *sampling,
        alternatives: alternatives(tokens),
    })
}

/// What was recorded of every token; none where a token has fewer, or a log-prob that is not finite.
fn alternatives(tokens: &[TokenInfo]) -> Alternatives {
    let k = tokens.iter().map(|token| token.recorded.len()).min().unwrap_or(0);
    let kept = tokens.iter().flat_map(|token| token.recorded.iter().take(k));
    let (ids, logprobs): (Vec<u32>, Vec<f32>) = kept.copied().unzip();
    match u32::try_from(k) {
        Ok(k) if logprobs.iter().all(|logprob| logprob.is_finite()) => Alternatives { k, ids, logprobs },
        _ => Alternatives::NONE,
    }
}
