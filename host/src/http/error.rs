//! Errors of single requests, in the shape that the route's dialect speaks.
//! Handlers of `/reef/*` return `ApiError`; those of `/v1/*` answer with `ApiError::in_dialect`. Every error has a
//! stable code, and 429 and 503 carry an integer `Retry-After`.

use std::borrow::Cow;
use std::io::ErrorKind;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use reef_core::{InvalidName, ReportError};
use reef_dialects::{Dialect, Refusal};
use reef_engine::EngineError;
use reef_release::{ProblemKind, ReleaseError};
use reef_store::StoreError;
use serde_json::{Value, json};

use crate::provider::ProviderError;
use crate::scenarios::ScenarioError;
use crate::weights::WeightsError;

/// Seconds a client is asked to wait after 429 and 503, unless a provider said how long.
const RETRY_AFTER_S: u32 = 1;

/// One refused or failed request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// Stable code.
    pub code: Cow<'static, str>,
    /// A sentence.
    pub message: String,
    /// The parameter at fault.
    pub param: Option<String>,
    /// Seconds after which the same request may succeed.
    pub retry_after_s: Option<u32>,
}

impl ApiError {
    /// Any error.
    pub fn new(status: StatusCode, code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { status, code: code.into(), message: message.into(), param: None, retry_after_s: None }
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

    /// 503, for a disk that takes no more.
    fn disk_full(cause: &dyn std::fmt::Display) -> Self {
        tracing::error!(%cause, "store");
        let told = "the server's disk takes no more data; nothing was stored; its operator must free space";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "disk_full", told)
    }

    /// What is told.
    pub fn message(&self) -> &str {
        &self.message
    }

    fn reef_body(&self) -> Value {
        json!({ "error": { "code": self.code, "message": self.message, "param": self.param } })
    }

    /// The body in a dialect's shape.
    pub fn body(&self, dialect: Dialect) -> Value {
        dialect.error_body(self.status.as_u16(), &self.code, &self.message, self.param.as_deref())
    }

    /// The response in a dialect's shape.
    pub fn in_dialect(&self, dialect: Dialect) -> Response {
        self.respond(self.body(dialect))
    }

    fn respond(&self, body: Value) -> Response {
        let mut response = (self.status, Json(body)).into_response();
        if matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            let seconds = self.retry_after_s.unwrap_or(RETRY_AFTER_S);
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
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

/// An error on a route of `/v1/*` that belongs to no dialect, in OpenAI's shape.
#[derive(Debug)]
pub struct V1Error(pub ApiError);

impl IntoResponse for V1Error {
    fn into_response(self) -> Response {
        self.0.in_dialect(Dialect::Chat)
    }
}

impl<E: Into<ApiError>> From<E> for V1Error {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl From<Refusal> for ApiError {
    fn from(Refusal { param, message }: Refusal) -> Self {
        Self::invalid(param, message)
    }
}

impl From<ProviderError> for ApiError {
    fn from(error: ProviderError) -> Self {
        let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::BAD_GATEWAY);
        let told = Self::new(status, error.code().to_owned(), error.to_string());
        let retry_after_s = match &error {
            ProviderError::Refused { retry_after_s, .. } => *retry_after_s,
            ProviderError::Unavailable(_) | ProviderError::Broken(_) => None,
        };
        Self { param: error.param().map(str::to_owned), retry_after_s, ..told }
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
            ScenarioError::OtherBase { .. } => Self::conflict(error.to_string()),
            ScenarioError::Store(error) => error.into(),
            ScenarioError::Weights(error) => error.into(),
            ScenarioError::Recipe(_)
            | ScenarioError::Orphan { .. }
            | ScenarioError::TooMany(_)
            | ScenarioError::Learning(_) => Self::conflict(error.to_string()),
            ScenarioError::Release(error) => error.into(),
            ScenarioError::Interrupted
            | ScenarioError::HeldOut(_)
            | ScenarioError::Harness { .. }
            | ScenarioError::Policy { .. } => Self::internal("the release repository failed", error),
        }
    }
}

impl From<ReleaseError> for ApiError {
    fn from(error: ReleaseError) -> Self {
        match error {
            ReleaseError::Disk { ref cause, .. }
                if matches!(cause.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) =>
            {
                Self::disk_full(cause)
            }
            ReleaseError::Corrupt(problem) if problem.kind == ProblemKind::ObjectPruned => {
                Self::new(StatusCode::CONFLICT, "release_pruned", problem.to_string())
            }
            ReleaseError::Corrupt(_) | ReleaseError::NotFound { .. } | ReleaseError::NoFile { .. } => {
                let told = error.to_string();
                tracing::error!(error = told, "release");
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "release_damaged", told)
            }
            error => Self::internal("the release repository failed", error),
        }
    }
}

impl From<WeightsError> for ApiError {
    fn from(error: WeightsError) -> Self {
        match error {
            WeightsError::Release(error) => error.into(),
            error => Self::internal("the weights of this release cannot be loaded", error),
        }
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        let message = error.to_string();
        match error {
            StoreError::UnknownReference(_) | StoreError::UnknownScenario(..) | StoreError::UnknownRelease(_) => {
                Self::not_found(message)
            }
            StoreError::Conflict(_) | StoreError::Gone(_) | StoreError::HeadMoved { .. } => Self::conflict(message),
            StoreError::Full { .. } | StoreError::ReadOnly { .. } => Self::disk_full(&message),
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
