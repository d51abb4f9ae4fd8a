//! Model requests that are no samples: counting tokens, and embeddings. They leave no record and have no receipt, so
//! neither reports nor recipes can refer to them, and what an upstream is asked here is kept nowhere.
//! The embedded engine counts; everything else is passed on to the provider of the model.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use reef_dialects::{Dialect, messages};
use serde_json::{Map, Value};

use super::{Serving, embedded_error, resolve, retried};
use crate::config::Scope;
use crate::http::body::JsonObject;
use crate::http::caller::Caller;
use crate::http::error::ApiError;
use crate::provider::{Passed, ProviderError, Upstream, embedded};

/// Anthropic's route for counting.
pub const COUNT_TOKENS: &str = "/v1/messages/count_tokens";
/// OpenAI's route for embeddings.
pub const EMBEDDINGS: &str = "/v1/embeddings";

/// `POST /v1/messages/count_tokens`
pub async fn count_tokens(State(serving): State<Serving>, caller: Caller, JsonObject(body): JsonObject) -> Response {
    told(count(&serving, &caller, &body).await, Dialect::Messages)
}

/// `POST /v1/embeddings`
pub async fn embeddings(State(serving): State<Serving>, caller: Caller, JsonObject(body): JsonObject) -> Response {
    told(embed(&serving, &caller, &body).await, Dialect::Chat)
}

fn told(answer: Result<Value, ApiError>, dialect: Dialect) -> Response {
    match answer {
        Ok(body) => (StatusCode::OK, Json(body)).into_response(),
        Err(error) => (retried(HeaderMap::new(), &error), error.in_dialect(dialect)).into_response(),
    }
}

async fn count(serving: &Serving, caller: &Caller, body: &Map<String, Value>) -> Result<Value, ApiError> {
    caller.require(Scope::Infer)?;
    let ask = messages::parse_count_tokens(body)?;
    match serving.providers.find(&ask.model) {
        Some(upstream) if upstream.dialect() == Dialect::Messages => {
            counted(upstream.name(), relay(upstream, COUNT_TOKENS, caller, body).await?)
        }
        Some(_) => Err(ApiError::invalid("model", "the provider of this model does not count tokens; estimate them")),
        None => {
            resolve::check(serving, caller, &ask.model).await?;
            let tokens = embedded::count(&serving.engine, &Arc::new(ask), Dialect::Messages).await;
            Ok(messages::token_count(tokens.map_err(embedded_error)? as u64))
        }
    }
}

async fn embed(serving: &Serving, caller: &Caller, body: &Map<String, Value>) -> Result<Value, ApiError> {
    caller.require(Scope::Infer)?;
    let Some(model) = body.get("model").and_then(Value::as_str) else {
        return Err(ApiError::invalid(
            "model",
            "model must be the name of a provider's model; GET /v1/models lists them",
        ));
    };
    let Some(upstream) = serving.providers.find(model) else {
        return Err(resolve::no_model(model, "use the name of a provider's model that makes embeddings"));
    };
    relay(upstream, EMBEDDINGS, caller, body).await
}

/// What a provider says of a request's length, if it says any.
fn counted(provider: &str, told: Value) -> Result<Value, ApiError> {
    if told.get("input_tokens").is_some_and(Value::is_u64) {
        return Ok(told);
    }
    let sentence = format!("the answer of provider '{provider}' is not usable: it has no input_tokens");
    Err(ProviderError::Broken(sentence).into())
}

async fn relay(upstream: &Upstream, path: &str, caller: &Caller, body: &Map<String, Value>) -> Result<Value, ApiError> {
    let passed = Passed {
        traceparent: caller.traceparent.clone(),
        request_id: caller.request_id.clone(),
        anthropic: caller.anthropic.clone(),
    };
    Ok(upstream.relay_json(path, body, &passed).await?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_answer_without_a_count_is_no_count() {
        let told = json!({ "input_tokens": 7, "odd": true });
        assert_eq!(counted("p", told.clone()), Ok(told));
        for wrong in [json!({}), json!({ "input_tokens": null }), json!({ "input_tokens": "7" }), json!([7])] {
            let error = counted("p", wrong).expect_err("no count");
            assert_eq!(error.status, StatusCode::BAD_GATEWAY, "{error:?}");
        }
    }
}
