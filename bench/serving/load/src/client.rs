//! One kept connection to the server under test. A connection that breaks is opened again; the request that broke
//! it has failed.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// An answer that takes longer has failed.
const ANSWER_SECONDS_MAX: u64 = 60;

/// What every request of a run has in common.
#[derive(Clone)]
pub struct Target {
    pub host: String,
    pub path: String,
    pub body: Bytes,
}

impl Target {
    /// A chat completion of about `body_bytes` bytes for `url`, such as `http://127.0.0.1:8420/v1/chat/completions`.
    pub fn new(url: &str, body_bytes: usize, stream: bool) -> Result<Self, String> {
        let rest = url.strip_prefix("http://").ok_or_else(|| format!("'{url}' must begin with http://"))?;
        let (host, path) = rest.split_once('/').ok_or_else(|| format!("'{url}' has no path"))?;
        let mut body = json!({ "model": "mock", "messages": [{ "role": "user", "content": "" }] });
        if stream {
            body["stream"] = Value::Bool(true);
        }
        let padding = body_bytes.saturating_sub(body.to_string().len());
        let text: String = "What does the tide do today? ".chars().cycle().take(padding).collect();
        body["messages"][0]["content"] = Value::String(text);
        Ok(Self { host: host.to_owned(), path: format!("/{path}"), body: Bytes::from(body.to_string()) })
    }
}

/// One connection, opened when it is first needed.
pub struct Connection {
    target: Target,
    sender: Option<SendRequest<Full<Bytes>>>,
}

impl Connection {
    pub fn new(target: Target) -> Self {
        Self { target, sender: None }
    }

    /// Sends one request and reads the whole answer; an error is a sentence.
    pub async fn ask(&mut self) -> Result<(), String> {
        self.read(|_| ()).await
    }

    /// Sends one request and notes, for each chunk of the stream, how many nanoseconds ago the upstream sent it.
    pub async fn ask_stream(&mut self) -> Result<Vec<u64>, String> {
        let mut ages = Vec::new();
        let mut buffer = Vec::new();
        self.read(|data| {
            buffer.extend_from_slice(data);
            while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = buffer.drain(..=end).collect();
                ages.extend(age_of(&line));
            }
        })
        .await?;
        Ok(ages)
    }

    async fn read(&mut self, each: impl FnMut(&[u8])) -> Result<(), String> {
        let asked = timeout(Duration::from_secs(ANSWER_SECONDS_MAX), self.exchange(each)).await;
        let outcome = asked.unwrap_or_else(|_| Err(format!("no answer within {ANSWER_SECONDS_MAX} seconds")));
        if outcome.is_err() {
            self.sender = None;
        }
        outcome
    }

    async fn exchange(&mut self, mut each: impl FnMut(&[u8])) -> Result<(), String> {
        let sentence = |error: hyper::Error| format!("the connection broke: {error}");
        let request = Request::post(self.target.path.as_str())
            .header(HOST, self.target.host.as_str())
            .header(CONTENT_TYPE, "application/json")
            .header("x-reef-scenario", "bench")
            .body(Full::new(self.target.body.clone()))
            .map_err(|error| format!("the request is not valid: {error}"))?;
        let sender = match self.sender.take() {
            Some(sender) if !sender.is_closed() => self.sender.insert(sender),
            _ => self.sender.insert(open(&self.target.host).await?),
        };
        sender.ready().await.map_err(sentence)?;
        let response = sender.send_request(request).await.map_err(sentence)?;
        let status = response.status();
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            if let Some(data) = frame.map_err(sentence)?.data_ref() {
                each(data);
            }
        }
        if status.is_success() { Ok(()) } else { Err(format!("the server answered {status}")) }
    }
}

async fn open(host: &str) -> Result<SendRequest<Full<Bytes>>, String> {
    let sentence = |error: &dyn std::fmt::Display| format!("{host} cannot be reached: {error}");
    let socket = TcpStream::connect(host).await.map_err(|error| sentence(&error))?;
    socket.set_nodelay(true).map_err(|error| sentence(&error))?;
    let (sender, connection) = handshake(TokioIo::new(socket)).await.map_err(|error| sentence(&error))?;
    tokio::spawn(async move {
        // Its error reaches the request that is waiting.
        let _ = connection.await;
    });
    Ok(sender)
}

/// Nanoseconds since the upstream sent this chunk, if the line is one of its chunks.
fn age_of(line: &[u8]) -> Option<u64> {
    let chunk: Value = serde_json::from_slice(line.strip_prefix(b"data: ")?).ok()?;
    let sent: u128 = chunk.pointer("/choices/0/delta/content")?.as_str()?.parse().ok()?;
    let now = SystemTime::UNIX_EPOCH.elapsed().ok()?.as_nanos();
    u64::try_from(now.saturating_sub(sent)).ok()
}
