//! The HTTP side: one router, one file per noun.
//! Each handler takes the part of the host it uses (`FromRef`), never the whole. Unknown routes and
//! panics are answered in the dialect of their path.

pub mod activity;
pub mod body;
pub mod caller;
pub mod connections;
pub mod contract;
pub mod dashboard;
pub mod error;
pub mod explained;
pub mod export;
pub mod fields;
pub mod harness;
pub mod inference;
pub mod openapi;
pub mod page;
pub mod params;
pub mod recipe;
pub mod records;
pub mod redaction;
pub mod releases;
pub mod replay;
pub mod report;
pub mod rollouts;
pub mod routing;
pub mod scenarios;
pub mod status;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::extract::{FromRef, OriginalUri, Request};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use futures::FutureExt;
use reef_core::RecordId;
use reef_dialects::Dialect;

use self::body::BodyLimit;
use self::caller::dialect_response;
use self::error::ApiError;
use self::harness::Harnesses;
use self::inference::{Serving, evaluation, unrecorded};
use self::report::Feedback;
use self::scenarios::Management;
use self::status::Operations;
use crate::auth::Auth;

/// The parts that handlers pick from.
#[derive(Debug)]
pub struct Parts {
    /// Tokens.
    pub auth: Arc<Auth>,
    /// What bodies may take.
    pub body_limit: BodyLimit,
    /// Model requests.
    pub serving: Serving,
    /// Reports.
    pub feedback: Feedback,
    /// Scenarios and releases.
    pub management: Management,
    /// Harnesses.
    pub harnesses: Harnesses,
    /// Status and metrics.
    pub operations: Operations,
}

/// The state of the router: one pointer, of which a request takes no more than the part that it uses.
#[derive(Debug, Clone)]
pub struct Shared(Arc<Parts>);

macro_rules! pick {
    ($($part:ident: $type:ty),*) => {
        $(impl FromRef<Shared> for $type {
            fn from_ref(shared: &Shared) -> Self {
                shared.0.$part.clone()
            }
        })*
    };
}
pick!(
    auth: Arc<Auth>,
    body_limit: BodyLimit,
    serving: Serving,
    feedback: Feedback,
    management: Management,
    harnesses: Harnesses,
    operations: Operations
);

/// All routes.
pub fn router(parts: Parts) -> Router {
    let scenario = Router::new()
        .route("/", get(scenarios::show).delete(scenarios::remove))
        .route("/contract", get(contract::show))
        .route("/replay", post(replay::replay))
        .route("/update", post(scenarios::update))
        .route("/held-out", put(scenarios::put_held_out))
        .route("/evaluation/v1/chat/completions", post(evaluation::chat_completions))
        .route("/evaluation/v1/completions", post(evaluation::completions))
        .route("/evaluation/v1/messages", post(evaluation::messages))
        .route("/evaluation/v1/responses", post(evaluation::responses))
        .route("/evaluation/v1/models", get(evaluation::models))
        .route("/records", get(records::records))
        .route("/records/{id}", get(records::record))
        .route("/export", get(export::export))
        .route("/erase", post(records::erase))
        .route("/dead-letters", get(records::dead_letters))
        .route("/releases", get(releases::list))
        .route("/releases/{id}", get(releases::show))
        .route("/releases/{id}/page", get(page::release))
        .route("/versions", get(releases::list))
        .route("/recipe", get(recipe::show).put(recipe::put))
        .route("/recipe/rollback", post(recipe::rollback))
        .route("/router", get(routing::show).post(routing::propose))
        .route("/rollback", post(releases::rollback))
        .route("/promote", post(releases::promote))
        .route("/reject", post(releases::reject))
        .route("/pin", post(rollouts::pin))
        .route("/canary", post(rollouts::canary))
        .route("/shadow", post(rollouts::shadow))
        .route("/rollout", delete(rollouts::stop))
        .route("/rollouts", get(rollouts::list))
        .route("/steps", get(releases::steps))
        .route("/steps/{n}", get(releases::step))
        .route("/steps/{n}/page", get(page::step));
    let harness = Router::new()
        .route("/", get(harness::show))
        .route("/releases", get(harness::releases))
        .route("/versions", get(harness::versions))
        .route("/releases/{step}/page", get(harness::page::page))
        .route("/proposals", get(harness::proposals::list).post(harness::proposals::propose))
        .route("/requests/{id}/progress", get(harness::proposals::progress))
        .route("/install", get(harness::install::install))
        .route("/adapters", get(harness::adapters));
    Router::new()
        .route(Dialect::Chat.path(), post(inference::chat_completions))
        .route(Dialect::Completions.path(), post(inference::completions))
        .route(Dialect::Messages.path(), post(inference::messages))
        .route(Dialect::Responses.path(), post(inference::responses))
        .route(unrecorded::COUNT_TOKENS, post(unrecorded::count_tokens))
        .route(unrecorded::EMBEDDINGS, post(unrecorded::embeddings))
        .route("/v1/models", get(status::models))
        .route("/v1/models/{model}", get(status::model))
        .route("/reef/report", post(report::report))
        .route("/reef/train", post(harness::proposals::train))
        .nest("/reef/harness", harness)
        .route("/reef/reports/{id}", delete(records::retract))
        .route("/reef/records", post(records::import_one))
        .route("/reef/records/batch", post(records::import_batch))
        .route("/reef/scenarios", get(scenarios::list).post(scenarios::create))
        .nest("/reef/scenarios/{scenario}", scenario)
        .route("/reef/status", get(status::status))
        .route("/reef/ui", get(dashboard::show))
        .route("/openapi.json", get(openapi::show))
        .route("/healthz", get(status::healthz))
        .route("/readyz", get(status::readyz))
        .route("/metrics", get(status::metrics))
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(axum::middleware::from_fn(guarded))
        .with_state(Shared(Arc::new(parts)))
}

/// Bytes of a request's headers; hyper reads somewhat more, so that who exceeds them is told in words.
const HEADER_BYTES_MAX: usize = 64 << 10;
/// Bytes of a request's path and query.
const TARGET_BYTES_MAX: usize = 16 << 10;
/// Bytes of a request id that is taken over from the client.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// Echoes `x-request-id`, or makes one, which the handlers then see as if it had been sent. A handler that panics
/// is answered for.
async fn guarded(mut request: Request, next: Next) -> Response {
    if let Err(refused) = check_head(&request) {
        return dialect_response(request.uri().path(), refused);
    }
    let given = request.headers().get("x-request-id").filter(|id| id.len() <= REQUEST_ID_BYTES_MAX).cloned();
    let id = given.or_else(|| HeaderValue::from_str(RecordId::fresh().as_str()).ok());
    if let Some(id) = &id {
        request.headers_mut().insert("x-request-id", id.clone());
    }
    let mut response = AssertUnwindSafe(next.run(request)).catch_unwind().await.unwrap_or_else(|_| panicked());
    if let Some(id) = id {
        response.headers_mut().insert("x-request-id", id);
    }
    response
}

fn check_head(request: &Request) -> Result<(), ApiError> {
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    let headers: usize = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    let refuse = |status, code, what: &str, most: usize| {
        Err(ApiError::new(status, code, format!("the {what} of a request may have {most} bytes; send less")))
    };
    if target > TARGET_BYTES_MAX {
        return refuse(StatusCode::URI_TOO_LONG, "uri_too_long", "path and query", TARGET_BYTES_MAX);
    }
    if headers > HEADER_BYTES_MAX {
        let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        return refuse(status, "headers_too_large", "headers", HEADER_BYTES_MAX);
    }
    Ok(())
}

fn panicked() -> Response {
    let told = "the request failed unexpectedly; the server's log has the cause";
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", told).into_response()
}

async fn unknown_route(OriginalUri(uri): OriginalUri) -> Response {
    dialect_response(uri.path(), ApiError::not_found(format!("there is no route {}", uri.path().escape_default())))
}

async fn wrong_method(method: Method, OriginalUri(uri): OriginalUri) -> Response {
    let message = format!("{method} is not allowed on {}", uri.path().escape_default());
    dialect_response(uri.path(), ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message))
}
