//! `POST /reef/report`.

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::support::shared;

#[tokio::test]
async fn wrong_fields_are_400_and_named() {
    let caller = shared();
    let receipt = caller.chat("hi", json!({})).await.ok().receipt();
    for (body, field) in [
        (json!({ "score": "0.5", "references": [receipt] }), "score"),
        (json!({ "score": true, "references": [receipt] }), "score"),
        (json!({ "score": {}, "references": [receipt] }), "score"),
        (json!({ "references": "x" }), "references"),
        (json!({ "references": [receipt, receipt] }), "references"),
        (json!({ "metadata": [] }), "metadata"),
        (json!({ "wrong": 1 }), "wrong"),
        (json!({ "agent_record_id": "a b" }), "agent_record_id"),
    ] {
        let answer = caller.post("/reef/report", body.clone()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body}");
        assert_eq!(answer.body["error"]["param"], field, "{}", answer.body);
    }
    for infinite in ["1e999", "NaN", "-Infinity"] {
        let request = caller.request(reqwest::Method::POST, "/reef/report").body(format!("{{\"score\": {infinite}}}"));
        assert_eq!(caller.send(request).await.status, StatusCode::BAD_REQUEST, "{infinite}");
    }
}

#[tokio::test]
async fn the_same_report_many_times_is_counted_once_and_another_content_conflicts() {
    let caller = shared();
    let receipt = caller.chat("hi", json!({})).await.ok().receipt();
    let body = json!({ "score": 1, "references": [receipt], "agent_record_id": format!("report-{receipt}") });
    let sends = (0..40).map(|_| caller.post("/reef/report", body.clone()));
    for answer in futures::future::join_all(sends).await {
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    }
    assert_eq!(caller.status().await["reports"], 1);
    let mut other = body.clone();
    other["score"] = json!(0);
    assert_eq!(caller.post("/reef/report", other).await.status, StatusCode::CONFLICT);
}

#[tokio::test]
async fn unknown_and_foreign_receipts_look_the_same() {
    let (mine, other) = (shared(), shared());
    let foreign = other.chat("hi", json!({})).await.ok().receipt();
    mine.chat("hi", json!({})).await.ok();
    let mut seen: Vec<Value> = Vec::new();
    for receipt in ["nothing-like-it", foreign.as_str()] {
        let answer = mine.report(receipt, 1.0).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND);
        seen.push(json!(answer.body["error"]["message"].as_str().unwrap().replace(receipt, "X")));
    }
    assert_eq!(seen[0], seen[1]);
    let mut nowhere = mine.clone();
    nowhere.scenario = "never-made".to_owned();
    assert_eq!(nowhere.report(&foreign, 1.0).await.status, StatusCode::NOT_FOUND);
}
