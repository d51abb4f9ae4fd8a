//! Tools of the embedded model. It is too small to call by itself, so most calls here are forced.

use reqwest::StatusCode;
use serde_json::{Value, json};

use super::{events, stored};
use crate::support::{Caller, MODEL, shared};

fn schema() -> Value {
    json!({ "type": "object", "properties": { "city": { "enum": ["Paris", "Rome"] } }, "required": ["city"], "additionalProperties": false })
}

fn function(name: &str) -> Value {
    json!({ "type": "function", "function": { "name": name, "description": "The weather.", "parameters": schema() } })
}

async fn chat(caller: &Caller, extra: Value) -> Value {
    let mut how = json!({ "temperature": 0, "max_tokens": 100, "tools": [function("weather"), function("forecast")] });
    how.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    caller.chat("How is the weather in Rome?", how).await.ok().body
}

fn named(name: &str) -> Value {
    json!({ "type": "function", "function": { "name": name } })
}

fn city(arguments: &Value) {
    let arguments: Value = serde_json::from_str(arguments.as_str().unwrap()).unwrap();
    assert!(["Paris", "Rome"].contains(&arguments["city"].as_str().unwrap()), "{arguments}");
}

#[tokio::test]
async fn a_named_function_is_called_with_arguments_of_its_schema() {
    let caller = shared();
    let answer = chat(&caller, json!({ "tool_choice": named("forecast") })).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    assert_eq!((calls.len(), &calls[0]["function"]["name"]), (1, &json!("forecast")));
    assert!(calls[0]["id"].as_str().unwrap().starts_with("call_"), "{answer}");
    city(&calls[0]["function"]["arguments"]);
    let record = stored(&caller, answer["reef"]["agent_record_id"].as_str().unwrap()).await;
    assert_eq!(record["response"]["choices"], answer["choices"]);
    assert_eq!(
        record["tokens"]["output"].as_array().unwrap().len() as u64,
        answer["usage"]["completion_tokens"].as_u64().unwrap()
    );
}

#[tokio::test]
async fn a_required_call_is_streamed_by_its_name_then_its_arguments() {
    let caller = shared();
    let body = json!({
        "model": MODEL, "stream": true, "temperature": 0, "max_tokens": 100, "parallel_tool_calls": false,
        "messages": [{ "role": "user", "content": "How is the weather in Rome?" }],
        "tools": [function("weather"), function("forecast")], "tool_choice": "required",
    });
    let events = events(&caller, "/v1/chat/completions", body).await;
    let deltas: Vec<&Value> =
        events.iter().map(|(_, data)| &data["choices"][0]["delta"]["tool_calls"][0]).filter(|d| !d.is_null()).collect();
    let first = deltas[0];
    assert_eq!((&first["index"], &first["type"]), (&json!(0), &json!("function")));
    assert!(first["id"].is_string() && ["weather", "forecast"].contains(&first["function"]["name"].as_str().unwrap()));
    assert!(deltas[1..].iter().all(|delta| delta["id"].is_null() && delta["function"]["name"].is_null()), "{deltas:?}");
    let arguments: String = deltas.iter().filter_map(|delta| delta["function"]["arguments"].as_str()).collect();
    city(&json!(arguments));
    let finishes: Vec<&str> =
        events.iter().filter_map(|(_, data)| data["choices"][0]["finish_reason"].as_str()).collect();
    assert_eq!(finishes, ["tool_calls"]);
}

#[tokio::test]
async fn messages_and_responses_call_in_their_own_words() {
    let caller = shared();
    let message = caller
        .post("/v1/messages", json!({
            "model": MODEL, "max_tokens": 100, "temperature": 0,
            "messages": [{ "role": "user", "content": "How is the weather in Rome?" }],
            "tools": [{ "name": "weather", "input_schema": schema() }], "tool_choice": { "type": "tool", "name": "weather" },
        }))
        .await
        .ok()
        .body;
    assert_eq!(message["stop_reason"], "tool_use", "{message}");
    let block = message["content"].as_array().unwrap().last().unwrap();
    assert_eq!((&block["type"], &block["name"]), (&json!("tool_use"), &json!("weather")));
    assert!(block["input"]["city"].is_string(), "{message}");
    let response = caller
        .post(
            "/v1/responses",
            json!({
                "model": MODEL, "max_output_tokens": 100, "temperature": 0, "input": "How is the weather in Rome?",
                "tools": [{ "type": "function", "name": "weather", "parameters": schema() }], "tool_choice": "required",
            }),
        )
        .await
        .ok()
        .body;
    let call = &response["output"][0];
    assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("weather")), "{response}");
    city(&call["arguments"]);
}

#[tokio::test]
async fn a_call_and_its_result_are_taken_back() {
    let caller = shared();
    let called = chat(&caller, json!({ "tool_choice": named("weather") })).await["choices"][0]["message"].take();
    let id = called["tool_calls"][0]["id"].clone();
    let result = |id: &Value, text: &str| json!({ "role": "tool", "tool_call_id": id, "content": text });
    let turns = |results: Vec<Value>| {
        let mut turns = vec![json!({ "role": "user", "content": "Weather?" }), called.clone()];
        turns.extend(results);
        json!({ "messages": turns, "max_tokens": 4 })
    };
    let tokens = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().unwrap();
    let one = chat(&caller, turns(vec![result(&id, "sunny")])).await;
    let two = chat(&caller, turns(vec![result(&id, "sunny"), result(&json!("other"), "rainy")])).await;
    assert!(tokens(&two) > tokens(&one), "every result is rendered");
    chat(&caller, turns(Vec::new())).await;
}

#[tokio::test]
async fn none_hides_the_tools() {
    let caller = shared();
    let tokens = |answer: Value| answer["usage"]["prompt_tokens"].as_u64().unwrap();
    let hidden = tokens(chat(&caller, json!({ "tool_choice": "none", "max_tokens": 2 })).await);
    let without = tokens(chat(&caller, json!({ "tools": [], "max_tokens": 2 })).await);
    let with = tokens(chat(&caller, json!({ "max_tokens": 2 })).await);
    assert_eq!(hidden, without);
    assert!(with > without);
}

#[tokio::test]
async fn arguments_that_the_limit_cut_are_kept_as_they_are() {
    let caller = shared();
    let whole = chat(&caller, json!({ "tool_choice": named("weather") })).await;
    let output = whole["usage"]["completion_tokens"].as_u64().unwrap();
    let open = json!({ "type": "object", "properties": { "text": { "type": "string", "minLength": 200 } }, "required": ["text"], "additionalProperties": false });
    let tool = json!({ "type": "function", "function": { "name": "weather", "parameters": open } });
    let cut =
        chat(&caller, json!({ "tools": [tool], "tool_choice": named("weather"), "max_tokens": output + 8 })).await;
    let choice = &cut["choices"][0];
    assert_eq!(choice["finish_reason"], "length", "{cut}");
    let arguments = choice["message"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
    assert!(arguments.starts_with('{') && serde_json::from_str::<Value>(arguments).is_err(), "{arguments}");
}

#[tokio::test]
async fn a_call_that_cannot_be_forced_is_refused() {
    let caller = shared();
    let body = json!({
        "model": MODEL, "input": "x", "max_output_tokens": 4,
        "tools": [{ "type": "web_search" }], "tool_choice": { "type": "web_search" },
    });
    let answer = caller.post("/v1/responses", body).await;
    assert_eq!(
        (answer.status, &answer.body["error"]["param"]),
        (StatusCode::BAD_REQUEST, &json!("tool_choice")),
        "{}",
        answer.body
    );
    let strict = json!({ "type": "function", "function": { "name": "f", "strict": true, "parameters": { "type": "no such type" } } });
    for choice in ["required", "auto"] {
        let answer = caller.chat("x", json!({ "tools": [strict], "tool_choice": choice })).await;
        assert_eq!(
            (answer.status, &answer.body["error"]["param"]),
            (StatusCode::BAD_REQUEST, &json!("tools")),
            "{}",
            answer.body
        );
    }
}

#[tokio::test]
async fn a_strict_function_leaves_text_free() {
    let caller = shared();
    let mut strict = function("weather");
    strict["function"]["strict"] = json!(true);
    let free = chat(&caller, json!({ "max_tokens": 12 })).await;
    let guided = chat(&caller, json!({ "max_tokens": 12, "tools": [strict, function("forecast")] })).await;
    assert_eq!(guided["choices"], free["choices"]);
}

/// A conversation in which every question was answered by a call, so that the model calls once more.
fn calling() -> Value {
    let mut turns = Vec::new();
    for (n, city) in ["Oslo", "Lima", "Cairo", "Delhi"].iter().enumerate() {
        let id = format!("call_{n}");
        let arguments = json!({ "city": city }).to_string();
        let call = json!({ "id": id, "type": "function", "function": { "name": "weather", "arguments": arguments } });
        turns.push(json!({ "role": "user", "content": format!("How is the weather in {city}?") }));
        turns.push(json!({ "role": "assistant", "content": null, "tool_calls": [call] }));
        turns.push(json!({ "role": "tool", "tool_call_id": id, "content": "sunny" }));
    }
    turns.push(json!({ "role": "user", "content": "How is the weather in Rome?" }));
    json!(turns)
}

#[tokio::test]
async fn a_call_that_the_model_chose_follows_the_schema_of_a_strict_function() {
    let caller = shared();
    let asked = |strict: bool, stream: bool| {
        let mut tool = function("weather");
        tool["function"]["strict"] = json!(strict);
        tool["function"]["parameters"]["properties"]["city"] = json!({ "enum": ["Quebec", "Zagreb"] });
        json!({ "model": MODEL, "temperature": 0, "max_tokens": 60, "stream": stream, "messages": calling(), "tools": [tool] })
    };
    let arguments = |answer: &Value| {
        let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
        assert_eq!(call["name"], "weather", "{answer}");
        serde_json::from_str::<Value>(call["arguments"].as_str().unwrap()).unwrap()
    };
    let free = caller.post("/v1/chat/completions", asked(false, false)).await.ok().body;
    assert_eq!(arguments(&free), json!({ "city": "Rome" }), "left alone, it says what it was asked");
    let bound = caller.post("/v1/chat/completions", asked(true, false)).await.ok().body;
    let city = arguments(&bound);
    assert!(["Quebec", "Zagreb"].iter().any(|known| city == json!({ "city": known })), "{city}");
    let events = events(&caller, "/v1/chat/completions", asked(true, true)).await;
    let deltas = events.iter().map(|(_, data)| &data["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"]);
    let streamed: String = deltas.filter_map(Value::as_str).collect();
    assert_eq!(serde_json::from_str::<Value>(&streamed).unwrap(), city, "streamed alike");
}
