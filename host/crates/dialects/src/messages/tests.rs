//! The messages dialect as a whole: bodies, streams, and what comes back of both.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;
use crate::answers::{Answer, answer, envelope, json_value, reply, sent};
use crate::ask::{Ask, Format, Input, Part, Refusal, Role, ToolChoice, Turn};
use crate::reply::{Event, Frame, FrameData, Piece, Reply, Stop};
use crate::sse::SseEvent;

fn map(value: Value) -> Map<String, Value> {
    value.as_object().expect("object").clone()
}

fn base() -> Map<String, Value> {
    map(json!({ "model": "m", "max_tokens": 9, "messages": [{ "role": "user", "content": "hi" }] }))
}

fn with(field: &str, value: Value) -> Result<Ask, Refusal> {
    let mut body = base();
    body.insert(field.to_owned(), value);
    parse(&body)
}

fn refused(field: &str, value: Value) -> String {
    with(field, value.clone()).expect_err(&format!("{field}: {value}")).param
}

fn turns(messages: Value) -> Vec<Turn> {
    match with("messages", messages).expect("messages").input {
        Input::Turns(turns) => turns,
        other => panic!("{other:?}"),
    }
}

fn text(text: &str) -> Part {
    Part::Text(text.to_owned())
}

fn kinds(frames: &[Frame]) -> Vec<&'static str> {
    frames.iter().map(|frame| frame.event.expect("a name")).collect()
}

fn data(frame: &Frame) -> &Value {
    match &frame.data {
        FrameData::Json(value) => value,
        FrameData::Done => panic!("no [DONE] in this dialect"),
    }
}

fn written(events: &[Event]) -> Vec<Frame> {
    let mut writer = Writer::new(&parse(&base()).expect("ask"), envelope());
    let mut frames: Vec<Frame> = events.iter().flat_map(|event| writer.push(event)).collect();
    frames.extend(writer.close());
    frames
}

fn read(events: &[SseEvent]) -> Reply {
    let mut reader = Reader::new();
    let mut read: Vec<Event> = events.iter().flat_map(|event| reader.push(event).expect("read")).collect();
    read.extend(reader.finish().expect("whole"));
    reply(&read)
}

/// What this dialect can say of a reply: a call without arguments has an empty object.
fn said(mut reply: Reply) -> Reply {
    for part in reply.choices.iter_mut().flat_map(|choice| &mut choice.parts) {
        if let Part::Call { arguments, .. } = part
            && arguments.is_empty()
        {
            *arguments = "{}".to_owned();
        }
    }
    reply
}

/// One block is open at a time, indices count up from 0, the stop reason comes once and the end is the end.
fn check_order(frames: &[Frame]) {
    let (mut open, mut next) = (None, 0);
    for frame in frames {
        let index = data(frame).get("index").and_then(Value::as_u64);
        match frame.event.expect("a name") {
            "content_block_start" => {
                assert_eq!((open, index), (None, Some(next)));
                open = index;
            }
            "content_block_delta" => assert_eq!(open, index),
            "content_block_stop" => {
                assert_eq!(open.take(), index);
                next += 1;
            }
            _ => assert_eq!(open, None),
        }
    }
    let kinds = kinds(frames);
    assert_eq!(kinds.first(), Some(&"message_start"));
    assert_eq!(kinds[kinds.len() - 2..], ["message_delta", "message_stop"]);
    for once in ["message_start", "message_delta", "message_stop"] {
        assert_eq!(kinds.iter().filter(|kind| **kind == once).count(), 1, "{once}");
    }
}

proptest! {
    #[test]
    fn a_stream_reads_back_as_the_reply(answer in answer(), seeds in any::<[u64; 3]>()) {
        let events = answer.events(seeds[0]);
        let expected = said(reply(&events));
        prop_assert_eq!(&said(reply(&answer.events(seeds[1]))), &expected);
        let frames = written(&events);
        check_order(&frames);
        prop_assert_eq!(read(&sent(&frames, seeds[2])), expected);
    }

    #[test]
    fn a_whole_answer_reads_back_as_the_reply(answer in answer(), seed in any::<u64>()) {
        let expected = said(reply(&answer.events(seed)));
        let body = whole(&parse(&base()).expect("ask"), &envelope(), &expected);
        prop_assert_eq!(reply(&read_whole(&body).expect("read")), expected);
    }

    #[test]
    fn no_upstream_event_makes_the_reader_panic(kind in 0..7_usize, value in json_value(), index in 0..3_u64) {
        let kinds = ["message_start", "content_block_start", "content_block_delta", "content_block_stop",
            "message_delta", "message_stop", "error"];
        let mut reader = Reader::new();
        for (field, kind) in [("content_block", "content_block_start"), ("delta", kinds[kind]), ("usage", kinds[kind])] {
            let data = json!({ "type": kind, "index": index, field: value });
            let _ = reader.push(&SseEvent { event: None, data: data.to_string() });
        }
        let _ = read_whole(&value);
        let _ = read_whole(&json!({ "content": [value], "stop_reason": "end_turn", "usage": value }));
    }

    #[test]
    fn no_body_makes_parse_panic(value in json_value(), field in 0..13_usize) {
        let fields = ["model", "messages", "system", "max_tokens", "temperature", "top_p", "top_k", "stop_sequences",
            "stream", "tools", "tool_choice", "thinking", "output_config"];
        let _ = with(fields[field], value.clone());
        let _ = with("messages", json!([value.clone()]));
        let _ = with("messages", json!([{ "role": "user", "content": [value.clone()] }]));
        let _ = with("tools", json!([value]));
    }
}

#[test]
fn null_means_absent_for_every_optional_field() {
    let fields = ["system", "temperature", "top_p", "top_k", "stop_sequences", "stream", "tools", "tool_choice"];
    for field in fields.iter().chain(&["thinking", "output_config", "metadata", "service_tier", "never_heard_of"]) {
        assert_eq!(with(field, Value::Null).expect(field), parse(&base()).expect("base"), "{field}");
    }
}

#[test]
fn a_limit_is_demanded_but_not_for_counting() {
    let mut body = base();
    body.remove("max_tokens");
    assert_eq!(parse(&body).expect_err("no limit").param, "max_tokens");
    assert_eq!(parse_count_tokens(&body).expect("counting").tokens_max, None);
    for bad in [json!(0), json!(-1), json!("5"), json!(1.5)] {
        assert_eq!(refused("max_tokens", bad), "max_tokens");
    }
    assert_eq!(token_count(3), json!({ "input_tokens": 3 }));
}

#[test]
fn what_is_wrong_is_refused_with_its_path() {
    assert_eq!(refused("temperature", json!(1.5)), "temperature");
    assert_eq!(refused("top_p", json!(0)), "top_p");
    assert_eq!(refused("stop_sequences", json!([""])), "stop_sequences");
    assert_eq!(refused("stop_sequences", json!("a")), "stop_sequences");
    assert_eq!(refused("stop_sequences", json!(vec!["a"; 17])), "stop_sequences");
    assert_eq!(refused("tools", json!([{ "name": "f" }])), "tools[0].input_schema");
    assert_eq!(refused("tools", json!([{ "name": "f", "input_schema": {}, "x": 1 }])), "tools[0].x");
    assert_eq!(refused("tool_choice", json!({ "type": "any" })), "tool_choice");
    assert_eq!(refused("tool_choice", json!({ "type": "tool", "name": "f" })), "tool_choice.name");
    assert_eq!(refused("thinking", json!({ "type": "enabled" })), "thinking.budget_tokens");
    assert_eq!(refused("output_config", json!({ "format": { "type": "json" } })), "output_config.format");
    assert_eq!(refused("messages", json!([])), "messages");
    assert_eq!(refused("messages", json!([{ "role": "tool", "content": "x" }])), "messages[0].role");
    let block = |block: Value| json!([{ "role": "user", "content": [{ "type": "text", "text": "a" }, block] }]);
    assert_eq!(refused("messages", block(json!({ "type": "text" }))), "messages[0].content[1].text");
    assert_eq!(refused("messages", block(json!({ "type": "text", "text": "a", "y": 1 }))), "messages[0].content[1].y");
    assert_eq!(refused("messages", block(json!({ "type": "tool_result" }))), "messages[0].content[1].tool_use_id");
    assert_eq!(refused("messages", json!(vec![json!({ "role": "user", "content": "a" }); 4097])), "messages");
}

#[test]
fn content_is_text_blocks_or_nothing_for_every_role() {
    for role in ["user", "assistant", "system"] {
        let one =
            |content: Value| turns(json!([{ "role": "user", "content": "a" }, { "role": role, "content": content }]));
        assert_eq!(one(json!("hi")), one(json!([{ "type": "text", "text": "hi", "cache_control": {} }])));
        for nothing in [json!(""), json!([]), Value::Null, json!([{ "type": "text", "text": "" }])] {
            assert_eq!(one(nothing)[1].parts, []);
        }
    }
}

#[test]
fn results_become_turns_of_their_own_in_order() {
    let messages = json!([
        { "role": "assistant", "content": [
            { "type": "thinking", "thinking": "hm", "signature": "s" },
            { "type": "redacted_thinking", "data": "d" },
            { "type": "text", "text": "I call" },
            { "type": "tool_use", "id": "a", "name": "f", "input": { "x": 1 } },
            { "type": "tool_use", "id": "b", "name": "f", "input": {} }] },
        { "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "b", "content": [{ "type": "text", "text": "two" }] },
            { "type": "tool_result", "tool_use_id": "a", "content": "one", "is_error": true },
            { "type": "text", "text": "go on" }] },
    ]);
    let turns = turns(messages.clone());
    let roles: Vec<Role> = turns.iter().map(|turn| turn.role).collect();
    assert_eq!(roles, [Role::Assistant, Role::Tool, Role::Tool, Role::User]);
    assert_eq!(turns[2].parts, [Part::Result { id: "a".to_owned(), text: "one".to_owned(), failed: true }]);
    let ask = with("messages", messages).expect("ask");
    let body = write(&ask, "up", true).expect("write");
    assert_eq!(body["messages"].as_array().expect("messages").len(), 2);
    assert_eq!(body["messages"][0]["content"][1], json!({ "type": "redacted_thinking", "data": "d" }));
    assert_eq!(parse(&map(body)).expect("again").input, ask.input);
}

#[test]
fn arguments_that_are_no_object_are_kept_as_they_are() {
    for raw in ["{\"a\":", "[1]", "nonsense", "{}", "{\"a\":1}"] {
        let input = arguments::to_input(raw);
        assert_eq!(arguments::from_input(input.as_object().expect("an object")), raw);
    }
    assert_eq!(arguments::to_input(""), json!({}));
}

#[test]
fn unknown_fields_are_kept_apart() {
    let edits = json!({ "edits": [{ "type": "clear_tool_uses_20250919" }] });
    let ask = with("context_management", edits.clone()).expect("ask");
    assert_eq!(ask.unknown.keys().collect::<Vec<_>>(), ["context_management"]);
    assert_eq!(write(&ask, "up", false).expect_err("another dialect").param, "context_management");
    assert_eq!(write(&ask, "up", true).expect("this dialect")["context_management"], edits);
    let ask = with("context_management", json!({ "edits": [] })).expect("ask");
    assert_eq!(write(&ask, "up", false).expect("nothing to manage").get("context_management"), None);
    assert_eq!(write(&ask, "up", true).expect("this dialect")["context_management"], json!({ "edits": [] }));
    let ask = with("metadata", json!({ "user_id": "u" })).expect("ask");
    assert_eq!(write(&ask, "up", false).expect("written").get("metadata"), None);
    assert_eq!(write(&ask, "up", true).expect("written")["metadata"], json!({ "user_id": "u" }));
    let config = json!({ "effort": "high", "task_budget": 5 });
    let ask = with("output_config", config.clone()).expect("ask");
    assert_eq!(write(&ask, "up", true).expect("written")["output_config"], config);
}

#[test]
fn system_turns_are_joined_unless_they_came_in_this_dialect() {
    let mut ask =
        with("system", json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }])).expect("ask");
    let blocks = json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }]);
    assert_eq!(write(&ask, "up", false).expect("written")["system"], blocks);
    if let Input::Turns(turns) = &mut ask.input {
        turns.push(Turn { role: Role::System, parts: vec![text("c")] });
    }
    assert_eq!(write(&ask, "up", false).expect("written")["system"], "ab\n\nc");
    assert_eq!(write(&ask, "up", true).expect("written")["messages"][1]["role"], "system");
}

#[test]
fn what_the_dialect_cannot_say_is_refused_by_name() {
    let ask = parse(&base()).expect("ask");
    let refused = |change: fn(&mut Ask)| {
        let mut changed = ask.clone();
        change(&mut changed);
        write(&changed, "up", false).expect_err("refused").param
    };
    assert_eq!(refused(|ask| ask.n = 2), "n");
    assert_eq!(refused(|ask| ask.seed = Some(1)), "seed");
    assert_eq!(refused(|ask| ask.presence_penalty = Some(0.5)), "presence_penalty");
    assert_eq!(refused(|ask| ask.logit_bias = vec![(1, 1.0)]), "logit_bias");
    assert_eq!(refused(|ask| ask.logprobs = Some(0)), "logprobs");
    assert_eq!(refused(|ask| ask.return_token_ids = true), "return_token_ids");
    assert_eq!(refused(|ask| ask.temperature = Some(1.5)), "temperature");
    assert_eq!(refused(|ask| ask.format = Format::Json), "output_config.format");
    assert_eq!(refused(|ask| ask.input = Input::Text("p".to_owned())), "prompt");
    assert_eq!(refused(|ask| ask.tool_choice = ToolChoice::Required), "tool_choice");
}

#[test]
fn tools_of_other_types_stay_in_their_dialect() {
    let mut body = base();
    body.insert("tools".to_owned(), json!([{ "type": "bash_20250124", "name": "bash" }]));
    body.insert("tool_choice".to_owned(), json!({ "type": "tool", "name": "bash" }));
    let ask = parse(&body).expect("ask");
    assert_eq!(write(&ask, "up", true).expect("written")["tools"], body["tools"]);
    assert_eq!(write(&ask, "up", false).expect_err("no such tool").param, "tool_choice");
}

#[test]
fn a_stream_begins_and_ends_as_anthropics() {
    let delta = |pieces: Vec<Piece>| Event::Delta { choice: 0, pieces, tokens: Vec::new() };
    let events = [
        Event::Started { prompt: Some(vec![1, 2, 3]) },
        delta(vec![Piece::Reasoning("hm".to_owned()), Piece::Signature("s".to_owned())]),
        delta(vec![
            Piece::Text("I call".to_owned()),
            Piece::CallStart { call: 0, id: "c".to_owned(), name: "f".to_owned() },
            Piece::CallArguments { call: 0, text: "{}".to_owned() },
        ]),
        Event::Finished { choice: 0, stop: Stop::End },
    ];
    let mut writer = Writer::new(&parse(&base()).expect("ask"), envelope());
    let frames: Vec<Frame> = events.iter().flat_map(|event| writer.push(event)).collect();
    assert!(!kinds(&frames).contains(&"message_delta"), "nothing terminal leaves before close");
    assert_eq!(data(&frames[0])["message"]["id"], "msg_r1");
    assert_eq!(data(&frames[0])["message"]["usage"]["input_tokens"], 3);
    let end = writer.close();
    assert_eq!(data(&end[0])["delta"], json!({ "stop_reason": "tool_use", "stop_sequence": null }));
    assert_eq!(data(&end[1])["reef"], json!({ "agent_record_id": "r1", "release_id": "rel" }));
    assert_eq!(writer.close(), []);
}

#[test]
fn the_matched_stop_string_is_told() {
    let answer = Answer { blocks: Vec::new(), stop: Stop::Sequence("END".to_owned()), usage: Default::default() };
    let frames = written(&answer.events(1));
    let delta = json!({ "stop_reason": "stop_sequence", "stop_sequence": "END" });
    assert_eq!(data(&frames[1])["delta"], delta);
    assert_eq!(read(&sent(&frames, 1)).choices[0].stop, Some(answer.stop));
}

#[test]
fn a_failure_closes_what_is_open() {
    let mut writer = Writer::new(&parse(&base()).expect("ask"), envelope());
    let pieces = vec![Piece::Text("a".to_owned())];
    writer.push(&Event::Delta { choice: 0, pieces, tokens: Vec::new() });
    let frames = writer.fail("upstream_failed", "it broke", "server_error");
    assert_eq!(kinds(&frames), ["content_block_stop", "error"]);
    let error = json!({ "type": "error", "error": { "type": "api_error", "message": "it broke" } });
    assert_eq!(data(&frames[1]), &error);
    assert_eq!(writer.close(), []);
    let mut reader = Reader::new();
    let error = sent(&frames[1..], 3);
    assert!(reader.push(&error[0]).expect_err("an error").contains("it broke"));
}

#[test]
fn a_stream_that_stops_in_the_middle_is_an_error() {
    let answer = Answer { blocks: Vec::new(), stop: Stop::End, usage: Default::default() };
    let frames = written(&answer.events(1));
    let mut reader = Reader::new();
    for event in sent(&frames[..1], 1) {
        reader.push(&event).expect("read");
    }
    assert!(reader.finish().is_err());
}

#[test]
fn what_stands_in_the_start_of_a_block_is_read() {
    let events = [
        json!({ "type": "message_start", "message": { "usage": { "input_tokens": 3, "cache_read_input_tokens": 4 } } }),
        json!({ "type": "ping" }),
        json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "text", "text": "a" } }),
        json!({ "type": "content_block_stop", "index": 0 }),
        json!({ "type": "content_block_start", "index": 1, "content_block":
            { "type": "tool_use", "id": "c", "name": "f", "input": { "x": 1 } } }),
        json!({ "type": "content_block_stop", "index": 1 }),
        json!({ "type": "message_delta", "delta": { "stop_reason": "tool_use" }, "usage": { "output_tokens": 5 } }),
        json!({ "type": "message_stop" }),
    ];
    let events: Vec<SseEvent> = events.iter().map(|data| SseEvent { event: None, data: data.to_string() }).collect();
    let reply = read(&events);
    let call = Part::Call { id: "c".to_owned(), name: "f".to_owned(), arguments: "{\"x\":1}".to_owned() };
    assert_eq!(reply.choices[0].parts, [text("a"), call]);
    let usage = reply.usage.expect("usage");
    assert_eq!((usage.input, usage.cached, usage.output), (7, 4, 5));
}
