//! Answers by example: what upstreams send, and what clients get.

use serde_json::{Value, json};

use crate::answers::{envelope, reply};
use crate::ask::{Ask, Input, Part};
use crate::chat::{Reader, Writer, read_whole, whole};
use crate::reply::{Choice, Event, Frame, FrameData, Piece, Reply, Stop, TokenInfo, Usage};
use crate::sse::SseEvent;

fn stream(chunks: &[Value]) -> Result<Reply, String> {
    let mut reader = Reader::new();
    let mut events = Vec::new();
    for chunk in chunks {
        events.extend(reader.push(&SseEvent { event: None, data: chunk.to_string() })?);
    }
    events.extend(reader.push(&SseEvent { event: None, data: "[DONE]".to_owned() })?);
    events.extend(reader.finish()?);
    Ok(reply(&events))
}

fn delta(delta: Value) -> Value {
    json!({ "choices": [{ "index": 0, "delta": delta }] })
}

fn end(reason: &str) -> Value {
    json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": reason }] })
}

fn calls(chunks: &[Value]) -> Vec<(String, String, String)> {
    let chunks: Vec<Value> = chunks.iter().map(|call| delta(json!({ "tool_calls": call }))).collect();
    let reply = stream(&[chunks, vec![end("tool_calls")]].concat()).expect("readable");
    let parts = reply.choices.into_iter().flat_map(|choice| choice.parts);
    let calls = parts.map(|part| match part {
        Part::Call { id, name, arguments } => (id, name, arguments),
        other => panic!("{other:?}"),
    });
    calls.collect()
}

fn call(id: &str, name: &str, arguments: &str) -> (String, String, String) {
    (id.to_owned(), name.to_owned(), arguments.to_owned())
}

#[test]
fn calls_are_told_apart_whatever_indices_and_ids_the_upstream_gives() {
    let expected = [call("a", "f", "{}"), call("b", "g", "[1]")];
    let f = |arguments: &str| json!({ "name": "f", "arguments": arguments });
    let g = |arguments: &str| json!({ "name": "g", "arguments": arguments });
    let more = |arguments: &str| json!({ "arguments": arguments });
    // OpenAI: an index each, the rest in pieces.
    let usual = [
        json!([{ "index": 0, "id": "a", "type": "function", "function": f("") }]),
        json!([{ "index": 1, "id": "b", "type": "function", "function": g("[") }, { "index": 0, "function": more("{") }]),
        json!([{ "index": 0, "function": more("}") }, { "index": 1, "function": more("1]") }]),
    ];
    assert_eq!(calls(&usual), expected);
    // Whole calls, all with the index 0, with none, or with id and name in every piece.
    let zero = json!([{ "index": 0, "id": "a", "function": f("{}") }, { "index": 0, "id": "b", "function": g("[1]") }]);
    assert_eq!(calls(&[zero]), expected);
    let none = [
        json!([{ "id": "a", "function": f("{}") }]),
        json!([{ "id": "b", "function": g("[") }]),
        json!([{ "function": more("1]") }]),
    ];
    assert_eq!(calls(&none), expected);
    let repeated = [
        json!([{ "index": 0, "id": "a", "function": f("{") }]),
        json!([{ "index": 0, "id": "a", "function": f("}") }]),
        json!([{ "index": 7, "id": "b", "function": g("[1]") }]),
    ];
    assert_eq!(calls(&repeated), expected);
    let nameless = [json!([{ "index": 0, "function": f("{}") }])];
    assert_eq!(calls(&nameless), [call("call_0_0", "f", "{}")]);
}

#[test]
fn a_broken_call_or_too_much_is_an_error() {
    for wrong in [
        json!([{ "index": 0, "id": "a", "function": {} }]),
        json!([{ "index": -1, "id": "a", "function": { "name": "f" } }]),
        json!({}),
        json!([1]),
    ] {
        assert!(stream(&[delta(json!({ "tool_calls": wrong }))]).is_err(), "{wrong}");
    }
    let many: Vec<Value> =
        (0..1025).map(|i| json!({ "index": i, "id": i.to_string(), "function": { "name": "f" } })).collect();
    assert!(stream(&[delta(json!({ "tool_calls": many }))]).expect_err("too many").contains("1024"));
    assert!(stream(&[json!({ "choices": [{ "index": 128, "delta": {} }] })]).is_err());
}

#[test]
fn what_is_only_unknown_does_not_cost_the_answer() {
    let odd = |call: Value| delta(json!({ "tool_calls": [call] }));
    let reply = stream(&[
        odd(json!({ "index": 0, "id": "a", "type": "odd", "odd": { "name": "f", "input": "" } })),
        json!({ "choices": [{ "index": 0, "delta": { "content": "a" }, "finish_reason": "" }] }),
        delta(json!({ "content": [{ "type": "text", "text": "b" }, { "type": "odd" }, "c"], "reasoning": {} })),
        json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "out_of_breath", "logprobs": 1 }] }),
        json!({ "choices": [], "usage": { "prompt_tokens": 5.0, "completion_tokens": -1, "prompt_tokens_details": "x" } }),
        json!({ "choices": [], "usage": "much", "prompt_token_ids": "x" }),
    ])
    .expect("readable");
    assert_eq!(reply.choices[0].parts, [Part::Text("abc".to_owned())]);
    assert_eq!(reply.choices[0].stop, Some(Stop::End));
    assert_eq!(reply.usage, Some(Usage { input: 5, ..Usage::default() }));
    let message = json!({ "content": [{ "type": "text", "text": "a" }], "tool_calls": [{ "id": "a", "type": "odd" }] });
    let body = json!({ "choices": [{ "message": message, "finish_reason": "tool_calls" }] });
    let whole = read_whole(&body).expect("readable");
    assert_eq!(crate::answers::reply(&whole).choices[0].parts, [Part::Text("a".to_owned())]);
}

#[test]
fn an_upstream_that_stops_in_the_middle_or_reports_an_error_is_an_error() {
    assert!(stream(&[]).is_err());
    assert!(stream(&[json!({ "choices": [] })]).is_err());
    assert!(stream(&[delta(json!({ "content": "a" }))]).expect_err("cut").contains("choice 0"));
    let error = json!({ "error": { "message": "overloaded", "code": 503 } });
    assert_eq!(stream(std::slice::from_ref(&error)).expect_err("error"), "the provider reports: overloaded");
    assert_eq!(read_whole(&error).expect_err("error"), "the provider reports: overloaded");
    let older = json!({ "object": "error", "message": "overloaded", "code": 503 });
    assert_eq!(read_whole(&older).expect_err("error"), "the provider reports: overloaded");
    let named = SseEvent { event: Some("error".to_owned()), data: json!({ "message": "overloaded" }).to_string() };
    assert_eq!(Reader::new().push(&named).expect_err("error"), "the provider reports: overloaded");
    assert!(stream(&[end("insufficient_system_resource")]).expect_err("broken off").contains("insufficient"));
    assert!(read_whole(&json!({ "choices": [{ "message": { "content": "a" } }] })).is_err());
    assert!(read_whole(&json!([])).is_err());
}

#[test]
fn variants_of_open_servers_are_read() {
    let chunks = [
        json!({ "choices": [], "prompt_filter_results": [] }),
        delta(json!({ "role": "assistant", "content": null, "reasoning": "hm" })),
        delta(
            json!({ "reasoning": "m", "reasoning_details": [{ "type": "reasoning.text", "text": "m", "signature": "s" }] }),
        ),
        delta(json!({ "content": "a" })),
        json!({ "choices": [{ "index": 0, "delta": null, "finish_reason": "stop", "stop_reason": "END" }] }),
        json!({ "choices": null, "usage": { "prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": null } }),
    ];
    let reply = stream(&chunks).expect("readable");
    let thought = Part::Reasoning { text: "hmm".to_owned(), signature: Some("s".to_owned()) };
    assert_eq!(reply.choices[0].parts, [thought, Part::Text("a".to_owned())]);
    assert_eq!(reply.choices[0].stop, Some(Stop::Sequence("END".to_owned())));
    assert_eq!(reply.usage, Some(Usage { input: 3, output: 2, ..Usage::default() }));
}

#[test]
fn a_forced_call_that_ends_with_stop_waits_for_its_result() {
    let message =
        json!({ "tool_calls": [{ "id": "a", "type": "function", "function": { "name": "f", "arguments": "{}" } }] });
    let body = json!({ "choices": [{ "index": 0, "message": message, "finish_reason": "stop" }] });
    assert_eq!(reply(&read_whole(&body).expect("readable")).choices[0].stop, Some(Stop::Calls));
}

#[test]
fn an_answer_cut_within_arguments_keeps_them_and_says_so() {
    let start = Piece::CallStart { call: 0, id: "a".to_owned(), name: "f".to_owned() };
    let pieces = vec![start, Piece::CallArguments { call: 0, text: "{\"a\": \"b".to_owned() }];
    let events =
        [Event::Delta { choice: 0, pieces, tokens: vec![] }, Event::Finished { choice: 0, stop: Stop::Length }];
    let body = whole(&ask(), &envelope(), &reply(&events));
    let choice = &body["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["message"]["content"], Value::Null);
    assert_eq!(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"a\": \"b");
}

fn ask() -> Ask {
    Ask::new("m", Input::Turns(Vec::new()))
}

fn token(text: &str) -> TokenInfo {
    TokenInfo {
        id: Some(5),
        text: text.to_owned(),
        bytes: text.into(),
        logprob: -0.5,
        top: Vec::new(),
        recorded: Vec::new(),
    }
}

fn text(pieces: &[&str], tokens: Vec<TokenInfo>) -> Event {
    Event::Delta { choice: 0, pieces: pieces.iter().map(|text| Piece::Text((*text).to_owned())).collect(), tokens }
}

fn body(frame: &Frame) -> &Value {
    match &frame.data {
        FrameData::Json(value) => value,
        FrameData::Done => panic!("an end"),
    }
}

#[test]
fn a_token_without_text_is_a_chunk_only_for_those_who_asked_for_tokens() {
    let mut plain = Writer::new(&ask(), envelope());
    plain.push(&Event::Started { prompt: Some(vec![1]) });
    assert_eq!(plain.push(&text(&[""], vec![token("")])), []);
    let wants = Ask { logprobs: Some(0), return_token_ids: true, ..ask() };
    let mut writer = Writer::new(&wants, envelope());
    let opening = writer.push(&Event::Started { prompt: Some(vec![1]) });
    assert_eq!(body(&opening[0])["prompt_token_ids"], json!([1]));
    let frames = writer.push(&text(&[], vec![token("")]));
    let choice = &body(&frames[0])["choices"][0];
    assert_eq!((&choice["delta"], &choice["token_ids"]), (&json!({ "content": "" }), &json!([5])));
    let probs =
        json!({ "content": [{ "token": "", "bytes": [], "logprob": -0.5, "top_logprobs": [] }], "refusal": null });
    assert_eq!(choice["logprobs"], probs);
    let impossible = TokenInfo { logprob: f32::NEG_INFINITY, ..token("a") };
    let frames = writer.push(&text(&["a"], vec![impossible]));
    assert_eq!(body(&frames[0])["choices"][0]["logprobs"]["content"][0]["logprob"], json!(-9999.0));
}

#[test]
fn a_failed_stream_ends_with_the_error_and_done_and_nothing_after() {
    let mut writer = Writer::new(&ask(), envelope());
    writer.push(&text(&["a"], vec![]));
    let frames = writer.fail("internal", "it broke", "server_error");
    let error =
        json!({ "error": { "message": "it broke", "type": "server_error", "param": null, "code": "internal" } });
    assert_eq!((body(&frames[0]), &frames[1].data), (&error, &FrameData::Done));
    assert!(writer.push(&text(&["b"], vec![])).is_empty());
    assert!(writer.close().is_empty() && writer.fail("a", "b", "c").is_empty());
}

#[test]
fn a_choice_that_never_finished_ends_as_cancelled_and_stands_in_the_object() {
    let mut writer = Writer::new(&ask(), envelope());
    writer.push(&Event::Started { prompt: None });
    assert_eq!(body(&writer.close()[0])["choices"][0]["finish_reason"], "cancelled");
    let cut = Reply { choices: vec![Choice { stop: Some(Stop::Cancelled), ..Choice::default() }], ..Reply::default() };
    assert_eq!(whole(&ask(), &envelope(), &cut)["choices"][0]["finish_reason"], "cancelled");
    assert_eq!(whole(&ask(), &envelope(), &Reply::default())["choices"][0]["message"]["content"], "");
}
