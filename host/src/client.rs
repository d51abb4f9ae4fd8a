//! A small client of a running server, for the commands that talk to one.

use std::error::Error;
use std::time::Duration;

use reef_core::ScenarioName;
use reqwest::{RequestBuilder, Response, StatusCode, Url};
use serde_json::Value;

use crate::error::StartError;
use crate::tls;

/// Time for one answer.
const ANSWER_MAX: Duration = Duration::from_secs(180);
/// Time for an answer that is read piece by piece.
const LONG_ANSWER_MAX: Duration = Duration::from_secs(86_400);
/// Bytes of one answer.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// Characters of an answer that an error repeats.
const TOLD_CHARS_MAX: usize = 2_000;
/// A body of so many bytes may be over the limit of a server.
const LARGE_BYTES: usize = 1 << 20;

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
        let url = address(url)?;
        let http =
            tls::http_client().timeout(ANSWER_MAX).build().map_err(|error| StartError::Other(error.to_string()))?;
        Ok(Self { http, url, token: std::env::var("REEF_TOKEN").ok().filter(|token| !token.is_empty()) })
    }

    /// `GET path`
    pub async fn get(&self, path: &str) -> Result<Value, StartError> {
        self.send(self.http.get(format!("{}{path}", self.url)), 0).await
    }

    /// `GET path` in a scenario.
    pub async fn get_in(&self, scenario: &ScenarioName, path: &str) -> Result<Value, StartError> {
        let request = self.http.get(format!("{}{path}", self.url)).header("x-reef-scenario", scenario.as_str());
        self.send(request, 0).await
    }

    /// `POST path`
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, StartError> {
        self.send(self.http.post(format!("{}{path}", self.url)).json(body), 0).await
    }

    /// `POST path` in a scenario.
    pub async fn post_in(&self, scenario: &ScenarioName, path: &str, body: &Value) -> Result<Value, StartError> {
        let request = self.http.post(format!("{}{path}", self.url)).header("x-reef-scenario", scenario.as_str());
        self.send(request.json(body), 0).await
    }

    /// `GET path`, whose answer is read piece by piece.
    pub async fn open(&self, path: &str) -> Result<Response, StartError> {
        let request = self.http.get(format!("{}{path}", self.url)).timeout(LONG_ANSWER_MAX);
        let response = self.signed(request).send().await.map_err(|error| self.broken(&error, 0))?;
        let status = response.status();
        if status.is_success() { Ok(response) } else { Err(refused(status, &self.body(response).await?)) }
    }

    /// The next piece of such an answer.
    pub async fn next(&self, answer: &mut Response) -> Result<Option<axum::body::Bytes>, StartError> {
        answer.chunk().await.map_err(|error| self.broken(&error, 0))
    }

    /// `DELETE path`
    pub async fn delete(&self, path: &str) -> Result<Value, StartError> {
        self.send(self.http.delete(format!("{}{path}", self.url)), 0).await
    }

    /// `PUT path` with bytes.
    pub async fn put(&self, path: &str, body: Vec<u8>) -> Result<Value, StartError> {
        let bytes = body.len();
        self.send(self.http.put(format!("{}{path}", self.url)).body(body), bytes).await
    }

    /// `sent`: bytes of the body, where they may be many.
    async fn send(&self, request: RequestBuilder, sent: usize) -> Result<Value, StartError> {
        let response = self.signed(request).send().await.map_err(|error| self.broken(&error, sent))?;
        let status = response.status();
        let bytes = self.body(response).await?;
        if !status.is_success() {
            return Err(refused(status, &bytes));
        }
        serde_json::from_slice(&bytes).map_err(|_| {
            let (url, told) = (&self.url, plain(&String::from_utf8_lossy(&bytes)));
            StartError::Other(format!("the server at {url} answered {status} without JSON: {told}; check --url"))
        })
    }

    fn signed(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    async fn body(&self, mut response: Response) -> Result<Vec<u8>, StartError> {
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.broken(&error, 0))? {
            if bytes.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Err(StartError::Other(format!(
                    "the server at {} answers with more than {ANSWER_BYTES_MAX} bytes; check --url",
                    self.url
                )));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }

    fn broken(&self, error: &reqwest::Error, sent: usize) -> StartError {
        let (url, cause) = (&self.url, causes(error));
        StartError::Other(if sent >= LARGE_BYTES && !error.is_connect() && !error.is_timeout() {
            format!(
                "the connection to {url} broke while {sent} bytes were sent: {cause}; the server takes bodies of at most http.body_bytes_max: raise it or send less"
            )
        } else {
            format!("the server at {url} does not answer: {cause}; start it with 'reef serve' or give --url")
        })
    }
}

fn address(url: &str) -> Result<String, StartError> {
    let refuse = |problem: String| {
        let shown = plain(url);
        StartError::Config(format!("--url '{shown}' is no address of a server: {problem}; write http://host:port"))
    };
    let parsed = Url::parse(url).map_err(|error| refuse(error.to_string()))?;
    if parsed.scheme() != "http" {
        return Err(refuse(format!("it begins with '{}:' and these commands speak http", parsed.scheme())));
    }
    if parsed.query().is_some() || parsed.fragment().is_some() {
        return Err(refuse("it has a '?' or a '#'".to_owned()));
    }
    Ok(url.trim_end_matches('/').to_owned())
}

/// What the server says of itself is told; whose doing it is decides about the exit code.
fn refused(status: StatusCode, body: &[u8]) -> StartError {
    let text = String::from_utf8_lossy(body);
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let part = |path: &str| body.pointer(path).and_then(Value::as_str);
    let told = match part("/error/message") {
        Some(message) => plain(message),
        None if text.trim().is_empty() => "no message".to_owned(),
        None => plain(&text),
    };
    let remedy = match status {
        StatusCode::PAYLOAD_TOO_LARGE if !told.contains("body_bytes_max") => {
            "; raise http.body_bytes_max of the server or send less"
        }
        _ => "",
    };
    let sentence = format!("the server answered {}: {told}{remedy}", status.as_u16());
    let of_recipe = part("/error/code").is_some_and(|code| code.starts_with("recipe_"));
    match status {
        StatusCode::UNPROCESSABLE_ENTITY if of_recipe => StartError::Recipe(sentence),
        // The same request may be answered later.
        StatusCode::TOO_MANY_REQUESTS => StartError::Other(sentence),
        status if status.is_client_error() => StartError::Refused(sentence),
        _ => StartError::Other(sentence),
    }
}

/// Text of somebody else on one line.
fn plain(text: &str) -> String {
    let line: String = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    line.chars().take(TOLD_CHARS_MAX).collect()
}

/// An error with what caused it.
fn causes(error: &dyn Error) -> String {
    let inner = std::iter::successors(error.source(), |&error| error.source());
    inner.fold(error.to_string(), |told, cause| format!("{told}: {cause}"))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Reads one request without a body and answers with this; with nothing to say, hangs up in its midst.
    async fn server(answer: &'static str) -> Client {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/", listener.local_addr().expect("an address"));
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a client");
            let mut head = vec![0; 16];
            stream.read_exact(&mut head).await.expect("a request");
            while !answer.is_empty() && !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.expect("the rest of it"));
            }
            stream.write_all(answer.as_bytes()).await.expect("sent");
        });
        Client::new(&url).expect("a client")
    }

    #[tokio::test]
    async fn an_answer_without_json_is_told_with_its_status() {
        let client = server("HTTP/1.1 413 Payload Too Large\r\ncontent-length: 8\r\n\r\ntoo big\n").await;
        let told = client.get("/x").await.expect_err("refused").to_string();
        assert!(told.contains("413: too big") && told.contains("http.body_bytes_max"), "{told}");
        let client = server("HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>").await;
        let told = client.get("/x").await.expect_err("no JSON").to_string();
        assert!(told.contains("<html>") && told.contains("--url"), "{told}");
    }

    #[tokio::test]
    async fn a_connection_that_breaks_under_a_large_body_names_the_limit() {
        let told = server("").await.put("/x", vec![0; 64 * LARGE_BYTES]).await.expect_err("broken").to_string();
        assert!(told.contains("http.body_bytes_max"), "{told}");
        let told = server("").await.put("/x", vec![0; 16]).await.expect_err("broken").to_string();
        assert!(told.contains("does not answer"), "{told}");
    }

    #[test]
    fn what_is_no_address_is_told_why() {
        for (url, part) in [
            ("notaurl", "relative URL"),
            ("localhost:8420", "'localhost:'"),
            ("https://host", "'https:'"),
            ("http://", "host"),
            ("http://host/?a", "'?'"),
        ] {
            let told = Client::new(url).expect_err(url).to_string();
            assert!(told.contains(url) && told.contains(part) && told.contains("http://host:port"), "{told}");
        }
        assert!(Client::new("http://127.0.0.1:8420/").is_ok());
    }

    #[test]
    fn the_exit_code_says_whose_doing_a_refusal_is() {
        let code = |status: u16, code: &str| {
            let body = format!(r#"{{"error":{{"code":"{code}","message":"because"}}}}"#);
            let told = refused(StatusCode::from_u16(status).expect("a status"), body.as_bytes());
            assert!(told.to_string().contains("because"), "{told}");
            told.exit_code()
        };
        assert_eq!(code(422, "recipe_refused"), 6);
        assert_eq!((code(404, "not_found"), code(422, "other")), (2, 2));
        assert_eq!((code(429, "overloaded"), code(503, "disk_full")), (1, 1));
    }
}
