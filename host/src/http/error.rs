//! Errors of single requests, in the shape that the route's dialect speaks.
//! Handlers return `ApiError`; `/v1/*` handlers wrap it in `V1Error`. Every error has a stable code,
//! and 429 and 503 carry an integer `Retry-After`.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use reef_core::{InvalidName, ReportError};
use reef_engine::EngineError;
use reef_store::StoreError;
use serde_json::{Value, json};

use crate::scenarios::ScenarioError;
use crate::weights::WeightsError;

/// Seconds a client is asked to wait after 429 and 503.
const RETRY_AFTER_S: u32 = 1;

/// One refused or failed request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// Stable code.
    pub code: &'static str,
    /// A sentence.
    pub message: String,
    /// The parameter at fault.
    pub param: Option<String>,
}

impl ApiError {
    /// Any error.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), param: None }
    }

    /// 400, naming the parameter.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::new(StatusCode::BAD_REQUEST, "invalid_request", message) }
    }

    /// 404.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// 409.
    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", message)
    }

    /// 500; the cause is logged where it is handled, not told to the client.
    pub fn internal(context: &str, cause: impl std::fmt::Display) -> Self {
        tracing::error!(%cause, "{context}");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", format!("{context}; the server's log has the cause"))
    }

    fn reef_body(&self) -> Value {
        json!({ "error": { "code": self.code, "message": self.message, "param": self.param } })
    }

    /// The body in OpenAI's shape.
    pub fn openai_body(&self) -> Value {
        let kind = match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        };
        json!({ "error": { "message": self.message, "type": kind, "param": self.param, "code": self.code } })
    }

    fn respond(&self, body: Value) -> Response {
        let mut response = (self.status, Json(body)).into_response();
        if matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.respond(self.reef_body())
    }
}

/// An error on `/v1/*`, in OpenAI's shape.
#[derive(Debug)]
pub struct V1Error(pub ApiError);

impl IntoResponse for V1Error {
    fn into_response(self) -> Response {
        self.0.respond(self.0.openai_body())
    }
}

impl<E: Into<ApiError>> From<E> for V1Error {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl From<InvalidName> for ApiError {
    fn from(error: InvalidName) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_name", error.to_string())
    }
}

impl From<ReportError> for ApiError {
    fn from(error: ReportError) -> Self {
        Self::invalid(error.field.clone(), error.to_string())
    }
}

impl From<ScenarioError> for ApiError {
    fn from(error: ScenarioError) -> Self {
        match error {
            ScenarioError::Unknown(_) | ScenarioError::UnknownRelease(_) => Self::not_found(error.to_string()),
            ScenarioError::ForeignBase { .. } => Self::invalid("x-reef-release-id", error.to_string()),
            ScenarioError::Store(error) => error.into(),
            ScenarioError::Weights(error) => error.into(),
            ScenarioError::Recipe(_) => Self::conflict(error.to_string()),
            ScenarioError::Release(_) | ScenarioError::Interrupted | ScenarioError::HeldOut(_) => {
                Self::internal("the release repository failed", error)
            }
        }
    }
}

impl From<WeightsError> for ApiError {
    fn from(error: WeightsError) -> Self {
        Self::internal("the weights of this release cannot be loaded", error)
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        let message = error.to_string();
        match error {
            StoreError::UnknownReference(_) | StoreError::UnknownScenario(..) => Self::not_found(message),
            StoreError::Conflict(_) | StoreError::HeadMoved { .. } => Self::conflict(message),
            StoreError::Full { .. } | StoreError::ReadOnly { .. } => {
                tracing::error!(error = %message, "store");
                let told = "the server's disk takes no more data; nothing was stored; its operator must free space";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "disk_full", told)
            }
            StoreError::Invalid(_) => Self::new(StatusCode::BAD_REQUEST, "invalid_request", message),
            _ => {
                tracing::error!(error = %message, "store");
                Self::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "store_unavailable",
                    "the record could not be made durable; nothing was stored, try again",
                )
            }
        }
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        let message = error.to_string();
        match error {
            EngineError::Overloaded { .. } => Self::new(StatusCode::TOO_MANY_REQUESTS, "overloaded", message),
            EngineError::ContextExceeded { .. } => Self {
                param: Some("messages".to_owned()),
                ..Self::new(StatusCode::BAD_REQUEST, "context_length_exceeded", message)
            },
            EngineError::Invalid(_) => Self::new(StatusCode::BAD_REQUEST, "invalid_request", message),
            _ => Self::internal("the engine failed", message),
        }
    }
}
