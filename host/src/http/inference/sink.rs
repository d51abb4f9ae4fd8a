//! Where an answer goes: one object, or a stream of server-sent events.
//! The exchange sends, the handler's response receives. A reader that takes nothing for too long counts as gone, so
//! that its record does not wait for it.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use futures::stream::poll_fn;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use crate::http::error::ApiError;

/// Sends buffered for a slow reader.
const STREAM_SENDS_MAX: usize = 64;
/// Bytes of a send that may be one of many in the queue.
const SEND_BYTES_SMALL: usize = 64 << 10;
/// A reader that takes nothing for this long is gone.
const SLOW_READER_MAX: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug)]
pub enum Sink {
    /// One object.
    Whole(oneshot::Sender<Result<Value, ApiError>>),
    /// Server-sent events.
    Stream(mpsc::Sender<Bytes>),
}

impl Sink {
    /// A sink for one object.
    pub fn whole() -> (Self, oneshot::Receiver<Result<Value, ApiError>>) {
        let (sender, receiver) = oneshot::channel();
        (Self::Whole(sender), receiver)
    }

    /// A sink for a stream.
    pub fn stream() -> (Self, mpsc::Receiver<Bytes>) {
        let (sender, receiver) = mpsc::channel(STREAM_SENDS_MAX);
        (Self::Stream(sender), receiver)
    }

    /// Is it a stream?
    pub fn is_stream(&self) -> bool {
        matches!(self, Self::Stream(_))
    }

    /// Sends text to a stream. False when the client is gone, or has taken nothing for too long.
    pub async fn send(&self, text: String) -> bool {
        match self {
            Self::Stream(sends) if !text.is_empty() => {
                tokio::time::timeout(SLOW_READER_MAX, queue(sends, Bytes::from(text))).await.unwrap_or(false)
            }
            _ => true,
        }
    }

    /// Ends when the client is gone.
    pub async fn closed(&mut self) {
        match self {
            Self::Whole(reply) => reply.closed().await,
            Self::Stream(sends) => sends.closed().await,
        }
    }
}

/// Queues one send; false when the client is gone. A large one waits until everything before it is taken, so that a
/// slow reader holds one of them at most.
async fn queue(sends: &mpsc::Sender<Bytes>, bytes: Bytes) -> bool {
    if bytes.len() <= SEND_BYTES_SMALL {
        return sends.send(bytes).await.is_ok();
    }
    match sends.reserve_many(STREAM_SENDS_MAX).await {
        Ok(mut room) => {
            room.next().into_iter().for_each(|place| place.send(bytes.clone()));
            true
        }
        Err(_) => false,
    }
}

/// The response of a stream.
pub fn stream_response(mut headers: HeaderMap, mut sends: mpsc::Receiver<Bytes>) -> Response {
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    let body = Body::from_stream(poll_fn(move |context| sends.poll_recv(context)).map(Ok::<_, Infallible>));
    (StatusCode::OK, headers, body).into_response()
}
