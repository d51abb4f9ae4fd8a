//! `POST /v1/chat/completions`: parse, pick the snapshot, render, admit, answer.
//! A request names a scenario by header and weights by model name; both are resolved once, here. An
//! unknown model or release is an error, never the base.

mod answer;
mod exchange;
mod request;
mod resolve;
mod transform;

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, http::StatusCode};
use futures::StreamExt;
use reef_core::RecordId;
use reef_engine::{Engine, Request};
use reef_store::Store;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tracing::Instrument;

use self::exchange::{Exchange, STREAM_FRAMES_MAX, Sink};
use self::request::ChatRequest;
use super::body::JsonObject;
use super::caller::Caller;
use super::error::{ApiError, V1Error};
use crate::clock::now_ms;
use crate::config::Scope;
use crate::receipts::Receipts;
use crate::scenarios::{Scenarios, Served};
use crate::telemetry;

/// The route.
pub const PATH: &str = "/v1/chat/completions";

/// The part of the host that answers model requests.
#[derive(Debug, Clone)]
pub struct Serving {
    /// The engine.
    pub engine: Engine,
    /// Where records go.
    pub store: Store,
    /// Scenarios in service.
    pub scenarios: Arc<Scenarios>,
    /// Receipts not durable yet.
    pub receipts: Receipts,
    /// A request with a new scenario name creates it.
    pub implicit_creation: bool,
}

/// Answers a chat request.
pub async fn chat_completions(
    State(serving): State<Serving>,
    caller: Caller,
    JsonObject(body): JsonObject,
) -> Result<Response, V1Error> {
    caller.require(Scope::Infer)?;
    Ok(answer(&serving, caller, body).await?)
}

async fn answer(
    serving: &Serving,
    caller: Caller,
    mut body: serde_json::Map<String, Value>,
) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let created_at_ms = now_ms();
    let receipt = RecordId::fresh();
    let mut request = ChatRequest::parse(&body, fresh_seed(&receipt))?;
    let (scenario, served) = resolve::resolve(serving, &caller, &request.model).await?;
    transform::transform(&scenario, &caller, &mut request, &mut body).await;
    let span = tracing::info_span!(
        "inference",
        scenario = %scenario.key.1,
        release.id = %served.release.release_id,
        release.sequence = served.release.manifest.sequence,
        record.id = %receipt,
    );
    telemetry::continue_trace(&span, caller.traceparent.as_deref());
    join_release_trace(&served, &span);
    let prompt = render(&serving.engine, &request).await?;
    let tokens_max = tokens_max(&serving.engine, &request, prompt.len())?;
    let tenant = caller.tenant().to_string();
    let asked = Request {
        stop: request.stop.clone(),
        top_logprobs: request.logprobs.unwrap_or(0),
        ..Request::new(&tenant, prompt.clone(), served.weights.clone(), request.sampling, tokens_max)
    };
    let events = serving.engine.generate(asked)?;
    let headers = headers(&receipt, &served, arrived);
    let stream = request.stream;
    let exchange = Exchange {
        engine: serving.engine.clone(),
        store: serving.store.clone(),
        in_flight: serving.receipts.register(&scenario.key, &receipt),
        scenario,
        served,
        caller,
        body: Value::Object(body),
        request,
        prompt,
        receipt,
        created_at_ms,
    };
    if stream {
        let (frames, receiver) = mpsc::channel(STREAM_FRAMES_MAX);
        tokio::spawn(exchange.run(events, Sink::Stream(frames)).instrument(span));
        return Ok(stream_response(headers, receiver));
    }
    let (reply, answered) = oneshot::channel();
    tokio::spawn(exchange.run(events, Sink::Whole(reply)).instrument(span));
    let body = answered
        .await
        .map_err(|_| ApiError::internal("the exchange ended without an answer", "its task was dropped"))??;
    Ok((StatusCode::OK, headers, Json(body)).into_response())
}

/// Half of the receipt's random bits; recorded with the sampling parameters.
fn fresh_seed(receipt: &RecordId) -> u64 {
    let digest = reef_core::sha256_hex(receipt.as_str().as_bytes());
    // 53 bits survive every JSON reader.
    digest.get(..13).and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0)
}

/// The first answer of a release also appears in the trace of the step that made it.
fn join_release_trace(served: &Served, request: &tracing::Span) {
    if let Some(step) = served.first_answer_traceparent() {
        let first = tracing::info_span!("release.first_answer", release.id = %served.release.release_id);
        telemetry::continue_trace(&first, Some(step));
        telemetry::link_trace(&first, telemetry::traceparent(request).as_deref());
        telemetry::link_trace(request, Some(step));
    }
}

async fn render(engine: &Engine, request: &ChatRequest) -> Result<Vec<u32>, ApiError> {
    let (engine, messages) = (engine.clone(), request.messages.clone());
    let rendered = tokio::task::spawn_blocking(move || engine.render_chat(&messages)).await;
    Ok(rendered.map_err(|error| ApiError::internal("the prompt could not be rendered", error))??)
}

fn tokens_max(engine: &Engine, request: &ChatRequest, prompt: usize) -> Result<u32, ApiError> {
    let context = engine.info().context_length;
    let room = context.saturating_sub(prompt);
    let wanted = request.tokens_max.map_or(room, |tokens| tokens as usize);
    if room == 0 || wanted > room {
        let message = format!(
            "this model's maximum context length is {context} tokens; the messages take {prompt} and the answer may take {wanted}; shorten either"
        );
        return Err(ApiError {
            param: Some("messages".to_owned()),
            ..ApiError::new(StatusCode::BAD_REQUEST, "context_length_exceeded", message)
        });
    }
    Ok(u32::try_from(wanted).unwrap_or(u32::MAX))
}

fn headers(receipt: &RecordId, served: &Served, arrived: Instant) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut set = |name: &'static str, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    };
    set("x-reef-agent-record-id", receipt.as_str());
    set("x-reef-release-id", served.release.release_id.as_str());
    set("x-reef-artifact-version", served.release.release_id.as_str());
    set("x-reef-overhead-ms", &format!("{:.3}", arrived.elapsed().as_secs_f64() * 1000.0));
    headers
}

fn stream_response(mut headers: HeaderMap, frames: mpsc::Receiver<bytes::Bytes>) -> Response {
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    let body = Body::from_stream(ReceiverStream::new(frames).map(Ok::<_, std::convert::Infallible>));
    (StatusCode::OK, headers, body).into_response()
}
