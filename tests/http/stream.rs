//! `POST /v1/chat/completions`, streamed.

use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};

use crate::support::{MODEL, poll, shared};

fn frames(stream: &str) -> Vec<Value> {
    let (body, done) = stream.trim_end().rsplit_once("\n\n").expect("more than one frame");
    assert_eq!(done, "data: [DONE]");
    body.split("\n\n")
        .map(|frame| serde_json::from_str(frame.strip_prefix("data: ").expect("data")).expect("json"))
        .collect()
}

fn text(frames: &[Value]) -> String {
    frames.iter().filter_map(|frame| frame["choices"][0]["delta"]["content"].as_str()).collect()
}

#[tokio::test]
async fn a_stream_says_what_the_whole_answer_says() {
    let caller = shared();
    let how = json!({ "temperature": 0.9, "seed": 3, "max_tokens": 16, "logprobs": true, "top_logprobs": 2, "return_token_ids": true });
    let whole = caller.chat("Tell me about fish 🐟.", how.clone()).await.ok();
    let (headers, stream) = caller.stream("Tell me about fish 🐟.", how).await;
    assert!(headers.contains_key("x-reef-agent-record-id"));
    let frames = frames(&stream);
    assert_eq!(text(&frames), whole.text());
    let ids: Vec<Value> =
        frames.iter().filter_map(|f| f["choices"][0]["token_ids"].as_array()).flatten().cloned().collect();
    assert_eq!(json!(ids), whole.body["choices"][0]["token_ids"]);
    let logprobs: Vec<Value> =
        frames.iter().filter_map(|f| f["choices"][0]["logprobs"]["content"].as_array()).flatten().cloned().collect();
    let expected = whole.body["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(logprobs.len(), expected.len());
    for (streamed, whole) in logprobs.iter().zip(expected) {
        assert_eq!(streamed["token"], whole["token"]);
        // Who else is in the batch changes the order of the sums, hence the last digits.
        let difference = streamed["logprob"].as_f64().unwrap() - whole["logprob"].as_f64().unwrap();
        assert!(difference.abs() < 1e-3, "{streamed} {whole}");
    }
    let finishes: Vec<&Value> =
        frames.iter().map(|f| &f["choices"][0]["finish_reason"]).filter(|f| !f.is_null()).collect();
    assert_eq!(finishes, [&whole.body["choices"][0]["finish_reason"]]);
}

#[tokio::test]
async fn the_receipt_then_usage_come_before_done() {
    let caller = shared();
    let (headers, stream) =
        caller.stream("hi", json!({ "stream_options": { "include_usage": true }, "temperature": 0 })).await;
    let frames = frames(&stream);
    let [.., receipt, usage] = frames.as_slice() else { panic!("two last frames") };
    assert_eq!(usage["choices"], json!([]));
    assert!(usage["usage"]["completion_tokens"].as_u64().unwrap() > 0);
    assert_eq!(receipt["choices"], json!([]));
    assert_eq!(receipt["reef"]["agent_record_id"], headers["x-reef-agent-record-id"].to_str().unwrap());
    let stored = caller
        .get(&caller.path(&format!("/records/{}", receipt["reef"]["agent_record_id"].as_str().unwrap())))
        .await
        .ok();
    assert_eq!(stored.body["record"]["response"]["usage"], usage["usage"], "stored usage is the usage on the wire");
}

#[tokio::test]
async fn stop_strings_never_leak() {
    let caller = shared();
    let plain =
        caller.chat("Count from one to nine in words.", json!({ "temperature": 0, "max_tokens": 24 })).await.ok();
    let text_all = plain.text().to_owned();
    let stop: String = text_all.chars().skip(4).take(3).collect();
    let whole = caller
        .chat("Count from one to nine in words.", json!({ "temperature": 0, "max_tokens": 24, "stop": stop }))
        .await
        .ok();
    assert_eq!(whole.text(), text_all.split(&stop).next().unwrap());
    assert_eq!(whole.body["choices"][0]["finish_reason"], "stop");
    let (_, stream) = caller
        .stream("Count from one to nine in words.", json!({ "temperature": 0, "max_tokens": 24, "stop": [stop] }))
        .await;
    assert_eq!(text(&frames(&stream)), whole.text());
}

#[tokio::test]
async fn a_client_that_goes_away_leaves_a_record_and_frees_its_slot() {
    let caller = shared();
    let body = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "Write a very long story." }], "max_tokens": 1500, "stream": true });
    let response = caller.request(reqwest::Method::POST, "/v1/chat/completions").json(&body).send().await.unwrap();
    let receipt = response.headers()["x-reef-agent-record-id"].to_str().unwrap().to_owned();
    let mut chunks = response.bytes_stream();
    chunks.next().await.unwrap().unwrap();
    drop(chunks);
    let stored = poll("the record of the cancelled stream", || async {
        let answer = caller.get(&caller.path(&format!("/records/{receipt}"))).await;
        if answer.status.is_success() { Ok(answer.body) } else { Err(answer.body.to_string()) }
    })
    .await;
    assert_eq!(stored["record"]["status"], "cancelled");
    assert_eq!(stored["record"]["response"]["complete"], false);
    let tokens = stored["record"]["tokens"]["output"].as_array().map_or(0, Vec::len);
    assert!(tokens < 1500, "the slot was freed before the end: {tokens} tokens");
}

#[tokio::test]
async fn a_report_is_accepted_before_the_stream_has_ended() {
    let caller = shared();
    let body = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "Write a story." }], "max_tokens": 60, "stream": true });
    let response = caller.request(reqwest::Method::POST, "/v1/chat/completions").json(&body).send().await.unwrap();
    let receipt = response.headers()["x-reef-agent-record-id"].to_str().unwrap().to_owned();
    let reporter = {
        let caller = caller.clone();
        tokio::spawn(async move { caller.report(&receipt, 0.5).await.status })
    };
    let rest = tokio::time::timeout(Duration::from_secs(60), response.text()).await.expect("ends").unwrap();
    assert!(rest.contains("[DONE]"));
    assert_eq!(reporter.await.unwrap(), reqwest::StatusCode::OK);
}

#[tokio::test]
async fn a_token_comes_with_the_end_of_its_text_also_while_a_stop_may_begin() {
    let caller = shared();
    let how = json!({ "temperature": 0, "max_tokens": 40, "logprobs": true, "stop": ["zzz", "aves"] });
    let (_, stream) = caller.stream("Write a poem about the sea.", how).await;
    let (mut shown, mut told) = (String::new(), String::new());
    for frame in frames(&stream) {
        let choice = &frame["choices"][0];
        shown.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        let tokens = choice["logprobs"]["content"].as_array().into_iter().flatten();
        told.extend(tokens.map(|token| token["token"].as_str().unwrap()));
        assert!(shown.starts_with(&told) || !choice["finish_reason"].is_null(), "{shown:?} {told:?}");
    }
    assert!(told.len() >= shown.len() && shown.len() > 40, "{shown:?}");
}
