//! A conversation as a row of digests: what had been said before each answer, and the answer.
//! Two requests agree where their texts, calls and results agree; ids, cache marks, reasoning and the way in which text
//! is cut into parts do not count, because clients change them between one request and the next.

use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use crate::request::{Body, is_system, is_text, role};

/// Bytes of a digest that are kept.
const DIGEST_BYTES: usize = 16;
/// Fields and parts that change between requests that mean the same.
const VOLATILE: [&str; 7] = ["cache_control", "id", "call_id", "tool_call_id", "tool_use_id", "status", "signature"];
/// Parts that clients leave out later.
const REASONING: [&str; 3] = ["thinking", "redacted_thinking", "reasoning"];

/// A digest of something that was said.
pub(super) type Digest = [u8; DIGEST_BYTES];

/// The answer to a request, as it will stand in the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer(pub(super) Digest);

/// What a request says, as far as it tells conversations apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transcript {
    /// Everything but the system prompt.
    pub(super) whole: Digest,
    /// For each answer in it: what had been said before, and the answer. In order.
    pub(super) answers: Vec<(Digest, Answer)>,
    /// The system prompt.
    pub(super) system: Digest,
}

impl Transcript {
    /// Reads a request's body, in any dialect; `None` if nobody says anything in it.
    pub fn of(body: &Map<String, Value>) -> Option<Self> {
        let body = Body(body);
        let mut system = Sha256::new();
        body.system().for_each(|text| frame(&mut system, b's', text.trim().as_bytes()));
        let mut said = Sha256::new();
        let mut answers = Vec::new();
        let mut items = body.items().iter().filter(|item| !is_system(item)).peekable();
        if items.peek().is_none() && body.text().is_none() {
            return None;
        }
        if let Some(text) = body.text() {
            // As the one message of a person that it is in other requests.
            said.update(b"u");
            frame(&mut said, b'r', b"user");
            frame(&mut said, b't', text.trim().as_bytes());
        }
        while let Some(item) = items.next() {
            if !is_answer(item) {
                said.update(b"u");
                put_item(&mut said, item);
                continue;
            }
            // In one dialect an answer is one message, in another several items.
            let before = short(said.clone());
            let mut answer = Speech::default();
            answer.item(item);
            while let Some(more) = items.next_if(|item| is_answer(item)) {
                answer.item(more);
            }
            let answer = answer.end();
            said.update(answer.0);
            answers.push((before, answer));
        }
        Some(Self { whole: short(said), answers, system: short(system) })
    }
}

impl Answer {
    /// Reads a response's body, in any dialect; `None` if nothing was answered. Of several choices the first counts.
    pub fn of(response: &Value) -> Option<Self> {
        let mut speech = Speech::default();
        if let Some(choice) = response.get("choices").and_then(|choices| choices.get(0)) {
            match choice.get("message") {
                Some(message) => speech.item(message),
                None => speech.text(choice.get("text")?.as_str()?),
            }
        } else if let Some(output) = response.get("output").and_then(Value::as_array) {
            output.iter().for_each(|item| speech.item(item));
        } else if response.get("content").is_some_and(Value::is_array) {
            speech.item(response);
        }
        speech.said.then(|| speech.end())
    }
}

/// Items of the model: its messages, and in the responses dialect its calls and reasoning.
fn is_answer(item: &Value) -> bool {
    let kind = item.get("type").and_then(Value::as_str).unwrap_or_default();
    role(item) == "assistant" || (role(item).is_empty() && (kind.ends_with("_call") || REASONING.contains(&kind)))
}

/// What the model says at once: texts run together, whatever parts they come in.
#[derive(Default)]
struct Speech {
    texts: String,
    calls: Sha256,
    said: bool,
}

impl Speech {
    fn item(&mut self, item: &Value) {
        match item.get("content") {
            Some(Value::String(text)) => self.text(text),
            Some(Value::Array(parts)) => parts.iter().for_each(|part| self.part(part)),
            _ if role(item).is_empty() => self.part(item),
            _ => {}
        }
        let calls = item.get("tool_calls").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        calls.iter().filter_map(|call| call.get("function")).for_each(|function| self.call(function));
    }

    fn part(&mut self, part: &Value) {
        let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
        match part.get("text").and_then(Value::as_str) {
            Some(text) if is_text(part) => self.text(text),
            _ if REASONING.contains(&kind) => {}
            _ => self.call(part),
        }
    }

    fn text(&mut self, text: &str) {
        self.texts.push_str(text);
        self.said |= !text.trim().is_empty();
    }

    /// The same call looks alike in every dialect: a name, and arguments as a value or as its text.
    fn call(&mut self, call: &Value) {
        self.said = true;
        let name = call.get("name").and_then(Value::as_str).unwrap_or_default();
        frame(&mut self.calls, b'c', name.as_bytes());
        let arguments = call.get("arguments").or_else(|| call.get("input"));
        match arguments.and_then(Value::as_str).map(serde_json::from_str::<Value>) {
            Some(Ok(read)) => put_value(&mut self.calls, &read),
            _ => put_value(&mut self.calls, arguments.unwrap_or(call)),
        }
    }

    fn end(self) -> Answer {
        let mut whole = Sha256::new();
        frame(&mut whole, b't', self.texts.trim().as_bytes());
        whole.update(self.calls.finalize());
        Answer(short(whole))
    }
}

/// A message of a person or a result: its role, its texts run together, and what else it holds.
fn put_item(digest: &mut Sha256, item: &Value) {
    frame(digest, b'r', role(item).as_bytes());
    let content = item.get("content").or_else(|| item.get("output")).unwrap_or(item);
    let mut texts = String::new();
    match content {
        Value::String(text) => texts.push_str(text),
        Value::Array(parts) => {
            for part in parts {
                match part.get("text").and_then(Value::as_str) {
                    Some(text) if is_text(part) => texts.push_str(text),
                    _ => put_value(digest, part),
                }
            }
        }
        other => put_value(digest, other),
    }
    frame(digest, b't', texts.trim().as_bytes());
}

/// A JSON value: fields in the order of their names, without those that change.
fn put_value(digest: &mut Sha256, value: &Value) {
    match value {
        Value::Null => digest.update(b"n"),
        Value::Bool(truth) => digest.update(if *truth { b"+" } else { b"-" }),
        Value::Number(number) => frame(digest, b'#', number.to_string().as_bytes()),
        Value::String(text) => frame(digest, b't', text.as_bytes()),
        Value::Array(items) => {
            digest.update(b"[");
            items.iter().for_each(|item| put_value(digest, item));
            digest.update(b"]");
        }
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().filter(|(name, _)| !VOLATILE.contains(&name.as_str())).collect();
            fields.sort_by_key(|(name, _)| name.as_str());
            digest.update(b"{");
            for (name, value) in fields {
                frame(digest, b'f', name.as_bytes());
                put_value(digest, value);
            }
            digest.update(b"}");
        }
    }
}

/// Length first, so that no two rows of texts look alike.
fn frame(digest: &mut Sha256, kind: u8, bytes: &[u8]) {
    digest.update([kind]);
    digest.update((bytes.len() as u64).to_le_bytes());
    digest.update(bytes);
}

fn short(digest: Sha256) -> Digest {
    let mut kept = [0; DIGEST_BYTES];
    kept.iter_mut().zip(digest.finalize()).for_each(|(kept, byte)| *kept = byte);
    kept
}
