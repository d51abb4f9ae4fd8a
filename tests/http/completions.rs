//! `POST /v1/completions` and `/v1/embeddings`.

use reqwest::StatusCode;
use serde_json::{Value, json};

use super::{events, stored};
use crate::support::{MODEL, shared};

const PATH: &str = "/v1/completions";

fn body(extra: Value) -> Value {
    let mut body = json!({ "model": MODEL, "max_tokens": 8, "temperature": 0, "prompt": "One, two, three," });
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn text_and_its_ids_are_continued_alike_and_without_a_template() {
    let caller = shared();
    let text = caller.post(PATH, body(json!({ "return_token_ids": true }))).await.ok();
    assert_eq!(text.body["object"], "text_completion");
    let choice = &text.body["choices"][0];
    assert!(!choice["text"].as_str().unwrap().is_empty());
    let record = stored(&caller, &text.receipt()).await;
    assert_eq!((&record["path"], &record["tokens"]["prompt"]), (&json!(PATH), &choice["prompt_token_ids"]));
    assert_eq!(record["tokens"]["output"], choice["token_ids"]);
    let ids = caller.post(PATH, body(json!({ "prompt": choice["prompt_token_ids"] }))).await.ok();
    assert_eq!(ids.body["choices"][0]["text"], choice["text"]);
}

#[tokio::test]
async fn a_stream_says_what_the_whole_answer_says_and_ends_once() {
    let caller = shared();
    let whole = caller.post(PATH, body(json!({ "logprobs": 2 }))).await.ok().body;
    let asked = body(json!({ "logprobs": 2, "stream": true, "stream_options": { "include_usage": true } }));
    let events = events(&caller, PATH, asked).await;
    assert_eq!(events.last().unwrap().1, "[DONE]");
    let text: String = events.iter().filter_map(|(_, data)| data["choices"][0]["text"].as_str()).collect();
    assert_eq!(json!(text), whole["choices"][0]["text"]);
    let finishes = events.iter().filter(|(_, data)| data["choices"][0]["finish_reason"].is_string()).count();
    assert_eq!(finishes, 1);
    let [.., (_, receipt), (_, usage), _] = events.as_slice() else { panic!("three last events") };
    assert!(receipt["reef"]["agent_record_id"].is_string(), "{receipt}");
    assert_eq!(usage["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
    let tokens = whole["choices"][0]["logprobs"]["tokens"].as_array().unwrap().len() as u64;
    assert_eq!(whole["usage"]["completion_tokens"], json!(tokens));
}

#[tokio::test]
async fn what_cannot_be_continued_is_refused_by_name() {
    let caller = shared();
    for (field, value) in
        [("prompt", json!("")), ("prompt", json!(["a", "b"])), ("echo", json!(true)), ("suffix", json!("x"))]
    {
        let answer = caller.post(PATH, body(json!({ field: value }))).await;
        assert_eq!(
            (answer.status, &answer.body["error"]["param"]),
            (StatusCode::BAD_REQUEST, &json!(field)),
            "{}",
            answer.body
        );
    }
    let answer = caller.post(PATH, body(json!({ "prompt": [999_999_999] }))).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert!(answer.body["error"]["message"].as_str().unwrap().contains("vocabulary"), "{}", answer.body);
}

#[tokio::test]
async fn embeddings_need_a_providers_model() {
    let caller = shared();
    let answer = caller.post("/v1/embeddings", json!({ "model": MODEL, "input": "x" })).await;
    assert_eq!((answer.status, &answer.body["error"]["code"]), (StatusCode::NOT_FOUND, &json!("model_not_found")));
    assert_eq!(caller.post("/v1/embeddings", json!({ "input": "x" })).await.status, StatusCode::BAD_REQUEST);
}
