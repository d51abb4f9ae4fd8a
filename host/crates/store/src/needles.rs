//! What people said, to be found again where a recipe or a proposer repeated it. `derived.rs` makes one from the records
//! that are erased and looks for it in what was derived from them. It holds hashes of pieces and no text; a text that is
//! too short to tell one person from another is not looked for.

use std::collections::{BTreeMap, HashSet};

use serde_json::Value;

/// Bytes of a piece: hardly a sentence shares so many with another by chance.
const PIECE_BYTES: usize = 24;
/// Bytes from the begin of one piece to that of the next: what repeats `PIECE_BYTES + STEP_BYTES - 1` bytes is found.
const STEP_BYTES: usize = 8;
/// Shorter texts are not looked for.
const TEXT_BYTES_MIN: usize = 16;
/// Different bytes that a piece has at least: lines of dashes and spaces stand everywhere.
const BYTES_DIFFERENT_MIN: usize = 6;
/// Multiplier of the rolling hash, odd: 2^64 divided by the golden ratio.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// Keys of a request or an answer under which no person speaks: an operator to every agent alike, or the interface.
const NOBODYS_KEYS: [&str; 11] = [
    "tools",
    "functions",
    "system",
    "instructions",
    "model",
    "id",
    "object",
    "type",
    "finish_reason",
    "stop_reason",
    "system_fingerprint",
];
/// Roles of messages that do the same.
const OPERATOR_ROLES: [&str; 2] = ["system", "developer"];

/// Pieces of texts.
#[derive(Debug, Default)]
pub(crate) struct Needles {
    /// Of longer texts.
    pieces: HashSet<u64>,
    /// Short texts as a whole, by their length.
    whole: BTreeMap<usize, HashSet<u64>>,
    bytes: usize,
}

impl Needles {
    /// Bytes of the texts so far.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.whole.is_empty()
    }

    /// Adds what a person said.
    pub fn add(&mut self, text: &str) {
        let bytes = text.trim().as_bytes();
        self.bytes = self.bytes.saturating_add(bytes.len());
        if bytes.len() < TEXT_BYTES_MIN || is_digest(bytes) {
            return;
        }
        if bytes.len() < PIECE_BYTES + STEP_BYTES {
            if tells(bytes) {
                self.whole.entry(bytes.len()).or_default().insert(hash(bytes));
            }
            return;
        }
        let end = bytes.last_chunk::<PIECE_BYTES>().map(<[u8; PIECE_BYTES]>::as_slice);
        let pieces = bytes.windows(PIECE_BYTES).step_by(STEP_BYTES).chain(end);
        self.pieces.extend(pieces.filter(|piece| tells(piece)).map(hash));
    }

    /// Adds every text of a request, an answer or a report, but what the operator tells all agents.
    pub fn add_all(&mut self, json: &Value) {
        match json {
            Value::String(text) => self.add(text),
            Value::Array(items) => items.iter().for_each(|item| self.add_all(item)),
            Value::Object(fields) => {
                let role = fields.get("role").and_then(Value::as_str).unwrap_or_default();
                if !OPERATOR_ROLES.contains(&role) {
                    let said = fields.iter().filter(|(key, _)| !NOBODYS_KEYS.contains(&key.as_str()));
                    said.for_each(|(_, value)| self.add_all(value));
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Does it repeat any of them?
    pub fn are_in(&self, text: &[u8]) -> bool {
        repeats(text, PIECE_BYTES, &self.pieces)
            || self.whole.iter().any(|(length, whole)| repeats(text, *length, whole))
    }

    /// The same of a value of a recipe's state, which is JSON as often as not.
    pub fn are_in_state(&self, value: &[u8]) -> bool {
        self.are_in(value) || serde_json::from_slice(value).is_ok_and(|json: Value| self.are_in_json(&json))
    }

    /// Does any text of it?
    pub fn are_in_json(&self, json: &Value) -> bool {
        match json {
            Value::String(text) => self.are_in(text.as_bytes()),
            Value::Array(items) => items.iter().any(|item| self.are_in_json(item)),
            Value::Object(fields) => {
                fields.iter().any(|(key, value)| self.are_in(key.as_bytes()) || self.are_in_json(value))
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
        }
    }

    /// Puts `instead` for every text that repeats any; were there such?
    pub fn take_out(&self, json: &mut Value, instead: &str) -> bool {
        match json {
            Value::String(text) if self.are_in(text.as_bytes()) => {
                instead.clone_into(text);
                true
            }
            Value::Array(items) => {
                items.iter_mut().filter_map(|item| self.take_out(item, instead).then_some(())).count() > 0
            }
            Value::Object(fields) => {
                fields.values_mut().filter_map(|value| self.take_out(value, instead).then_some(())).count() > 0
            }
            Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => false,
        }
    }
}

/// Ids and digests name records and releases in many places, and say nothing of a person.
fn is_digest(text: &[u8]) -> bool {
    text.iter().all(|byte| byte.is_ascii_hexdigit() || *byte == b'-')
}

/// Is it more than a line of dashes?
fn tells(piece: &[u8]) -> bool {
    piece.iter().collect::<HashSet<_>>().len() >= BYTES_DIFFERENT_MIN
}

fn hash(piece: &[u8]) -> u64 {
    piece.iter().fold(0, |hash, byte| push(hash, *byte))
}

fn push(hash: u64, byte: u8) -> u64 {
    hash.wrapping_mul(FACTOR).wrapping_add(u64::from(byte) + 1)
}

/// Is a piece of so many bytes among them? The hash rolls: a byte comes in and the one before the piece goes.
fn repeats(text: &[u8], length: usize, among: &HashSet<u64>) -> bool {
    let Some((first, rest)) = text.split_at_checked(length) else { return false };
    if among.is_empty() {
        return false;
    }
    let gone = (0..length).fold(1_u64, |power, _| power.wrapping_mul(FACTOR));
    let mut now = hash(first);
    if among.contains(&now) {
        return true;
    }
    rest.iter().zip(text).any(|(comes, goes)| {
        now = push(now, *comes).wrapping_sub((u64::from(*goes) + 1).wrapping_mul(gone));
        among.contains(&now)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(texts: &[&str]) -> Needles {
        let mut needles = Needles::default();
        texts.iter().for_each(|text| needles.add(text));
        needles
    }

    const SAID: &str = "My daughter Amanda was born in Trondheim on the 3rd of May, a Tuesday.";

    #[test]
    fn every_repetition_of_a_part_is_found_wherever_it_begins() {
        let needles = of(&[SAID]);
        for begin in 0..SAID.len() - 31 {
            let quoted = format!("it said: {} and more", &SAID[begin..begin + 31]);
            assert!(needles.are_in(quoted.as_bytes()), "{quoted}");
        }
        assert!(!needles.are_in(b"My daughter was born in Oslo on the 4th of June, a Monday, they say."));
    }

    #[test]
    fn a_short_text_is_found_as_a_whole_and_a_tiny_one_is_not_looked_for() {
        let digest = "4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d";
        let needles = of(&["anna@example.org", "yes", "------------------------------------------", digest]);
        assert!(needles.are_in(b"<anna@example.org>") && !needles.are_in(b"anna@example.com"));
        assert!(!needles.are_in(digest.as_bytes()), "the name of a release is nobody's");
        assert!(!needles.are_in(b"yes") && !needles.are_in(b"a table\n------------------------------------------\n"));
    }

    #[test]
    fn what_an_operator_tells_all_agents_is_nobodys() {
        let request = json!({ "messages": [
            { "role": "system", "content": "You are a helpful assistant of the northern branch." },
            { "role": "user", "content": [{ "type": "text", "text": SAID }] },
        ], "tools": [{ "description": "Looks for a file by its name and gives its path." }] });
        let mut needles = Needles::default();
        needles.add_all(&request);
        assert!(needles.are_in(SAID.as_bytes()));
        assert!(!needles.are_in(b"You are a helpful assistant of the northern branch."));
        assert!(!needles.are_in(b"Looks for a file by its name and gives its path."));
    }

    #[test]
    fn state_is_read_through_the_escapes_of_json_and_texts_are_taken_out() {
        let needles = of(&["She said \"never again\" and left the café for good."]);
        let mut json = json!({ "notes": ["kept", "She said \"never again\" and left the café for good."] });
        assert!(needles.are_in_state(json.to_string().as_bytes()));
        assert!(needles.take_out(&mut json, "erased"));
        assert_eq!(json, json!({ "notes": ["kept", "erased"] }));
        assert!(!needles.take_out(&mut json, "erased"));
    }
}
