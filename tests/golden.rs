//! The engine against PyTorch and transformers in f32: golden/make_golden.py wrote their numbers down.
//! One engine answers all chats at once, so that what batching or a shared prefix changes shows as well.
//! Each test compares everything and lists every difference at its end.

use std::path::Path;
use std::sync::OnceLock;

use reef_core::{Message, Sampling};
use reef_engine::{
    Engine, EngineConfig, Event, Finish, FinishReason, LoraConfig, Request, ServedWeights, Token, Weights,
};
use serde_json::Value;

use crate::support::model;

/// Largest difference of a logit or a log-prob between two f32 implementations, in nats.
const TOLERANCE: f64 = 1e-3;
/// Serving rounds the activations that low-bit weights meet to 16 bits.
const SERVING_TOLERANCE: f64 = 5e-3;
/// The longest chat and its answer fit.
const CONTEXT_MAX: usize = 1024;
const QUEUE_MAX: usize = 64;
const BATCH_MAX: usize = 16;

fn golden() -> &'static Value {
    static GOLDEN: OnceLock<Value> = OnceLock::new();
    GOLDEN.get_or_init(|| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/smollm2.json");
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    })
}

fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| {
        let config = EngineConfig {
            model: model(),
            threads: 0,
            batch_max: BATCH_MAX,
            context_max: CONTEXT_MAX,
            tenants: 1,
            queue_max: QUEUE_MAX,
            lora: LoraConfig::default(),
            training: reef_engine::Compute::default(),
            weights: ServedWeights::File,
            cache_bytes_max: 1 << 30,
        };
        Engine::load(config).unwrap()
    })
}

fn chats() -> &'static [Value] {
    golden()["chats"].as_array().unwrap()
}

fn name(case: &Value) -> &str {
    case["name"].as_str().unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    serde_json::from_value(value.clone()).unwrap()
}

/// `None` when equal.
fn difference<T: PartialEq + std::fmt::Debug>(what: &str, found: &[T], wanted: &[T]) -> Option<String> {
    if found == wanted {
        return None;
    }
    let at = found.iter().zip(wanted).take_while(|(found, wanted)| found == wanted).count();
    Some(format!("{what}: differs from item {at} on: {:?}, wanted {:?}", &found[at..], &wanted[at..]))
}

/// `None` when all numbers are close.
fn distance(what: &str, found: &[f64], wanted: &[f64]) -> Option<String> {
    within(TOLERANCE, what, found, wanted)
}

fn within(tolerance: f64, what: &str, found: &[f64], wanted: &[f64]) -> Option<String> {
    if found.len() != wanted.len() {
        return Some(format!("{what}: {} numbers, wanted {}", found.len(), wanted.len()));
    }
    let pairs = found.iter().zip(wanted).enumerate().map(|(at, (found, wanted))| (at, (found - wanted).abs()));
    let (at, worst) = pairs.max_by(|a, b| a.1.total_cmp(&b.1))?;
    (worst.is_nan() || worst > tolerance)
        .then(|| format!("{what}: item {at} is {}, wanted {}: {worst:e} apart", found[at], wanted[at]))
}

fn assert_none(differences: impl IntoIterator<Item = String>) {
    let differences: Vec<String> = differences.into_iter().collect();
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}

/// One answer, to its end.
struct Answer {
    tokens: Vec<Token>,
    finish: Finish,
}

impl Answer {
    fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|token| token.id).collect()
    }

    fn text(&self) -> String {
        self.tokens.iter().map(|token| token.text.as_str()).chain([self.finish.text.as_str()]).collect()
    }

    fn finish(&self) -> &'static str {
        match self.finish.reason {
            FinishReason::Stop { matched: None } => "stop",
            FinishReason::Length => "length",
            _ => "something else",
        }
    }
}

/// Greedy answers to the golden prompts, which were all submitted before the first was read.
fn answers() -> &'static [Answer] {
    static ANSWERS: OnceLock<Vec<Answer>> = OnceLock::new();
    ANSWERS.get_or_init(|| {
        let submitted: Vec<_> = chats().iter().map(|case| engine().generate(greedy(case)).unwrap()).collect();
        let collect = |mut events: tokio::sync::mpsc::Receiver<Event>| {
            let mut tokens = Vec::new();
            loop {
                match events.blocking_recv() {
                    Some(Event::Token(token)) => tokens.push(token),
                    Some(Event::Done(finish)) => return Answer { tokens, finish },
                    other => panic!("the answer ended with {other:?}"),
                }
            }
        };
        submitted.into_iter().map(collect).collect()
    })
}

fn greedy(case: &Value) -> Request {
    let sampling = Sampling { temperature: 0.0, top_p: 1.0, top_k: 0, seed: 0 };
    let tokens_max = serde_json::from_value(case["tokens_max"].clone()).unwrap();
    Request::new("golden", ids(&case["prompt_ids"]), Weights::Base, sampling, tokens_max)
}

#[test]
fn the_golden_data_belongs_to_the_model_and_covers_enough() {
    let file = model();
    assert_eq!(golden()["model"].as_str(), file.file_name().and_then(|name| name.to_str()));
    assert!(chats().len() >= 24 && chats().len() <= QUEUE_MAX);
    assert!(chats().iter().filter(|case| case["logits"].is_object()).count() >= 6);
    assert!(golden()["tokenizer"].as_array().unwrap().len() >= 60);
}

#[test]
fn texts_encode_to_the_reference_ids_and_back() {
    let differences = golden()["tokenizer"].as_array().unwrap().iter().flat_map(|case| {
        let text = case["text"].as_str().unwrap();
        let (found, wanted) = (engine().encode(text).unwrap(), ids(&case["ids"]));
        let back = engine().decode(&wanted).unwrap();
        let there = difference(&format!("ids of {text:?}"), &found, &wanted);
        [there, difference("text", &[back.as_str()], &[text])].into_iter().flatten()
    });
    assert_none(differences);
}

#[test]
fn chats_render_to_the_reference_ids() {
    let differences = chats().iter().filter_map(|case| {
        let messages: Vec<Message> = serde_json::from_value(case["messages"].clone()).unwrap();
        difference(name(case), &engine().render_chat(&messages).unwrap(), &ids(&case["prompt_ids"]))
    });
    assert_none(differences);
}

#[test]
fn greedy_answers_of_a_full_batch_equal_the_reference_token_for_token() {
    let differences = chats().iter().zip(answers()).flat_map(|(case, answer)| {
        let ends = [answer.text(), answer.finish().to_owned()];
        let wanted = ["text", "finish"].map(|key| case[key].as_str().unwrap().to_owned());
        let tokens = difference(name(case), &answer.ids(), &ids(&case["output_ids"]));
        [tokens, difference(name(case), &ends, &wanted)].into_iter().flatten()
    });
    assert_none(differences);
}

#[test]
fn log_probs_of_greedy_tokens_are_those_of_the_reference() {
    let differences = chats().iter().zip(answers()).filter_map(|(case, answer)| {
        let found: Vec<f64> = answer.tokens.iter().map(|token| f64::from(token.logprob)).collect();
        within(SERVING_TOLERANCE, name(case), &found, &numbers(&case["log_probs"]))
    });
    assert_none(differences);
}

#[test]
fn logits_after_a_prompt_are_those_of_the_reference() {
    let indices = ids(&golden()["logit_indices"]);
    let differences = chats().iter().filter(|case| case["logits"].is_object()).flat_map(|case| {
        let logits = engine().prompt_logits(&ids(&case["prompt_ids"])).unwrap();
        let probed: Vec<f64> = indices.iter().map(|index| f64::from(logits[*index as usize])).collect();
        let most = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - most).exp()).sum();
        let wanted = &case["logits"];
        let summary = [&wanted["log_sum_exp"], &wanted["max"]].map(|number| number.as_f64().unwrap());
        let argmax = wanted["argmax"].as_u64().unwrap() as usize;
        [
            distance(&format!("{}: logits", name(case)), &probed, &numbers(&wanted["values"])),
            distance(&format!("{}: log-sum-exp, maximum", name(case)), &[most + sum.ln(), most], &summary),
            distance(&format!("{}: logit of argmax", name(case)), &[f64::from(logits[argmax])], &[most]),
        ]
        .into_iter()
        .flatten()
    });
    assert_none(differences);
}
