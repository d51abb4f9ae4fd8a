//! What upstreams get wrong in their own dialect, put right before anybody reads it or passes it on.
//! A provider's frames and objects go through here first, so that the client of the same dialect, the client of another
//! and the record hear the same. Half a character becomes U+FFFD; calls get the ids and indices that they lack; what is
//! said of a choice after its end is left out; a content block that was left open is closed.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::chat::calls::Calls;
use crate::dialect::Dialect;
use crate::fields::present;
use crate::openai::CHOICES_MAX;
use crate::sse::SseEvent;

/// Content blocks that are open at the same time; the dialect has one.
const OPEN_BLOCKS_MAX: usize = 4096;
const CLOSE: &str = "content_block_stop";

/// Mends one answer.
#[derive(Debug)]
pub struct Mender {
    dialect: Dialect,
    answer: String,
    calls: BTreeMap<u64, Calls>,
    /// Choices that have ended.
    ended: BTreeSet<u64>,
    /// Content blocks that are open, and whether the message has ended.
    open: BTreeSet<u64>,
    stopped: bool,
}

impl Mender {
    /// `answer` is a name that no other answer has: it is a part of the ids that the upstream leaves out.
    pub fn new(dialect: Dialect, answer: &str) -> Self {
        Self {
            dialect,
            answer: answer.to_owned(),
            calls: BTreeMap::new(),
            ended: BTreeSet::new(),
            open: BTreeSet::new(),
            stopped: false,
        }
    }

    /// What is to be read and passed on instead of a frame.
    pub fn push(&mut self, mut frame: SseEvent) -> Vec<SseEvent> {
        frame.data = characters(frame.data);
        match self.dialect {
            Dialect::Chat | Dialect::Completions => self.chunk(frame).into_iter().collect(),
            Dialect::Messages => self.message(frame),
            Dialect::Responses => vec![frame],
        }
    }

    /// What is to be read and passed on instead of a whole answer.
    pub fn whole(mut self, text: String) -> String {
        let text = characters(text);
        if self.dialect != Dialect::Chat || !text.contains("\"tool_calls\"") {
            return text;
        }
        let Ok(Value::Object(mut body)) = serde_json::from_str(&text) else { return text };
        if self.choices(&mut body, "message") { Value::Object(body).to_string() } else { text }
    }

    fn chunk(&mut self, mut frame: SseEvent) -> Option<SseEvent> {
        let data = frame.data.as_str();
        let suspect = !self.ended.is_empty() || data.contains("\"tool_calls\"") || ends(data) || lacks(data);
        if !suspect {
            return Some(frame);
        }
        let Ok(Value::Object(mut body)) = serde_json::from_str(data) else { return Some(frame) };
        let held = body.get("choices").and_then(Value::as_array).is_some_and(|choices| !choices.is_empty());
        if !self.choices(&mut body, "delta") {
            return Some(frame);
        }
        let emptied = held && body.get("choices").and_then(Value::as_array).is_some_and(Vec::is_empty);
        if emptied && present(&body, "usage").is_none() {
            return None;
        }
        frame.data = Value::Object(body).to_string();
        Some(frame)
    }

    /// True if anything changed.
    fn choices(&mut self, body: &mut Map<String, Value>, field: &str) -> bool {
        let choices = match body.get_mut("choices") {
            Some(Value::Array(choices)) => choices,
            Some(null @ Value::Null) => {
                *null = json!([]);
                return true;
            }
            _ => return false,
        };
        let mut changed = false;
        let mut kept = Vec::with_capacity(choices.len());
        for (position, mut choice) in std::mem::take(choices).into_iter().enumerate() {
            let number = choice.get("index").and_then(Value::as_u64).unwrap_or(position as u64);
            if self.ended.contains(&number) {
                changed = true;
                continue;
            }
            changed |= self.choice(number, &mut choice, field);
            kept.push(choice);
        }
        *choices = kept;
        changed
    }

    fn choice(&mut self, number: u64, choice: &mut Value, field: &str) -> bool {
        let Some(fields) = choice.as_object_mut().filter(|_| number < CHOICES_MAX) else { return false };
        let mut changed = false;
        if let Some(null @ Value::Null) = fields.get_mut(field) {
            *null = json!({});
            changed = true;
        }
        if fields.get("finish_reason").and_then(Value::as_str).is_some_and(|reason| !reason.is_empty()) {
            self.ended.insert(number);
        }
        let calls = fields.get_mut(field).and_then(|said| said.get_mut("tool_calls")).and_then(Value::as_array_mut);
        if let Some(entries) = calls {
            let answer = &self.answer;
            let whole = field == "message";
            let calls = self.calls.entry(number).or_insert_with(|| Calls::new(answer, number as u32, whole));
            for (position, entry) in entries.iter_mut().enumerate() {
                changed |= calls.mend(position, entry);
            }
        }
        changed
    }

    fn message(&mut self, frame: SseEvent) -> Vec<SseEvent> {
        let told =
            |kind: &str| frame.data.contains(kind) || frame.event.as_deref().is_some_and(|name| name.contains(kind));
        // Most frames are pieces of a block that is open.
        if !self.stopped && !told("content_block_st") && !told("message_delta") {
            return vec![frame];
        }
        let data: Value = serde_json::from_str(&frame.data).unwrap_or_default();
        let kind = data.get("type").and_then(Value::as_str).or(frame.event.as_deref()).unwrap_or_default();
        let index = data.get("index").and_then(Value::as_u64);
        match (kind, index) {
            ("content_block_start" | "content_block_delta" | CLOSE, _) if self.stopped => return Vec::new(),
            ("content_block_start", Some(index)) if self.open.len() < OPEN_BLOCKS_MAX => {
                self.open.insert(index);
            }
            (CLOSE, Some(index)) => {
                self.open.remove(&index);
            }
            ("message_delta", _) if data.pointer("/delta/stop_reason").is_some_and(Value::is_string) => {
                self.stopped = true;
            }
            _ => {}
        }
        let open = if self.stopped { std::mem::take(&mut self.open) } else { BTreeSet::new() };
        let closed = open.into_iter().map(|index| SseEvent {
            event: Some(CLOSE.to_owned()),
            data: json!({ "type": CLOSE, "index": index }).to_string(),
        });
        closed.chain([frame]).collect()
    }
}

/// A finish reason that is a text.
fn ends(data: &str) -> bool {
    ["\"finish_reason\":\"", "\"finish_reason\": \""].iter().any(|end| data.contains(end))
}

/// Null where a client expects a list or an object.
fn lacks(data: &str) -> bool {
    let nulls = ["\"choices\":null", "\"choices\": null", "\"delta\":null", "\"delta\": null"];
    nulls.iter().any(|null| data.contains(null))
}

/// JSON text in which an escape is half of a character: some upstreams cut between the halves. No reader knows such
/// text, so the half becomes U+FFFD.
fn characters(text: String) -> String {
    if !text.contains("\\ud") && !text.contains("\\uD") {
        return text;
    }
    let mut mended = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        mended.push_str(before);
        let length = match half(escape) {
            Some(Half::High) if escape.get(6..).and_then(half) == Some(Half::Low) => 12,
            Some(_) => {
                mended.push_str("\\ufffd");
                rest = escape.get(6..).unwrap_or_default();
                continue;
            }
            // A backslash and what it escapes, so that no later one is taken for a beginning.
            None => 1 + escape.chars().nth(1).map_or(0, char::len_utf8),
        };
        let (kept, later) = escape.split_at(length);
        mended.push_str(kept);
        rest = later;
    }
    mended.push_str(rest);
    mended
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Half {
    High,
    Low,
}

/// Which half of a character begins here as an escape.
fn half(escape: &str) -> Option<Half> {
    let unit = u16::from_str_radix(escape.strip_prefix("\\u")?.get(..4)?, 16).ok()?;
    match unit {
        0xD800..0xDC00 => Some(Half::High),
        0xDC00..0xE000 => Some(Half::Low),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ask::Part;
    use crate::reply::Reply;

    fn frames(dialect: Dialect, data: &[Value]) -> Vec<SseEvent> {
        let mut mender = Mender::new(dialect, "x1");
        let frames = data.iter().map(|data| SseEvent { event: None, data: data.to_string() });
        frames.flat_map(|frame| mender.push(frame)).collect()
    }

    fn parsed(frame: &SseEvent) -> Value {
        serde_json::from_str(&frame.data).expect("JSON")
    }

    fn read(dialect: Dialect, frames: &[SseEvent]) -> Reply {
        let (mut reader, mut reply) = (dialect.reader("x1"), Reply::default());
        for frame in frames {
            reader.push(frame).expect("readable").iter().for_each(|event| reply.push(event));
        }
        reader.finish().expect("whole").iter().for_each(|event| reply.push(event));
        reply
    }

    fn calls(entries: Value) -> Value {
        json!({ "choices": [{ "index": 0, "delta": { "tool_calls": entries } }] })
    }

    fn end() -> Value {
        json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "tool_calls" }] })
    }

    #[test]
    fn calls_without_ids_or_indices_get_their_own_and_the_reader_hears_the_same() {
        for id in [Value::Null, json!("")] {
            let call = |name: &str| json!({ "id": id, "function": { "name": name, "arguments": "{}" } });
            let mended = frames(Dialect::Chat, &[calls(json!([call("f")])), calls(json!([call("g")])), end()]);
            let told: Vec<Value> = mended.iter().map(parsed).collect();
            let second = &told[1]["choices"][0]["delta"]["tool_calls"][0];
            assert_eq!((&second["index"], &second["id"]), (&json!(1), &json!("call_x1_0_1")));
            let first = &told[0]["choices"][0]["delta"]["tool_calls"][0];
            assert_eq!(
                (&first["index"], &first["id"], &first["type"]),
                (&json!(0), &json!("call_x1_0_0"), &json!("function"))
            );
            let Part::Call { id, .. } = &read(Dialect::Chat, &mended).choices[0].parts[0] else { panic!("no call") };
            assert_eq!(id, "call_x1_0_0");
        }
        let other = Mender::new(Dialect::Chat, "x2").push(SseEvent {
            event: None,
            data: calls(json!([{ "index": 0, "function": { "name": "f" } }])).to_string(),
        });
        assert!(other[0].data.contains("call_x2_0_0"), "{other:?}");
    }

    #[test]
    fn calls_that_share_an_index_are_told_apart() {
        let begin = |id: &str| json!([{ "index": 0, "id": id, "type": "function", "function": { "name": "f", "arguments": "" } }]);
        let more = || json!([{ "index": 0, "function": { "arguments": "{}" } }]);
        let mended =
            frames(Dialect::Chat, &[calls(begin("a")), calls(more()), calls(begin("b")), calls(more()), end()]);
        let indices: Vec<Value> = mended[..4]
            .iter()
            .map(|frame| parsed(frame)["choices"][0]["delta"]["tool_calls"][0]["index"].clone())
            .collect();
        assert_eq!(indices, [0, 0, 1, 1].map(Value::from));
        assert_eq!(read(Dialect::Chat, &mended).choices[0].parts.len(), 2);
    }

    #[test]
    fn an_object_s_calls_get_ids_and_a_sane_frame_stays_as_it_was_sent() {
        let call = |id: &str| json!({ "id": id, "type": "function", "function": { "name": "f", "arguments": "{}" } });
        let body =
            json!({ "choices": [{ "message": { "tool_calls": [call(""), call("")] }, "finish_reason": "stop" }] });
        let mended: Value =
            serde_json::from_str(&Mender::new(Dialect::Chat, "x1").whole(body.to_string())).expect("JSON");
        let ids = [0, 1].map(|place| mended["choices"][0]["message"]["tool_calls"][place]["id"].clone());
        assert_eq!(ids, ["call_x1_0_0", "call_x1_0_1"].map(Value::from));
        let sane = r#"{ "choices": [ { "index": 0, "delta": { "tool_calls": [ { "index": 0, "id": "a", "type": "function", "function": { "name": "f", "arguments": "" } } ] } } ] }"#;
        let frame = SseEvent { event: None, data: sane.to_owned() };
        assert_eq!(Mender::new(Dialect::Chat, "x1").push(frame.clone()), [frame]);
    }

    #[test]
    fn a_choice_ends_once_and_says_nothing_afterwards() {
        let say = |text: &str| json!({ "choices": [{ "index": 0, "delta": { "content": text } }] });
        let stop = json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "stop" }] });
        let usage = json!({ "choices": null, "usage": { "prompt_tokens": 1 } });
        let mended = frames(Dialect::Chat, &[say("a"), stop.clone(), stop, say("b"), usage]);
        let told: Vec<Value> = mended.iter().map(parsed).collect();
        assert_eq!(told.len(), 3, "{told:?}");
        assert_eq!(told[2], json!({ "choices": [], "usage": { "prompt_tokens": 1 } }));
        let null = frames(Dialect::Chat, &[json!({ "choices": [{ "index": 0, "delta": null }] })]);
        assert_eq!(parsed(&null[0])["choices"][0]["delta"], json!({}));
        let late = json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta", "text": "b" } });
        let stop = json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn" } });
        assert_eq!(frames(Dialect::Messages, &[stop, late]).len(), 1);
    }

    #[test]
    fn a_block_that_was_left_open_is_closed_before_the_end() {
        let begin = json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "tool_use", "id": "a", "name": "f", "input": {} } });
        let stop = json!({ "type": "message_delta", "delta": { "stop_reason": "tool_use" } });
        let mended = frames(Dialect::Messages, &[begin, stop]);
        let kinds: Vec<Value> = mended.iter().map(|frame| parsed(frame)["type"].clone()).collect();
        assert_eq!(kinds, ["content_block_start", CLOSE, "message_delta"].map(Value::from));
        let call = Part::Call { id: "a".to_owned(), name: "f".to_owned(), arguments: "{}".to_owned() };
        assert_eq!(read(Dialect::Messages, &mended).choices[0].parts, [call]);
    }

    #[test]
    fn half_a_character_becomes_the_replacement_character() {
        for (sent, mended) in [
            (r#"{"content":"a\ud83d"}"#, r#"{"content":"a\ufffd"}"#),
            (r#"{"content":"\ude00b"}"#, r#"{"content":"\ufffdb"}"#),
            (r#"{"content":"\ud83d\ude00"}"#, r#"{"content":"\ud83d\ude00"}"#),
            (r#"{"content":"\ud83d\ud83d\ude00"}"#, r#"{"content":"\ufffd\ud83d\ude00"}"#),
            (r#"{"content":"\\ud83d \\\uD83D"}"#, r#"{"content":"\\ud83d \\\ufffd"}"#),
        ] {
            assert_eq!(characters(sent.to_owned()), mended);
            assert!(serde_json::from_str::<Value>(mended).is_ok(), "{mended}");
        }
    }

    proptest! {
        #[test]
        fn text_without_halves_stays_and_any_text_is_taken(text in ".{0,40}", escapes in "(\\\\u[dD][89a-fA-F][0-9]{2}|\\\\\\\\|\\\\|u|x){0,9}") {
            let whole = json!({ "content": text }).to_string();
            prop_assert_eq!(characters(whole.clone()), whole);
            characters(escapes);
        }
    }
}
