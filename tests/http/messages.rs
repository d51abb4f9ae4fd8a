//! `POST /v1/messages` and `/v1/messages/count_tokens`.

use reqwest::StatusCode;
use serde_json::{Value, json};

use super::{events, stored};
use crate::support::{MODEL, shared};

const PATH: &str = "/v1/messages";

fn body(extra: Value) -> Value {
    let mut body = json!({ "model": MODEL, "max_tokens": 8, "temperature": 0, "messages": [{ "role": "user", "content": "Say hello." }] });
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn a_message_has_its_receipt_and_a_record_in_its_own_dialect() {
    let caller = shared();
    let answer = caller.post(PATH, body(json!({}))).await.ok();
    assert_eq!((&answer.body["type"], &answer.body["role"]), (&json!("message"), &json!("assistant")));
    assert!(!answer.body["content"][0]["text"].as_str().unwrap().is_empty());
    assert!(["end_turn", "max_tokens"].contains(&answer.body["stop_reason"].as_str().unwrap()), "{}", answer.body);
    assert_eq!(answer.body["reef"]["agent_record_id"], json!(answer.receipt()));
    let record = stored(&caller, &answer.receipt()).await;
    assert_eq!((&record["path"], &record["response"]["complete"]), (&json!(PATH), &json!(true)));
    assert_eq!(record["response"]["content"], answer.body["content"]);
    let output = record["tokens"]["output"].as_array().unwrap().len() as u64;
    assert_eq!(answer.body["usage"]["output_tokens"], json!(output));
}

#[tokio::test]
async fn a_stream_opens_and_closes_every_block_and_says_what_the_message_says() {
    let caller = shared();
    let whole = caller.post(PATH, body(json!({}))).await.ok();
    let events = events(&caller, PATH, body(json!({ "stream": true }))).await;
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names.first(), Some(&"message_start"));
    assert!(names.ends_with(&["content_block_stop", "message_delta", "message_stop"]), "{names:?}");
    let count = |name: &str| names.iter().filter(|found| **found == name).count();
    assert_eq!((count("content_block_start"), count("content_block_stop")), (1, 1));
    let text: String = events.iter().filter_map(|(_, data)| data["delta"]["text"].as_str()).collect();
    assert_eq!(json!(text), whole.body["content"][0]["text"]);
    let (_, stop) = events.last().unwrap();
    let record = stored(&caller, stop["reef"]["agent_record_id"].as_str().unwrap()).await;
    assert_eq!(record["status"], "complete");
    let (_, delta) = &events[events.len() - 2];
    assert_eq!(delta["usage"], record["response"]["usage"], "stored usage is the usage on the wire");
}

#[tokio::test]
async fn every_dialect_makes_the_same_prompt() {
    let caller = shared();
    let conversation = json!([{ "role": "user", "content": [{ "type": "text", "text": "Say hello." }] }]);
    let chat = json!({ "model": MODEL, "max_tokens": 2, "messages": [{ "role": "system", "content": "Be brief." }, { "role": "user", "content": "Say hello." }] });
    let responses =
        json!({ "model": MODEL, "max_output_tokens": 2, "instructions": "Be brief.", "input": "Say hello." });
    let messages = body(json!({ "system": "Be brief.", "messages": conversation }));
    let mut prompts = Vec::new();
    for (path, body) in [("/v1/chat/completions", chat), ("/v1/responses", responses), (PATH, messages)] {
        let answer = caller.post(path, body).await.ok();
        prompts.push(stored(&caller, &answer.receipt()).await["tokens"]["prompt"].take());
    }
    assert!(prompts[0].is_array() && prompts.iter().all(|prompt| *prompt == prompts[0]), "{prompts:?}");
}

#[tokio::test]
async fn counted_tokens_are_those_of_the_prompt() {
    let caller = shared();
    let mut asked = body(json!({}));
    let usage = caller.post(PATH, asked.clone()).await.ok().body["usage"].take();
    asked.as_object_mut().unwrap().remove("max_tokens");
    let counted = caller.post("/v1/messages/count_tokens", asked).await.ok().body;
    let input = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(counted, json!({ "input_tokens": input }));
}

#[tokio::test]
async fn tokens_are_counted_for_releases_of_the_scenario_only() {
    let caller = shared();
    let own = caller.post(PATH, body(json!({}))).await.ok().release();
    let count = |model: String| caller.post("/v1/messages/count_tokens", body(json!({ "model": model })));
    count(own.clone()).await.ok();
    // The id of a release is known by its shape.
    let last = if own.ends_with('0') { '1' } else { '0' };
    let other = format!("{}{last}", &own[..own.len() - 1]);
    assert_eq!(count(other).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn the_stop_sequence_that_matched_is_named() {
    let caller = shared();
    let text = caller.post(PATH, body(json!({}))).await.ok().body["content"][0]["text"].as_str().unwrap().to_owned();
    let stop: String = text.chars().skip(2).take(2).collect();
    let answer = caller.post(PATH, body(json!({ "stop_sequences": [stop] }))).await.ok().body;
    assert_eq!((&answer["stop_reason"], &answer["stop_sequence"]), (&json!("stop_sequence"), &json!(stop)));
    assert_eq!(answer["content"][0]["text"].as_str().unwrap_or_default(), text.split(&stop).next().unwrap());
}

#[tokio::test]
async fn errors_have_the_shape_of_the_dialect() {
    let caller = shared();
    for (asked, status, kind) in [
        (body(json!({ "max_tokens": null })), StatusCode::BAD_REQUEST, "invalid_request_error"),
        (body(json!({ "model": "gpt-4" })), StatusCode::NOT_FOUND, "not_found_error"),
        (body(json!({ "temprature": 1 })), StatusCode::BAD_REQUEST, "invalid_request_error"),
        (json!({}), StatusCode::BAD_REQUEST, "invalid_request_error"),
    ] {
        let answer = caller.post(PATH, asked).await;
        assert_eq!((answer.status, &answer.body["type"]), (status, &json!("error")), "{}", answer.body);
        assert_eq!(answer.body["error"]["type"], kind);
    }
    let long = json!([{ "role": "user", "content": "word ".repeat(9000) }]);
    let answer = caller.post(PATH, body(json!({ "messages": long }))).await;
    assert!(answer.body["error"]["message"].as_str().unwrap().contains("maximum context length"), "{}", answer.body);
}

#[tokio::test]
async fn an_answer_that_the_client_began_goes_on_from_there() {
    let caller = shared();
    let asked =
        |content: &str| json!([{ "role": "user", "content": "Count." }, { "role": "assistant", "content": content }]);
    let prompt = async |content: &str| {
        let answer = caller.post(PATH, body(json!({ "messages": asked(content) }))).await.ok();
        let record = stored(&caller, &answer.receipt()).await;
        record["tokens"]["prompt"].as_array().unwrap().clone()
    };
    let (short, long) = (prompt("1, 2,").await, prompt("1, 2, 3,").await);
    assert!(long.starts_with(&short), "nothing closes what was begun: {short:?} {long:?}");
    let counted = caller.post("/v1/messages/count_tokens", body(json!({ "messages": asked("1, 2,") }))).await.ok().body;
    assert_eq!(counted["input_tokens"], json!(short.len()));
}

#[tokio::test]
async fn wishes_that_change_nothing_here_are_taken() {
    let caller = shared();
    caller.post(PATH, body(json!({ "context_management": { "edits": [] } }))).await.ok();
    let chat = json!({ "verbosity": "low", "seed": -1, "max_tokens": 2 });
    caller.chat("hi", chat).await.ok();
    let text = json!({ "verbosity": "low", "format": { "type": "text" } });
    let response =
        json!({ "model": MODEL, "input": "hi", "max_output_tokens": 16, "text": text, "truncation": "auto" });
    caller.post("/v1/responses", response).await.ok();
    let edits = json!({ "edits": [{ "type": "clear_tool_uses_20250919" }] });
    let refused = caller.post(PATH, body(json!({ "context_management": edits }))).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{}", refused.body);
}

#[tokio::test]
async fn an_encoded_body_is_refused_by_its_encoding() {
    let caller = shared();
    let request = caller.request(reqwest::Method::POST, PATH).header("content-encoding", "gzip").json(&body(json!({})));
    let refused = caller.send(request).await;
    assert_eq!(refused.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert!(refused.body["error"]["message"].as_str().unwrap().contains("content-encoding"), "{}", refused.body);
}

#[tokio::test]
async fn ids_are_told_to_those_who_ask_streamed_or_not() {
    let caller = shared();
    let answer = caller.post(PATH, body(json!({ "return_token_ids": true }))).await.ok();
    let record = stored(&caller, &answer.receipt()).await;
    let reef = &answer.body["reef"];
    assert_eq!(
        (&reef["prompt_token_ids"], &reef["token_ids"]),
        (&record["tokens"]["prompt"], &record["tokens"]["output"])
    );
    let events = events(&caller, PATH, body(json!({ "return_token_ids": true, "stream": true }))).await;
    let (_, last) = events.last().expect("an end");
    assert_eq!(last["reef"]["token_ids"], reef["token_ids"]);
    assert_eq!(last["reef"]["prompt_token_ids"], reef["prompt_token_ids"]);
}
