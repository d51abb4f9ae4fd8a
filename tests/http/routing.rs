//! The routing policy of a scenario: off until a release exists, admitted, promoted and rolled back like every release, and
//! applied to each request with a record that says so.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::stored;
use super::upstream::{provide, upstream};
use crate::support::{Answer, Caller, MODEL, TestHost};

const CHAT: &str = "/v1/chat/completions";

async fn host() -> (TestHost, Caller, String) {
    let (url, _) = upstream().await;
    let host = TestHost::start(|config| provide(config, &url)).await;
    let caller = host.caller("routed");
    caller.create(json!({})).await;
    (host, caller, url)
}

async fn propose(caller: &Caller, rules: Value) -> Value {
    let body = json!({ "policy": { "rules": rules }, "reason": "hard ones need the teacher" });
    caller.post(&caller.path("/router"), body).await.ok().body
}

/// Proposes rules and promotes them; the release that is applied then.
async fn adopt(caller: &Caller, rules: Value) -> Value {
    let proposal = propose(caller, rules).await;
    assert_eq!(proposal["admitted"], true, "{proposal}");
    let before = applied(caller).await["release_id"].clone();
    assert_ne!(before, proposal["release_id"], "what is proposed waits");
    let body = json!({ "release_id": proposal["release_id"] });
    caller.post(&caller.path("/promote"), body).await.ok().body["release_id"].clone()
}

async fn applied(caller: &Caller) -> Value {
    caller.get(&caller.path("/router")).await.ok().body
}

/// An answer to a request for the served model with this tag.
async fn ask(caller: &Caller, kind: &str, extra: Value) -> Answer {
    let mut body = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "Hello." }], "max_tokens": 4 });
    body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
    caller.send(caller.request(Method::POST, CHAT).header("x-reef-tag-kind", kind).json(&body)).await
}

async fn tags(caller: &Caller, answer: &Answer) -> (Value, Value) {
    let tags = stored(caller, &answer.receipt()).await["tags"].clone();
    (tags["routing-policy"].clone(), tags["routing-rule"].clone())
}

#[tokio::test]
async fn without_a_release_nothing_is_routed_and_what_cannot_be_is_not_admitted() {
    let (host, caller, _) = host().await;
    assert_eq!(applied(&caller).await["policy"], Value::Null);
    let plain = ask(&caller, "hard", json!({})).await.ok();
    assert_eq!(tags(&caller, &plain).await, (Value::Null, Value::Null));
    let refused = propose(&caller, json!([{ "models": ["nobody", "far"] }, { "models": ["far"] }])).await;
    assert_eq!(refused["admitted"], false, "{refused}");
    let told = refused["reason"].as_str().expect("a reason");
    assert!(told.contains("no model 'nobody'") && told.contains("rule 2 never decides"), "{told}");
    assert!(!caller.releases().await.iter().any(|row| row["status"] == "held"), "nothing of it stays");
    for (body, field) in [
        (json!({ "policy": { "rules": [] } }), "reason"),
        (json!({ "policy": { "rule": [] }, "reason": "r" }), "policy"),
        (json!({ "policy": { "rules": [{ "models": ["far"], "then": 1 }] }, "reason": "r" }), "policy"),
        (json!({ "policies": 1 }), "policies"),
    ] {
        let refused = caller.post(&caller.path("/router"), body).await;
        assert_eq!((refused.status, &refused.body["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(field)));
    }
    let forged = caller.request(Method::POST, CHAT).header("x-reef-tag-routing-rule", "1:far");
    let forged = caller.send(forged.json(&json!({ "model": MODEL, "messages": [] }))).await;
    assert_eq!(forged.body["error"]["param"], "x-reef-tag-routing-rule", "what the server says no client can say");
    host.stop().await;
}

#[tokio::test]
async fn the_head_policy_chooses_who_answers_and_the_record_says_so() {
    let (host, caller, url) = host().await;
    let rules = json!([
        { "when": { "tags": { "kind": "hard" } }, "models": ["far"] },
        { "when": { "tags": { "kind": "long" }, "prompt_bytes_min": 100 }, "models": ["far"] },
        { "when": { "tags": { "kind": "fragile" } }, "models": ["down", "far"] },
        { "when": { "tags": { "kind": "student" } }, "models": [MODEL, "far"] },
        { "when": { "tags": { "kind": "strict" } }, "models": ["picky", "far"] },
    ]);
    let policy = adopt(&caller, rules).await;
    assert_eq!(applied(&caller).await["release_id"], policy);
    let hard = ask(&caller, "hard", json!({})).await.ok();
    assert_eq!((hard.text(), tags(&caller, &hard).await), ("Hi there", (policy.clone(), json!("1:far"))));
    let record = stored(&caller, &hard.receipt()).await;
    assert_eq!(record["request"]["model"], "far");
    let short = ask(&caller, "long", json!({})).await.ok();
    assert_eq!(tags(&caller, &short).await, (Value::Null, Value::Null), "a short prompt is no long one");
    let long = json!({ "messages": [{ "role": "user", "content": "word ".repeat(30) }] });
    assert_eq!(ask(&caller, "long", long).await.ok().text(), "Hi there");
    let own = ask(&caller, "student", json!({})).await.ok();
    assert_eq!(tags(&caller, &own).await, (policy.clone(), json!(format!("4:{MODEL}"))));
    assert!(!stored(&caller, &own.receipt()).await["tokens"].is_null(), "the student is the engine");

    let saved = ask(&caller, "fragile", json!({})).await.ok();
    assert_eq!((saved.text(), tags(&caller, &saved).await), ("Hi there", (policy.clone(), json!("3:far"))));
    let all = caller.get(&caller.path("/records?limit=100")).await.ok().body["records"].clone();
    let failed = all.as_array().expect("records").iter().find(|row| row.to_string().contains("3:down")).cloned();
    assert!(failed.expect("the try that failed").to_string().contains("\"failed\""), "it is a record of its own");
    let streamed = ask(&caller, "fragile", json!({ "stream": true })).await.ok();
    assert!(streamed.body.as_str().expect("a stream").contains(" there"), "{}", streamed.body);
    let picky = ask(&caller, "strict", json!({})).await;
    assert_eq!(picky.status, StatusCode::BAD_REQUEST, "a request at fault is no failure of the model");

    let host = TestHost::start_in(host.stop().await, |config| provide(config, &url)).await;
    let caller = host.caller("routed");
    assert_eq!(ask(&caller, "hard", json!({})).await.ok().text(), "Hi there", "a restart applies it again");
    let host = TestHost::start_in(host.stop().await, |_| {}).await;
    let caller = host.caller("routed");
    let gone = ask(&caller, "hard", json!({})).await;
    let told = gone.body.to_string();
    assert_eq!(gone.status, StatusCode::NOT_FOUND, "{told}");
    assert!(told.contains("rule 1 of the routing policy names the model 'far'"), "never the base instead: {told}");
    host.stop().await;
}

#[tokio::test]
async fn a_policy_is_rejected_rolled_back_and_read_with_ordinary_tools() {
    let (host, caller, _) = host().await;
    let first = adopt(&caller, json!([{ "models": ["far"] }])).await;
    let waiting = propose(&caller, json!([])).await["release_id"].clone();
    caller.post(&caller.path("/reject"), json!({ "release_id": waiting })).await.ok();
    let rejected = caller.post(&caller.path("/promote"), json!({ "release_id": waiting })).await;
    assert_eq!(rejected.status, StatusCode::CONFLICT);
    let router: Vec<Value> = caller.releases().await.into_iter().filter(|row| row["surface"] == "router").collect();
    let base = router.iter().find(|row| row["sequence"] == 0).expect("the first").clone();
    assert_eq!(ask(&caller, "any", json!({})).await.ok().text(), "Hi there");
    let clone = host.data.path().join("clone");
    let cloned = std::process::Command::new("git")
        .args(["clone", "-q", "-b", "default/routed@router"])
        .arg(host.data.path().join("releases.git"))
        .arg(&clone)
        .status()
        .expect("git runs");
    assert!(cloned.success());
    let text = std::fs::read_to_string(clone.join("policy.json")).expect("a readable file");
    assert_eq!(
        serde_json::from_str::<Value>(&text).expect("JSON"),
        json!({ "rules": [{ "when": {}, "models": ["far"] }] })
    );
    caller.post(&caller.path("/rollback"), json!({ "release_id": base["release_id"] })).await.ok();
    assert_eq!(applied(&caller).await["policy"], json!({ "rules": [] }));
    let plain = ask(&caller, "any", json!({})).await.ok();
    assert_eq!(tags(&caller, &plain).await, (Value::Null, Value::Null), "rolled back to no rules: off");
    caller.post(&caller.path("/rollback"), json!({ "release_id": first })).await.ok();
    assert_eq!(ask(&caller, "any", json!({})).await.ok().text(), "Hi there");
    let stale = json!({ "policy": { "rules": [] }, "reason": "late", "release_id": first });
    let late = caller.post(&caller.path("/router"), stale).await;
    assert_eq!(late.status, StatusCode::CONFLICT, "a change of what is no longer the head: {}", late.body);
    host.stop().await;
}
