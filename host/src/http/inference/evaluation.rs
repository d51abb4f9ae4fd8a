//! `/reef/scenarios/{s}/evaluation/v1/…`: model requests that leave no record, so that what a candidate is tried on is
//! never learned from. An episode's pass opens them for one model and one release of weights; a token with the scope
//! `evaluate` opens them for what it may see. Answers carry a release and no receipt.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use reef_core::ScenarioName;
use reef_dialects::Dialect;
use serde_json::{Map, Value, json};

use super::{Serving, answer, resolve};
use crate::auth::Auth;
use crate::http::body::JsonObject;
use crate::http::caller::Caller;
use crate::http::error::ApiError;
use crate::http::params::Path;

/// The parts that a request is answered from.
type Asked = (State<Serving>, State<Arc<Auth>>, Path<String>, HeaderMap);

/// In OpenAI's chat dialect.
pub async fn chat_completions(asked: Asked, body: JsonObject) -> Response {
    respond(Dialect::Chat, asked, body).await
}

/// In OpenAI's older dialect.
pub async fn completions(asked: Asked, body: JsonObject) -> Response {
    respond(Dialect::Completions, asked, body).await
}

/// In Anthropic's dialect.
pub async fn messages(asked: Asked, body: JsonObject) -> Response {
    respond(Dialect::Messages, asked, body).await
}

/// In OpenAI's newer dialect.
pub async fn responses(asked: Asked, body: JsonObject) -> Response {
    respond(Dialect::Responses, asked, body).await
}

async fn respond(dialect: Dialect, asked: Asked, JsonObject(body): JsonObject) -> Response {
    evaluated(dialect, asked, body).await.unwrap_or_else(|error| error.in_dialect(dialect))
}

async fn evaluated(
    dialect: Dialect,
    (State(serving), State(auth), Path(name), headers): Asked,
    body: Map<String, Value>,
) -> Result<Response, ApiError> {
    let (caller, pass) = Caller::unrecorded(&headers, (&auth, &serving.passes), ScenarioName::parse(name)?)?;
    // A name in the address never makes a scenario.
    serving.scenarios.get(caller.tenant(), &caller.scenario()?).await?;
    let Some(pass) = pass else { return answer(dialect, &serving, (caller, false), body).await };
    let model = body.get("model").and_then(Value::as_str).unwrap_or_default();
    if model != pass.model {
        return Err(resolve::no_model(model, &format!("an episode asks for '{}'", pass.model)));
    }
    if !pass.take() {
        let told =
            format!("an episode makes at most {} model requests; raise harness.episodes.calls_max", pass.calls_max);
        return Err(ApiError::new(StatusCode::BAD_REQUEST, "episode_budget", told));
    }
    let answered = answer(dialect, &serving, (caller, false), body).await;
    let status = answered.as_ref().map_or_else(|error| error.status, Response::status);
    if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
        pass.failed();
    }
    answered
}

/// The model that an episode may ask for; agent programs look.
pub async fn models(
    State(serving): State<Serving>,
    State(auth): State<Arc<Auth>>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let (caller, pass) = Caller::unrecorded(&headers, (&auth, &serving.passes), ScenarioName::parse(name)?)?;
    serving.scenarios.get(caller.tenant(), &caller.scenario()?).await?;
    let model = pass.map_or_else(|| serving.engine.info().name.clone(), |pass| pass.model.clone());
    let row = json!({ "id": model, "object": "model", "owned_by": "reef" });
    Ok(Json(json!({ "object": "list", "data": [row] })).into_response())
}
