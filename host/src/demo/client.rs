//! HTTP as the demo speaks it: one call, one reply, every failure a sentence.
//! `scenario` builds the calls. Waiting on a busy server is bounded; nothing else is tried twice.

use std::time::Duration;

use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::{Method, StatusCode};
use serde_json::Value;

use super::error::DemoError;
use crate::tls;

/// Longest wait for one reply; a chat request may queue behind a training step.
const REPLY_SECONDS_MAX: u64 = 180;
/// Longest wait for a connection.
const CONNECT_SECONDS_MAX: u64 = 10;
/// Tries after the first while the server answers 429 or 503.
const BUSY_RETRIES_MAX: u32 = 8;
/// Longest wait between two tries, whatever `Retry-After` says; without it, the default.
const RETRY_WAIT_SECONDS_MAX: u64 = 10;
const RETRY_WAIT_SECONDS_DEFAULT: u64 = 1;
/// Bytes of a reply; a listing of a thousand steps stays far below.
const REPLY_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Characters of an error body that are shown.
const SHOWN_CHARS_MAX: usize = 400;

/// A connection pool to one server.
pub struct Client {
    http: reqwest::Client,
    base_url: String,
    token: Option<String>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("base_url", &self.base_url).finish_non_exhaustive()
    }
}

/// One request.
#[derive(Debug, Clone)]
pub struct Call {
    /// Method.
    pub method: Method,
    /// Path from the root of the server.
    pub path: String,
    /// Headers beside the token.
    pub headers: Vec<(&'static str, String)>,
    /// JSON body.
    pub body: Option<Value>,
}

/// A reply with a 2xx status.
#[derive(Debug)]
pub struct Reply {
    headers: HeaderMap,
    /// JSON body.
    pub body: Value,
    route: String,
}

impl Reply {
    /// A header's text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The reply is not what the route promises.
    pub fn surprise(&self, reason: impl Into<String>) -> DemoError {
        DemoError::Surprise { route: self.route.clone(), reason: reason.into() }
    }
}

impl Client {
    /// `base_url` such as `http://127.0.0.1:8420`, with or without a slash at the end.
    pub fn new(base_url: &str, token: Option<String>) -> Result<Self, DemoError> {
        let http = tls::http_client()
            .no_proxy()
            .connect_timeout(Duration::from_secs(CONNECT_SECONDS_MAX))
            .timeout(Duration::from_secs(REPLY_SECONDS_MAX))
            .build()
            .map_err(|error| DemoError::Options(format!("no HTTP client can be made: {error}")))?;
        Ok(Self { http, base_url: base_url.trim_end_matches('/').to_owned(), token })
    }

    /// Sends a call, waits out a busy server, and returns a success or the error's sentence.
    pub async fn send(&self, call: &Call) -> Result<Reply, DemoError> {
        let route = format!("{} {}", call.method, call.path);
        let mut tries = 0;
        loop {
            let response = self.once(call).await?;
            let status = response.status();
            let busy = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
            if busy && tries < BUSY_RETRIES_MAX {
                tries += 1;
                tokio::time::sleep(retry_wait(response.headers())).await;
                continue;
            }
            let headers = response.headers().clone();
            let bytes = self.read(response).await?;
            if busy {
                return Err(DemoError::Busy { route, tries: tries + 1, body: shown(&bytes) });
            }
            if !status.is_success() {
                return Err(DemoError::Refused {
                    route,
                    status: status.as_u16(),
                    body: shown(&bytes),
                    remedy: remedy(status),
                });
            }
            let body = serde_json::from_slice(&bytes).map_err(|error| DemoError::Surprise {
                route: route.clone(),
                reason: format!("the body is not JSON: {error}"),
            })?;
            return Ok(Reply { headers, body, route });
        }
    }

    async fn once(&self, call: &Call) -> Result<reqwest::Response, DemoError> {
        let mut request = self.http.request(call.method.clone(), format!("{}{}", self.base_url, call.path));
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        for (name, value) in &call.headers {
            request = request.header(*name, value);
        }
        if let Some(body) = &call.body {
            request = request.json(body);
        }
        request.send().await.map_err(|error| self.unreachable(&error))
    }

    async fn read(&self, mut response: reqwest::Response) -> Result<Vec<u8>, DemoError> {
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.unreachable(&error))? {
            if bytes.len() + chunk.len() > REPLY_BYTES_MAX {
                return Err(DemoError::Unreachable {
                    url: self.base_url.clone(),
                    reason: format!("a reply is larger than {REPLY_BYTES_MAX} bytes"),
                });
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }

    fn unreachable(&self, error: &reqwest::Error) -> DemoError {
        let mut reason = error.to_string();
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            reason = format!("{reason}: {cause}");
            source = cause.source();
        }
        DemoError::Unreachable { url: self.base_url.clone(), reason }
    }
}

fn retry_wait(headers: &HeaderMap) -> Duration {
    let told =
        headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()).and_then(|value| value.trim().parse().ok());
    Duration::from_secs(told.unwrap_or(RETRY_WAIT_SECONDS_DEFAULT).min(RETRY_WAIT_SECONDS_MAX))
}

fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let text: String = text.trim().chars().take(SHOWN_CHARS_MAX).collect();
    if text.is_empty() { "an empty body".to_owned() } else { text }
}

fn remedy(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 | 403 => "give a token with the scopes infer, report, read and admin",
        404 | 405 => "check that the address is that of a Reef server of this version",
        400..=499 => "client and server disagree; use the demo of the server's own version",
        _ => "the server's log has the cause",
    }
}
