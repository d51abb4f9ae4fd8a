//! The HTTP side: one router, one file per noun.
//! Each handler takes the part of the host it uses (`FromRef`), never the whole. Unknown routes and
//! panics are answered in the dialect of their path.

pub mod body;
pub mod caller;
pub mod error;
pub mod inference;
pub mod params;
pub mod recipe;
pub mod redaction;
pub mod releases;
pub mod report;
pub mod scenarios;
pub mod status;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRef, OriginalUri, Request};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use reef_dialects::Dialect;
use tower_http::catch_panic::CatchPanicLayer;

use self::body::BodyLimit;
use self::caller::dialect_response;
use self::error::ApiError;
use self::inference::{Serving, unrecorded};
use self::report::Feedback;
use self::scenarios::Management;
use self::status::Operations;
use crate::auth::Auth;

/// The parts that handlers pick from.
#[derive(Debug, Clone, FromRef)]
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
    /// Status and metrics.
    pub operations: Operations,
}

/// All routes.
pub fn router(parts: Parts) -> Router {
    // Components are bodies that no JSON extractor bounds.
    let component_limit = DefaultBodyLimit::max(parts.body_limit.bytes_max);
    let scenario = Router::new()
        .route("/", get(scenarios::show))
        .route("/update", post(scenarios::update))
        .route("/held-out", put(scenarios::put_held_out))
        .route("/records", get(scenarios::records))
        .route("/records/{id}", get(scenarios::record))
        .route("/releases", get(releases::list))
        .route("/releases/{id}", get(releases::show))
        .route("/versions", get(releases::list))
        .route("/recipe", get(recipe::show).put(recipe::put).layer(component_limit))
        .route("/recipe/rollback", post(recipe::rollback))
        .route("/rollback", post(releases::rollback))
        .route("/promote", post(releases::promote))
        .route("/reject", post(releases::reject))
        .route("/steps", get(releases::steps))
        .route("/steps/{n}", get(releases::step));
    Router::new()
        .route(Dialect::Chat.path(), post(inference::chat_completions))
        .route(Dialect::Completions.path(), post(inference::completions))
        .route(Dialect::Messages.path(), post(inference::messages))
        .route(Dialect::Responses.path(), post(inference::responses))
        .route(unrecorded::COUNT_TOKENS, post(unrecorded::count_tokens))
        .route(unrecorded::EMBEDDINGS, post(unrecorded::embeddings))
        .route("/v1/models", get(status::models))
        .route("/reef/report", post(report::report))
        .route("/reef/scenarios", get(scenarios::list).post(scenarios::create))
        .nest("/reef/scenarios/{scenario}", scenario)
        .route("/reef/status", get(status::status))
        .route("/healthz", get(status::healthz))
        .route("/readyz", get(status::readyz))
        .route("/metrics", get(status::metrics))
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(axum::middleware::from_fn(request_id))
        .layer(CatchPanicLayer::custom(|_: Box<dyn std::any::Any + Send>| {
            ApiError::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "internal",
                "the request failed unexpectedly; the server's log has the cause",
            )
            .into_response()
        }))
        .with_state(parts)
}

/// Bytes of a request id that is taken over from the client.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// Echoes `x-request-id`, or makes one, which the handlers then see as if it had been sent.
async fn request_id(mut request: Request, next: Next) -> Response {
    let given = request.headers().get("x-request-id").filter(|id| id.len() <= REQUEST_ID_BYTES_MAX).cloned();
    let id = given.or_else(|| HeaderValue::from_str(&uuid::Uuid::now_v7().to_string()).ok());
    if let Some(id) = &id {
        request.headers_mut().insert("x-request-id", id.clone());
    }
    let mut response = next.run(request).await;
    if let Some(id) = id {
        response.headers_mut().insert("x-request-id", id);
    }
    response
}

async fn unknown_route(OriginalUri(uri): OriginalUri) -> Response {
    dialect_response(uri.path(), ApiError::not_found(format!("there is no route {}", uri.path().escape_default())))
}

async fn wrong_method(method: Method, OriginalUri(uri): OriginalUri) -> Response {
    let message = format!("{method} is not allowed on {}", uri.path().escape_default());
    dialect_response(uri.path(), ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message))
}
