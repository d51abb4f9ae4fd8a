//! Streams as upstreams send them, passed on: what a client reads is what was sent, and nothing terminal leaves early.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::answers::{Answer, answer, envelope, reply, sent};
use crate::ask::{Ask, Input};
use crate::dialect::Dialect;
use crate::relay::{Relay, whole};
use crate::reply::{Envelope, Event, Reply};
use crate::sse::{SseEvent, SseReader};

const DIALECTS: [Dialect; 3] = [Dialect::Chat, Dialect::Messages, Dialect::Responses];

fn ask(include_usage: bool) -> Ask {
    Ask { stream: true, include_usage, ..Ask::new("m", Input::Text("hi".to_owned())) }
}

/// What an upstream of the dialect sends, with a field that nobody knows and another receipt.
fn upstream(dialect: Dialect, answer: &Answer, seed: u64) -> Vec<SseEvent> {
    let mut writer = dialect.writer(&ask(true), Envelope { receipt: "theirs".to_owned(), ..envelope() });
    let mut frames: Vec<_> = answer.events(seed).iter().flat_map(|event| writer.push(event)).collect();
    frames.extend(writer.close());
    let mut frames = sent(&frames, seed);
    for frame in &mut frames {
        let Ok(mut data) = serde_json::from_str::<Value>(&frame.data) else { continue };
        data["odd"] = json!({ "kept": true });
        data.as_object_mut().expect("object").remove("reef");
        frame.data = data.to_string();
    }
    // A chunk that held nothing but their receipt is nothing that an upstream sends.
    frames.retain(|frame| {
        dialect != Dialect::Chat || !frame.data.contains("\"choices\":[]") || frame.data.contains("\"usage\"")
    });
    frames
}

/// The text that leaves at once, and that which waits for the record.
fn relayed(dialect: Dialect, ask: &Ask, frames: &[SseEvent]) -> (String, String) {
    let (mut relay, mut reader) = (Relay::new(dialect, ask, envelope()), dialect.reader(""));
    let mut now = String::new();
    for frame in frames {
        let events = reader.push(frame).expect("readable");
        now.push_str(&relay.push(frame.clone(), &events).concat());
    }
    (now, relay.close().concat())
}

fn read_events(text: &str) -> Vec<SseEvent> {
    let mut reader = SseReader::new(1 << 20);
    let mut events = reader.push(text.as_bytes()).expect("short");
    events.extend(reader.finish());
    events
}

fn heard(dialect: Dialect, frames: &[SseEvent]) -> Reply {
    let mut reader = dialect.reader("");
    let mut events: Vec<Event> = frames.iter().flat_map(|frame| reader.push(frame).expect("readable")).collect();
    events.extend(reader.finish().expect("complete"));
    reply(&events)
}

proptest! {
    #[test]
    fn a_client_reads_what_the_upstream_said(answer in answer(), seed in any::<u64>()) {
        for dialect in DIALECTS {
            let frames = upstream(dialect, &answer, seed);
            let (now, later) = relayed(dialect, &ask(true), &frames);
            let passed = read_events(&format!("{now}{later}"));
            prop_assert_eq!(heard(dialect, &passed), heard(dialect, &frames));
            prop_assert!(later.contains("\"agent_record_id\":\"r1\""), "{}", later);
            for (frame, passed) in frames.iter().zip(read_events(&now)) {
                prop_assert_eq!(frame, &passed);
            }
            for end in ["finish_reason\":\"", "[DONE]", "message_delta", "response.completed", "response.incomplete"] {
                prop_assert!(!now.contains(end), "{}", now);
            }
        }
    }

    #[test]
    fn an_answer_that_fails_has_an_end_of_its_own(answer in answer(), seed in any::<u64>(), cut in any::<prop::sample::Index>()) {
        for dialect in DIALECTS {
            let frames = upstream(dialect, &answer, seed);
            let frames = &frames[..cut.index(frames.len())];
            let (mut relay, mut reader) = (Relay::new(dialect, &ask(false), envelope()), dialect.reader(""));
            let mut text = String::new();
            for frame in frames {
                let events = reader.push(frame).expect("readable");
                text.push_str(&relay.push(frame.clone(), &events).concat());
            }
            text.push_str(&relay.fail("c", "m", "server_error").concat());
            prop_assert!(relay.close().is_empty() && relay.fail("c", "m", "k").is_empty());
            let passed = read_events(&text);
            let last = passed.last().expect("an end");
            match dialect {
                Dialect::Messages => {
                    prop_assert_eq!(last.event.as_deref(), Some("error"));
                    let count = |name: &str| passed.iter().filter(|frame| frame.event.as_deref() == Some(name)).count();
                    prop_assert_eq!(count("content_block_start"), count("content_block_stop"));
                }
                Dialect::Responses => {
                    prop_assert_eq!(last.event.as_deref(), Some("response.failed"));
                    for (number, frame) in passed.iter().enumerate() {
                        let data: Value = serde_json::from_str(&frame.data).expect("JSON");
                        prop_assert_eq!(&data["sequence_number"], &json!(number));
                    }
                }
                _ => prop_assert_eq!(last.data.as_str(), "[DONE]"),
            }
        }
    }
}

fn events_of(lines: &[&str]) -> Vec<SseEvent> {
    lines.iter().map(|data| SseEvent { event: None, data: (*data).to_owned() }).collect()
}

#[test]
fn the_receipt_is_a_chunk_before_usage_and_usage_goes_only_to_who_asked() {
    let frames = events_of(&[
        r#"{"id":"c1","model":"theirs","choices":[{"index":0,"delta":{"content":"a"}}],"x_odd":1,"usage":null}"#,
        r#"{"id":"c1","model":"theirs","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
        r#"{"id":"c1","model":"theirs","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}"#,
        "[DONE]",
    ]);
    for (wanted, length) in [(true, 4), (false, 3)] {
        let (now, later) = relayed(Dialect::Chat, &ask(wanted), &frames);
        assert_eq!(now, format!("data: {}\n\n", frames[0].data));
        let later = read_events(&later);
        assert_eq!(later.len(), length, "{later:?}");
        assert_eq!(later[0], frames[1]);
        let receipt: Value = serde_json::from_str(&later[1].data).expect("JSON");
        let reef = json!({ "agent_record_id": "r1", "release_id": "rel" });
        assert_eq!(receipt, json!({ "id": "c1", "model": "theirs", "choices": [], "reef": reef }));
        assert_eq!(later.last().expect("an end").data, "[DONE]");
    }
}

#[test]
fn an_upstream_that_forgets_its_end_is_helped() {
    let chunk = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
    let (_, later) = relayed(Dialect::Chat, &ask(false), &events_of(&[chunk]));
    assert!(later.ends_with("data: [DONE]\n\n") && later.contains("agent_record_id"));
    let delta = r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"}}"#;
    let (_, later) = relayed(Dialect::Messages, &ask(false), &events_of(&[delta]));
    assert!(later.contains("event: message_stop") && later.contains("agent_record_id"));
}

#[test]
fn an_end_of_what_is_not_complete_is_held_and_dropped_when_the_answer_fails() {
    let begun = r#"{"choices":[{"index":0,"delta":{"content":"a"}}]}"#;
    for (dialect, frames) in [
        (Dialect::Chat, events_of(&[begun, "[DONE]"])),
        (Dialect::Messages, events_of(&[r#"{"type":"message_start"}"#, r#"{"type":"message_stop"}"#])),
        (
            Dialect::Messages,
            events_of(&[r#"{"type":"message_start"}"#, r#"{"type":"message_delta","delta":{"stop_reason":null}}"#]),
        ),
    ] {
        let (mut relay, mut reader) = (Relay::new(dialect, &ask(false), envelope()), dialect.reader(""));
        let leave: Vec<Vec<String>> =
            frames.iter().map(|frame| relay.push(frame.clone(), &reader.push(frame).expect("readable"))).collect();
        assert!(reader.finish().is_err(), "{frames:?}");
        assert_eq!((leave[0].len(), leave[1].len()), (1, 0), "{frames:?}");
        let failed = relay.fail("c", "m", "server_error").concat();
        assert!(failed.contains("error") && failed.matches("[DONE]").count() <= 1, "{failed}");
        assert!(!failed.contains("message_stop") && !failed.contains("message_delta"), "{failed}");
    }
    for kind in ["completed", "incomplete", "cancelled", "failed"] {
        let mut relay = Relay::new(Dialect::Responses, &ask(false), envelope());
        let frame = SseEvent { event: Some(format!("response.{kind}")), data: r#"{"response":{}}"#.to_owned() };
        assert!(relay.push(frame, &[]).is_empty(), "{kind}");
    }
    let says_so = r#"{"type":"response.output_text.delta","delta":"response.completed"}"#;
    let mut relay = Relay::new(Dialect::Responses, &ask(false), envelope());
    assert_eq!(relay.push(events_of(&[says_so]).remove(0), &[]).len(), 1);
}

#[test]
fn several_lines_of_data_stay_several_lines() {
    let frames = [SseEvent { event: Some("e".to_owned()), data: "{\"choices\":\n[]}".to_owned() }];
    let (now, _) = relayed(Dialect::Chat, &ask(false), &frames);
    assert_eq!(now, "event: e\ndata: {\"choices\":\ndata: []}\n\n");
}

#[test]
fn a_whole_answer_keeps_what_nobody_knows() {
    let raw = json!({ "id": "theirs", "odd": 1 });
    let reef = json!({ "agent_record_id": "r1", "release_id": "rel" });
    assert_eq!(whole(raw, &envelope()), json!({ "id": "theirs", "odd": 1, "reef": reef }));
}

/// What is passed on and held of frames that went through nothing, and the record of them.
fn recorded(dialect: Dialect, frames: &[Value]) -> Value {
    let (mut relay, mut reader) = (Relay::new(dialect, &ask(true), envelope()), dialect.reader(""));
    for data in frames {
        let frame = SseEvent { event: None, data: data.to_string() };
        let events = reader.push(&frame).expect("readable");
        relay.push(frame, &events);
    }
    relay.whole().expect("frames")
}

#[test]
fn the_record_of_a_stream_says_what_went_over_the_wire() {
    let item = |kind: &str| json!({ "type": kind, "id": kind, "call_id": "c", "name": "n", "input": "in", "odd": 1 });
    let frames = [
        json!({ "type": "response.created", "response": { "id": "theirs", "status": "in_progress", "output": [] } }),
        json!({ "type": "response.output_item.done", "output_index": 0, "item": item("web_search_call") }),
        json!({ "type": "response.output_item.done", "output_index": 1, "item": item("custom_tool_call") }),
        json!({ "type": "response.completed", "response": { "id": "theirs", "status": "completed", "output": [] } }),
    ];
    let record = recorded(Dialect::Responses, &frames);
    assert_eq!(record["output"], json!([item("web_search_call"), item("custom_tool_call")]));
    assert_eq!((&record["id"], &record["reef"]["agent_record_id"]), (&json!("theirs"), &json!("r1")));
    let frames = [
        json!({ "type": "message_start", "message": { "id": "theirs", "content": [], "usage": { "input_tokens": 6, "cache_creation_input_tokens": 3 } } }),
        json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "server_tool_use", "id": "s", "name": "web_search", "input": {} } }),
        json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "input_json_delta", "partial_json": "{\"q\":1}" } }),
        json!({ "type": "content_block_stop", "index": 0 }),
        json!({ "type": "message_delta", "delta": { "stop_reason": "model_context_window_exceeded" }, "usage": { "output_tokens": 2 } }),
        json!({ "type": "message_stop" }),
    ];
    let record = recorded(Dialect::Messages, &frames);
    assert_eq!(record["stop_reason"], "model_context_window_exceeded");
    assert_eq!(
        record["content"],
        json!([{ "type": "server_tool_use", "id": "s", "name": "web_search", "input": { "q": 1 } }])
    );
    assert_eq!(record["usage"], json!({ "input_tokens": 6, "cache_creation_input_tokens": 3, "output_tokens": 2 }));
    let chunk = |delta: Value| json!({ "id": "theirs", "object": "chat.completion.chunk", "choices": [{ "index": 0, "delta": delta }] });
    let frames = [
        chunk(json!({ "role": "assistant", "function_call": { "name": "f", "arguments": "{" } })),
        chunk(json!({ "function_call": { "arguments": "}" } })),
        json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "weird" }] }),
    ];
    let record = recorded(Dialect::Chat, &frames);
    let choice = &record["choices"][0];
    assert_eq!((&choice["finish_reason"], &record["object"]), (&json!("weird"), &json!("chat.completion")));
    assert_eq!(choice["message"], json!({ "role": "assistant", "function_call": { "name": "f", "arguments": "{}" } }));
}

proptest! {
    #[test]
    fn the_record_reads_as_the_stream_did(answer in answer(), seed in any::<u64>()) {
        for dialect in [Dialect::Messages, Dialect::Responses] {
            let frames = upstream(dialect, &answer, seed);
            let data: Vec<Value> = frames.iter().map(|frame| serde_json::from_str(&frame.data).expect("JSON")).collect();
            let events = dialect.read_whole(&recorded(dialect, &data), "").expect("readable");
            prop_assert_eq!(reply(&events), heard(dialect, &frames));
        }
    }
}

#[test]
fn a_choice_goes_on_while_the_end_of_another_waits() {
    let say =
        |number: u64, text: &str| json!({ "choices": [{ "index": number, "delta": { "content": text } }] }).to_string();
    let end =
        |number: u64| json!({ "choices": [{ "index": number, "delta": {}, "finish_reason": "stop" }] }).to_string();
    let both = json!({ "choices": [
        { "index": 0, "delta": {}, "finish_reason": "stop" },
        { "index": 1, "delta": { "content": "three" } },
    ] });
    let lines = [say(0, "one"), say(1, "two"), both.to_string(), say(1, "four"), end(1)];
    let (now, later) = relayed(Dialect::Chat, &ask(false), &events_of(&lines.each_ref().map(String::as_str)));
    for text in ["one", "two", "three", "four"] {
        assert!(now.contains(text) && !later.contains(text), "{now} {later}");
    }
    assert!(!now.contains("\"stop\"") && later.matches("\"stop\"").count() == 2, "{now} {later}");
}

#[test]
fn a_response_that_fails_tells_what_was_said() {
    let frames = [
        json!({ "type": "response.created", "response": { "id": "theirs", "output": [] } }),
        json!({ "type": "response.output_item.added", "output_index": 0, "item": { "type": "message", "status": "in_progress", "content": [] } }),
        json!({ "type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "said" }),
    ];
    let mut relay = Relay::new(Dialect::Responses, &ask(false), envelope());
    for data in &frames {
        relay.push(SseEvent { event: None, data: data.to_string() }, &[]);
    }
    let record = relay.whole().expect("frames");
    let frames = read_events(&relay.fail("c", "m", "server_error").concat());
    let failed: Value = serde_json::from_str(&frames.last().expect("an end").data).expect("JSON");
    let item = &failed["response"]["output"][0];
    assert_eq!((&item["status"], &item["content"][0]["text"]), (&json!("incomplete"), &json!("said")));
    assert_eq!((&failed["response"]["status"], &record["output"][0]), (&json!("failed"), item));
}
