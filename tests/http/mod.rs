//! Routes, one file each.

mod auth;
mod chat;
mod completions;
pub mod harness;
mod limits;
mod messages;
mod operations;
mod records;
mod redaction;
mod releases;
mod report;
mod responses;
mod rollouts;
mod routing;
mod scenarios;
mod stream;
mod structured;
mod tools;
mod upstream;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::Caller;

/// The events of a stream: name and data; `[DONE]` is a text.
async fn events(caller: &Caller, path: &str, body: Value) -> Vec<(String, Value)> {
    let response = caller.request(Method::POST, path).json(&body).send().await.expect("the server answers");
    let status = response.status();
    let text = response.text().await.expect("a stream");
    assert!(status.is_success(), "{status}: {text}");
    text.split("\n\n").filter(|frame| !frame.is_empty()).map(event).collect()
}

fn event(frame: &str) -> (String, Value) {
    let field = |name: &str| frame.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let data = field("data:").unwrap_or_else(|| panic!("no data: {frame}"));
    let name = field("event:").unwrap_or_default().to_owned();
    (name, serde_json::from_str(data).unwrap_or_else(|_| json!(data)))
}

/// The stored record of a receipt.
async fn stored(caller: &Caller, receipt: &str) -> Value {
    caller.get(&caller.path(&format!("/records/{receipt}"))).await.ok().body["record"].take()
}
