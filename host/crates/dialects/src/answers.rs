//! Answers for property tests: blocks at random, cut into events at random, sent as bytes that are cut at random.
//! The same blocks under two seeds are one answer in two cuts, so every dialect has to read them as the same `Reply`.

use proptest::prelude::*;
use serde_json::{Map, Value};

use crate::reply::{Envelope, Event, Frame, Piece, Reply, Stop, Usage};
use crate::sse::{SseEvent, SseReader};

/// A piece of an answer before it is cut.
#[derive(Debug, Clone)]
pub(crate) enum Block {
    Text(String),
    Reasoning(String),
    Signature(String),
    /// Parallel calls, by their arguments.
    Calls(Vec<String>),
}

/// An answer before it is cut.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) blocks: Vec<Block>,
    pub(crate) stop: Stop,
    pub(crate) usage: Usage,
}

/// Random numbers that are the same under the same seed (Knuth's MMIX generator).
#[derive(Debug)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// From 0 to `sides - 1`.
    pub(crate) fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % sides.max(1)
    }

    /// The text in pieces, cut between characters; some are empty.
    fn cut(&mut self, text: &str) -> Vec<String> {
        let mut pieces = vec![String::new()];
        for char in text.chars() {
            if self.roll(4) == 0 {
                pieces.push(String::new());
            }
            pieces.last_mut().expect("a piece").push(char);
        }
        pieces
    }
}

fn arguments() -> impl Strategy<Value = String> {
    let value = prop_oneof![
        any::<i32>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
        "[\"\\\\{}\\[\\]]{0,5}".prop_map(Value::from),
        Just(serde_json::json!({ "deep": [1, {}, "}"] })),
    ];
    let object = prop::collection::btree_map("[a-z\"{}]{1,4}", value, 0..4)
        .prop_map(|map| Value::Object(map.into_iter().collect::<Map<_, _>>()).to_string());
    // A tenth is cut off, as by a token limit.
    (object, 0..10_usize, any::<prop::sample::Index>()).prop_map(|(text, cut, index)| {
        let ends: Vec<usize> = text.char_indices().map(|(at, _)| at).skip(1).collect();
        if cut == 0 && !ends.is_empty() { text[..*index.get(&ends)].to_owned() } else { text }
    })
}

/// Any answer of one choice without refusal and tokens.
pub(crate) fn answer() -> impl Strategy<Value = Answer> {
    let block = prop_oneof![
        "\\PC{1,12}".prop_map(Block::Text),
        "[a-z\u{1F469}\u{200D}\u{1F680}\u{2028}\r\n]{1,9}".prop_map(Block::Text),
        ".{1,9}".prop_map(Block::Reasoning),
        "[a-z+/=]{1,9}".prop_map(Block::Signature),
        prop::collection::vec(arguments(), 1..5).prop_map(Block::Calls),
    ];
    let stop = prop_oneof![Just(Stop::End), Just(Stop::Length), Just(Stop::Filtered), Just(Stop::Cancelled)];
    let usage =
        (any::<u32>(), any::<u32>(), any::<u32>(), any::<u32>()).prop_map(|(cached, more, output, reasoning)| {
            let cached = u64::from(cached);
            Usage { input: cached + u64::from(more), cached, output: output.into(), reasoning: reasoning.into() }
        });
    (prop::collection::vec(block, 0..7), stop, usage).prop_map(|(blocks, stop, usage)| {
        let calls = blocks.iter().any(|block| matches!(block, Block::Calls(_)));
        let stop = if calls && stop == Stop::End { Stop::Calls } else { stop };
        Answer { blocks, stop, usage }
    })
}

/// Any JSON, with the dialects' own names among the keys.
pub(crate) fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        prop_oneof![
            Just("tool_use"),
            Just("text"),
            Just("thinking"),
            Just("tool_result"),
            Just("text_delta"),
            Just("user"),
            Just("function_call"),
            Just("message"),
            Just("a")
        ]
        .prop_map(Value::from),
    ];
    let key = prop_oneof![
        Just("type"),
        Just("text"),
        Just("id"),
        Just("name"),
        Just("input"),
        Just("content"),
        Just("role"),
        Just("delta"),
        Just("thinking"),
        Just("stop_reason"),
        Just("call_id"),
        Just("arguments"),
        Just("tools")
    ];
    leaf.prop_recursive(3, 24, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key.clone().prop_map(str::to_owned), inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

impl Answer {
    /// The answer as events; calls of one block begin in order, and their arguments come in any.
    pub(crate) fn events(&self, seed: u64) -> Vec<Event> {
        let mut dice = Dice(seed);
        let mut pieces = Vec::new();
        let mut calls = 0;
        for block in &self.blocks {
            match block {
                Block::Text(text) => pieces.extend(dice.cut(text).into_iter().map(Piece::Text)),
                Block::Reasoning(text) => pieces.extend(dice.cut(text).into_iter().map(Piece::Reasoning)),
                Block::Signature(signature) => pieces.push(Piece::Signature(signature.clone())),
                Block::Calls(arguments) => interleave(arguments, &mut calls, &mut dice, &mut pieces),
            }
        }
        let mut events = vec![Event::Started { prompt: None }];
        let mut pieces = pieces.as_slice();
        while !pieces.is_empty() {
            let (now, later) = pieces.split_at(pieces.len().min(1 + dice.roll(3)));
            events.push(Event::Delta { choice: 0, pieces: now.to_vec(), tokens: Vec::new() });
            pieces = later;
        }
        events.extend([Event::Finished { choice: 0, stop: self.stop.clone() }, Event::Usage(self.usage)]);
        events
    }
}

fn interleave(arguments: &[String], calls: &mut usize, dice: &mut Dice, pieces: &mut Vec<Piece>) {
    let first = *calls;
    let mut waiting: Vec<std::vec::IntoIter<String>> = Vec::new();
    loop {
        let next = dice.roll(waiting.len() + usize::from(waiting.len() < arguments.len()));
        if next == waiting.len() && next < arguments.len() {
            let call = first + next;
            pieces.push(Piece::CallStart { call, id: format!("call_{call}"), name: format!("f{next}") });
            waiting.push(dice.cut(&arguments[next]).into_iter());
            *calls += 1;
        } else if let Some(text) = waiting[next].next() {
            pieces.push(Piece::CallArguments { call: first + next, text });
        } else if waiting.len() == arguments.len() && waiting.iter().all(|rest| rest.len() == 0) {
            return;
        }
    }
}

/// What events add up to.
pub(crate) fn reply(events: &[Event]) -> Reply {
    let mut reply = Reply::default();
    events.iter().for_each(|event| reply.push(event));
    if reply.choices.is_empty() {
        reply.choices.push(crate::reply::Choice::default());
    }
    reply
}

/// The frames as a client's reader gets them: as bytes, cut anywhere.
pub(crate) fn sent(frames: &[Frame], seed: u64) -> Vec<SseEvent> {
    let bytes: String = frames.iter().map(Frame::to_sse).collect();
    let (mut dice, mut reader, mut events) = (Dice(seed), SseReader::new(1 << 20), Vec::new());
    let mut rest = bytes.as_bytes();
    while !rest.is_empty() {
        let (now, later) = rest.split_at(rest.len().min(1 + dice.roll(40)));
        events.extend(reader.push(now).expect("short events"));
        rest = later;
    }
    events.extend(reader.finish());
    events
}

/// The envelope of tests.
pub(crate) fn envelope() -> Envelope {
    Envelope { receipt: "r1".to_owned(), release: "rel".to_owned(), model: "m".to_owned(), created_s: 7 }
}
