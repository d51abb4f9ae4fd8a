//! A client for tests: one server, one scenario, JSON in and out.

use std::time::{Duration, Instant};

use reqwest::{Method, RequestBuilder, StatusCode, header::HeaderMap};
use serde_json::{Value, json};

/// Speaks as one scenario of one server.
#[derive(Clone)]
pub struct Caller {
    pub url: String,
    pub scenario: String,
    pub http: reqwest::Client,
    pub token: Option<String>,
}

/// Status, headers and body of an answer.
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Value,
}

impl Answer {
    pub fn text(&self) -> &str {
        self.body["choices"][0]["message"]["content"].as_str().unwrap_or_default()
    }

    pub fn receipt(&self) -> String {
        self.header("x-reef-agent-record-id")
    }

    pub fn release(&self) -> String {
        self.header("x-reef-release-id")
    }

    pub fn header(&self, name: &str) -> String {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
    }

    pub fn ok(self) -> Self {
        assert!(self.status.is_success(), "{}: {}", self.status, self.body);
        self
    }
}

impl Caller {
    pub fn new(url: &str, scenario: &str) -> Self {
        Self {
            url: url.to_owned(),
            scenario: scenario.to_owned(),
            http: reef::tls::http_client().build().expect("a client"),
            token: None,
        }
    }

    pub fn with_token(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self
    }

    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request =
            self.http.request(method, format!("{}{path}", self.url)).header("x-reef-scenario", &self.scenario);
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    pub async fn send(&self, request: RequestBuilder) -> Answer {
        let response = request.send().await.expect("the server answers");
        let (status, headers) = (response.status(), response.headers().clone());
        let text = response.text().await.expect("a body");
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Answer { status, headers, body }
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(self.request(Method::POST, path).json(&body)).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path)).await
    }

    pub fn path(&self, tail: &str) -> String {
        format!("/reef/scenarios/{}{tail}", self.scenario)
    }

    /// Creates the scenario with settings.
    pub async fn create(&self, mut settings: Value) -> Answer {
        settings["scenario"] = json!(self.scenario);
        self.post("/reef/scenarios", settings).await.ok()
    }

    /// One greedy or sampled answer.
    pub async fn chat(&self, text: &str, extra: Value) -> Answer {
        self.post("/v1/chat/completions", chat_body(text, extra)).await
    }

    /// The raw text of a stream.
    pub async fn stream(&self, text: &str, extra: Value) -> (HeaderMap, String) {
        let mut body = chat_body(text, extra);
        body["stream"] = json!(true);
        let response =
            self.request(Method::POST, "/v1/chat/completions").json(&body).send().await.expect("the server answers");
        assert!(response.status().is_success(), "{}", response.status());
        (response.headers().clone(), response.text().await.expect("a stream"))
    }

    pub async fn report(&self, receipt: &str, score: f64) -> Answer {
        self.post("/reef/report", json!({ "score": score, "references": [receipt] })).await
    }

    /// This scenario's row of the status.
    pub async fn status(&self) -> Value {
        let status = self.get("/reef/status").await.ok().body;
        let rows = status["scenarios"].as_array().cloned().unwrap_or_default();
        rows.into_iter().find(|row| row["scenario"] == json!(self.scenario)).unwrap_or_default()
    }

    pub async fn steps(&self) -> Vec<Value> {
        self.get(&self.path("/steps")).await.ok().body["steps"].as_array().cloned().unwrap_or_default()
    }

    pub async fn releases(&self) -> Vec<Value> {
        self.get(&self.path("/releases")).await.ok().body["releases"].as_array().cloned().unwrap_or_default()
    }
}

pub const MODEL: &str = "smollm2-135m-instruct-q4_1";

fn chat_body(text: &str, extra: Value) -> Value {
    let mut body = json!({ "model": MODEL, "messages": [{ "role": "user", "content": text }], "max_tokens": 8 });
    for (key, value) in extra.as_object().cloned().unwrap_or_default() {
        body[key] = value;
    }
    body
}

/// Asks again until it holds; fails with the last state after two minutes.
pub async fn poll<F, T>(what: &str, mut ask: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, String>>,
{
    let began = Instant::now();
    loop {
        match ask().await {
            Ok(found) => return found,
            Err(state) => assert!(began.elapsed() < Duration::from_secs(120), "{what} did not come: {state}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
