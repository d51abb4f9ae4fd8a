//! What templates make of conversations with tools.

use std::collections::BTreeMap;

use serde_json::json;

use super::*;

/// In the manner of Qwen.
const TAGGED: &str = r#"{%- if tools %}
    {{- '<|im_start|>system\n' + (messages[0].content + '\n\n' if messages[0].role == 'system' else '') + '<tools>' }}
    {%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '\n</tools><tool_call>{"name": }<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- if loop.previtem is undefined or loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- elif not (tools and loop.first and message.role == 'system') %}
        {{- '<|im_start|>' + message.role + '\n' }}
        {%- if message.reasoning_content is defined %}{{- '<think>' + message.reasoning_content.strip('\n') + '</think>' }}{%- endif %}
        {{- message.content }}
        {%- for call in message.tool_calls %}
            {{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"#;
/// ChatML.
const PLAIN: &str = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::compile(source.to_owned()).expect("compiles")
}

fn control() -> Control {
    let tokens = ["<|im_start|>", "<|im_end|>", "<tool_call>"];
    Control::new(&tokens.iter().zip(0..).map(|(token, id)| ((*token).to_owned(), id)).collect::<BTreeMap<_, _>>())
        .expect("built")
}

/// Rendered text, and how many control tokens it holds.
fn render(template: &ChatTemplate, turns: &[ChatTurn], tools: &[Json]) -> Result<(String, usize), EngineError> {
    render_with(template, Conversation { turns, tools, variables: &Variables::new() })
}

fn render_with(template: &ChatTemplate, conversation: Conversation<'_>) -> Result<(String, usize), EngineError> {
    let control = control();
    let (text, marker) = template.text(conversation, &Spelling { control: &control, bos: "", eos: "" })?;
    let found = control.split(&text).iter().filter(|piece| matches!(piece, Piece::Control(_))).count();
    Ok((text.replace(marker, ""), found))
}

fn turn(role: &str, content: &str) -> ChatTurn {
    ChatTurn { role: role.to_owned(), content: content.to_owned(), ..ChatTurn::default() }
}

fn call(name: &str, arguments: &str) -> ChatCall {
    ChatCall { id: "c1".to_owned(), name: name.to_owned(), arguments: arguments.to_owned() }
}

fn conversation(text: &str) -> Vec<ChatTurn> {
    let arguments = json!({ "b": 1.0, text: [text, null, true] }).to_string();
    let result = |content: &str| ChatTurn { answers: Some("c1".to_owned()), ..turn("tool", content) };
    vec![
        turn("system", "Be brief."),
        turn("user", text),
        ChatTurn {
            calls: vec![call("f", &arguments), call("f", "{\"cut")],
            reasoning: Some("hm".to_owned()),
            ..turn("assistant", "")
        },
        result(text),
        result("2"),
        turn("user", "So?"),
    ]
}

fn tools(text: &str) -> Vec<Json> {
    vec![
        json!({ "type": "function", "function": { "name": "f", "description": text, "parameters": { "type": "object", "properties": { text: {} } } } }),
    ]
}

#[test]
fn a_template_refuses_in_its_own_words() {
    let refusal =
        render(&template("{{ raise_exception('only pairs') }}"), &[turn("user", "x")], &[]).expect_err("refused");
    assert!(refusal.to_string().ends_with("only pairs"), "{refusal}");
}

#[test]
fn tools_calls_and_results_reach_the_template() {
    let (text, _) = render(&template(TAGGED), &conversation("é\"\n"), &tools("d")).expect("rendered");
    let expected = r#"<|im_start|>system
Be brief.

<tools>
{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"d": {}}}}}
</tools><tool_call>{"name": }<|im_end|>
<|im_start|>user
é"
<|im_end|>
<|im_start|>assistant
<think>hm</think>
<tool_call>
{"name": "f", "arguments": {"b": 1.0, "é\"\n": ["é\"\n", null, true]}}
</tool_call>
<tool_call>
{"name": "f", "arguments": {"cut}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
é"

</tool_response>
<tool_response>
2
</tool_response><|im_end|>
<|im_start|>user
So?<|im_end|>
<|im_start|>assistant
"#;
    assert_eq!(text, expected);
}

#[test]
fn control_tokens_in_any_text_stay_text() {
    for source in [TAGGED, PLAIN] {
        let template = template(source);
        let count = |text: &str| render(&template, &conversation(text), &tools(text)).expect("rendered").1;
        for text in ["<|im_end|>", "<|im_start|>system", "x<|im_end|", "|im_end|>", "\u{e000}<tool_call>"] {
            assert_eq!(count(text), count("plain"), "{text}");
            let (rendered, _) = render(&template, &[turn("user", text)], &tools(text)).expect("rendered");
            assert!(rendered.matches(text).count() >= 3, "{rendered}");
        }
    }
}

#[test]
fn a_template_without_tools_gets_them_as_text() {
    let plain = template(PLAIN);
    assert_eq!(plain.call_format(), CallFormat::Hermes);
    let (text, control) = render(&plain, &conversation("hi"), &tools("d")).expect("rendered");
    for part in [
        "<|im_start|>system\nBe brief.\n\nYou can call",
        "<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"d\", ",
        "<|im_start|>assistant\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1.0, \"hi\": [\"hi\", null, true]}}\n</tool_call>\n<tool_call>",
        "<|im_start|>user\n<tool_response>\nhi\n</tool_response>\n<tool_response>\n2\n</tool_response><|im_end|>\n<|im_start|>user\nSo?",
    ] {
        assert!(text.contains(part), "{part}\nis not in\n{text}");
    }
    // Five turns and the start of the answer.
    assert_eq!(control, 11);
    let (text, _) = render(&plain, &[turn("user", "x")], &tools("d")).expect("rendered");
    assert!(text.starts_with("<|im_start|>system\nYou can call"), "{text}");
    // A bare message of role tool is what it was.
    let (text, _) = render(&plain, &[turn("tool", "x")], &[]).expect("rendered");
    assert_eq!(text, "<|im_start|>tool\nx<|im_end|>\n<|im_start|>assistant\n");
}

#[test]
fn turns_that_say_nothing_are_not_rendered() {
    let turns = [turn("user", "x"), turn("assistant", ""), turn("user", "y")];
    let (text, _) = render(&template(PLAIN), &turns, &[]).expect("rendered");
    assert!(!text.contains("assistant\n<|im_end|>"), "{text}");
    assert!(render(&template(PLAIN), &[turn("assistant", "")], &[]).is_err());
}

#[test]
fn json_is_written_as_python_writes_it() {
    let cases = [
        (
            json!({ "b": [1, -2.5, 1e16, 1e-5, 1.5e300, 123456789.125, 0.0001, -0.0], "a": {}, "é": [] }),
            r#"{"b": [1, -2.5, 1e+16, 1e-05, 1.5e+300, 123456789.125, 0.0001, -0.0], "a": {}, "é": []}"#,
        ),
        (json!("<\u{7f}\u{1f}\t'\"\\/😀"), "\"<\u{7f}\\u001f\\t'\\\"\\\\/😀\""),
        (json!(u64::MAX), "18446744073709551615"),
    ];
    for (value, text) in cases {
        assert_eq!(python::dumps(&value), text);
    }
    let turns = [ChatTurn { calls: vec![call("f", "{\"z\":[1,{}],\"a\":{\"k\":[]}}")], ..turn("assistant", "") }];
    let expected = "{\n  \"z\": [\n    1,\n    {}\n  ],\n  \"a\": {\n    \"k\": []\n  }\n}";
    // A template that does not speak of tools gets calls as text.
    let template = template("{# tools #}{{ messages[0].tool_calls[0].function.arguments | tojson(indent=2) }}");
    assert_eq!(render(&template, &turns, &[]).expect("rendered").0, expected);
}

#[test]
fn python_methods_work() {
    let cases = [
        ("'a, b'.split(', ')[-1]", "b"),
        ("'a b  c'.split()|length", "3"),
        ("'a.b.c'.split('.', 1)[1]", "b.c"),
        ("'xax'.strip('x') + 'xa'.lstrip('x') + ' b '.rstrip()", "aa b"),
        ("'abc'.startswith(('x', 'ab'))", "True"),
        ("'a/b'.replace('/', '-')", "a-b"),
        ("'one two'.title() + 'ABC'.capitalize()", "One TwoAbc"),
        ("'éa'.find('a')", "1"),
        ("{'k': 1}.get('x', 'd') ~ {'k': 1}.get('k')", "d1"),
        ("{'b': 1, 'a': 2}.items()|list|tojson", r#"[["b", 1], ["a", 2]]"#),
        ("[1, 2, 3][::-1]|tojson", "[3, 2, 1]"),
        ("(none is iterable) ~ ('a' is iterable) ~ (tools is iterable and tools|length > 0)", "FalseTrueFalse"),
        ("({'a': 1} is mapping) ~ ('a' is string) ~ (none is none)", "TrueTrueTrue"),
    ];
    for (expression, expected) in cases {
        let template = template(&format!("{{{{ {expression} }}}}"));
        assert_eq!(render(&template, &[turn("user", "x")], &[]).expect(expression).0, expected, "{expression}");
    }
}

#[test]
fn an_opened_think_block_is_seen() {
    let opens = |source: &str| template(source).opens_reasoning(&Variables::new());
    assert!(opens("{{ messages[0].content }}<|assistant|><think>\n"));
    assert!(!opens("{{ messages[0].content }}<think>\n\n</think>\n\n"));
    assert!(!opens(PLAIN));
}

#[test]
fn variables_of_the_client_reach_the_template_as_text_and_never_in_the_place_of_its_own() {
    let source = "{{ messages[0].content }}{{ note }}{% if enable_thinking is defined and enable_thinking is false %}\
                  <think></think>{% else %}<think>{% endif %}";
    let template = template(source);
    let variables = |json: Json| json.as_object().cloned().expect("an object");
    let plain = variables(json!({ "enable_thinking": false, "note": "<|im_end|>" }));
    let turns = [turn("user", "x")];
    let (text, control) =
        render_with(&template, Conversation { turns: &turns, tools: &[], variables: &plain }).expect("text");
    assert_eq!((text.as_str(), control), ("x<|im_end|><think></think>", 0));
    assert!(template.opens_reasoning(&Variables::new()) && !template.opens_reasoning(&plain));
    for name in TAKEN {
        let taken = variables(json!({ name: 1 }));
        let refused = render_with(&template, Conversation { turns: &turns, tools: &[], variables: &taken });
        assert!(refused.expect_err(name).to_string().contains(name));
    }
}

#[test]
fn marks_for_training_change_nothing() {
    let marked = template(
        "a  {%- generation -%}  {{ messages[0].content }}{% endgeneration %}b{% if add_generation_prompt %}c{% endif %}",
    );
    assert_eq!(render(&marked, &[turn("user", "x")], &[]).expect("rendered").0, "axbc");
}
