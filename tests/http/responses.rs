//! `POST /v1/responses`.

use reqwest::StatusCode;
use serde_json::{Value, json};

use super::{events, stored};
use crate::support::{MODEL, shared};

const PATH: &str = "/v1/responses";

fn body(extra: Value) -> Value {
    let mut body = json!({ "model": MODEL, "max_output_tokens": 8, "temperature": 0, "input": "Say hello." });
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn a_response_has_its_items_receipt_and_record() {
    let caller = shared();
    let answer = caller.post(PATH, body(json!({}))).await.ok();
    assert_eq!(answer.body["object"], "response");
    assert!(["completed", "incomplete"].contains(&answer.body["status"].as_str().unwrap()), "{}", answer.body);
    assert!(!answer.body["output"][0]["content"][0]["text"].as_str().unwrap().is_empty());
    assert_eq!(answer.body["reef"]["agent_record_id"], json!(answer.receipt()));
    let record = stored(&caller, &answer.receipt()).await;
    assert_eq!((&record["path"], &record["response"]["output"]), (&json!(PATH), &answer.body["output"]));
    assert!(record["tokens"]["output"].is_array());
}

#[tokio::test]
async fn a_stream_is_numbered_and_its_items_keep_their_ids() {
    let caller = shared();
    let whole = caller.post(PATH, body(json!({}))).await.ok();
    let events = events(&caller, PATH, body(json!({ "stream": true }))).await;
    let numbers: Vec<u64> = events.iter().map(|(_, data)| data["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names[..2], ["response.created", "response.in_progress"]);
    let (last, ended) = events.last().unwrap();
    assert!(["response.completed", "response.incomplete"].contains(&last.as_str()), "{names:?}");
    let item = &ended["response"]["output"][0];
    assert_eq!(item["content"][0]["text"], whole.body["output"][0]["content"][0]["text"]);
    let deltas = events.iter().filter(|(name, _)| name == "response.output_text.delta");
    for (_, delta) in deltas {
        assert_eq!(
            (&delta["item_id"], &delta["output_index"], &delta["content_index"]),
            (&item["id"], &json!(0), &json!(0))
        );
    }
    let record = stored(&caller, ended["reef"]["agent_record_id"].as_str().unwrap()).await;
    assert_eq!(record["response"]["usage"], ended["response"]["usage"], "stored usage is the usage on the wire");
}

#[tokio::test]
async fn a_tool_of_another_type_is_never_an_error_and_never_told_to_the_model() {
    let caller = shared();
    let tokens = |answer: &Value| answer["usage"]["input_tokens"].as_u64().unwrap();
    let plain = caller.post(PATH, body(json!({}))).await.ok().body;
    for tool in [
        json!({ "type": "web_search" }),
        json!({ "type": "custom", "name": "patch", "format": { "type": "text" } }),
        json!({ "type": "local_shell" }),
        json!({ "type": "mcp", "server_label": "x", "server_url": "https://localhost" }),
        json!({ "type": "no_such_type", "anything": 1 }),
    ] {
        let answer = caller.post(PATH, body(json!({ "tools": [tool] }))).await.ok().body;
        assert_eq!(tokens(&answer), tokens(&plain), "{tool}");
    }
}

#[tokio::test]
async fn what_needs_a_memory_is_refused_by_name() {
    let caller = shared();
    for field in ["previous_response_id", "conversation"] {
        let answer = caller.post(PATH, body(json!({ field: "x" }))).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
        assert_eq!(answer.body["error"]["param"], field, "{}", answer.body);
    }
    let answer = caller.post(PATH, body(json!({ "max_output_tokens": 100_000 }))).await;
    assert_eq!((answer.status, &answer.body["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("max_output_tokens")));
    let image =
        json!([{ "role": "user", "content": [{ "type": "input_image", "image_url": "data:image/png;base64,AA" }] }]);
    let answer = caller.post(PATH, body(json!({ "input": image }))).await;
    assert!(answer.body["error"]["message"].as_str().unwrap().contains("input_image"), "{}", answer.body);
}
