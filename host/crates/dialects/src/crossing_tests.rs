//! What upstreams say in one dialect and clients hear in another, case by case; properties are in `translation_tests`.

use serde_json::{Value, json};

use crate::answers::envelope;
use crate::ask::{Ask, Input};
use crate::dialect::Dialect;
use crate::reply::{Event, Piece, Reply, Stop};
use crate::sse::SseEvent;

fn ask() -> Ask {
    Ask { stream: true, include_usage: true, ..Ask::new("m", Input::Text("hi".to_owned())) }
}

fn read(dialect: Dialect, frames: &[Value]) -> Vec<Event> {
    let mut reader = dialect.reader("x1");
    let frames = frames.iter().map(|data| SseEvent { event: None, data: data.to_string() });
    let mut events: Vec<Event> = frames.flat_map(|frame| reader.push(&frame).expect("readable")).collect();
    events.extend(reader.finish().expect("whole"));
    events
}

/// The stream and the object that a client of the dialect gets.
fn told(dialect: Dialect, events: &[Event]) -> (String, Value) {
    let mut reply = Reply::default();
    events.iter().for_each(|event| reply.push(event));
    let mut writer = dialect.writer(&ask(), envelope());
    let mut frames: Vec<_> = events.iter().flat_map(|event| writer.push(event)).collect();
    frames.extend(writer.close());
    (frames.iter().map(crate::Frame::to_sse).collect(), dialect.whole(&ask(), &envelope(), &reply))
}

fn written(from: Dialect, to: Dialect, body: &Value) -> Value {
    to.write(&from.parse(body.as_object().expect("object")).expect("parsed"), "up", false).expect("written")
}

fn custom_chunks() -> Vec<Value> {
    let chunk = |delta: Value| json!({ "choices": [{ "index": 0, "delta": delta }] });
    vec![
        chunk(
            json!({ "tool_calls": [{ "index": 0, "id": "c1", "type": "custom", "custom": { "name": "patch", "input": "*** " } }] }),
        ),
        chunk(json!({ "tool_calls": [{ "index": 0, "custom": { "input": "Begin" } }] })),
        json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "tool_calls" }] }),
    ]
}

#[test]
fn a_custom_tools_call_goes_from_chat_to_responses_and_back() {
    let events = read(Dialect::Chat, &custom_chunks());
    let (stream, whole) = told(Dialect::Responses, &events);
    let item = &whole["output"][0];
    assert_eq!((&item["type"], &item["call_id"]), (&json!("custom_tool_call"), &json!("c1")));
    assert_eq!((&item["name"], &item["input"]), (&json!("patch"), &json!("*** Begin")));
    assert!(
        stream.contains("response.custom_tool_call_input.delta") && stream.contains("\"input\":\"*** Begin\""),
        "{stream}"
    );
    let back = [
        json!({ "type": "response.output_item.added", "output_index": 0, "item": { "type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "" } }),
        json!({ "type": "response.custom_tool_call_input.delta", "output_index": 0, "delta": "*** Begin" }),
        json!({ "type": "response.completed", "response": { "status": "completed", "output": [] } }),
    ];
    let (stream, whole) = told(Dialect::Chat, &read(Dialect::Responses, &back));
    let call = json!({ "id": "c1", "type": "custom", "custom": { "name": "patch", "input": "*** Begin" } });
    assert_eq!(whole["choices"][0]["message"]["tool_calls"], json!([call]));
    assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls");
    assert!(stream.contains("\"type\":\"custom\"") && stream.contains("\"input\":\"*** Begin\""), "{stream}");
}

#[test]
fn custom_tools_and_the_history_of_their_calls_go_both_ways() {
    let responses = json!({
        "model": "m",
        "tools": [{ "type": "custom", "name": "patch", "description": "d", "format": { "type": "grammar", "syntax": "lark", "definition": "x" } }],
        "input": [
            { "role": "user", "content": "hi" },
            { "type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "in" },
            { "type": "custom_tool_call_output", "call_id": "c1", "output": "out" },
        ],
    });
    let chat = written(Dialect::Responses, Dialect::Chat, &responses);
    let format = json!({ "type": "grammar", "grammar": { "syntax": "lark", "definition": "x" } });
    let tool = json!({ "type": "custom", "custom": { "name": "patch", "description": "d", "format": format } });
    assert_eq!(chat["tools"], json!([tool]));
    let call = json!({ "id": "c1", "type": "custom", "custom": { "name": "patch", "input": "in" } });
    assert_eq!(chat["messages"][1]["tool_calls"], json!([call]));
    assert_eq!(chat["messages"][2], json!({ "role": "tool", "tool_call_id": "c1", "content": "out" }));
    let back = written(Dialect::Chat, Dialect::Responses, &chat);
    assert_eq!(back["tools"], responses["tools"]);
    let items = back["input"].as_array().expect("items");
    assert_eq!(items[1..], responses["input"].as_array().expect("items")[1..]);
}

#[test]
fn what_the_clients_dialect_cannot_say_is_an_error_and_an_older_call_is_none() {
    let events = read(Dialect::Chat, &custom_chunks());
    assert!(Dialect::Messages.check_says(&events).expect_err("no word").contains("custom"));
    assert_eq!(Dialect::Responses.check_says(&events), Ok(()));
    let older = json!({ "choices": [{ "message": { "function_call": { "name": "f", "arguments": "{}" } }, "finish_reason": "function_call" }] });
    let events = Dialect::Chat.read_whole(&older, "x1").expect("readable");
    assert_eq!(Dialect::Messages.check_says(&events), Ok(()));
    let (_, whole) = told(Dialect::Messages, &events);
    assert_eq!(whole["content"], json!([{ "type": "tool_use", "id": "call_x1_0_0", "name": "f", "input": {} }]));
    assert!(Dialect::Completions.check_says(&events).is_err());
    let paused = json!({ "content": [{ "type": "server_tool_use", "id": "s", "name": "web_search", "input": {} }], "stop_reason": "pause_turn" });
    let events = Dialect::Messages.read_whole(&paused, "x1").expect("readable");
    for client in [Dialect::Chat, Dialect::Responses] {
        assert!(client.check_says(&events).expect_err("no word").contains("server_tool_use"));
    }
    let stop = json!({ "content": [], "stop_reason": "pause_turn" });
    let events = Dialect::Messages.read_whole(&stop, "x1").expect("readable");
    assert!(Dialect::Chat.check_says(&events).expect_err("no word").contains("pause_turn"));
    let searched = json!({ "status": "completed", "output": [{ "type": "web_search_call", "id": "w" }] });
    let events = Dialect::Responses.read_whole(&searched, "x1").expect("readable");
    assert!(Dialect::Chat.check_says(&events).expect_err("no word").contains("web_search_call"));
}

#[test]
fn thinking_parts_are_reasoning() {
    let content = json!([{ "type": "thinking", "thinking": [{ "type": "text", "text": "hm" }] }, { "type": "text", "text": "yes" }]);
    let body = json!({ "choices": [{ "message": { "content": content }, "finish_reason": "stop" }] });
    let (_, whole) = told(Dialect::Messages, &Dialect::Chat.read_whole(&body, "x1").expect("readable"));
    assert_eq!((&whole["content"][0]["thinking"], &whole["content"][1]["text"]), (&json!("hm"), &json!("yes")));
}

#[test]
fn tokens_written_into_a_cache_are_counted_apart() {
    let usage = json!({ "input_tokens": 6, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 3, "output_tokens": 2 });
    let frames = [
        json!({ "type": "message_start", "message": { "usage": usage } }),
        json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn" }, "usage": { "output_tokens": 2 } }),
    ];
    let whole = json!({ "content": [], "stop_reason": "end_turn", "usage": usage });
    for events in [read(Dialect::Messages, &frames), Dialect::Messages.read_whole(&whole, "x1").expect("readable")] {
        let (stream, own) = told(Dialect::Messages, &events);
        for (field, count) in [("input_tokens", 6), ("cache_read_input_tokens", 4), ("cache_creation_input_tokens", 3)]
        {
            assert_eq!(own["usage"][field], count, "{field}");
            assert!(stream.contains(&format!("\"{field}\":{count}")), "{stream}");
        }
        let (_, theirs) = told(Dialect::Responses, &events);
        let details = json!({ "cached_tokens": 4, "cache_write_tokens": 3 });
        assert_eq!(
            (&theirs["usage"]["input_tokens"], &theirs["usage"]["input_tokens_details"]),
            (&json!(13), &details)
        );
        let (stream, theirs) = told(Dialect::Chat, &events);
        assert_eq!(
            (&theirs["usage"]["prompt_tokens"], &theirs["usage"]["prompt_tokens_details"]),
            (&json!(13), &details)
        );
        let (_, back) = told(Dialect::Messages, &Dialect::Chat.read_whole(&theirs, "x1").expect("readable"));
        assert_eq!(back["usage"]["cache_creation_input_tokens"], 3, "{stream}");
    }
}

#[test]
fn an_answer_that_failed_says_the_same_of_its_items_in_the_stream_and_in_the_record() {
    let text = Event::Delta { choice: 0, pieces: vec![Piece::Text("a".to_owned())], tokens: Vec::new() };
    let mut writer = Dialect::Responses.writer(&ask(), envelope());
    writer.push(&text);
    let frames = writer.fail("c", "m", "server_error");
    let crate::FrameData::Json(last) = &frames.last().expect("an end").data else { panic!("no JSON") };
    let mut reply = Reply::default();
    reply.push(&text);
    let record = Dialect::Responses.whole(&ask(), &envelope(), &reply);
    assert_eq!(last["response"]["output"][0]["status"], "incomplete");
    assert_eq!(record["output"], last["response"]["output"]);
    assert_eq!(record["status"], last["response"]["status"]);
}

#[test]
fn what_is_said_after_the_end_reaches_nobody() {
    let text = |text: &str| Event::Delta { choice: 0, pieces: vec![Piece::Text(text.to_owned())], tokens: Vec::new() };
    let events = [text("one"), Event::Finished { choice: 0, stop: Stop::End }, text("two")];
    for client in Dialect::ALL {
        let (stream, _) = told(client, &events);
        assert!(stream.contains("one") && !stream.contains("two"), "{client:?}: {stream}");
    }
    let say = |text: &str| json!({ "choices": [{ "index": 0, "delta": { "content": text } }] });
    let stop = json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "stop" }] });
    let (_, whole) = told(Dialect::Chat, &read(Dialect::Chat, &[say("one"), stop.clone(), say("two"), stop]));
    assert_eq!(whole["choices"][0]["message"]["content"], "one");
}

#[test]
fn a_failed_result_says_so_where_there_is_no_other_word() {
    let body = json!({
        "model": "m", "max_tokens": 9,
        "messages": [
            { "role": "user", "content": "hi" },
            { "role": "assistant", "content": [{ "type": "tool_use", "id": "a", "name": "f", "input": {} }] },
            { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "a", "content": "no file", "is_error": true }] },
        ],
    });
    assert_eq!(written(Dialect::Messages, Dialect::Chat, &body)["messages"][2]["content"], "The tool failed: no file");
    assert_eq!(written(Dialect::Messages, Dialect::Responses, &body)["input"][2]["output"], "The tool failed: no file");
}

#[test]
fn a_refused_field_is_named_as_the_client_wrote_it() {
    let body = json!({ "model": "m", "max_tokens": 9, "messages": [{ "role": "user", "content": "hi" }], "stop_sequences": ["x"] });
    let ask = Dialect::Messages.parse(body.as_object().expect("object")).expect("parsed");
    assert_eq!(Dialect::Responses.write(&ask, "up", false).expect_err("refused").param, "stop_sequences");
    let body = json!({ "model": "m", "input": "hi", "text": { "format": { "type": "json_object" } } });
    let ask = Dialect::Responses.parse(body.as_object().expect("object")).expect("parsed");
    assert_eq!(Dialect::Messages.write(&ask, "up", false).expect_err("refused").param, "text.format");
}

#[test]
fn an_answer_in_responses_repeats_what_its_client_sent() {
    let body = json!({ "model": "m", "input": "hi", "instructions": "be brief", "user": "u", "reasoning": { "effort": "low", "summary": "auto" }, "text": { "verbosity": "low" } });
    let ask = Dialect::Responses.parse(body.as_object().expect("object")).expect("parsed");
    let whole = Dialect::Responses.whole(&ask, &envelope(), &Reply::default());
    assert_eq!((&whole["instructions"], &whole["user"]), (&json!("be brief"), &json!("u")));
    assert_eq!((&whole["reasoning"]["summary"], &whole["text"]["verbosity"]), (&json!("auto"), &json!("low")));
    let same = Dialect::Responses.write(&ask, "up", true).expect("written");
    assert!(same.get("instructions").is_none() && same["input"].to_string().contains("be brief"), "{same}");
}

#[test]
fn a_user_may_say_nothing_and_a_result_needs_its_call() {
    for content in [json!(""), json!([]), Value::Null] {
        for (dialect, more) in [(Dialect::Messages, json!(9)), (Dialect::Chat, Value::Null)] {
            let body =
                json!({ "model": "m", "max_tokens": more, "messages": [{ "role": "user", "content": content }] });
            assert!(dialect.parse(body.as_object().expect("object")).is_ok(), "{dialect:?}: {content}");
        }
    }
    for id in [Value::Null, json!("")] {
        let body = json!({ "model": "m", "messages": [{ "role": "user", "content": "a" }, { "role": "tool", "tool_call_id": id, "content": "b" }] });
        let refused = Dialect::Chat.parse(body.as_object().expect("object")).expect_err("no call");
        assert_eq!(refused.param, "messages[1].tool_call_id");
    }
}
