//! `best-of.json` as this host can play it: what goes into each call, and what must come out.
//! Numbers are compared as 64-bit floats, as JavaScript, which the file was written for, knows no others.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};

/// Refusals that this host never gives to a recipe that only names samples of its call.
const IMPOSSIBLE: [&str; 1] = ["an unknown sample is named"];

/// The file.
pub struct Golden {
    /// What every language says of itself, without the texts for people.
    pub describe: Value,
    pub cases: Vec<Case>,
}

/// One call.
pub struct Case {
    pub name: String,
    pub entry: Entry,
    /// Handle, score and prompt key, in the order of the pool.
    pub samples: Vec<(u32, Option<f64>, String)>,
    pub config: Map<String, Value>,
    pub state: BTreeMap<String, Vec<u8>>,
    pub refusal: Option<Refusal>,
    pub expected: Expected,
}

/// The function that is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    Select,
    Propose,
    Evaluate(u32),
}

/// What the host refuses in a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Refusal {
    /// The second call of a capability.
    SecondHostCall,
    /// Any write to the state.
    Write,
    /// `train`, as something this trainer cannot do.
    Train(String),
    /// `checkpoint`, because the step was cancelled.
    Checkpoint,
}

/// What must come of a call.
pub enum Expected {
    Answer {
        answer: Value,
        effects: Effects,
    },
    /// The fault's message. With `open_ended`, this host ends it in its own words.
    Failure {
        message: String,
        open_ended: bool,
    },
}

/// What a call does besides its answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Effects {
    /// Calls of the trainer, with their arguments.
    pub training: Vec<Value>,
    /// Written keys and their values in hex.
    pub state: BTreeMap<String, String>,
    pub gauges: BTreeMap<String, f64>,
    pub log_lines: u32,
}

impl Golden {
    pub fn read() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../sdk/tests/best-of.json");
        let text = fs::read_to_string(&path).expect("best-of.json is there");
        let file: Value = serde_json::from_str(&text).expect("it is JSON");
        let all = file["cases"].as_array().expect("cases");
        let cases: Vec<_> = all.iter().filter(|case| !IMPOSSIBLE.contains(&text_of(&case["name"]))).map(case).collect();
        assert_eq!(cases.len() + IMPOSSIBLE.len(), all.len(), "every other case is played");
        Self { describe: description(&file["describe"]), cases }
    }
}

fn case(case: &Value) -> Case {
    let entry = match text_of(&case["call"]) {
        "select" => Entry::Select,
        "propose" => Entry::Propose,
        _ => Entry::Evaluate(handle(&case["candidate"])),
    };
    let samples = case["samples"].as_array().into_iter().flatten();
    let parsed = |(key, text): (&String, &Value)| {
        (key.clone(), serde_json::from_str(text_of(text)).expect("values of the configuration are JSON"))
    };
    Case {
        name: text_of(&case["name"]).to_owned(),
        entry,
        samples: samples.map(|row| (handle(&row[0]), score(&row[1]), text_of(&row[2]).to_owned())).collect(),
        config: case["config"].as_object().into_iter().flatten().map(parsed).collect(),
        state: case["state"].as_object().into_iter().flatten().map(|(k, hex)| (k.clone(), bytes(hex))).collect(),
        refusal: case["refuse"].as_object().and_then(|refuse| refuse.iter().next()).map(refusal),
        expected: expected(case),
    }
}

fn refusal((function, error): (&String, &Value)) -> Refusal {
    match (function.as_str(), text_of(&error["tag"])) {
        ("promptKeys", "budget") => Refusal::SecondHostCall,
        ("set", "too-large") => Refusal::Write,
        ("train", "unsupported") => Refusal::Train(text_of(&error["val"]).to_owned()),
        ("checkpoint", "cancelled") => Refusal::Checkpoint,
        other => panic!("best-of.json refuses {other:?}, and this test does not know how to bring that about"),
    }
}

fn expected(case: &Value) -> Expected {
    let Some(failure) = case["failure"].as_object() else {
        return Expected::Answer { answer: floats(case["answer"].clone()), effects: effects(&case["effects"]) };
    };
    let told = text_of(&failure["val"]);
    let message = match text_of(&failure["tag"]) {
        "invalid-config" => format!("invalid configuration: {told}"),
        "capability" => format!("a capability refused: {told}"),
        _ => told.to_owned(),
    };
    // Budgets and sizes are refused by the sandbox itself, in its own words.
    let own_words = ["promptKeys", "set"].iter().find_map(|function| case["refuse"][*function]["val"].as_str());
    match own_words.and_then(|words| message.strip_suffix(words)) {
        Some(start) => Expected::Failure { message: start.to_owned(), open_ended: true },
        None => Expected::Failure { message, open_ended: false },
    }
}

fn effects(listed: &Value) -> Effects {
    let mut effects = Effects::default();
    for effect in listed.as_array().expect("effects") {
        match text_of(&effect[0]) {
            "set" => {
                effects.state.insert(text_of(&effect[1]).to_owned(), text_of(&effect[2]).to_owned());
            }
            "gauge" => {
                effects.gauges.insert(text_of(&effect[1]).to_owned(), effect[2].as_f64().expect("a number"));
            }
            "log" => effects.log_lines += 1,
            "train" => effects.training.push(floats(per_token(effect.clone()))),
            _ => effects.training.push(floats(effect.clone())),
        }
    }
    effects
}

/// Advantages as the trainer gets them: 32-bit, one for every response token.
fn per_token(mut train: Value) -> Value {
    let items: Vec<u32> = train[2].as_array().expect("items").iter().map(handle).collect();
    let advantages = &mut train[3][0]["what"]["val"]["advantages"];
    let values = advantages["val"].as_array().expect("advantages").iter().zip(&items);
    let spread = values.flat_map(|(value, item)| {
        let rounded = value.as_f64().expect("a number") as f32;
        std::iter::repeat_n(rounded, response_length(*item))
    });
    *advantages = json!(spread.collect::<Vec<f32>>());
    train
}

/// Response tokens of the sample with this handle: not the same for all, and never 0.
pub fn response_length(handle: u32) -> usize {
    1 + handle as usize % 3
}

/// Every number as a 64-bit float.
pub fn floats(value: Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(values) => values.into_iter().map(floats).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, floats(value))).collect(),
        other => other,
    }
}

fn description(describe: &Value) -> Value {
    let key = |key: &Value| {
        let default: Value = serde_json::from_str(text_of(&key["defaultValue"])).expect("JSON");
        json!([key["name"], key["kind"], default, key["minimum"], key["maximum"]])
    };
    let mut capabilities: Vec<_> = describe["capabilities"].as_array().expect("names").iter().map(text_of).collect();
    capabilities.sort_unstable();
    floats(json!({
        "name": describe["name"],
        "version": describe["version"],
        "surface": describe["surface"],
        "needs_score": describe["needsScore"],
        "report_fields": describe["reportFields"],
        "config": describe["config"].as_array().expect("keys").iter().map(key).collect::<Vec<_>>(),
        "capabilities": capabilities,
        "top_k": describe["topK"],
        "re_evaluate_every": describe["reEvaluateEvery"],
    }))
}

fn text_of(value: &Value) -> &str {
    value.as_str().expect("a text")
}

fn handle(value: &Value) -> u32 {
    value.as_u64().and_then(|handle| u32::try_from(handle).ok()).expect("a handle")
}

/// A report without a score reads as NaN.
fn score(value: &Value) -> Option<f64> {
    match value.as_str() {
        None => value.as_f64(),
        Some("nan") => None,
        Some("inf") => Some(f64::INFINITY),
        Some(_) => Some(f64::NEG_INFINITY),
    }
}

fn bytes(hex: &Value) -> Vec<u8> {
    let digits = text_of(hex).as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).expect("hex"));
    digits.map(|pair| u8::from_str_radix(pair, 16).expect("hex")).collect()
}
