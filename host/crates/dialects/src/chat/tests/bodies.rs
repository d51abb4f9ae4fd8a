//! Bodies: what is read, what is refused and by which name, and what reaches an upstream.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::ask::{Ask, Format, Input, Part, Refusal, Role, ToolChoice, Turn};
use crate::chat::{parse, write};
use crate::openai::samples::untrusted;

fn read(body: Value) -> Result<Ask, Refusal> {
    parse(body.as_object().expect("an object"))
}

fn with(field: &str, value: Value) -> Result<Ask, Refusal> {
    let mut body = json!({ "model": "m", "messages": [{ "role": "user", "content": "hi" }] });
    body[field] = value;
    read(body)
}

fn refused(field: &str, value: Value) -> String {
    let refusal = with(field, value.clone()).expect_err(&format!("{field}: {value}"));
    let named = refusal.param.rsplit('.').next().expect("a name");
    assert!(refusal.message.contains(named), "{refusal:?}");
    refusal.param
}

fn said(messages: Value) -> Vec<(Role, Vec<Part>)> {
    let ask = read(json!({ "model": "m", "messages": messages })).expect("readable");
    let Input::Turns(turns) = ask.input else { panic!("turns") };
    turns.into_iter().map(|turn| (turn.role, turn.parts)).collect()
}

fn text(text: &str) -> Part {
    Part::Text(text.to_owned())
}

fn function() -> Value {
    json!({ "type": "function", "function": { "name": "f", "description": "d", "parameters": { "type": "object" } } })
}

#[test]
fn null_is_absent_for_every_field() {
    let plain = with("n", Value::Null).expect("plain");
    for field in [
        "temperature",
        "top_p",
        "top_k",
        "seed",
        "frequency_penalty",
        "presence_penalty",
        "logit_bias",
        "max_tokens",
        "max_completion_tokens",
        "stop",
        "n",
        "stream",
        "stream_options",
        "return_token_ids",
        "logprobs",
        "top_logprobs",
        "response_format",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "reasoning_effort",
        "functions",
        "function_call",
        "modalities",
        "user",
        "metadata",
        "anything_else",
    ] {
        assert_eq!(with(field, Value::Null), Ok(plain.clone()), "{field}");
    }
}

#[test]
fn wrong_types_and_ranges_are_refused_by_name() {
    for (field, values) in [
        ("model", vec![json!(123), json!(null), json!(" ")]),
        ("messages", vec![json!([]), json!("hi"), json!(null), json!([{ "role": "assistant", "content": "" }])]),
        ("temperature", vec![json!(-0.1), json!(2.1), json!("1"), json!(true)]),
        ("top_p", vec![json!(0), json!(1.1)]),
        ("top_k", vec![json!(-1), json!(1.5)]),
        ("seed", vec![json!(1.5), json!("1")]),
        ("frequency_penalty", vec![json!(2.1)]),
        ("presence_penalty", vec![json!(-2.1)]),
        ("logit_bias", vec![json!([1]), json!({ "a": 1 }), json!({ "1": 101 }), json!({ "-1": 1 })]),
        ("max_tokens", vec![json!(0), json!(-1), json!("5"), json!(1.5)]),
        ("max_completion_tokens", vec![json!(0), json!(-1)]),
        ("n", vec![json!(0), json!(129), json!(true)]),
        ("stop", vec![json!([""]), json!(1), json!(vec!["a"; 17]), json!("a".repeat(257)), json!([1])]),
        ("stream", vec![json!("true")]),
        ("stream_options", vec![json!(true)]),
        ("top_logprobs", vec![json!(3), json!(21)]),
        ("logprobs", vec![json!(3)]),
        ("response_format", vec![json!("json"), json!({ "type": "grammar" }), json!({})]),
        ("tools", vec![json!({}), json!(vec![function(); 4097])]),
        (
            "tool_choice",
            vec![json!("some"), json!("required"), json!({ "type": "function", "function": { "name": "g" } })],
        ),
        ("functions", vec![json!([{}]), json!({})]),
        ("function_call", vec![json!({ "name": "f" })]),
        ("modalities", vec![json!(["audio"])]),
        ("reasoning_effort", vec![json!(1)]),
    ] {
        for value in values {
            assert_eq!(refused(field, value), field);
        }
    }
    let many = vec![json!({ "role": "user", "content": "a" }); 4097];
    assert_eq!(refused("messages", json!(many)), "messages");
}

#[test]
fn what_is_wrong_inside_is_named_by_its_path() {
    let call = |call: Value| json!([{ "role": "assistant", "tool_calls": [call] }]);
    for (field, value, path) in [
        ("messages", json!([1]), "messages[0]"),
        ("messages", json!([{ "role": "bot" }]), "messages[0].role"),
        ("messages", json!([{ "role": "user", "content": 5 }]), "messages[0].content"),
        ("messages", json!([{ "role": "user", "content": [5] }]), "messages[0].content[0]"),
        ("messages", json!([{ "role": "user", "content": [{ "text": "a" }] }]), "messages[0].content[0].type"),
        ("messages", json!([{ "role": "user", "content": [{ "type": "text" }] }]), "messages[0].content[0].text"),
        ("messages", json!([{ "role": "user", "content": "a", "mood": 1 }]), "messages[0].mood"),
        (
            "messages",
            json!([{ "role": "user", "tool_calls": [{ "id": "a", "function": { "name": "f" } }] }]),
            "messages[0].tool_calls",
        ),
        ("messages", call(json!({ "function": { "name": "f" } })), "messages[0].tool_calls[0].id"),
        ("messages", call(json!({ "id": "a" })), "messages[0].tool_calls[0].function"),
        ("messages", call(json!({ "id": "a", "function": {} })), "messages[0].tool_calls[0].function.name"),
        (
            "messages",
            call(json!({ "id": "a", "function": { "name": "f", "arguments": {} } })),
            "messages[0].tool_calls[0].function.arguments",
        ),
        ("messages", json!([{ "role": "tool", "content": [{ "type": "image_url" }] }]), "messages[0].content"),
        ("tools", json!([1]), "tools[0]"),
        ("tools", json!([{ "function": {} }]), "tools[0].type"),
        ("tools", json!([{ "type": "function" }]), "tools[0].function"),
        ("tools", json!([{ "type": "function", "function": {} }]), "tools[0].function.name"),
        (
            "tools",
            json!([{ "type": "function", "function": { "name": "f", "parameters": 1 } }]),
            "tools[0].function.parameters",
        ),
        (
            "tools",
            json!([{ "type": "function", "function": { "name": "f", "colour": 1 } }]),
            "tools[0].function.colour",
        ),
        ("response_format", json!({ "type": "json_schema" }), "response_format.json_schema"),
        (
            "response_format",
            json!({ "type": "json_schema", "json_schema": { "schema": {} } }),
            "response_format.json_schema.name",
        ),
        (
            "response_format",
            json!({ "type": "json_schema", "json_schema": { "name": "a" } }),
            "response_format.json_schema.schema",
        ),
        ("stream_options", json!({ "include_usage": 1 }), "stream_options.include_usage"),
        ("stream_options", json!({ "colour": 1 }), "stream_options.colour"),
    ] {
        assert_eq!(refused(field, value), path);
    }
}

#[test]
fn token_limits_have_one_precedence() {
    assert_eq!(with("max_tokens", json!(5)).expect("ok").tokens_max, Some(5));
    assert_eq!(with("max_completion_tokens", json!(6)).expect("ok").tokens_max, Some(6));
    let both = |older: Value| {
        let messages = json!([{ "role": "user", "content": "x" }]);
        read(json!({ "model": "m", "messages": messages, "max_tokens": older, "max_completion_tokens": 6 }))
    };
    assert_eq!(both(json!(5)).expect("ok").tokens_max, Some(6));
    assert_eq!(both(json!(0)).expect_err("both are checked").param, "max_tokens");
}

#[test]
fn every_form_of_content_is_read_for_every_role() {
    for (role, kept) in [("system", true), ("developer", true), ("user", true), ("assistant", false), ("tool", true)] {
        let user = json!({ "role": "user", "content": "first" });
        let content = |content: Value| {
            said(json!([user, { "role": role, "tool_call_id": "c", "content": content }])).split_off(1)
        };
        assert_eq!(content(json!("hi")), content(json!([{ "type": "text", "text": "hi" }])), "{role}");
        for nothing in [json!(""), json!([]), json!(null), json!([{ "type": "text", "text": "" }])] {
            assert_eq!(content(nothing).len(), usize::from(kept), "{role}");
        }
        assert!(
            !content(json!([{ "type": "text", "text": "a", "cache_control": {} }, { "type": "text", "text": "b" }]))
                .is_empty()
        );
    }
    let image = json!({ "type": "image_url", "image_url": { "url": "u" } });
    let mixed = said(json!([{ "role": "user", "content": [{ "type": "text", "text": "a" }, image] }]));
    assert_eq!(mixed[0].1, [text("a"), Part::Other { kind: "image_url".to_owned(), value: image }]);
}

#[test]
fn system_and_developer_turns_keep_their_places() {
    let messages = json!([
        { "role": "system", "content": "a" },
        { "role": "developer", "content": "b" },
        { "role": "user", "content": "c", "name": "n" },
        { "role": "assistant", "content": "", "tool_calls": [], "refusal": null, "annotations": [] },
        { "role": "developer", "content": "d" },
        { "role": "assistant", "content": null, "refusal": "no" },
    ]);
    let expected =
        [(Role::System, "a"), (Role::System, "b"), (Role::User, "c"), (Role::System, "d"), (Role::Assistant, "no")];
    assert_eq!(said(messages), expected.map(|(role, said)| (role, vec![text(said)])));
}

#[test]
fn calls_and_their_results_are_read_in_any_order_missing_or_twice() {
    let call =
        |id: &str| json!({ "id": id, "type": "function", "index": 0, "function": { "name": "f", "arguments": "{" } });
    let result = |id: &str| json!({ "role": "tool", "tool_call_id": id, "name": "f", "content": [{ "type": "text", "text": "r" }] });
    let details = json!([{ "type": "reasoning.text", "signature": "s" }]);
    let messages = json!([
        { "role": "assistant", "content": "go", "tool_calls": [call("a"), call("b"), call("c")], "reasoning_content": "hm", "reasoning_details": details },
        result("b"), result("a"), result("a"),
        { "role": "user", "content": "next" },
    ]);
    let call = |id: &str| Part::Call { id: id.to_owned(), name: "f".to_owned(), arguments: "{".to_owned() };
    let result = |id: &str| (Role::Tool, vec![Part::Result { id: id.to_owned(), text: "r".to_owned(), failed: false }]);
    let thought = Part::Reasoning { text: "hm".to_owned(), signature: Some("s".to_owned()) };
    assert_eq!(
        said(messages),
        [
            (Role::Assistant, vec![thought, text("go"), call("a"), call("b"), call("c")]),
            result("b"),
            result("a"),
            result("a"),
            (Role::User, vec![text("next")]),
        ]
    );
}

#[test]
fn fields_that_nobody_knows_are_kept_apart() {
    let ask = with("temprature", json!(1)).expect("kept");
    assert_eq!(ask.unknown, Map::from_iter([("temprature".to_owned(), json!(1))]));
    assert_eq!(write(&ask, "up", true).expect("forwarded")["temprature"], 1);
    assert_eq!(write(&ask, "up", false).expect_err("refused").param, "temprature");
    let ask = with("user", json!("u")).expect("kept");
    assert_eq!(write(&ask, "up", true).expect("forwarded")["user"], "u");
    assert_eq!(write(&ask, "up", false).expect("has a word for it")["user"], "u");
}

#[test]
fn a_format_s_description_stands_in_its_schema() {
    let format = json!({ "type": "json_schema", "json_schema": { "name": "a", "description": "d", "schema": {}, "strict": true } });
    let schema = json!({ "description": "d" });
    assert_eq!(
        with("response_format", format).expect("ok").format,
        Format::Schema { name: "a".to_owned(), schema, strict: true }
    );
}

fn full() -> Value {
    json!({
        "model": "m",
        "messages": [
            { "role": "developer", "content": "s" },
            { "role": "user", "content": [{ "type": "text", "text": "a" }, { "type": "image_url", "image_url": { "url": "u" } }] },
            { "role": "assistant", "content": "go", "reasoning_content": "hm", "tool_calls": [
                { "id": "a", "type": "function", "function": { "name": "f", "arguments": "{}" } },
                { "id": "b", "type": "custom", "custom": { "name": "g", "input": "x" } },
            ] },
            { "role": "tool", "tool_call_id": "a", "content": "r" },
            { "role": "user", "content": "" },
        ],
        "tools": [function(), { "type": "custom", "custom": { "name": "g" } }],
        "tool_choice": { "type": "function", "function": { "name": "f" } },
        "parallel_tool_calls": false, "reasoning_effort": "low",
        "response_format": { "type": "json_schema", "json_schema": { "name": "a", "schema": {}, "strict": true } },
        "temperature": 0.7, "top_p": 0.9, "top_k": 3, "seed": 7, "frequency_penalty": 0.1, "presence_penalty": -0.2,
        "logit_bias": { "5": -3.5 }, "max_tokens": 9, "stop": ["a", "b"], "n": 2, "stream": true,
        "stream_options": { "include_usage": true }, "logprobs": true, "top_logprobs": 2, "return_token_ids": true,
        "user": "u", "verbosity": "low",
    })
}

#[test]
fn what_was_read_is_written_for_an_upstream_of_the_same_dialect() {
    let ask = read(full()).expect("readable");
    let body = write(&ask, "up", true).expect("writable");
    assert_eq!(body["temperature"].to_string(), "0.7");
    let again = read(body).expect("readable");
    assert_eq!(again, Ask { model: "up".to_owned(), ..ask });
}

#[test]
fn what_other_dialects_say_is_said_here_or_refused() {
    let mut ask = Ask::new("m", Input::Turns(Vec::new()));
    let source = json!({ "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "AA" } });
    let turn = |parts: Vec<Part>| Input::Turns(vec![Turn { role: Role::User, parts }]);
    ask.input = turn(vec![Part::Other { kind: "image".to_owned(), value: source }]);
    let url = write(&ask, "up", false).expect("an image")["messages"][0]["content"][0]["image_url"]["url"].clone();
    assert_eq!(url, "data:image/png;base64,AA");
    ask.input = turn(vec![Part::Other { kind: "document".to_owned(), value: json!({}) }]);
    assert_eq!(write(&ask, "up", false).expect_err("no document").param, "messages[0]");
    ask.input = turn(vec![text("a")]);
    for (reasoning, effort) in [
        (json!({ "type": "disabled" }), json!("none")),
        (json!({ "type": "enabled", "budget_tokens": 1024 }), json!("low")),
        (json!({ "effort": "high", "summary": "auto" }), json!("high")),
    ] {
        ask.reasoning = Some(reasoning);
        assert_eq!(write(&ask, "up", false).expect("an effort")["reasoning_effort"], effort);
    }
    ask.tools = read(full()).expect("readable").tools.split_off(1);
    assert_eq!(write(&ask, "up", false).expect("the tool")["tools"][0]["custom"]["name"], "g");
    ask.tools[0].hosted = Some(json!({ "type": "web_search" }));
    assert!(write(&ask, "up", false).expect("without the tool").get("tools").is_none());
    ask.tool_choice = ToolChoice::Named("custom".to_owned());
    assert_eq!(write(&ask, "up", false).expect_err("not a function").param, "tool_choice");
    ask.tool_choice = ToolChoice::Required;
    assert_eq!(write(&ask, "up", false).expect_err("no tool is left").param, "tool_choice");
    ask.input = Input::Text("a".to_owned());
    assert_eq!(write(&ask, "up", false).expect_err("no text").param, "prompt");
}

proptest! {
    #[test]
    fn any_body_is_read_or_refused_and_what_is_read_survives_writing(
        mut body in prop::collection::btree_map("[a-z_]{1,6}", untrusted(), 0..3),
        messages in prop::collection::vec(untrusted(), 0..3),
    ) {
        body.insert("model".to_owned(), json!("m"));
        body.insert("messages".to_owned(), json!(messages));
        if let Ok(ask) = read(json!(body)) {
            let again = write(&ask, "m", true).map(read);
            prop_assert_eq!(again, Ok(Ok(ask)));
        }
    }
}

#[test]
fn allowed_tools_leaves_only_those() {
    let function = |name: &str| json!({ "type": "function", "function": { "name": name } });
    let choose = |mode: &str, allowed: Value| {
        let choice = json!({ "type": "allowed_tools", "allowed_tools": { "mode": mode, "tools": allowed } });
        let messages = [{ json!({ "role": "user", "content": "hi" }) }];
        read(
            json!({ "model": "m", "messages": messages, "tools": [function("f"), function("g")], "tool_choice": choice }),
        )
    };
    let names = |ask: &Ask| ask.tools.iter().map(|tool| tool.name.clone()).collect::<Vec<_>>();
    let ask = choose("required", json!([function("g")])).expect("read");
    assert_eq!((names(&ask), &ask.tool_choice), (vec!["g".to_owned()], &ToolChoice::Required));
    let ask = choose("auto", json!([function("f"), function("h")])).expect("read");
    assert_eq!((names(&ask), &ask.tool_choice), (vec!["f".to_owned()], &ToolChoice::Auto));
    let param = |mode: &str, allowed: Value| choose(mode, allowed).expect_err("refused").param;
    assert_eq!(param("maybe", json!([function("f")])), "tool_choice.allowed_tools.mode");
    assert_eq!(param("required", json!([function("h")])), "tool_choice");
    assert_eq!(param("auto", json!([{ "type": "function" }])), "tool_choice.allowed_tools.tools[0].function");
    assert_eq!(param("auto", json!(3)), "tool_choice.allowed_tools.tools");
}
