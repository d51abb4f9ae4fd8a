//! The native agent's way to its model: `POST /v1/chat/completions` at an address, with bounded retries and answers.

use std::sync::Arc;
use std::time::Duration;

use reef_episodes::{Ask, AskError, Said};
use reqwest::StatusCode;
use serde_json::{Map, Value};

use crate::error::StartError;
use crate::tls;

/// Time for one answer.
const ANSWER_MAX: Duration = Duration::from_secs(600);
/// Bytes of one answer.
const ANSWER_BYTES_MAX: usize = 8 << 20;
/// Tries of one request.
const TRIES_MAX: u32 = 4;
/// Pause before the second try; doubles.
const PAUSE: Duration = Duration::from_millis(500);
/// Longest pause, whatever the server asks for.
const PAUSE_MAX: Duration = Duration::from_secs(20);
/// Characters of a refusal that are repeated.
const TOLD_CHARS_MAX: usize = 500;

/// Where requests go and what they carry.
#[derive(Debug, Clone)]
pub struct Line {
    http: reqwest::Client,
    endpoint: String,
    token: Option<String>,
    headers: Vec<(&'static str, String)>,
}

impl Line {
    /// `endpoint`: the whole address; `headers`: of every request.
    pub fn new(
        endpoint: String,
        token: Option<String>,
        headers: Vec<(&'static str, String)>,
    ) -> Result<Self, StartError> {
        let http =
            tls::http_client().timeout(ANSWER_MAX).build().map_err(|error| StartError::Other(error.to_string()))?;
        Ok(Self { http, endpoint, token, headers })
    }

    /// The same client with another address and token.
    pub fn to(&self, endpoint: String, token: String) -> Self {
        Self { endpoint, token: Some(token), ..self.clone() }
    }

    /// As the agent asks.
    pub fn ask(self) -> Ask {
        let line = Arc::new(self);
        Arc::new(move |body| {
            let line = Arc::clone(&line);
            Box::pin(async move { line.answer(body).await })
        })
    }

    async fn answer(&self, body: Map<String, Value>) -> Result<Said, AskError> {
        let mut pause = PAUSE;
        let mut last = String::new();
        for attempt in 0..TRIES_MAX {
            if attempt > 0 {
                tokio::time::sleep(pause.min(PAUSE_MAX)).await;
                pause = pause.saturating_mul(2);
            }
            let response = match self.send(&body).await {
                Ok(response) => response,
                Err(error) => {
                    last = format!("{} does not answer: {error}", self.endpoint);
                    continue;
                }
            };
            let status = response.status();
            if let Some(seconds) = wanted_pause(&response) {
                pause = Duration::from_secs(seconds);
            }
            let receipt = response.headers().get("x-reef-agent-record-id").and_then(|id| id.to_str().ok());
            let receipt = receipt.map(str::to_owned);
            let text = read(response).await.map_err(AskError::Unavailable)?;
            if status.is_success() {
                let told = |error| AskError::Unavailable(format!("the answer is not JSON: {error}"));
                return Ok(Said { body: serde_json::from_str(&text).map_err(told)?, receipt });
            }
            last = format!("{status}: {}", plain(&text));
            match status {
                StatusCode::TOO_MANY_REQUESTS => {}
                // The gateway, not the request, is at fault.
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND => break,
                status if status.is_client_error() => return Err(AskError::Refused(last)),
                _ => {}
            }
        }
        Err(AskError::Unavailable(last))
    }

    async fn send(&self, body: &Map<String, Value>) -> Result<reqwest::Response, reqwest::Error> {
        let mut request = self.http.post(&self.endpoint).json(body);
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        request.send().await
    }
}

fn wanted_pause(response: &reqwest::Response) -> Option<u64> {
    response.headers().get("retry-after")?.to_str().ok()?.parse().ok()
}

async fn read(mut response: reqwest::Response) -> Result<String, String> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| format!("the answer broke off: {error}"))? {
        if bytes.len() + chunk.len() > ANSWER_BYTES_MAX {
            return Err(format!("the answer has more than {ANSWER_BYTES_MAX} bytes"));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// What a server said, on one line.
fn plain(text: &str) -> String {
    let message = serde_json::from_str::<Value>(text).ok();
    let message = message.as_ref().and_then(|body| body.pointer("/error/message")?.as_str());
    let line: String = message.unwrap_or(text).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    line.chars().take(TOLD_CHARS_MAX).collect()
}
