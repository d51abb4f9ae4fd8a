//! `POST /v1/chat/completions`, not streamed, and `/v1/models`.

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::support::{Answer, Caller, MODEL, shared};

const GREEDY: f64 = 0.0;

async fn refused(caller: &Caller, extra: Value) -> Answer {
    let answer = caller.chat("hi", extra).await;
    assert!(answer.status.is_client_error(), "{} {}", answer.status, answer.body);
    assert!(answer.body["error"]["message"].is_string() && answer.body["error"]["type"].is_string(), "{}", answer.body);
    answer
}

#[tokio::test]
async fn an_answer_carries_its_receipt_release_usage_and_overhead() {
    let caller = shared();
    let answer = caller.chat("Say hello.", json!({ "temperature": GREEDY })).await.ok();
    assert!(!answer.text().is_empty());
    assert_eq!(answer.body["object"], "chat.completion");
    assert_eq!(answer.body["reef"]["agent_record_id"], json!(answer.receipt()));
    assert_eq!(answer.release().len(), 40);
    assert!(answer.header("x-reef-overhead-ms").parse::<f64>().is_ok());
    let usage = &answer.body["usage"];
    assert_eq!(
        usage["total_tokens"].as_u64(),
        Some(usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap())
    );
}

#[tokio::test]
async fn the_record_is_durable_when_the_answer_arrives() {
    let caller = shared();
    let answer =
        caller.chat("Say hello.", json!({ "temperature": 0.7, "seed": 5, "return_token_ids": true })).await.ok();
    let stored = caller.get(&caller.path(&format!("/records/{}", answer.receipt()))).await.ok().body;
    let tokens = &stored["record"]["tokens"];
    assert_eq!(tokens["output"], answer.body["choices"][0]["token_ids"]);
    assert_eq!(tokens["prompt"], answer.body["prompt_token_ids"]);
    assert_eq!(tokens["logprobs"].as_array().unwrap().len(), tokens["output"].as_array().unwrap().len());
    assert_eq!(tokens["spans"][0]["release"], json!(answer.release()));
    assert_eq!(tokens["sampling"]["seed"], 5);
}

#[tokio::test]
async fn the_same_seed_gives_the_same_answer() {
    let caller = shared();
    let ask = || caller.chat("Tell me something.", json!({ "temperature": 1.0, "seed": 11, "max_tokens": 12 }));
    let (one, two) = (ask().await.ok(), ask().await.ok());
    assert_eq!(one.text(), two.text());
    assert_ne!(one.receipt(), two.receipt());
}

#[tokio::test]
async fn logprobs_are_natural_logs_with_alternatives() {
    let caller = shared();
    let answer =
        caller.chat("Say hello.", json!({ "temperature": GREEDY, "logprobs": true, "top_logprobs": 3 })).await.ok();
    let content = answer.body["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    assert_eq!(content.len() as u64, answer.body["usage"]["completion_tokens"].as_u64().unwrap());
    for token in content {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        assert_eq!(token["logprob"], top[0]["logprob"], "greedy takes the likeliest token");
        assert!(token["logprob"].as_f64().unwrap() <= 0.0);
    }
}

#[tokio::test]
async fn an_unknown_model_is_an_error_and_never_the_base() {
    let caller = shared();
    caller.chat("hi", json!({})).await.ok();
    for model in [json!("gpt-4"), json!(format!("{MODEL} ")), json!("0".repeat(40))] {
        let answer = refused(&caller, json!({ "model": model })).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{}", answer.body);
    }
    for model in [json!(123), Value::Null] {
        assert_eq!(refused(&caller, json!({ "model": model })).await.status, StatusCode::BAD_REQUEST);
    }
}

#[tokio::test]
async fn a_prompt_beyond_the_context_is_told_in_the_shape_clients_detect() {
    let caller = shared();
    let answer = caller.chat(&"word ".repeat(9000), json!({})).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert_eq!(answer.body["error"]["code"], "context_length_exceeded");
    assert!(answer.body["error"]["message"].as_str().unwrap().contains("maximum context length"));
}

#[tokio::test]
async fn what_is_not_supported_is_refused_by_name() {
    let caller = shared();
    for (field, value) in [
        ("n", json!(0)),
        ("functions", json!([{ "name": "f" }])),
        ("max_tokens", json!(0)),
        ("temprature", json!(1)),
        ("max_tokens", json!(-1)),
    ] {
        let answer = refused(&caller, json!({ field: value })).await;
        assert_eq!(answer.body["error"]["param"], field, "{}", answer.body);
    }
    let image = json!([{ "role": "user", "content": [{ "type": "image_url", "image_url": { "url": "data:image/png;base64,AA" } }] }]);
    let answer = refused(&caller, json!({ "messages": image })).await;
    assert_eq!(answer.body["error"]["param"], "messages");
    assert!(answer.body["error"]["message"].as_str().unwrap().contains("image_url"), "{}", answer.body);
}

#[tokio::test]
async fn several_choices_have_seeds_of_their_own_and_one_usage() {
    let caller = shared();
    let how = json!({ "n": 3, "temperature": 1.0, "seed": 7, "max_tokens": 12 });
    let answer = caller.chat("Tell me something.", how).await.ok();
    let texts: Vec<&str> = (0..3).map(|n| answer.body["choices"][n]["message"]["content"].as_str().unwrap()).collect();
    assert!(texts[0] != texts[1] || texts[1] != texts[2], "{texts:?}");
    let second =
        caller.chat("Tell me something.", json!({ "temperature": 1.0, "seed": 8, "max_tokens": 12 })).await.ok();
    assert_eq!(second.text(), texts[1], "each choice has the next seed");
    let stored = caller.get(&caller.path(&format!("/records/{}", answer.receipt()))).await.ok().body;
    assert!(stored["record"]["tokens"].is_null(), "a trace is one sequence");
    let output = answer.body["usage"]["completion_tokens"].as_u64().unwrap();
    assert!((3..=36).contains(&output), "{output}");
}

#[tokio::test]
async fn biases_and_penalties_change_what_is_said() {
    let caller = shared();
    let how = |extra: Value| {
        let mut body = json!({ "temperature": 0, "max_tokens": 6, "return_token_ids": true });
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    };
    let plain = caller.chat("Say hello.", how(json!({}))).await.ok();
    let first = plain.body["choices"][0]["token_ids"][0].to_string();
    let barred = caller.chat("Say hello.", how(json!({ "logit_bias": { first.clone(): -100 } }))).await.ok();
    let ids = barred.body["choices"][0]["token_ids"].to_string();
    assert!(!ids.trim_matches(['[', ']']).split(',').any(|id| id == first), "{first} in {ids}");
    caller.chat("Say hello.", how(json!({ "presence_penalty": 1.5, "frequency_penalty": -0.5 }))).await.ok();
    refused(&caller, how(json!({ "logit_bias": { "999999999": 1 } }))).await;
}

#[tokio::test]
async fn bodies_that_are_no_json_objects_are_400_in_the_dialect_of_the_route() {
    let caller = shared();
    for (path, body) in [("/v1/chat/completions", "{"), ("/v1/chat/completions", "[]"), ("/reef/report", "nonsense")] {
        let request = caller.request(reqwest::Method::POST, path).body(body);
        let answer = caller.send(request).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
        assert_eq!(answer.body["error"]["type"].is_string(), path.starts_with("/v1/"), "{}", answer.body);
    }
    assert_eq!(caller.get("/v1/nowhere").await.body["error"]["type"], "not_found_error");
    assert_eq!(caller.get("/reef/nowhere").await.body["error"]["code"], "not_found");
    assert_eq!(caller.get("/v1/chat/completions").await.status, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn models_lists_the_base_each_served_release_and_its_alias() {
    let caller = shared();
    let answer = caller.chat("hi", json!({})).await.ok();
    let models = caller.get("/v1/models").await.ok().body;
    let one = caller.get(&format!("/v1/models/{MODEL}")).await.ok().body;
    assert!(models["data"].as_array().unwrap().contains(&one), "{one}");
    let unknown = caller.get("/v1/models/nothing-like-it").await;
    assert_eq!((unknown.status, &unknown.body["error"]["code"]), (StatusCode::NOT_FOUND, &json!("model_not_found")));
    let ids: Vec<&str> = models["data"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap()).collect();
    for id in [MODEL, caller.scenario.as_str(), answer.release().as_str()] {
        assert!(ids.contains(&id), "{id} in {ids:?}");
    }
    caller.chat("hi", json!({ "model": answer.release() })).await.ok();
    caller.chat("hi", json!({ "model": caller.scenario })).await.ok();
}

#[tokio::test]
async fn capture_off_is_recorded_and_never_a_sample() {
    let caller = shared();
    let request = caller.request(reqwest::Method::POST, "/v1/chat/completions").header("x-reef-capture", "off");
    let body = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 4 });
    let answer = caller.send(request.json(&body)).await.ok();
    let stored = caller.get(&caller.path(&format!("/records/{}", answer.receipt()))).await.ok().body;
    assert_eq!(stored["record"]["capture"], false);
    caller.report(&answer.receipt(), 1.0).await.ok();
    let state = crate::support::poll("the retirement", || async {
        let row = caller.status().await;
        if row["retired"] == 1 { Ok(row) } else { Err(row.to_string()) }
    })
    .await;
    assert!(state["retired_reasons"].to_string().contains("capture"), "{state}");
}

#[tokio::test]
async fn tags_and_sessions_are_stored_and_bad_headers_are_named() {
    let caller = shared();
    let body = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 2 });
    let request = || caller.request(reqwest::Method::POST, "/v1/chat/completions").json(&body);
    let answer =
        caller.send(request().header("x-reef-tag-client", "test").header("x-claude-code-session-id", "s1")).await.ok();
    let stored = caller.get(&caller.path(&format!("/records/{}", answer.receipt()))).await.ok().body;
    assert_eq!(stored["record"]["tags"]["client"], "test");
    assert_eq!(stored["record"]["session"], "s1");
    for (name, value) in [("x-reef-capture", "maybe"), ("x-reef-release-id", "zz"), ("x-reef-tag-Übel", "x")] {
        if let Ok(header) = reqwest::header::HeaderName::from_bytes(name.as_bytes()) {
            assert_eq!(caller.send(request().header(header, value)).await.status, StatusCode::BAD_REQUEST, "{name}");
        }
    }
    let mut hostile = caller.clone();
    hostile.scenario = "a/../b".to_owned();
    let refused = hostile.chat("hi", json!({})).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(refused.body["error"]["message"].as_str().unwrap().contains("scenario"), "{}", refused.body);
}

#[tokio::test]
async fn variables_of_the_template_are_taken_but_for_its_own() {
    let caller = shared();
    let how = |variables: Value| json!({ "temperature": 0, "max_tokens": 4, "chat_template_kwargs": variables });
    let plain = caller.chat("Say hello.", how(Value::Null)).await.ok();
    let given = caller.chat("Say hello.", how(json!({ "enable_thinking": false }))).await.ok();
    assert_eq!(given.text(), plain.text());
    for (wrong, named) in [(json!({ "messages": [] }), "messages"), (json!("x"), "chat_template_kwargs")] {
        let refused = caller.chat("Say hello.", how(wrong)).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST);
        assert!(refused.body["error"]["message"].as_str().unwrap().contains(named), "{}", refused.body);
    }
}
