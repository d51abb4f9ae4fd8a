//! The dashboard, the description of the routes, and what a scenario asks of its clients.

use reqwest::StatusCode;
use serde_json::json;

use crate::support::{TestHost, shared};

#[tokio::test]
async fn the_dashboard_and_the_description_need_no_token_and_load_nothing() {
    let caller = shared().with_token("not a token");
    let page = caller.http.get(format!("{}/reef/ui", caller.url)).send().await.expect("the server answers");
    let policy = page.headers()["content-security-policy"].to_str().expect("text").to_owned();
    assert!(policy.starts_with("default-src 'none'") && policy.contains("connect-src 'self'"), "{policy}");
    let text = page.text().await.expect("a page");
    assert!(text.contains("<title>Reef</title>") && text.contains("--mark:"), "its styles are in it");
    for foreign in ["src=", "@import", "innerHTML", "insertAdjacentHTML", "document.write"] {
        assert!(!text.contains(foreign), "{foreign}");
    }
    let document = caller.http.get(format!("{}/openapi.json", caller.url)).send().await.expect("the server answers");
    let document: serde_json::Value = document.json().await.expect("JSON");
    let version = document["info"]["version"].as_str().expect("a version");
    assert_eq!(version.split('.').count(), 3, "{version}");
    assert!(document["paths"]["/v1/chat/completions"]["post"]["summary"].is_string());
}

#[tokio::test]
async fn a_contract_tells_what_reports_the_recipe_reads() {
    let caller = shared();
    caller.create(json!({ "training_mode": "manual" })).await;
    let contract = caller.get(&caller.path("/contract")).await.ok().body;
    assert_eq!((&contract["processor"], &contract["training_mode"]), (&json!("sao"), &json!("manual")), "{contract}");
    assert_eq!(contract["required_request_types"], json!(["inference", "report"]));
    assert_eq!(contract["report"]["score"], "required");
    let keys = contract["recipe_config"].as_array().expect("keys");
    assert!(keys.iter().any(|key| key["name"] == "batch_size" && key["default"].is_number()), "{contract}");
    assert_eq!(caller.get("/reef/scenarios/unknown/contract").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_deleted_scenario_is_gone_and_its_name_begins_anew() {
    let host = TestHost::start(|_| {}).await;
    let caller = host.caller("passing");
    let beside = host.caller("staying");
    let kept = beside.chat("Say hi.", json!({ "max_tokens": 4 })).await.ok().receipt();
    let answer = caller.chat("Say hi.", json!({ "max_tokens": 4 })).await.ok();
    let (receipt, release) = (answer.receipt(), answer.release());
    caller.report(&receipt, 1.0).await.ok();
    let deleted = caller.send(caller.request(reqwest::Method::DELETE, &caller.path(""))).await.ok().body;
    assert_eq!((&deleted["scenario"], &deleted["deleted"]), (&json!("passing"), &json!(true)));
    for path in ["", "/releases", "/records", "/contract"] {
        assert_eq!(caller.get(&caller.path(path)).await.status, StatusCode::NOT_FOUND, "{path}");
    }
    assert_eq!(
        caller.send(caller.request(reqwest::Method::DELETE, &caller.path(""))).await.status,
        StatusCode::NOT_FOUND
    );
    let host = TestHost::start_in(host.stop().await, |_| {}).await;
    let (caller, beside) = (host.caller("passing"), host.caller("staying"));
    assert_eq!(caller.get(&caller.path("")).await.status, StatusCode::NOT_FOUND, "also after a restart");
    assert!(beside.get(&beside.path(&format!("/records/{kept}"))).await.ok().body["record"].is_object());
    let again = caller.chat("Say hi.", json!({ "max_tokens": 4 })).await.ok();
    assert_ne!(again.release(), release, "a base of its own");
    let records = caller.get(&caller.path("/records")).await.ok().body;
    assert_eq!(records["records"].as_array().map(Vec::len), Some(1), "{records}");
    let late = caller.report(&receipt, 1.0).await;
    assert_eq!(late.status, StatusCode::NOT_FOUND, "its receipts are nobody's");
    host.stop().await;
}
