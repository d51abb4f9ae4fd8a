//! The responses dialect as a whole: bodies, streams, and what comes back of both.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;
use crate::answers::{Answer, Block, answer, envelope, json_value, reply, sent};
use crate::ask::{Ask, Format, Input, Part, Refusal, Role, ToolChoice, Turn};
use crate::reply::{Event, Frame, FrameData, Piece, Reply, Stop, TokenInfo};
use crate::sse::SseEvent;

fn map(value: Value) -> Map<String, Value> {
    value.as_object().expect("object").clone()
}

fn with(field: &str, value: Value) -> Result<Ask, Refusal> {
    let mut body = map(json!({ "model": "m", "input": "hi" }));
    body.insert(field.to_owned(), value);
    parse(&body)
}

fn refused(field: &str, value: Value) -> String {
    with(field, value.clone()).expect_err(&format!("{field}: {value}")).param
}

fn turns(input: Value) -> Vec<Turn> {
    match with("input", input).expect("input").input {
        Input::Turns(turns) => turns,
        other => panic!("{other:?}"),
    }
}

fn text(text: &str) -> Part {
    Part::Text(text.to_owned())
}

fn data(frame: &Frame) -> &Value {
    match &frame.data {
        FrameData::Json(value) => value,
        FrameData::Done => panic!("no [DONE] in this dialect"),
    }
}

fn kinds(frames: &[Frame]) -> Vec<&'static str> {
    frames.iter().map(|frame| frame.event.expect("a name")).collect()
}

fn written(ask: &Ask, events: &[Event]) -> Vec<Frame> {
    let mut writer = Writer::new(ask, envelope());
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

/// Items and frames are numbered in order, each frame of an item has its place and id, and all that begins ends.
fn check_order(frames: &[Frame]) {
    let mut open: Option<(u64, String)> = None;
    let mut next = 0;
    for (number, frame) in frames.iter().enumerate() {
        let (kind, data) = (frame.event.expect("a name"), data(frame));
        assert_eq!(data["sequence_number"], number);
        assert_eq!(data["type"], kind);
        let index = data.get("output_index").and_then(Value::as_u64);
        let id = data.pointer("/item/id").or_else(|| data.get("item_id")).and_then(Value::as_str);
        match kind {
            "response.output_item.added" => {
                assert_eq!((&open, index), (&None, Some(next)));
                open = Some((next, id.expect("an id").to_owned()));
            }
            "response.output_item.done" => {
                assert_eq!(open.take(), Some((index.expect("a place"), id.expect("an id").to_owned())));
                next += 1;
            }
            _ if index.is_some() => {
                let (place, item) = open.as_ref().expect("an open item");
                assert_eq!((Some(*place), Some(item.as_str())), (index, id));
                assert_eq!(kind.contains("arguments"), data.get("content_index").is_none());
            }
            _ => assert_eq!(open, None),
        }
    }
    let kinds = kinds(frames);
    assert_eq!(kinds[..2], ["response.created", "response.in_progress"]);
    let last = kinds.last().expect("frames");
    assert!(["response.completed", "response.incomplete"].contains(last));
    let count = |end: &str| kinds.iter().filter(|kind| kind.ends_with(end)).count();
    assert_eq!(count("_item.added"), count("_item.done"));
    assert_eq!(count("_part.added"), count("_part.done"));
    assert_eq!(count("completed") + count("incomplete"), 1);
}

proptest! {
    #[test]
    fn a_stream_reads_back_as_the_reply(answer in answer(), refusal in ".{0,5}", seeds in any::<[u64; 3]>()) {
        let ask = with("stream", json!(true)).expect("ask");
        let cut = |seed: u64| {
            let mut events = answer.events(seed);
            if !refusal.is_empty() {
                let pieces = vec![Piece::Refusal(refusal.clone())];
                events.insert(events.len() - 2, Event::Delta { choice: 0, pieces, tokens: Vec::new() });
            }
            events
        };
        let events = cut(seeds[0]);
        let expected = reply(&events);
        prop_assert_eq!(&reply(&cut(seeds[1])), &expected);
        let frames = written(&ask, &events);
        check_order(&frames);
        prop_assert_eq!(read(&sent(&frames, seeds[2])), expected.clone());
        let last = data(frames.last().expect("frames"));
        prop_assert_eq!(reply(&read_whole(&last["response"]).expect("read")), expected.clone());
        let whole = whole(&ask, &envelope(), &expected);
        prop_assert_eq!(reply(&read_whole(&whole).expect("read")), expected);
    }

    #[test]
    fn tokens_of_a_text_come_back(texts in prop::collection::vec(".{0,3}", 1..6), seed in any::<u64>()) {
        let mut body = map(json!({ "model": "m", "input": "hi", "top_logprobs": 1 }));
        body.insert("include".to_owned(), json!(["message.output_text.logprobs"]));
        let ask = parse(&body).expect("ask");
        let token = |text: &String| TokenInfo {
            id: None,
            text: text.clone(),
            bytes: text.clone().into_bytes(),
            logprob: -0.1 * text.len() as f32,
            top: vec![("x".to_owned(), vec![120], -1.25)],
            recorded: Vec::new(),
        };
        let mut events = vec![Event::Started { prompt: None }];
        for text in &texts {
            events.push(Event::Delta { choice: 0, pieces: vec![Piece::Text(text.clone())], tokens: vec![token(text)] });
        }
        let pieces = vec![Piece::Text("!".to_owned())];
        events.push(Event::Delta { choice: 0, pieces, tokens: Vec::new() });
        events.push(Event::Delta { choice: 0, pieces: Vec::new(), tokens: vec![token(&"</s>".to_owned())] });
        events.push(Event::Finished { choice: 0, stop: Stop::End });
        let expected = reply(&events);
        let frames = written(&ask, &events);
        check_order(&frames);
        prop_assert_eq!(read(&sent(&frames, seed)), expected.clone());
        prop_assert_eq!(reply(&read_whole(&whole(&ask, &envelope(), &expected)).expect("read")), expected);
    }

    #[test]
    fn nothing_from_outside_makes_this_panic(value in json_value(), kind in 0..13_usize, place in 0..3_u64) {
        let kinds = ["response.created", "response.output_item.added", "response.output_item.done",
            "response.output_text.delta", "response.refusal.delta", "response.reasoning_text.delta",
            "response.reasoning_summary_text.delta", "response.reasoning_summary_part.added",
            "response.function_call_arguments.delta", "response.completed", "response.incomplete",
            "response.failed", "error"];
        let mut reader = Reader::new();
        let added = json!({ "type": "response.output_item.added", "output_index": place, "item": value });
        let _ = reader.push(&SseEvent { event: None, data: added.to_string() });
        for field in ["item", "delta", "response"] {
            let data = json!({ "type": kinds[kind], "output_index": place, field: value });
            let _ = reader.push(&SseEvent { event: None, data: data.to_string() });
        }
        let _ = read_whole(&json!({ "output": [value], "usage": value }));
        for field in ["model", "input", "instructions", "tools", "tool_choice", "text", "reasoning", "include"] {
            let _ = with(field, value.clone());
        }
        let _ = with("input", json!([value.clone()]));
        let _ = with("input", json!([{ "role": "user", "content": [value] }]));
    }
}

#[test]
fn null_means_absent_for_every_optional_field() {
    let plain = with("stream", json!(false)).expect("plain");
    let fields = ["instructions", "max_output_tokens", "temperature", "top_p", "top_logprobs", "tools", "tool_choice"];
    let more =
        ["parallel_tool_calls", "text", "reasoning", "include", "metadata", "previous_response_id", "background"];
    for field in fields.iter().chain(&more) {
        assert_eq!(with(field, Value::Null).expect(field), plain, "{field}");
    }
    assert_eq!(with("truncation", json!("disabled")).expect("neutral"), plain);
    assert_eq!(with("background", json!(false)).expect("neutral"), plain);
}

#[test]
fn no_type_of_tool_is_refused() {
    let types = ["web_search", "custom", "local_shell", "mcp", "image_generation", "never_heard_of"];
    let tools: Vec<Value> = types.iter().map(|kind| json!({ "type": kind, "anything": [1] })).collect();
    let ask = with("tools", json!(tools)).expect("tools");
    assert_eq!(ask.tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(), types);
    assert_eq!(write(&ask, "up", true).expect("this dialect")["tools"], json!(tools));
    assert_eq!(write(&ask, "up", false).expect("another").get("tools"), None);
    with("tools", json!([{ "name": "no type" }])).expect("no type");
}

#[test]
fn what_is_wrong_is_refused_with_its_path() {
    assert_eq!(refused("temperature", json!(2.5)), "temperature");
    assert_eq!(refused("top_p", json!(0)), "top_p");
    assert_eq!(refused("top_logprobs", json!(21)), "top_logprobs");
    assert_eq!(refused("max_output_tokens", json!(0)), "max_output_tokens");
    assert_eq!(refused("tools", json!([{ "type": "function" }])), "tools[0].name");
    assert_eq!(refused("tools", json!([{ "type": "function", "name": "f", "x": 1 }])), "tools[0].x");
    assert_eq!(refused("tool_choice", json!("required")), "tool_choice");
    assert_eq!(refused("tool_choice", json!({ "type": "function", "name": "f" })), "tool_choice");
    assert_eq!(refused("text", json!({ "format": { "type": "xml" } })), "text.format.type");
    assert_eq!(refused("text", json!({ "format": { "type": "json_schema", "name": "n" } })), "text.format.schema");
    assert_eq!(refused("input", json!([])), "input");
    assert_eq!(refused("input", json!(5)), "input");
    assert_eq!(refused("input", json!([{ "role": "tool", "content": "x" }])), "input[0].role");
    assert_eq!(refused("input", json!([{ "role": "user", "content": "x", "y": 1 }])), "input[0].y");
    let call = json!([{ "type": "function_call", "call_id": "c", "name": "f" }]);
    assert_eq!(refused("input", call), "input[0].arguments");
    let part = json!([{ "role": "user", "content": [{ "type": "input_text", "text": 5 }] }]);
    assert_eq!(refused("input", part), "input[0].content[0].text");
    assert_eq!(refused("input", json!(vec![json!({ "role": "user", "content": "x" }); 4097])), "input");
}

#[test]
fn what_the_model_said_in_one_go_is_one_turn() {
    let input = json!([
        { "role": "developer", "content": "rules" },
        { "role": "user", "content": [{ "type": "input_text", "text": "hi" }] },
        { "type": "reasoning", "id": "rs", "summary": [{ "type": "summary_text", "text": "hm" }],
            "encrypted_content": "s" },
        { "type": "message", "id": "msg", "status": "completed", "role": "assistant",
            "content": [{ "type": "output_text", "text": "I call", "annotations": [] }] },
        { "type": "function_call", "id": "fc", "call_id": "a", "name": "f", "arguments": "{}" },
        { "type": "function_call", "call_id": "b", "name": "f", "arguments": "{}" },
        { "type": "function_call_output", "call_id": "b", "output": "two" },
        { "type": "function_call_output", "call_id": "a", "output": [{ "type": "input_text", "text": "one" }] },
        { "role": "system", "content": "more rules" },
        { "type": "web_search_call", "id": "ws" },
    ]);
    let turns = turns(input.clone());
    let roles: Vec<Role> = turns.iter().map(|turn| turn.role).collect();
    let expected = [Role::System, Role::User, Role::Assistant, Role::Tool, Role::Tool, Role::System, Role::Assistant];
    assert_eq!(roles, expected);
    assert_eq!(turns[2].parts.len(), 4);
    assert_eq!(turns[2].parts[0], Part::Reasoning { text: "hm".to_owned(), signature: Some("s".to_owned()) });
    let ask = with("input", input).expect("ask");
    let again = parse(&map(write(&ask, "up", true).expect("written"))).expect("again");
    assert_eq!(again.input, ask.input);
    assert_eq!(write(&ask, "up", false).expect_err("another dialect").param, "input[9]");
}

#[test]
fn content_is_text_parts_or_nothing_for_every_role() {
    for role in ["user", "assistant", "system", "developer"] {
        let said = |content: Value| {
            let turns = turns(json!([{ "role": "user", "content": "a" }, { "role": role, "content": content }]));
            turns.get(1).map(|turn| turn.parts.clone()).unwrap_or_default()
        };
        assert_eq!(said(json!("hi")), said(json!([{ "type": "input_text", "text": "hi" }])));
        for nothing in [json!(""), json!([]), Value::Null] {
            assert_eq!(said(nothing), []);
        }
    }
}

#[test]
fn instructions_are_the_first_system_turn() {
    let ask = with("instructions", json!("rules")).expect("ask");
    let Input::Turns(turns) = ask.input else { panic!("turns") };
    assert_eq!(turns[0], Turn { role: Role::System, parts: vec![text("rules")] });
}

#[test]
fn allowed_tools_leaves_only_those() {
    let function = |name: &str| json!({ "type": "function", "name": name });
    let mut body = map(json!({ "model": "m", "input": "hi", "tools": [function("f"), function("g")] }));
    let allowed = json!({ "type": "allowed_tools", "mode": "required", "tools": [function("g")] });
    body.insert("tool_choice".to_owned(), allowed);
    let ask = parse(&body).expect("ask");
    assert_eq!((ask.tools.len(), ask.tools[0].name.as_str(), ask.tool_choice), (1, "g", ToolChoice::Required));
}

#[test]
fn what_needs_the_upstreams_memory_is_unknown() {
    for (field, value) in
        [("previous_response_id", json!("r")), ("background", json!(true)), ("truncation", json!("other"))]
    {
        let ask = with(field, value.clone()).expect("ask");
        assert_eq!(write(&ask, "up", false).expect_err("another dialect").param, field);
        assert_eq!(write(&ask, "up", true).expect("this dialect")[field], value);
    }
    let ask = with("truncation", json!("auto")).expect("ask");
    assert_eq!(write(&ask, "up", false).expect("written").get("truncation"), None);
    assert_eq!(write(&ask, "up", true).expect("this dialect")["truncation"], "auto");
    assert_eq!(with("text", json!({ "verbosity": 1 })).expect_err("refused").param, "text.verbosity");
    let verbose = json!({ "format": { "type": "json_object" }, "verbosity": "low" });
    let ask = with("text", verbose.clone()).expect("ask");
    assert_eq!((ask.format.clone(), ask.unknown.len()), (Format::Json, 0));
    assert_eq!(write(&ask, "up", true).expect("this dialect")["text"], verbose);
}

#[test]
fn what_the_dialect_cannot_say_is_refused_by_name() {
    let ask = with("stream", json!(true)).expect("ask");
    let refused = |change: fn(&mut Ask)| {
        let mut changed = ask.clone();
        change(&mut changed);
        write(&changed, "up", false).expect_err("refused").param
    };
    assert_eq!(refused(|ask| ask.n = 2), "n");
    assert_eq!(refused(|ask| ask.stop = vec!["x".to_owned()]), "stop");
    assert_eq!(refused(|ask| ask.top_k = Some(5)), "top_k");
    assert_eq!(refused(|ask| ask.seed = Some(5)), "seed");
    assert_eq!(refused(|ask| ask.input = Input::Tokens(vec![1])), "prompt");
    assert_eq!(refused(|ask| ask.tool_choice = ToolChoice::Required), "tool_choice");
}

#[test]
fn a_stream_has_the_sequence_of_openais() {
    let ask = with("stream", json!(true)).expect("ask");
    let blocks = vec![Block::Text("hi".to_owned()), Block::Calls(vec!["{\"a".to_owned()])];
    let answer = Answer { blocks, stop: Stop::Length, usage: Default::default() };
    let mut writer = Writer::new(&ask, envelope());
    let frames: Vec<Frame> = answer.events(5).iter().flat_map(|event| writer.push(event)).collect();
    let mut kinds = kinds(&frames);
    kinds.dedup();
    let expected = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ];
    assert_eq!(kinds, expected, "nothing terminal leaves before close");
    let end = writer.close();
    assert_eq!(end[0].event, Some("response.incomplete"));
    let response = &data(&end[0])["response"];
    assert_eq!(response["incomplete_details"], json!({ "reason": "max_output_tokens" }));
    let call = &response["output"][1];
    assert_eq!((&call["arguments"], &call["status"]), (&json!("{\"a"), &json!("incomplete")));
    let receipt = json!({ "agent_record_id": "r1", "release_id": "rel" });
    assert_eq!((&data(&end[0])["reef"], &response["reef"]), (&receipt, &receipt));
    assert_eq!(writer.close(), []);
}

#[test]
fn a_failure_closes_what_is_open() {
    let mut writer = Writer::new(&with("stream", json!(true)).expect("ask"), envelope());
    let pieces = vec![Piece::Text("a".to_owned())];
    writer.push(&Event::Delta { choice: 0, pieces, tokens: Vec::new() });
    let frames = writer.fail("upstream_failed", "it broke", "server_error");
    let ends = ["response.output_text.done", "response.content_part.done", "response.output_item.done"];
    assert_eq!(kinds(&frames)[..3], ends);
    assert_eq!(kinds(&frames)[3..], ["error", "response.failed"]);
    assert_eq!(data(&frames[4])["response"]["error"]["code"], "upstream_failed");
    assert_eq!(writer.close(), []);
    for frame in &frames[3..] {
        let event = &sent(std::slice::from_ref(frame), 3)[0];
        assert!(Reader::new().push(event).expect_err("an error").contains("it broke"));
    }
}

#[test]
fn an_upstream_without_deltas_is_read() {
    let item = json!({ "type": "message", "content": [{ "type": "output_text", "text": "a" }] });
    let done = json!({ "type": "response.output_item.done", "output_index": 0, "item": item });
    let completed = |output: Value| json!({ "type": "response.completed", "response": { "status": "completed", "output": output } });
    let sse = |data: Value| SseEvent { event: None, data: data.to_string() };
    for events in [vec![sse(done), sse(completed(json!([])))], vec![sse(completed(json!([item])))]] {
        assert_eq!(read(&events).choices[0].parts, [text("a")]);
    }
    assert!(Reader::new().finish().is_err());
}

#[test]
fn a_summary_in_parts_is_paragraphs() {
    let event = |kind: &str, field: &str, value: Value| {
        let data = json!({ "type": format!("response.{kind}"), "output_index": 0, "summary_index": 1, field: value });
        SseEvent { event: None, data: data.to_string() }
    };
    let events = [
        event("output_item.added", "item", json!({ "type": "reasoning" })),
        event("reasoning_summary_text.delta", "delta", json!("a")),
        event("reasoning_summary_part.added", "part", json!({})),
        event("reasoning_summary_text.delta", "delta", json!("b")),
        event("reasoning_text.delta", "delta", json!("told twice")),
        event("output_item.done", "item", json!({ "type": "reasoning", "encrypted_content": "s" })),
        event("completed", "response", json!({ "status": "completed" })),
    ];
    let reasoning = Part::Reasoning { text: "a\n\nb".to_owned(), signature: Some("s".to_owned()) };
    assert_eq!(read(&events).choices[0].parts, [reasoning]);
}
