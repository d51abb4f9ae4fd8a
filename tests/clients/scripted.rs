//! A provider that answers by a script: one model is always busy, the other calls a tool that writes a file, where it is
//! offered one, and, once it is given the result, says so. It speaks the dialect `chat` and keeps what it was sent.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use reef::config::{Scope, TokenEntry};
use reef_core::{TenantId, sha256_hex};
use serde_json::{Value, json};

use crate::support::TestHost;

/// The token that clients send to Reef, and nobody passes on.
pub const TOKEN: &str = "the-clients-token";
/// The model that calls a tool.
pub const MODEL: &str = "scripted-model";
/// The model that is asked too often.
pub const BUSY: &str = "busy";
/// Seconds after which the busy model wants to be asked again.
pub const RETRY_AFTER_S: &str = "7";
/// The file that the tool writes, in the folder of the agent, and what it holds then.
pub const FILE: &str = "hello.txt";
pub const CONTENT: &str = "written by the tool\n";
/// What the model says in the end.
pub const SAID: [&str; 2] = ["The file ", "is written."];

/// What the provider was sent.
pub type Seen = Arc<Mutex<Vec<(HeaderMap, Value)>>>;

/// The tool among those that are offered which writes a file, and its arguments.
fn call(offered: &Value) -> Option<(&str, Value)> {
    offered.as_array()?.iter().find_map(|tool| {
        let function = &tool["function"];
        let takes = |name: &&str| function["parameters"]["properties"].get(*name).is_some();
        match function["name"].as_str()? {
            name @ ("write" | "Write") => {
                let path = ["path", "filePath", "file_path"].into_iter().find(takes)?;
                Some((name, json!({ path: FILE, "content": CONTENT })))
            }
            name @ "exec_command" => Some((name, json!({ "cmd": format!("printf '%s' '{CONTENT}' >{FILE}") }))),
            _ => None,
        }
    })
}

/// A server with the provider's models beside its own, of which agents ask for the one that calls; it wants the token.
pub async fn host() -> (TestHost, Seen) {
    let (url, seen) = provider().await;
    let section = json!({ "url": url, "models": { MODEL: MODEL, BUSY: BUSY }, "retries_max": 0 });
    let host = TestHost::start(|config| {
        config.providers.insert("scripted".to_owned(), serde_json::from_value(section).expect("a section"));
        config.harness.model = Some(MODEL.to_owned());
        config.auth.tokens = vec![TokenEntry {
            sha256: Some(sha256_hex(TOKEN.as_bytes())),
            env: None,
            name: None,
            tenant: TenantId::parse("acme").expect("a tenant"),
            scopes: vec![Scope::Infer, Scope::Report, Scope::Read, Scope::Admin],
            default_scenario: None,
            scenarios: None,
        }];
    })
    .await;
    (host, seen)
}

async fn provider() -> (String, Seen) {
    let seen = Seen::default();
    let kept = Arc::clone(&seen);
    let app = Router::new().fallback(move |headers: HeaderMap, body: String| {
        let kept = Arc::clone(&kept);
        async move {
            let body: Value = serde_json::from_str(&body).expect("JSON");
            let answer = answer(&body);
            kept.lock().expect("seen").push((headers, body));
            answer
        }
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, app).await });
    (format!("http://{address}"), seen)
}

fn answer(body: &Value) -> Response {
    if body["model"] == BUSY {
        let told = json!({ "error": { "message": "asked too often", "type": "rate_limit_error", "code": "rate_limit_exceeded" } });
        let headers = [(header::CONTENT_TYPE, "application/json"), (header::RETRY_AFTER, RETRY_AFTER_S)];
        return (StatusCode::TOO_MANY_REQUESTS, headers, told.to_string()).into_response();
    }
    let turns = body["messages"].as_array().expect("messages");
    let done = turns.iter().any(|turn| turn["role"] == "tool");
    if body["stream"] != true {
        return ([(header::CONTENT_TYPE, "application/json")], whole().to_string()).into_response();
    }
    let frames = match call(&body["tools"]) {
        Some((tool, arguments)) if !done => calls(tool, &arguments.to_string()),
        _ => says(),
    };
    let stream: String = frames.iter().map(|frame| format!("data: {frame}\n\n")).collect();
    ([(header::CONTENT_TYPE, "text/event-stream")], stream + "data: [DONE]\n\n").into_response()
}

/// What it says where no stream is asked for; no agent here calls a tool so.
fn whole() -> Value {
    let message = json!({ "role": "assistant", "content": SAID.concat() });
    json!({ "id": "c", "object": "chat.completion", "created": 1, "model": MODEL, "usage": usage(),
            "choices": [{ "index": 0, "message": message, "finish_reason": "stop" }] })
}

fn usage() -> Value {
    json!({ "prompt_tokens": 30, "completion_tokens": 12, "total_tokens": 42 })
}

fn calls(tool: &str, arguments: &str) -> Vec<Value> {
    let (first, second) = arguments.split_at(arguments.len() / 2);
    let opened =
        json!({ "index": 0, "id": "call_1", "type": "function", "function": { "name": tool, "arguments": "" } });
    let argued = |piece: &str| json!({ "tool_calls": [{ "index": 0, "function": { "arguments": piece } }] });
    let begun = json!({ "role": "assistant", "content": null, "tool_calls": [opened] });
    ended(vec![begun, argued(first), argued(second)], "tool_calls")
}

fn says() -> Vec<Value> {
    ended(SAID.iter().map(|piece| json!({ "content": piece })).collect(), "stop")
}

/// The frames of these deltas, with an end and a count.
fn ended(deltas: Vec<Value>, reason: &str) -> Vec<Value> {
    let frame = |choices: Value| json!({ "id": "c", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": choices });
    let mut frames: Vec<Value> =
        deltas.into_iter().map(|delta| frame(json!([{ "index": 0, "delta": delta, "finish_reason": null }]))).collect();
    frames.push(frame(json!([{ "index": 0, "delta": {}, "finish_reason": reason }])));
    let mut counted = frame(json!([]));
    counted["usage"] = usage();
    frames.push(counted);
    frames
}
