//! Releases without training: base, pins, rollback refusals. The learning flows are under `flows`.

use reqwest::StatusCode;
use serde_json::json;

use crate::support::{MODEL, shared};

#[tokio::test]
async fn a_new_scenario_starts_from_its_own_base() {
    let caller = shared();
    let answer = caller.chat("hi", json!({})).await.ok();
    let releases = caller.releases().await;
    assert_eq!(releases.len(), 1);
    assert_eq!(releases[0]["release_id"], json!(answer.release()));
    assert_eq!(releases[0]["origin"]["kind"], "base");
    assert_eq!(releases[0]["status"], "served");
}

#[tokio::test]
async fn the_release_of_an_answer_can_be_sent_back() {
    let caller = shared();
    let release = caller.chat("hi", json!({})).await.ok().release();
    let body = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 2 });
    for header in ["x-reef-release-id", "x-reef-artifact-version"] {
        let request =
            caller.request(reqwest::Method::POST, "/v1/chat/completions").header(header, &release).json(&body);
        assert_eq!(caller.send(request).await.ok().release(), release);
    }
    let request = caller
        .request(reqwest::Method::POST, "/v1/chat/completions")
        .header("x-reef-release-id", "1".repeat(40))
        .json(&body);
    assert_eq!(caller.send(request).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn rolling_back_to_what_never_was_is_404() {
    let caller = shared();
    caller.chat("hi", json!({})).await.ok();
    for id in ["2".repeat(40).as_str(), "short"] {
        let answer = caller.post(&caller.path("/rollback"), json!({ "release_id": id })).await;
        assert!(answer.status.is_client_error(), "{}", answer.body);
    }
    assert_eq!(caller.post(&caller.path("/rollback"), json!({})).await.body["error"]["param"], "release_id");
    assert_eq!(caller.releases().await.len(), 1);
}
