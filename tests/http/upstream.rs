//! Models of providers, answered by a small upstream in this process.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use reef::config::Config;
use reqwest::Method;
use serde_json::{Value, json};

use super::{events, stored};
use crate::support::{Caller, MODEL, TestHost, poll};

/// What the upstream was sent.
pub type Seen = Arc<Mutex<Vec<(HeaderMap, Value)>>>;

const STREAM: &str = "data: {\"id\":\"u\",\"odd\":1,\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"Hi\"}}]}\n\n\
    data: {\"id\":\"u\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" there\"}}]}\n\n";
const STREAM_END: &str = "data: {\"id\":\"u\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n\
    data: {\"id\":\"u\",\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5}}\n\n\
    data: [DONE]\n\n";

fn json_response(status: StatusCode, body: Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

fn sse(text: String) -> Response {
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from(text)).into_response()
}

async fn answer(uri: &Uri, body: &Value) -> Response {
    if uri.path() == "/v1/embeddings" {
        return json_response(
            StatusCode::OK,
            json!({ "object": "list", "data": [{ "embedding": [0.5], "index": 0 }] }),
        );
    }
    match body["model"].as_str() {
        Some("down") => {
            json_response(StatusCode::INTERNAL_SERVER_ERROR, json!({ "error": { "message": "out of order" } }))
        }
        Some("picky") => json_response(
            StatusCode::BAD_REQUEST,
            json!({ "error": { "message": "no such colour", "code": "colour", "param": "messages" } }),
        ),
        Some("slow") => {
            tokio::time::sleep(Duration::from_secs(60)).await;
            json_response(StatusCode::OK, json!({}))
        }
        Some("broken") => sse(STREAM.to_owned()),
        Some("unended") => sse(format!("{STREAM}data: [DONE]\n\n")),
        Some("locked") => {
            json_response(StatusCode::UNAUTHORIZED, json!({ "error": { "message": "Incorrect API key: sk-ab***yz" } }))
        }
        Some("far-1") if body["stream"] == true => sse(format!("{STREAM}{STREAM_END}")),
        _ => json_response(
            StatusCode::OK,
            json!({
                "id": "u", "odd": { "kept": true },
                "choices": [{ "index": 0, "message": { "role": "assistant", "content": "Hi there" }, "finish_reason": "stop" }],
                "usage": { "prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5 },
            }),
        ),
    }
}

pub async fn upstream() -> (String, Seen) {
    let seen = Seen::default();
    let kept = Arc::clone(&seen);
    let app = Router::new().fallback(move |uri: Uri, headers: HeaderMap, body: String| {
        let kept = Arc::clone(&kept);
        async move {
            let body: Value = serde_json::from_str(&body).unwrap_or_default();
            kept.lock().expect("seen").push((headers, body.clone()));
            answer(&uri, &body).await
        }
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, app).await });
    (format!("http://{address}"), seen)
}

/// A provider of the upstream at this address, with these models beside one that answers.
pub fn provide(config: &mut Config, url: &str) {
    let mut models = json!({ "far": "far-1" });
    for name in ["down", "picky", "slow", "broken", "unended", "locked", "flat"] {
        models[name] = json!(name);
    }
    let section = json!({ "url": url, "models": models, "retries_max": 0 });
    config.providers.insert("there".to_owned(), serde_json::from_value(section).expect("a section"));
}

async fn host() -> (TestHost, Caller, Seen) {
    let (url, seen) = upstream().await;
    let host = TestHost::start(|config| provide(config, &url)).await;
    // Not the name of a model, which would be an alias of it.
    let caller = host.caller("elsewhere");
    (host, caller, seen)
}

fn chat(model: &str, extra: Value) -> Value {
    let mut body = json!({ "model": model, "messages": [{ "role": "user", "content": "Hello." }] });
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn an_answer_of_the_same_dialect_is_passed_on_whole_and_recorded() {
    let (host, caller, seen) = host().await;
    let request =
        caller.request(Method::POST, CHAT).header("x-api-key", "the-clients-own").header("x-request-id", "r-1");
    let answer = caller.send(request.json(&chat("far", json!({ "odd_field": 1 })))).await.ok();
    assert_eq!((answer.text(), &answer.body["odd"]["kept"]), ("Hi there", &json!(true)));
    assert_eq!(answer.body["reef"]["agent_record_id"], json!(answer.receipt()));
    let (headers, sent) = seen.lock().unwrap().first().cloned().unwrap();
    assert_eq!((&sent["model"], &sent["odd_field"]), (&json!("far-1"), &json!(1)));
    assert_eq!(headers["x-request-id"], "r-1");
    assert!(!format!("{headers:?}").contains("the-clients-own"), "{headers:?}");
    let record = stored(&caller, &answer.receipt()).await;
    assert!(record["tokens"].is_null() && record["response"]["complete"] == true, "{record}");
    assert_eq!(record["request"]["model"], "far");
    host.stop().await;
}

#[tokio::test]
async fn streams_are_passed_on_or_translated() {
    let (host, caller, _) = host().await;
    let frames = events(&caller, CHAT, chat("far", json!({ "stream": true }))).await;
    assert_eq!(frames[0].1["odd"], 1, "what nobody knows is kept");
    let [.., (_, receipt), (_, done)] = frames.as_slice() else { panic!("{frames:?}") };
    assert_eq!(done, "[DONE]");
    let record = stored(&caller, receipt["reef"]["agent_record_id"].as_str().unwrap()).await;
    assert_eq!(record["response"]["choices"][0]["message"]["content"], "Hi there");
    assert!(!frames.iter().any(|(_, data)| data["usage"].is_object()), "usage was not asked for");
    let frames = events(&caller, "/v1/messages", chat("far", json!({ "stream": true, "max_tokens": 9 }))).await;
    let text: String = frames.iter().filter_map(|(_, data)| data["delta"]["text"].as_str()).collect();
    assert_eq!(text, "Hi there");
    let (name, stop) = frames.last().unwrap();
    assert_eq!(name, "message_stop");
    let record = stored(&caller, stop["reef"]["agent_record_id"].as_str().unwrap()).await;
    assert_eq!(record["response"]["usage"]["output_tokens"], 2);
    host.stop().await;
}

#[tokio::test]
async fn failures_are_told_in_the_clients_dialect_and_recorded() {
    let (host, caller, _) = host().await;
    for (model, status, code) in [("down", 503, "provider_unavailable"), ("picky", 400, "colour")] {
        let answer = caller.post("/v1/messages", chat(model, json!({ "max_tokens": 9 }))).await;
        assert_eq!((answer.status.as_u16(), &answer.body["error"]["code"]), (status, &json!(code)), "{}", answer.body);
        assert_eq!(answer.body["type"], "error");
        let record = stored(&caller, &answer.receipt()).await;
        assert_eq!((&record["status"], &record["response"]["complete"]), (&json!("failed"), &json!(false)));
        assert_eq!(record["response"]["error"], answer.body["error"]);
    }
    for model in ["broken", "unended"] {
        let frames = events(&caller, CHAT, chat(model, json!({ "stream": true }))).await;
        let [.., (_, error), (_, done)] = frames.as_slice() else { panic!("{frames:?}") };
        assert!(error["error"]["message"].is_string() && done == "[DONE]", "{frames:?}");
        assert_eq!(frames.iter().filter(|(_, data)| data == "[DONE]").count(), 1, "{frames:?}");
        assert!(!frames.iter().any(|(_, data)| data["choices"][0]["finish_reason"].is_string()));
    }
    let answer = caller.post(CHAT, chat("locked", json!({}))).await;
    let told = answer.body["error"]["message"].as_str().unwrap();
    assert!(answer.status == StatusCode::BAD_GATEWAY && !told.contains("sk-"), "{told}");
    let headers = &answer.headers;
    assert!(headers.get("retry-after").is_none() && headers["x-should-retry"] == "false", "{headers:?}");
    host.stop().await;
}

#[tokio::test]
async fn an_object_where_a_stream_was_asked_for_is_told_as_a_stream() {
    let (host, caller, _) = host().await;
    let frames = events(&caller, CHAT, chat("flat", json!({ "stream": true }))).await;
    let text: String = frames.iter().filter_map(|(_, data)| data["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!((text.as_str(), &frames.last().unwrap().1), ("Hi there", &json!("[DONE]")));
    host.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_before_the_answer_begins_leaves_a_record() {
    let (host, caller, _) = host().await;
    let request = caller.request(Method::POST, CHAT).json(&chat("slow", json!({})));
    assert!(request.timeout(Duration::from_millis(300)).send().await.is_err());
    poll("the record of the request that was left", || async {
        let records = caller.get(&caller.path("/records")).await.body.to_string();
        if records.contains("\"cancelled\"") { Ok(()) } else { Err(records) }
    })
    .await;
    host.stop().await;
}

#[tokio::test]
async fn only_listed_models_can_be_asked_and_all_of_them_are_listed() {
    let (host, caller, seen) = host().await;
    let models = caller.get("/v1/models").await.ok().body.to_string();
    assert!(models.contains("\"far\"") && models.contains("\"there\"") && models.contains(MODEL), "{models}");
    let answer = caller.post(CHAT, chat("far-1", json!({}))).await;
    assert_eq!((answer.status, &answer.body["error"]["code"]), (StatusCode::NOT_FOUND, &json!("model_not_found")));
    assert!(seen.lock().unwrap().is_empty());
    let made = caller.post("/v1/embeddings", json!({ "model": "far", "input": "x" })).await.ok().body;
    assert_eq!(made["data"][0]["embedding"][0], 0.5);
    host.stop().await;
}
