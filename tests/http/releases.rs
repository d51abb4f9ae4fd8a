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
async fn two_different_pins_are_refused_and_an_unknown_model_creates_nothing() {
    let caller = shared();
    let release = caller.chat("hi", json!({})).await.ok().release();
    let body = json!({ "model": "0".repeat(40), "messages": [{ "role": "user", "content": "hi" }] });
    let request = caller.request(reqwest::Method::POST, "/v1/chat/completions").header("x-reef-release-id", &release);
    assert_eq!(caller.send(request.json(&body)).await.status, StatusCode::BAD_REQUEST);
    let ghost = shared();
    assert_eq!(ghost.chat("hi", json!({ "model": "gpt-4" })).await.status, StatusCode::NOT_FOUND);
    assert_eq!(ghost.get(&ghost.path("")).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_rollback_whose_client_goes_away_is_done_to_the_end() {
    let caller = shared();
    let base = caller.chat("hi", json!({})).await.ok().release();
    for patience_ms in 0..12 {
        let request =
            caller.request(reqwest::Method::POST, &caller.path("/rollback")).json(&json!({ "release_id": base }));
        let patience = std::time::Duration::from_millis(patience_ms);
        // The client leaves at another moment each time.
        let _ = tokio::time::timeout(patience, request.send()).await;
    }
    let last = caller.post(&caller.path("/rollback"), json!({ "release_id": base })).await.ok().body;
    assert_eq!(json!(caller.chat("hi", json!({})).await.ok().release()), last["release_id"]);
    assert_eq!(caller.releases().await[0]["release_id"], last["release_id"]);
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

#[tokio::test]
async fn a_release_is_told_with_its_step_and_an_unknown_one_is_404() {
    let caller = shared();
    let base = caller.chat("hi", json!({})).await.ok().release();
    let found = caller.get(&caller.path(&format!("/releases/{base}"))).await.ok().body;
    assert_eq!(found["release"]["release_id"], json!(base));
    assert_eq!((&found["step"], &found["replay"]), (&json!(null), &json!(null)), "no step made the base");
    let unknown = caller.get(&caller.path(&format!("/releases/{}", "3".repeat(40)))).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    assert!(caller.get(&caller.path("/releases/short")).await.status.is_client_error());
}

#[tokio::test]
async fn a_new_scenario_begins_with_a_release_in_the_callers_reach_or_not_at_all() {
    let (source, fork) = (shared(), shared());
    let release = source.chat("hi", json!({})).await.ok().release();
    let create = |id: &str| json!({ "scenario": fork.scenario, "release_id": id });
    let unknown = fork.post("/reef/scenarios", create(&"1".repeat(40))).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND, "{}", unknown.body);
    assert_eq!(fork.get(&fork.path("")).await.status, StatusCode::NOT_FOUND, "nothing came into being");
    assert_eq!(fork.post("/reef/scenarios", create(&release)).await.status, StatusCode::CREATED);
    assert_eq!(fork.post("/reef/scenarios", create(&release)).await.status, StatusCode::OK);
    let own = fork.releases().await;
    assert_eq!((own.len(), &own[0]["parent"]), (1, &json!(release)));
    let other = fork.post("/reef/scenarios", create(own[0]["release_id"].as_str().expect("an id"))).await;
    assert_eq!(other.status, StatusCode::CONFLICT, "{}", other.body);
    let changed = fork.post(&fork.path("/update"), json!({ "release_id": release })).await;
    assert_eq!((changed.status, &changed.body["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("release_id")));
}
