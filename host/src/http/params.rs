//! Path and query parameters, refused in the dialect's shape like everything else.

use axum::extract::{FromRequestParts, Path as AxumPath, Query as AxumQuery};
use axum::http::request::Parts;
use axum::response::Response;
use serde::de::DeserializeOwned;

use super::caller::dialect_response;
use super::error::ApiError;

/// Parameters of the path.
#[derive(Debug)]
pub struct Path<T>(pub T);

/// Parameters of the query.
#[derive(Debug)]
pub struct Query<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        match AxumPath::<T>::from_request_parts(parts, state).await {
            Ok(AxumPath(value)) => Ok(Self(value)),
            Err(error) => Err(dialect_response(parts.uri.path(), ApiError::invalid("path", error.body_text()))),
        }
    }
}

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Query<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        match AxumQuery::<T>::from_request_parts(parts, state).await {
            Ok(AxumQuery(value)) => Ok(Self(value)),
            Err(error) => Err(dialect_response(parts.uri.path(), ApiError::invalid("query", error.body_text()))),
        }
    }
}
