//! A small client of a running server, for the commands that talk to one.

use std::time::Duration;

use serde_json::Value;

use crate::error::StartError;

/// Time for one answer.
const ANSWER_MAX: Duration = Duration::from_secs(180);

/// Speaks JSON to one server; the token comes from `REEF_TOKEN`.
#[derive(Debug)]
pub struct Client {
    http: reqwest::Client,
    url: String,
    token: Option<String>,
}

impl Client {
    /// A client of the server at `url`.
    pub fn new(url: &str) -> Result<Self, StartError> {
        let http = reqwest::Client::builder()
            .timeout(ANSWER_MAX)
            .build()
            .map_err(|error| StartError::Other(error.to_string()))?;
        Ok(Self {
            http,
            url: url.trim_end_matches('/').to_owned(),
            token: std::env::var("REEF_TOKEN").ok().filter(|token| !token.is_empty()),
        })
    }

    /// `GET path`
    pub async fn get(&self, path: &str) -> Result<Value, StartError> {
        self.send(self.http.get(format!("{}{path}", self.url))).await
    }

    /// `POST path`
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, StartError> {
        self.send(self.http.post(format!("{}{path}", self.url)).json(body)).await
    }

    /// `PUT path` with bytes.
    pub async fn put(&self, path: &str, body: Vec<u8>) -> Result<Value, StartError> {
        self.send(self.http.put(format!("{}{path}", self.url)).body(body)).await
    }

    async fn send(&self, mut request: reqwest::RequestBuilder) -> Result<Value, StartError> {
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let unreachable = |error: reqwest::Error| {
            StartError::Other(format!(
                "the server at {} does not answer: {error}; start it with 'reef serve' or give --url",
                self.url
            ))
        };
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        let body: Value = response.json().await.map_err(unreachable)?;
        if status.is_success() {
            return Ok(body);
        }
        let message = body.pointer("/error/message").and_then(Value::as_str).unwrap_or("no message");
        Err(StartError::Other(format!("the server answered {}: {message}", status.as_u16())))
    }
}
