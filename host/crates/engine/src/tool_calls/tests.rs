//! What pieces an answer gives, for every way of cutting it.

use super::*;

/// All text, all reasoning, and name and arguments of each call; pieces must come in a legal order.
type Parsed = (String, String, Vec<(String, String)>);

fn parse<'a>(parser: AnswerParser, chunks: impl IntoIterator<Item = &'a str>) -> Parsed {
    let mut parser = parser;
    let mut pieces: Vec<AnswerPiece> = chunks.into_iter().flat_map(|chunk| parser.push(chunk)).collect();
    pieces.extend(parser.finish());
    let mut parsed = Parsed::default();
    for piece in pieces {
        match piece {
            AnswerPiece::Text(text) => parsed.0.push_str(&text),
            AnswerPiece::Reasoning(text) => parsed.1.push_str(&text),
            AnswerPiece::CallStart { call, name } => {
                assert_eq!(call, parsed.2.len());
                parsed.2.push((name, String::new()));
            }
            AnswerPiece::CallArguments { call, text } => {
                assert_eq!(call + 1, parsed.2.len());
                parsed.2[call].1.push_str(&text);
            }
        }
    }
    parsed
}

/// Chunks that end at the given characters.
fn cut<'a>(text: &'a str, ends: &[usize]) -> Vec<&'a str> {
    let mut places: Vec<usize> =
        ends.iter().filter_map(|end| text.char_indices().nth(*end).map(|(at, _)| at)).collect();
    places.extend([0, text.len()]);
    places.sort_unstable();
    places.dedup();
    places.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect()
}

/// Parses `text` whole, in single characters, at each pair of cuts, and in many random ways.
fn every_chunking(new: impl Fn() -> AnswerParser, text: &str) -> Parsed {
    let whole = parse(new(), [text]);
    let count = text.chars().count();
    assert_eq!(parse(new(), cut(text, &(0..count).collect::<Vec<_>>())), whole, "{text:?}, each character alone");
    for first in 0..count {
        for second in first..count {
            assert_eq!(parse(new(), cut(text, &[first, second])), whole, "{text:?} cut at {first} and {second}");
        }
    }
    let mut seed = 1u64;
    for _ in 0..200 {
        let ends: Vec<usize> = (0..count)
            .filter(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                seed >> 62 == 0
            })
            .collect();
        assert_eq!(parse(new(), cut(text, &ends)), whole, "{text:?} cut at {ends:?}");
    }
    whole
}

fn check(format: CallFormat, reasoning: bool, text: &str, expected: (&str, &str, &[(&str, &str)])) {
    let parsed = every_chunking(|| AnswerParser::new(format, true, reasoning), text);
    let calls = expected.2.iter().map(|(name, arguments)| ((*name).to_owned(), (*arguments).to_owned())).collect();
    assert_eq!(parsed, (expected.0.to_owned(), expected.1.to_owned(), calls), "{text:?}");
}

#[test]
fn hermes_calls_are_found_between_text() {
    let check = |text, said, calls: &[(&str, &str)]| check(CallFormat::Hermes, false, text, (said, "", calls));
    check("hello <b> </tool_call> { }", "hello <b> </tool_call> { }", &[]);
    check(
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, {}]}}\n</tool_call>",
        "",
        &[("f", "{\"a\": [1, {}]}")],
    );
    check(
        "Sure.\n<tool_call>{\"arguments\":{\"x\":\"</tool_call>}\\\"\"},\"name\":\"é\"}</tool_call>\n<tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call>\nDone. ",
        "Sure.Done. ",
        &[("é", "{\"x\":\"</tool_call>}\\\"\"}"), ("g", "{}")],
    );
    check("<tool_call>{\"name\":\"f\"}</tool_call>", "", &[("f", "{}")]);
    check("<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}</tool_call>", "", &[("f", "{\"a\":1}")]);
    check(
        "<tool_call>{\"type\":\"function\",\"id\":7,\"name\":\"f\",\"parameters\":{}}</tool_call>",
        "",
        &[("f", "{}")],
    );
}

#[test]
fn calls_with_a_brace_or_tag_too_few_or_too_many_are_still_calls() {
    let check = |text, said, calls: &[(&str, &str)]| check(CallFormat::Hermes, false, text, (said, "", calls));
    check("<tool_call>{\"name\":\"f\",\"arguments\":{}</tool_call> x", "x", &[("f", "{}")]);
    check("<tool_call>{\"name\":\"f\",\"arguments\":{}}}\n</tool_call>", "", &[("f", "{}")]);
    check("<tool_call>{\"name\":\"f\",\"arguments\":{}} and <i>", "and <i>", &[("f", "{}")]);
    check(
        "<tool_call>{\"name\":\"f\",\"arguments\":{}}\n<tool_call>{\"name\":\"g\",\"arguments\":{}}",
        "",
        &[("f", "{}"), ("g", "{}")],
    );
}

#[test]
fn what_only_looks_like_a_call_is_text_unchanged() {
    for text in [
        "a \n<tool_call>\n{\"name\": 7, \"arguments\": {}}\n</tool_call> b",
        "<tool_call>{\"name\":\"\",\"arguments\":{}}</tool_call>",
        "<tool_call>{\"name\":\"f\",\"other\":1}</tool_call>",
        "<tool_call>{\"arguments\":{]},\"name\":\"f\"}</tool_call>",
        "<tool_call>{\"name\":\"f\",\"arguments\":[1]}</tool_call>",
        "<tool_call>\n[]</tool_call>",
        "<tool_call><function=f></function></tool_call>",
        "<tool_call>{\"name\":\"f\"",
        "<tool_call>{\"na\\qme\":\"f\"}",
        "<tool_ca",
        "<<tool_ <",
        "  ",
    ] {
        check(CallFormat::Hermes, false, text, (text, "", &[]));
    }
    let inner = "<tool_call>{<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
    check(CallFormat::Hermes, false, inner, ("<tool_call>{", "", &[("f", "{}")]));
}

#[test]
fn a_cut_inside_of_arguments_keeps_what_came() {
    for end in ["{", "{\"a\": \"x", "{\"a\": 1", "{\"a\": {}"] {
        let text = format!("<tool_call>{{\"name\":\"f\",\"arguments\":{end}");
        check(CallFormat::Hermes, false, &text, ("", "", &[("f", end)]));
        let text = format!("{{\"name\":\"f\",\"parameters\":{end}");
        check(CallFormat::Llama3, false, &text, ("", "", &[("f", end)]));
    }
    let text = "<tool_call>{\"name\":\"f\",\"arguments\":{}}\n</tool_";
    check(CallFormat::Hermes, false, text, ("", "", &[("f", "{}")]));
    let text = "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a";
    check(CallFormat::Hermes, false, text, ("", "", &[("f", "\"{\\\"a")]));
}

#[test]
fn llama_calls_are_the_whole_answer() {
    let check = |text, said, calls: &[(&str, &str)]| check(CallFormat::Llama3, false, text, (said, "", calls));
    check(" {\"name\": \"f\", \"parameters\": {\"a\": \"}\"}}", "", &[("f", "{\"a\": \"}\"}")]);
    check("<|python_tag|>{\"name\":\"f\",\"parameters\":{}}", "", &[("f", "{}")]);
    check(
        "{\"name\":\"f\",\"parameters\":{}}; {\"parameters\":{\"b\":1},\"name\":\"g\"}\n",
        "\n",
        &[("f", "{}"), ("g", "{\"b\":1}")],
    );
    check("{\"name\":\"f\",\"parameters\":{}}, so", ", so", &[("f", "{}")]);
    for text in [
        "Use {\"name\":\"f\",\"parameters\":{}}",
        "{\"name\":\"Ada\",\"age\":36}",
        "{\"name\":\"Ada\"}",
        "{\"name\":\"Ada\",\"parameters\":\"none\"}",
        "<|python_tag|>print(1)",
        "<|py",
        "< b",
        "<<think>x",
    ] {
        check(text, text, &[]);
    }
}

#[test]
fn reasoning_stands_apart() {
    let hermes = CallFormat::Hermes;
    let call = "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
    check(hermes, false, "<think>\na < b\n\nc\n</think>\n\nYes.", ("Yes.", "a < b\n\nc", &[]));
    check(hermes, true, "\nwell\n</think>\n\nYes.\n", ("Yes.\n", "well", &[]));
    check(hermes, true, "<think>\nwell</thin", ("", "well</thin", &[]));
    check(hermes, false, "<think>\n\n</think>\n\n<b", ("<b", "", &[]));
    check(hermes, true, &format!("try {call}\n</think>\n{call}"), ("", &format!("try {call}"), &[("f", "{}")]));
    check(hermes, false, "x <think>y</think>", ("x <think>y</think>", "", &[]));
    let text = "<think>a</think>\n{\"name\":\"f\",\"parameters\":{}}";
    check(CallFormat::Llama3, false, text, ("", "a", &[("f", "{}")]));
    check(CallFormat::None, false, "<think>a</think> {}", ("{}", "a", &[]));
}

#[test]
fn without_tools_nothing_is_a_call() {
    let text = "a <tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n";
    let parsed = every_chunking(|| AnswerParser::new(CallFormat::Hermes, false, false), text);
    assert_eq!(parsed, (text.to_owned(), String::new(), Vec::new()));
}

#[test]
fn pieces_come_as_soon_as_they_are_certain() {
    let mut parser = AnswerParser::new(CallFormat::Hermes, true, false);
    assert_eq!(parser.push("Hi <"), [AnswerPiece::Text("Hi".to_owned())]);
    assert_eq!(parser.push("b"), [AnswerPiece::Text(" <b".to_owned())]);
    assert_eq!(parser.push("<tool_call>{\"name\":\"f\",\"arguments\":"), []);
    let arguments = |text: &str| AnswerPiece::CallArguments { call: 0, text: text.to_owned() };
    let start = AnswerPiece::CallStart { call: 0, name: "f".to_owned() };
    assert_eq!(parser.push("{\"a"), [start, arguments("{\"a")]);
    assert_eq!(parser.push("\":1"), [arguments("\":1")]);
    assert_eq!(parser.push("}}"), [arguments("}")]);
}

#[test]
fn random_answers_lose_and_double_nothing() {
    let parts = [
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        "{",
        "}",
        "\"name\"",
        "\"arguments\"",
        ":",
        ",",
        "\"f\"",
        "{}",
        " ",
        "\n",
        "<",
        "x",
        "\\",
        "\"",
        "[",
        "é",
        "{\"name\":\"f\",\"arguments\":{",
    ];
    let mut seed = 7u64;
    let mut next = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    for _ in 0..20_000 {
        let text: String = (0..1 + next(14)).map(|_| parts[next(parts.len())]).collect();
        for format in [CallFormat::Hermes, CallFormat::Llama3, CallFormat::None] {
            let new = || AnswerParser::new(format, true, false);
            let whole = parse(new(), [text.as_str()]);
            let count = text.chars().count();
            assert_eq!(parse(new(), cut(&text, &(0..count).collect::<Vec<_>>())), whole, "{text:?}");
            assert_eq!(parse(new(), cut(&text, &[next(count), next(count)])), whole, "{text:?}");
            if whole.1.is_empty() && whole.2.is_empty() && !text.trim_start().starts_with("<think>") {
                assert_eq!(whole.0, text);
            }
        }
    }
}

#[test]
fn the_form_is_read_off_the_template() {
    assert_eq!(CallFormat::of_template("{{ messages }}"), CallFormat::Hermes);
    assert_eq!(CallFormat::of_template("{% if tools %}<tool_call>\\n{\\\"name\\\": <f>}"), CallFormat::Hermes);
    assert_eq!(
        CallFormat::of_template("<|start_header_id|>{% if tools %}{\"name\": f, \"parameters\": d}"),
        CallFormat::Llama3
    );
    assert_eq!(CallFormat::of_template("{% if tools %}<tool_call><function=f>"), CallFormat::None);
    assert_eq!(CallFormat::of_template("{% if tools %}<ACTION>{\"name\": f, \"parameters\": d}"), CallFormat::None);
    assert_eq!(CallFormat::of_template("{% if tools %}[TOOL_CALLS]"), CallFormat::None);
}

#[test]
fn candidates_within_candidates_need_no_deep_stack() {
    let many = 20_000;
    let text = format!("{}{}", "<tool_call>{\"arguments\":{".repeat(many), "}".repeat(2 * many - 1));
    let mut parser = AnswerParser::new(CallFormat::Hermes, true, false);
    let mut shown = String::new();
    for piece in parser.push(&text).into_iter().chain(parser.finish()) {
        match piece {
            AnswerPiece::Text(text) => shown.push_str(&text),
            other => panic!("{other:?} in what is no call"),
        }
    }
    assert_eq!(shown, text);
}
