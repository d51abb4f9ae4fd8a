//! `/reef/scenarios…`.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{TestHost, shared};

#[tokio::test]
async fn creating_twice_is_201_then_200() {
    let caller = shared();
    let body = json!({ "scenario": caller.scenario, "max_staleness": 2 });
    assert_eq!(caller.post("/reef/scenarios", body.clone()).await.status, StatusCode::CREATED);
    assert_eq!(caller.post("/reef/scenarios", body).await.status, StatusCode::OK);
    let listed = caller.get("/reef/scenarios").await.ok().body;
    let mine = listed["scenarios"]
        .as_array()
        .unwrap()
        .iter()
        .find(|s| s["scenario"] == json!(caller.scenario))
        .unwrap()
        .clone();
    assert_eq!(mine["settings"]["max_staleness"], 2);
    assert_eq!(mine["head"]["sequence"], 0);
}

#[tokio::test]
async fn settings_change_and_survive_a_restart() {
    let host = TestHost::start(|_| {}).await;
    let caller = host.caller("kept");
    caller.create(json!({})).await;
    let changed = caller
        .post(&caller.path("/update"), json!({ "training_mode": "manual", "gate": { "kind": "always" } }))
        .await
        .ok();
    assert_eq!(changed.body["settings"]["training_mode"], "manual");
    let gate =
        async |body: Value| caller.post(&caller.path("/update"), body).await.ok().body["settings"]["gate"].clone();
    assert_eq!(gate(json!({ "training_mode": "manual" })).await["kind"], "always", "what is absent stays");
    assert_eq!(gate(json!({ "gate": null })).await, Value::Null, "the gate of the server again");
    let wrong = caller.post(&caller.path("/update"), json!({ "trainig_mode": "auto" })).await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST);
    assert!(wrong.body["error"]["message"].as_str().unwrap().contains("training_mode"), "{}", wrong.body);
    let host = TestHost::start_in(host.stop().await, |_| {}).await;
    let caller = host.caller("kept");
    assert_eq!(caller.get(&caller.path("")).await.ok().body["settings"]["training_mode"], "manual");
    host.stop().await;
}

#[tokio::test]
async fn settings_that_no_step_could_run_with_are_refused() {
    let caller = shared();
    caller.create(json!({})).await;
    for (settings, param) in [
        (json!({ "recipe_config": { "batch_size": "x" } }), "recipe_config"),
        (json!({ "recipe_config": { "nope": 1 } }), "recipe_config"),
        (json!({ "gate": { "kind": "non-inferiority", "margin": -5 } }), "gate"),
        (json!({ "scenario": "other" }), "scenario"),
    ] {
        let answer = caller.post(&caller.path("/update"), settings).await;
        assert_eq!((answer.status, &answer.body["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(param)));
    }
}

#[tokio::test]
async fn parameters_that_do_not_parse_are_told_in_the_shape_of_the_route() {
    let caller = shared();
    caller.create(json!({})).await;
    for tail in ["/steps/abc", "/steps?limit=-1", "/records?after_sequence=99999999999999999999"] {
        let answer = caller.get(&caller.path(tail)).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
        assert_eq!(answer.body["error"]["code"], "invalid_request", "{tail}: {}", answer.body);
    }
    assert!(!caller.get("/healthz").await.header("x-request-id").is_empty());
}

#[tokio::test]
async fn many_first_requests_make_one_scenario() {
    let caller = shared();
    let answers = futures::future::join_all((0..8).map(|_| caller.chat("hi", json!({ "max_tokens": 1 })))).await;
    let releases: std::collections::BTreeSet<String> =
        answers.into_iter().map(|answer| answer.ok().release()).collect();
    assert_eq!(releases.len(), 1);
    assert_eq!(caller.releases().await.len(), 1);
}

#[tokio::test]
async fn a_refused_request_makes_no_scenario() {
    let caller = shared();
    for refused in [json!({ "temprature": 1 }), json!({ "max_tokens": 1_000_000 }), json!({ "reasoning_effort": "x" })]
    {
        let answer = caller.chat("hi", refused).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.body);
        assert_eq!(caller.get(&caller.path("")).await.status, StatusCode::NOT_FOUND);
    }
    caller.chat("hi", json!({ "max_tokens": 1, "reasoning_effort": "low" })).await.ok();
    assert_eq!(caller.get(&caller.path("")).await.status, StatusCode::OK);
}

#[tokio::test]
async fn records_are_paged_in_order() {
    let caller = shared();
    for _ in 0..3 {
        let receipt = caller.chat("hi", json!({ "max_tokens": 1 })).await.ok().receipt();
        caller.report(&receipt, 0.0).await.ok();
    }
    let page = caller.get(&caller.path("/records?limit=4")).await.ok().body;
    assert_eq!(page["records"].as_array().unwrap().len(), 4);
    let rest =
        caller.get(&caller.path(&format!("/records?after_sequence={}", page["next_after_sequence"]))).await.ok().body;
    assert_eq!(rest["records"].as_array().unwrap().len(), 2);
    let reports = caller.get(&caller.path("/records?request_type=report")).await.ok().body;
    assert!(reports["records"].as_array().unwrap().iter().all(|row| row["request_type"] == "report"));
    assert_eq!(caller.get(&caller.path("/records?request_type=x")).await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn held_out_tasks_are_checked() {
    let caller = shared();
    caller.create(json!({})).await;
    let put = |body| caller.send(caller.request(Method::PUT, &caller.path("/held-out")).json(&body));
    let task = json!({ "messages": [{ "role": "user", "content": "x" }], "answer": "y", "grader": "exact" });
    assert_eq!(put(json!({ "tasks": [task] })).await.ok().body["held_out"], 1);
    assert_eq!(
        put(json!({ "tasks": [{ "messages": [], "answer": "y", "grader": "exact" }] })).await.status,
        StatusCode::BAD_REQUEST
    );
    assert_eq!(put(json!({ "tasks": [{ "answer": "y" }] })).await.status, StatusCode::BAD_REQUEST);
    let says = |role: &str, content: String| json!({ "tasks": [{ "messages": [{ "role": role, "content": content }], "answer": "y", "grader": "exact" }] });
    assert_eq!(put(says("wizard", "x".to_owned())).await.body["error"]["param"], "tasks[0]");
    assert_eq!(put(says("user", "word ".repeat(9000))).await.body["error"]["param"], "tasks[0]");
}

#[tokio::test]
async fn health_metrics_and_status_answer_without_side_effects() {
    let caller = shared();
    assert_eq!(caller.get("/healthz").await.ok().body["status"], "ok");
    caller.get("/readyz").await.ok();
    caller.chat("hi", json!({})).await.ok();
    let metrics = caller.get("/metrics").await.ok().body;
    assert!(metrics.as_str().unwrap().contains("reef_requests_total"), "{metrics}");
    let before = caller.status().await;
    assert_eq!(before, caller.status().await);
    assert_eq!(before["inferences"], 1);
}
