//! Request bodies: bounded, JSON objects only, refused in the dialect's shape.

use axum::body::to_bytes;
use axum::extract::{FromRef, FromRequest, Request};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value};

use super::caller::dialect_response;
use super::error::ApiError;

/// Bytes of a request body; part of the router's state.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimit(pub usize);

/// A body that is a JSON object.
#[derive(Debug)]
pub struct JsonObject(pub Map<String, Value>);

impl<S> FromRequest<S> for JsonObject
where
    S: Send + Sync,
    BodyLimit: FromRef<S>,
{
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let BodyLimit(limit) = BodyLimit::from_ref(state);
        let path = request.uri().path().to_owned();
        read(request, limit).await.map(Self).map_err(|error| dialect_response(&path, error))
    }
}

async fn read(request: Request, limit: usize) -> Result<Map<String, Value>, ApiError> {
    let too_large = || {
        ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "body_too_large",
            format!("the body is larger than {limit} bytes (http.body_bytes_max)"),
        )
    };
    let announced =
        request.headers().get("content-length").and_then(|v| v.to_str().ok()).and_then(|v| v.parse::<usize>().ok());
    if announced.is_some_and(|length| length > limit) {
        return Err(too_large());
    }
    let bytes = to_bytes(request.into_body(), limit).await.map_err(|error| {
        let unread = || ApiError::invalid("body", format!("the body could not be read: {error}"));
        if error.to_string().contains("length limit") { too_large() } else { unread() }
    })?;
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(ApiError::invalid("body", "the body must be a JSON object")),
        Err(error) => Err(ApiError::invalid("body", format!("the body is not JSON: {error}"))),
    }
}
