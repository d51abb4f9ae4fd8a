//! Exchanging what is served while requests run.

use futures::StreamExt;
use serde_json::json;

use crate::support::{MODEL, poll, shared};

#[tokio::test]
async fn swap_during_stream_finishes_on_old_release() {
    let caller = shared();
    let old = caller.chat("hi", json!({})).await.ok().release();
    let body = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "Write a long story." }], "max_tokens": 120, "stream": true });
    let mut running = Vec::new();
    for _ in 0..8 {
        let response = caller.request(reqwest::Method::POST, "/v1/chat/completions").json(&body).send().await.unwrap();
        let receipt = response.headers()["x-reef-agent-record-id"].to_str().unwrap().to_owned();
        let mut chunks = response.bytes_stream();
        chunks.next().await.unwrap().unwrap();
        running.push((receipt, chunks));
    }
    let new =
        caller.post(&caller.path("/rollback"), json!({ "release_id": old })).await.ok().body["release_id"].clone();
    assert_eq!(json!(caller.chat("hi", json!({})).await.ok().release()), new);
    for (receipt, mut chunks) in running {
        let mut text = String::new();
        while let Some(chunk) = chunks.next().await {
            text.push_str(&String::from_utf8_lossy(&chunk.expect("the stream goes on")));
        }
        assert!(text.ends_with("data: [DONE]\n\n"));
        let stored = poll("the record", || async {
            let answer = caller.get(&caller.path(&format!("/records/{receipt}"))).await;
            if answer.status.is_success() { Ok(answer.body) } else { Err(answer.body.to_string()) }
        })
        .await;
        let spans = &stored["record"]["tokens"]["spans"];
        assert_eq!(spans.as_array().unwrap().len(), 1, "no answer mixes two releases");
        assert_eq!(spans[0]["release"], json!(old));
    }
}
