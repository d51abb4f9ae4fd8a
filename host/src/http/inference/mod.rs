//! The routes that answer a model request and record it: one handler for every dialect.
//! A request names a scenario by header and weights or a provider's model by its model name; both are resolved once,
//! here. The `Exchange` then runs to its end in a task of its own, whatever the client does.

mod ending;
pub mod evaluation;
mod exchange;
mod place;
mod record;
mod resolve;
mod rollout;
mod route;
mod sink;
mod transform;
pub mod unrecorded;
mod voice;

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use reef_core::RecordId;
use reef_dialects::{Ask, Dialect, Envelope};
use reef_engine::Engine;
use reef_intake::Redactor;
use reef_store::Store;
use serde_json::{Map, Value};
use tokio::sync::oneshot;
use tracing::Instrument;

pub use self::ending::Ending;
use self::exchange::{Exchange, Origin};
pub use self::place::Sessions;
use self::resolve::Resolved;
pub use self::resolve::no_model;
use self::rollout::Shadow;
use self::sink::Sink;
use super::body::JsonObject;
use super::caller::Caller;
use super::error::ApiError;
use crate::clock::now_ms;
use crate::config::Scope;
use crate::episodes::Passes;
use crate::provider::embedded::{self, Terms};
use crate::provider::failure::ACCOUNT_REFUSED;
use crate::provider::{Answering, Passed, Providers, Upstream};
use crate::receipts::Receipts;
use crate::recipes::Manifests;
use crate::scenarios::{Scenario, Scenarios, Served};
use crate::telemetry;

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
    /// Models that are served elsewhere.
    pub providers: Providers,
    /// Tells running exchanges that the server stops.
    pub ending: Ending,
    /// Takes secrets out before anything is stored.
    pub redactor: Arc<Redactor>,
    /// Sessions of requests that name none.
    pub sessions: Sessions,
    /// Tokens of episodes.
    pub passes: Passes,
    /// What the server's recipes want recorded, of a scenario whose learner has not begun.
    pub manifests: Manifests,
}

/// `POST /v1/chat/completions`
pub async fn chat_completions(serving: State<Serving>, caller: Caller, body: JsonObject) -> Response {
    respond(Dialect::Chat, serving, caller, body).await
}

/// `POST /v1/completions`
pub async fn completions(serving: State<Serving>, caller: Caller, body: JsonObject) -> Response {
    respond(Dialect::Completions, serving, caller, body).await
}

/// `POST /v1/messages`
pub async fn messages(serving: State<Serving>, caller: Caller, body: JsonObject) -> Response {
    respond(Dialect::Messages, serving, caller, body).await
}

/// `POST /v1/responses`
pub async fn responses(serving: State<Serving>, caller: Caller, body: JsonObject) -> Response {
    respond(Dialect::Responses, serving, caller, body).await
}

async fn respond(
    dialect: Dialect,
    State(serving): State<Serving>,
    caller: Caller,
    JsonObject(body): JsonObject,
) -> Response {
    let answered = match caller.require(Scope::Infer) {
        Ok(()) => answer(dialect, &serving, (caller, true), body).await,
        Err(error) => Err(error),
    };
    answered.unwrap_or_else(|error| error.in_dialect(dialect))
}

async fn answer(
    dialect: Dialect,
    serving: &Serving,
    (caller, recorded): (Caller, bool),
    body: Map<String, Value>,
) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let ask = dialect.parse(&body)?;
    let resolved = resolve::resolve(serving, &caller, (dialect, &ask)).await?;
    // What measures is answered by what it names.
    let route = if recorded { route::plan(serving, &resolved, (&caller, &ask))? } else { None };
    match route {
        Some(route) => route::along(route, serving, (resolved, caller), (ask, body), (dialect, arrived)).await,
        None => attempt((dialect, arrived), serving, (resolved, caller, recorded), (ask, body)).await,
    }
}

/// Has one model answer, and records it.
async fn attempt(
    (dialect, arrived): (Dialect, Instant),
    serving: &Serving,
    (mut resolved, mut caller, recorded): (Resolved, Caller, bool),
    (mut ask, mut body): (Ask, Map<String, Value>),
) -> Result<Response, ApiError> {
    let (receipt, created_at_ms) = (RecordId::fresh(), now_ms());
    let (mut placed, mut place) = (None, None);
    if recorded {
        placed = serving.sessions.place(&resolved.scenario.key, &mut caller, &body, receipt.as_str());
        place = rollout::assign(&mut resolved, &mut caller, &receipt);
    }
    let Resolved { scenario, served, upstream, .. } = resolved;
    transform::transform(&scenario, (dialect, &caller), &mut ask, &mut body).await;
    let span = span(&scenario, &served, &receipt);
    telemetry::continue_trace(&span, caller.traceparent.as_deref());
    let envelope = Envelope {
        receipt: receipt.as_str().to_owned(),
        release: served.release.release_id.as_str().to_owned(),
        model: ask.model.clone(),
        created_s: created_at_ms / 1000,
    };
    let exchange = Exchange {
        dialect,
        ask: Arc::new(ask),
        envelope,
        store: serving.store.clone(),
        recorded,
        top_k: serving.manifests.top_k(&scenario),
        in_flight: serving.receipts.register(&scenario.key, &receipt),
        scenario,
        served,
        caller,
        body,
        receipt,
        created_at_ms,
        origin: Origin::Upstream,
        ending: serving.ending.clone(),
        redactor: Arc::clone(&serving.redactor),
        sessions: serving.sessions.clone(),
        placed,
    };
    let shadow = place.map(|place| place.shadow(serving, &exchange));
    match upstream {
        Some(upstream) => relayed(exchange, upstream, arrived).instrument(span).await,
        None => embedded(&serving.engine, (exchange, shadow), arrived).instrument(span).await,
    }
}

fn span(scenario: &Scenario, served: &Served, receipt: &RecordId) -> tracing::Span {
    tracing::info_span!(
        "inference",
        scenario = %scenario.key.1,
        release.id = %served.release.release_id,
        release.sequence = served.release.manifest.sequence,
        record.id = %receipt,
    )
}

/// The engine answers: what it refuses is refused before anything is recorded.
async fn embedded(
    engine: &Engine,
    (mut exchange, shadow): (Exchange, Option<Shadow>),
    arrived: Instant,
) -> Result<Response, ApiError> {
    join_release_trace(&exchange.served);
    let answer = embedded::ask(engine, &exchange.ask, terms(&exchange)).await.map_err(embedded_error)?;
    exchange.origin = Origin::Embedded { prompt: answer.prompt, sampling: answer.sampling };
    let headers = headers(&exchange, arrived);
    let (engine, stream) = (engine.clone(), exchange.ask.stream);
    let run = move |sink| async move {
        exchange.run(answer.answering, sink).await;
        if let Some(shadow) = shadow {
            shadow.run(engine).await;
        }
    };
    if stream {
        let (sink, body) = Sink::stream();
        tokio::spawn(run(sink).in_current_span());
        return Ok(sink::stream_response(headers, body));
    }
    let (sink, answered) = Sink::whole();
    tokio::spawn(run(sink).in_current_span());
    Ok((StatusCode::OK, headers, Json(whole(answered).await?)).into_response())
}

/// What the engine is to know of an exchange beside the request.
fn terms(exchange: &Exchange) -> Terms {
    Terms {
        dialect: exchange.dialect,
        tenant: exchange.caller.tenant().to_string(),
        weights: exchange.served.weights.clone(),
        recorded: exchange.top_k,
        receipt: exchange.receipt.clone(),
    }
}

/// An upstream answers: its task begins before it has answered, so that a client that leaves meanwhile leaves a record.
async fn relayed(exchange: Exchange, upstream: Arc<Upstream>, arrived: Instant) -> Result<Response, ApiError> {
    let (dialect, headers) = (exchange.dialect, headers(&exchange, arrived));
    let (head, begun) = oneshot::channel();
    let asked = |exchange: Exchange, sink: Sink| {
        tokio::spawn(ask_upstream(exchange, upstream, head, sink).in_current_span());
    };
    let refused = |error: ApiError| Ok((retried(headers.clone(), &error), error.in_dialect(dialect)).into_response());
    if exchange.ask.stream {
        let (sink, body) = Sink::stream();
        asked(exchange, sink);
        return match whole(begun).await {
            Ok(()) => Ok(sink::stream_response(headers, body)),
            Err(error) => refused(error),
        };
    }
    let (sink, answered) = Sink::whole();
    asked(exchange, sink);
    if let Err(error) = whole(begun).await {
        return refused(error);
    }
    match whole(answered).await {
        Ok(body) => Ok((StatusCode::OK, headers, Json(body)).into_response()),
        Err(error) => refused(error),
    }
}

/// Clients that ask again after any 502 are told not to where only the server's operator can help.
pub fn retried(mut headers: HeaderMap, error: &ApiError) -> HeaderMap {
    if error.code == ACCOUNT_REFUSED {
        headers.insert("x-should-retry", HeaderValue::from_static("false"));
    }
    headers
}

async fn ask_upstream(
    exchange: Exchange,
    upstream: Arc<Upstream>,
    mut head: oneshot::Sender<Result<(), ApiError>>,
    sink: Sink,
) {
    let passed = Passed {
        traceparent: telemetry::traceparent(&tracing::Span::current()).or(exchange.caller.traceparent.clone()),
        request_id: exchange.caller.request_id.clone(),
        anthropic: exchange.caller.anthropic.clone(),
    };
    let (ask, mut ending): (Arc<Ask>, _) = (Arc::clone(&exchange.ask), exchange.ending.clone());
    let asked = tokio::select! {
        asked = upstream.ask(&ask, &exchange.body, exchange.dialect, &passed) => Some(asked),
        () = head.closed() => None,
        () = ending.come() => return drop(head.send(Err(exchange.stopped().await))),
    };
    match asked {
        Some(Ok(Answering { heard })) => {
            // If the client has left, the exchange finds out by itself.
            let _ = head.send(Ok(()));
            let relays = upstream.dialect() == exchange.dialect;
            exchange.relaying(relays).run(Answering { heard }, sink).await;
        }
        Some(Err(error)) => drop(head.send(Err(exchange.failed(error).await))),
        None => exchange.abandoned().await,
    }
}

async fn whole<T>(answered: oneshot::Receiver<Result<T, ApiError>>) -> Result<T, ApiError> {
    let dropped = |_| Err(ApiError::internal("the exchange ended without an answer", "its task was dropped"));
    answered.await.unwrap_or_else(dropped)
}

/// The engine's own failures are nobody's business but the operator's.
fn embedded_error(error: crate::provider::ProviderError) -> ApiError {
    match error {
        crate::provider::ProviderError::Refused { .. } => error.into(),
        failed => ApiError::internal("the engine failed", failed),
    }
}

/// The first answer of a release also appears in the trace of the step that made it.
fn join_release_trace(served: &Served) {
    if let Some(step) = served.first_answer_traceparent() {
        let request = tracing::Span::current();
        let first = tracing::info_span!("release.first_answer", release.id = %served.release.release_id);
        telemetry::continue_trace(&first, Some(step));
        telemetry::link_trace(&first, telemetry::traceparent(&request).as_deref());
        telemetry::link_trace(&request, Some(step));
    }
}

/// The receipt, the release that answers (of an upstream's answer: the one in service meanwhile), and the time that
/// passed until somebody began to answer.
fn headers(exchange: &Exchange, arrived: Instant) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut set = |name: &'static str, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    };
    if exchange.recorded {
        set("x-reef-agent-record-id", &exchange.envelope.receipt);
    }
    set("x-reef-release-id", &exchange.envelope.release);
    set("x-reef-artifact-version", &exchange.envelope.release);
    set("x-reef-overhead-ms", &format!("{:.3}", arrived.elapsed().as_secs_f64() * 1000.0));
    headers
}
