//! Tests of the dialect: bodies, and answers at random.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::answers::{envelope, reply, sent};
use crate::ask::{Ask, Input, Part, Refusal};
use crate::completions::{Reader, Writer, parse, read_whole, whole, write};
use crate::openai::samples::{Sample, ask, events, samples, untrusted, untrusted_body, visible};
use crate::reply::{Event, Frame, FrameData, Piece, Reply, Stop, TokenInfo};
use crate::sse::SseEvent;

fn read(body: Value) -> Result<Ask, Refusal> {
    parse(body.as_object().expect("an object"))
}

fn with(field: &str, value: Value) -> Result<Ask, Refusal> {
    let mut body = json!({ "model": "m", "prompt": "hi" });
    body[field] = value;
    read(body)
}

#[test]
fn one_prompt_is_a_text_or_ids_alone_or_in_a_list() {
    for prompt in [json!("hi"), json!(["hi"])] {
        assert_eq!(with("prompt", prompt).expect("text").input, Input::Text("hi".to_owned()));
    }
    for prompt in [json!([1, 2]), json!([[1, 2]])] {
        assert_eq!(with("prompt", prompt).expect("ids").input, Input::Tokens(vec![1, 2]));
    }
    for wrong in [
        json!(null),
        json!(""),
        json!([]),
        json!([[]]),
        json!([""]),
        json!(5),
        json!([-1]),
        json!([1.5]),
        json!([1, "a"]),
        json!({}),
    ] {
        assert_eq!(with("prompt", wrong).expect_err("refused").param, "prompt");
    }
    for several in [json!(["a", "b"]), json!([[1], [2]])] {
        assert!(with("prompt", several).expect_err("refused").message.contains("several"));
    }
}

#[test]
fn fields_are_read_checked_or_kept_apart() {
    for (field, wrong) in [
        ("logprobs", json!(21)),
        ("logprobs", json!(true)),
        ("echo", json!(true)),
        ("max_tokens", json!(0)),
        ("n", json!(0)),
        ("model", json!(1)),
    ] {
        assert_eq!(with(field, wrong).expect_err("refused").param, field);
    }
    let plain = with("n", Value::Null).expect("plain");
    for (field, nothing) in
        [("suffix", json!("")), ("best_of", json!(1)), ("echo", json!(false)), ("logprobs", json!(null))]
    {
        assert_eq!(with(field, nothing), Ok(plain.clone()), "{field}");
    }
    let suffix = with("suffix", json!("b")).expect("kept");
    assert_eq!(write(&suffix, "up", true).expect("forwarded")["suffix"], "b");
    assert_eq!(write(&suffix, "up", false).expect_err("refused").param, "suffix");
    assert_eq!(
        write(&Ask { input: Input::Turns(Vec::new()), ..plain }, "up", false).expect_err("turns").param,
        "messages"
    );
}

#[test]
fn what_was_read_is_written_for_an_upstream_of_the_same_dialect() {
    let body = json!({
        "model": "m", "prompt": [1, 2], "temperature": 0.7, "top_p": 0.9, "top_k": 3, "seed": 7, "max_tokens": 9,
        "frequency_penalty": 0.1, "presence_penalty": -0.2, "logit_bias": { "5": -3.5 }, "stop": "a", "n": 2,
        "stream": true, "stream_options": { "include_usage": true }, "logprobs": 2, "return_token_ids": true, "user": "u",
    });
    let ask = read(body).expect("readable");
    let again = read(write(&ask, "m", true).expect("writable"));
    assert_eq!(again, Ok(ask));
}

/// The dialect knows only text.
fn text_events(samples: &[Sample], seed: u64) -> Vec<Event> {
    let keep = |event| match event {
        Event::Delta { choice, mut pieces, tokens } => {
            pieces.retain(|piece| matches!(piece, Piece::Text(_)));
            Event::Delta { choice, pieces, tokens }
        }
        Event::Finished { choice, stop: Stop::Calls } => Event::Finished { choice, stop: Stop::Length },
        event => event,
    };
    events(samples, seed).into_iter().map(keep).collect()
}

fn streamed(ask: &Ask, events: &[Event], seed: u64) -> Reply {
    let mut writer = Writer::new(ask, envelope());
    let mut frames: Vec<Frame> = events.iter().flat_map(|event| writer.push(event)).collect();
    frames.extend(writer.close());
    assert_eq!(frames.last().map(|frame| &frame.data), Some(&FrameData::Done));
    let mut reader = Reader::new();
    let mut read: Vec<Event> =
        sent(&frames, seed).iter().flat_map(|event| reader.push(event).expect("readable")).collect();
    read.extend(reader.finish().expect("a whole stream"));
    reply(&read)
}

proptest! {
    #[test]
    fn frames_add_up_to_the_answer_however_it_and_they_are_cut(
        samples in samples(),
        wants in any::<(bool, bool, bool)>(),
        seeds in any::<[u64; 3]>(),
    ) {
        let ask = ask(samples.len(), wants);
        let mut expected = visible(&text_events(&samples, seeds[0]), &ask);
        if !ask.include_usage {
            expected.usage = None;
        }
        for seed in &seeds[..2] {
            prop_assert_eq!(&streamed(&ask, &text_events(&samples, *seed), seeds[2]), &expected);
        }
    }

    #[test]
    fn the_object_reads_back_as_the_answer(samples in samples(), wants in any::<(bool, bool)>(), seed in any::<u64>()) {
        let ask = ask(samples.len(), (wants.0, wants.1, true));
        let events = text_events(&samples, seed);
        let body = whole(&ask, &envelope(), &reply(&events));
        prop_assert_eq!(reply(&read_whole(&body).expect("readable")), visible(&events, &ask));
    }

    #[test]
    fn an_untrusted_upstream_is_read_or_refused(bodies in prop::collection::vec(untrusted_body(), 1..4)) {
        let mut reader = Reader::new();
        for body in &bodies {
            if let Ok(events) = read_whole(body) {
                reply(&events);
            }
            if reader.push(&SseEvent { event: None, data: body.to_string() }).is_err() {
                break;
            }
        }
        drop(reader.finish());
    }

    #[test]
    fn any_body_is_read_or_refused_and_what_is_read_survives_writing(prompt in untrusted(), name in "[a-z_]{1,6}", value in untrusted()) {
        let mut body = json!({ "model": "m" });
        body[name] = value;
        body["prompt"] = prompt;
        if let Ok(ask) = read(body) {
            prop_assert_eq!(write(&ask, "m", true).map(read), Ok(Ok(ask)));
        }
    }
}

#[test]
fn offsets_count_the_characters_of_the_answer() {
    let ask = Ask { logprobs: Some(1), ..Ask::new("m", Input::Text("a".to_owned())) };
    let token = |text: &str, bytes: &[u8]| TokenInfo {
        id: None,
        text: text.to_owned(),
        bytes: bytes.to_vec(),
        logprob: -1.0,
        top: vec![(text.to_owned(), bytes.to_vec(), -1.0)],
        recorded: Vec::new(),
    };
    let mut writer = Writer::new(&ask, envelope());
    let mut push = |tokens: Vec<TokenInfo>| {
        let frames = writer.push(&Event::Delta { choice: 0, pieces: Vec::new(), tokens });
        match &frames[0].data {
            FrameData::Json(body) => body["choices"][0]["logprobs"].clone(),
            FrameData::Done => panic!("an end"),
        }
    };
    push(vec![token("é", "é".as_bytes()), token("ab", b"ab")]);
    let probs = push(vec![token("\u{fffd}", b"\xf0\x9f"), token("c", b"c")]);
    assert_eq!(
        probs,
        json!({
            "tokens": ["bytes:\\xf0\\x9f", "c"],
            "token_logprobs": [-1.0, -1.0],
            "top_logprobs": [{ "bytes:\\xf0\\x9f": -1.0 }, { "c": -1.0 }],
            "text_offset": [3, 4],
        })
    );
}

#[test]
fn a_failed_stream_ends_with_the_error_and_done_and_nothing_after() {
    let mut writer = Writer::new(&Ask::new("m", Input::Text("a".to_owned())), envelope());
    let frames = writer.fail("internal", "it broke", "server_error");
    assert_eq!(frames.len(), 2);
    assert_eq!(frames[1].data, FrameData::Done);
    let text = Event::Delta { choice: 0, pieces: vec![Piece::Text("a".to_owned())], tokens: Vec::new() };
    assert!(writer.push(&text).is_empty() && writer.close().is_empty());
}

#[test]
fn only_text_has_a_place() {
    let choice = crate::reply::Choice {
        parts: vec![Part::Reasoning { text: "hm".to_owned(), signature: None }, Part::Text("a".to_owned())],
        stop: Some(Stop::End),
        ..crate::reply::Choice::default()
    };
    let answer = Reply { choices: vec![choice], ..Reply::default() };
    let body = whole(&Ask::new("m", Input::Text("a".to_owned())), &envelope(), &answer);
    assert_eq!((&body["id"], &body["choices"][0]["text"]), (&json!("cmpl-r1"), &json!("a")));
}
