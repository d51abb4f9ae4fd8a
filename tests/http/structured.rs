//! Answers in a format: any object, or one of a schema.

use reqwest::StatusCode;
use serde_json::{Value, json};

use super::events;
use crate::support::{MODEL, shared};

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": { "colour": { "enum": ["red", "green"] }, "count": { "type": "integer", "minimum": 1, "maximum": 9 } },
        "required": ["colour", "count"],
        "additionalProperties": false,
    })
}

fn fits(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert!(["red", "green"].contains(&value["colour"].as_str().unwrap()), "{text}");
    assert!((1..=9).contains(&value["count"].as_u64().unwrap()), "{text}");
}

fn chat_format() -> Value {
    json!({ "type": "json_schema", "json_schema": { "name": "pick", "schema": schema(), "strict": true } })
}

#[tokio::test]
async fn an_answer_follows_its_schema_in_every_dialect() {
    let caller = shared();
    let how = json!({ "response_format": chat_format(), "max_tokens": 120, "temperature": 1.0, "seed": 3 });
    fits(caller.chat("Pick a colour and a number.", how).await.ok().text());
    let message = json!({
        "model": MODEL, "max_tokens": 120, "messages": [{ "role": "user", "content": "Pick a colour and a number." }],
        "output_config": { "format": { "type": "json_schema", "schema": schema() } },
    });
    let message = caller.post("/v1/messages", message).await.ok().body;
    fits(message["content"][0]["text"].as_str().unwrap());
    let response = json!({
        "model": MODEL, "max_output_tokens": 120, "input": "Pick a colour and a number.",
        "text": { "format": { "type": "json_schema", "name": "pick", "schema": schema() } },
    });
    let response = caller.post("/v1/responses", response).await.ok().body;
    fits(response["output"][0]["content"][0]["text"].as_str().unwrap());
}

#[tokio::test]
async fn a_stream_and_every_choice_follow_it_too() {
    let caller = shared();
    let body = json!({
        "model": MODEL, "stream": true, "max_tokens": 120, "n": 2, "response_format": chat_format(),
        "messages": [{ "role": "user", "content": "Pick a colour and a number." }],
    });
    let events = events(&caller, "/v1/chat/completions", body).await;
    for number in 0..2 {
        let deltas = events.iter().map(|(_, data)| &data["choices"][0]).filter(|choice| choice["index"] == number);
        let text: String = deltas.filter_map(|choice| choice["delta"]["content"].as_str()).collect();
        fits(&text);
    }
}

#[tokio::test]
async fn any_object_begins_as_one() {
    let caller = shared();
    let how = json!({ "response_format": { "type": "json_object" }, "max_tokens": 40, "temperature": 0 });
    let answer = caller.chat("Describe yourself as JSON.", how).await.ok();
    assert!(answer.text().starts_with('{'), "{}", answer.text());
}

#[tokio::test]
async fn beside_tools_the_answer_is_a_call_or_of_the_format() {
    let caller = shared();
    let tool = json!({ "type": "function", "function": { "name": "pick", "parameters": schema() } });
    let how = json!({ "response_format": chat_format(), "tools": [tool], "max_tokens": 150, "temperature": 0 });
    let answer = caller.chat("Pick a colour and a number.", how).await.ok();
    match answer.body["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"].as_str() {
        Some(arguments) => fits(arguments),
        None => fits(answer.text()),
    }
}

#[tokio::test]
async fn a_schema_that_cannot_be_compiled_is_refused_by_name() {
    let caller = shared();
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": { "type": "no such type" } } });
    let answer = caller.chat("x", json!({ "response_format": format })).await;
    assert_eq!(
        (answer.status, &answer.body["error"]["param"]),
        (StatusCode::BAD_REQUEST, &json!("response_format")),
        "{}",
        answer.body
    );
}
