//! Answers with several choices, tokens and refusals, for the property tests of both dialects.
//! As in `answers`, two seeds cut the same sample in two ways.

use std::collections::VecDeque;

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::answers::{Answer, Dice, answer, reply};
use crate::ask::{Ask, Input, Role, Turn};
use crate::reply::{Event, Piece, Reply, Stop, TokenInfo, Usage};

/// One choice before it is cut.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    answer: Answer,
    refusal: String,
    tokens: Vec<TokenInfo>,
}

fn entry() -> impl Strategy<Value = (String, Vec<u8>, f32)> {
    let bytes = prop_oneof!["[a-zé😀 ]{1,3}".prop_map(String::into_bytes), prop::collection::vec(any::<u8>(), 1..4)];
    (bytes, -30.0_f32..0.0).prop_map(|(bytes, logprob)| (String::from_utf8_lossy(&bytes).into_owned(), bytes, logprob))
}

fn token() -> impl Strategy<Value = TokenInfo> {
    (any::<u32>(), entry(), prop::collection::vec(entry(), 0..3)).prop_map(|(id, (text, bytes, logprob), mut top)| {
        top.sort_by(|a, b| b.2.total_cmp(&a.2));
        top.dedup_by(|a, b| a.1 == b.1 || a.2 == b.2);
        TokenInfo { id: Some(id), text, bytes, logprob, top, recorded: Vec::new() }
    })
}

fn sample() -> impl Strategy<Value = Sample> {
    let refusal = prop_oneof![Just(String::new()), "\\PC{1,9}"];
    let matched = prop_oneof![Just(None), "\\PC{1,4}".prop_map(Some)];
    (answer(), refusal, prop::collection::vec(token(), 0..6), matched).prop_map(
        |(mut answer, refusal, tokens, matched)| {
            if let (Stop::End, Some(matched)) = (&answer.stop, matched) {
                answer.stop = Stop::Sequence(matched);
            }
            Sample { answer, refusal, tokens }
        },
    )
}

/// One to three choices.
pub(crate) fn samples() -> impl Strategy<Value = Vec<Sample>> {
    prop::collection::vec(sample(), 1..4)
}

/// The choices as events, interleaved; tokens stand with pieces or alone.
pub(crate) fn events(samples: &[Sample], seed: u64) -> Vec<Event> {
    let mut dice = Dice(seed);
    let mut queues: Vec<VecDeque<Event>> =
        samples.iter().zip(0..).map(|(sample, choice)| sample.queue(choice, seed, &mut dice)).collect();
    let mut events = vec![Event::Started { prompt: Some(vec![1, 2, 3]) }];
    while queues.iter().any(|queue| !queue.is_empty()) {
        let next = dice.roll(queues.len());
        events.extend(queues[next].pop_front());
    }
    let usage = samples.first().map_or_else(Usage::default, |sample| sample.answer.usage);
    events.push(Event::Usage(usage));
    events
}

impl Sample {
    fn queue(&self, choice: u32, seed: u64, dice: &mut Dice) -> VecDeque<Event> {
        let mut tokens = self.tokens.as_slice();
        let mut take = |dice: &mut Dice| {
            let (now, later) = tokens.split_at(dice.roll(tokens.len() + 1));
            tokens = later;
            now.to_vec()
        };
        let mut queue = VecDeque::new();
        for event in self.answer.events(seed) {
            if let Event::Delta { pieces, .. } = event {
                queue.push_back(Event::Delta { choice, pieces, tokens: take(dice) });
            }
        }
        let refusal = self.refusal.chars().map(|char| Piece::Refusal(char.to_string())).collect();
        queue.push_back(Event::Delta { choice, pieces: refusal, tokens: take(dice) });
        queue.push_back(Event::Delta { choice, pieces: Vec::new(), tokens: tokens.to_vec() });
        queue.push_back(Event::Finished { choice, stop: self.answer.stop.clone() });
        queue
    }
}

/// An ask for `n` choices that wants what the three flags say: log-probs, token ids, usage.
pub(crate) fn ask(n: usize, (logprobs, ids, usage): (bool, bool, bool)) -> Ask {
    Ask {
        n: n as u32,
        logprobs: logprobs.then_some(2),
        return_token_ids: ids,
        include_usage: usage,
        stream: true,
        ..Ask::new("m", Input::Turns(vec![Turn { role: Role::User, parts: Vec::new() }]))
    }
}

/// What a client that asked so can see of the answer.
pub(crate) fn visible(events: &[Event], ask: &Ask) -> Reply {
    let mut reply = reply(events);
    reply.prompt = reply.prompt.filter(|_| ask.return_token_ids);
    for choice in &mut reply.choices {
        match (ask.logprobs, ask.return_token_ids) {
            (None, _) => choice.tokens.clear(),
            (Some(_), false) => choice.tokens.iter_mut().for_each(|token| token.id = None),
            (Some(_), true) => {}
        }
    }
    reply
}

/// Any JSON, with the two dialects' names among keys and texts.
pub(crate) fn untrusted() -> impl Strategy<Value = Value> {
    let names = || {
        prop::sample::select(vec![
            "index",
            "delta",
            "message",
            "content",
            "text",
            "tool_calls",
            "function",
            "name",
            "arguments",
            "id",
            "type",
            "logprobs",
            "tokens",
            "token_logprobs",
            "top_logprobs",
            "token",
            "bytes",
            "logprob",
            "token_ids",
            "usage",
            "finish_reason",
            "stop",
            "error",
            "choices",
            "messages",
            "role",
            "user",
            "assistant",
            "tool",
            "tools",
            "reasoning_details",
            "signature",
            "prompt_token_ids",
            "prompt_tokens",
            "refusal",
            "custom",
            "model",
        ])
    };
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0_i64..4).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        names().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 48, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(names().prop_map(str::to_owned), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// A chunk or object whose choices are anything.
pub(crate) fn untrusted_body() -> impl Strategy<Value = Value> {
    (prop::collection::vec(untrusted(), 0..3), untrusted()).prop_map(|(choices, mut body)| {
        match body.as_object_mut() {
            Some(fields) => drop(fields.insert("choices".to_owned(), json!(choices))),
            None => body = json!({ "choices": choices }),
        }
        body
    })
}
