//! Any answer, however it is cut, comes back from its frames and from its object.

use proptest::prelude::*;
use serde_json::Value;

use crate::answers::{envelope, reply, sent};
use crate::ask::{Ask, Part};
use crate::chat::{Reader, Writer, read_whole, whole};
use crate::openai::samples::{ask, events, samples, untrusted_body, visible};
use crate::reply::{Choice, Event, Frame, FrameData, Piece, Reply};
use crate::sse::SseEvent;

fn json(frame: &Frame) -> Option<&Value> {
    match &frame.data {
        FrameData::Json(value) => Some(value),
        FrameData::Done => None,
    }
}

/// The frames before and after `close`.
fn written(ask: &Ask, events: &[Event]) -> (Vec<Frame>, Vec<Frame>) {
    let mut writer = Writer::new(ask, envelope());
    let before = events.iter().flat_map(|event| writer.push(event)).collect();
    (before, writer.close())
}

fn read(events: Vec<SseEvent>) -> Reply {
    let mut reader = Reader::new();
    let mut read: Vec<Event> = events.iter().flat_map(|event| reader.push(event).expect("readable")).collect();
    read.extend(reader.finish().expect("a whole stream"));
    reply(&read)
}

/// The object has one place for each kind of part.
fn sorted(mut reply: Reply) -> Reply {
    for choice in &mut reply.choices {
        let mut pieces: Vec<(u8, Vec<Piece>)> = Vec::new();
        let mut calls = 0..;
        for part in choice.parts.drain(..) {
            pieces.push(match part {
                Part::Reasoning { text, signature } => {
                    (0, [Piece::Reasoning(text)].into_iter().chain(signature.map(Piece::Signature)).collect())
                }
                Part::Text(text) => (1, vec![Piece::Text(text)]),
                Part::Call { id, name, arguments } => {
                    let call = calls.next().expect("a number");
                    (2, vec![Piece::CallStart { call, id, name }, Piece::CallArguments { call, text: arguments }])
                }
                other => panic!("no part of an answer: {other:?}"),
            });
        }
        pieces.sort_by_key(|(place, _)| *place);
        let mut one = Reply { choices: vec![Choice::default()], ..Reply::default() };
        let pieces = pieces.into_iter().flat_map(|(_, pieces)| pieces).collect();
        one.push(&Event::Delta { choice: 0, pieces, tokens: Vec::new() });
        choice.parts = one.choices.remove(0).parts;
    }
    reply
}

proptest! {
    #[test]
    fn frames_add_up_to_the_answer_however_it_and_they_are_cut(
        samples in samples(),
        wants in any::<(bool, bool, bool)>(),
        seeds in any::<[u64; 3]>(),
    ) {
        let ask = ask(samples.len(), wants);
        let mut expected = visible(&events(&samples, seeds[0]), &ask);
        if !ask.include_usage {
            expected.usage = None;
        }
        for seed in &seeds[..2] {
            let (mut frames, after) = written(&ask, &events(&samples, *seed));
            frames.extend(after);
            prop_assert_eq!(&read(sent(&frames, seeds[2])), &expected);
        }
    }

    #[test]
    fn the_object_reads_back_as_the_answer(samples in samples(), wants in any::<(bool, bool)>(), seed in any::<u64>()) {
        let ask = ask(samples.len(), (wants.0, wants.1, true));
        let events = events(&samples, seed);
        let body = whole(&ask, &envelope(), &reply(&events));
        let read = reply(&read_whole(&body).expect("readable"));
        prop_assert_eq!(sorted(read), sorted(visible(&events, &ask)));
    }

    #[test]
    fn frames_keep_the_dialect_s_rules(samples in samples(), wants in any::<(bool, bool, bool)>(), seed in any::<u64>()) {
        let ask = ask(samples.len(), wants);
        let (before, after) = written(&ask, &events(&samples, seed));
        let choices = |frames: &[Frame]| -> Vec<Value> {
            frames.iter().filter_map(json).flat_map(|body| body["choices"].as_array().expect("list").clone()).collect()
        };
        let mut started = std::collections::BTreeSet::new();
        for choice in choices(&before) {
            prop_assert!(choice["finish_reason"].is_null());
            prop_assert!(choice["delta"].get("content").is_none_or(Value::is_string));
            for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
                let first = started.insert((choice["index"].as_u64(), call["index"].as_u64()));
                let named = call["id"].is_string() && call["type"] == "function" && call["function"]["name"].is_string();
                let bare = call.get("id").is_none() && call.get("type").is_none() && call["function"].get("name").is_none();
                prop_assert!(call["function"]["arguments"].is_string());
                prop_assert_eq!((named, bare), (first, !first));
            }
        }
        let ends: Vec<Value> = choices(&after).iter().map(|choice| choice["index"].clone()).collect();
        prop_assert_eq!(ends, (0..samples.len()).map(Value::from).collect::<Vec<_>>());
        prop_assert!(choices(&after).iter().all(|choice| choice["finish_reason"].is_string()));
        let ending = &after[samples.len()..];
        prop_assert_eq!(&json(&ending[0]).expect("a receipt")["reef"]["agent_record_id"], "r1");
        let usage = &json(&ending[ending.len() - 2]).expect("a chunk")["usage"];
        prop_assert_eq!((usage.is_object(), ending.len()), (ask.include_usage, 2 + usize::from(ask.include_usage)));
        prop_assert_eq!(&ending[ending.len() - 1].data, &FrameData::Done);
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
}
