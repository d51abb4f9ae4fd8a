//! A polite stop while requests run: what was said is recorded before the store closes.

use std::time::Duration;

use axum::Router;
use futures::StreamExt;
use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::support::{MODEL, TestHost};

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn a_stream_that_outlasts_the_drain_leaves_its_record() {
    let host = TestHost::start(|config| config.http.drain_seconds_max = 0).await;
    let caller = host.caller("stopped");
    let body = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "Write a very long story." }], "max_tokens": 4000, "stream": true });
    let response = caller.request(Method::POST, CHAT).json(&body).send().await.unwrap();
    let receipt = response.headers()["x-reef-agent-record-id"].to_str().unwrap().to_owned();
    let mut chunks = response.bytes_stream();
    let mut said = String::new();
    // The first frame names the role; those after it hold tokens.
    while said.matches("data:").count() < 4 {
        said.push_str(&String::from_utf8_lossy(&chunks.next().await.unwrap().unwrap()));
    }
    let data = host.stop().await;
    let mut rest = String::new();
    while let Some(Ok(chunk)) = chunks.next().await {
        rest.push_str(&String::from_utf8_lossy(&chunk));
    }
    assert!(rest.contains("server_stopping"), "{rest}");

    let host = TestHost::start_in(data, |_| {}).await;
    let caller = host.caller("stopped");
    let stored = caller.get(&caller.path(&format!("/records/{receipt}"))).await.ok().body;
    assert_eq!(stored["record"]["status"], "cancelled");
    assert_eq!(stored["record"]["response"]["complete"], false);
    assert!(!stored["record"]["tokens"]["output"].as_array().unwrap().is_empty(), "{stored}");
    host.stop().await;
}

#[tokio::test]
async fn a_request_whose_upstream_has_not_answered_yet_leaves_its_record_too() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (asked, mut was_asked) = tokio::sync::mpsc::channel(1);
    let silent = Router::new().fallback(move || {
        let asked = asked.clone();
        async move {
            asked.send(()).await.expect("somebody waits");
            std::future::pending::<StatusCode>().await
        }
    });
    tokio::spawn(async move { axum::serve(listener, silent).await });
    let host = TestHost::start(|config| {
        config.http.drain_seconds_max = 0;
        let section = json!({ "url": url, "models": { "silent": "silent" } });
        config.providers.insert("there".to_owned(), serde_json::from_value(section).expect("a section"));
    })
    .await;
    let caller = host.caller("waiting");
    let waiting = {
        let caller = caller.clone();
        let body = json!({ "model": "silent", "messages": [{ "role": "user", "content": "hi" }] });
        tokio::spawn(async move { caller.post(CHAT, body).await })
    };
    tokio::time::timeout(Duration::from_secs(60), was_asked.recv()).await.expect("the upstream is asked");
    let data = host.stop().await;
    let answer = waiting.await.unwrap();
    assert_eq!(
        (answer.status, &answer.body["error"]["code"]),
        (StatusCode::SERVICE_UNAVAILABLE, &json!("server_stopping"))
    );

    let host = TestHost::start_in(data, |_| {}).await;
    let caller = host.caller("waiting");
    let record = caller.get(&caller.path(&format!("/records/{}", answer.receipt()))).await.ok().body;
    assert_eq!(record["record"]["status"], "cancelled");
    host.stop().await;
}
