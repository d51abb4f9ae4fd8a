//! The optional exports of a recipe: what they are given, and their answers, checked.
//! A broken rule is a [`FaultKind::InvalidOutput`] that names the place; nothing of the answer is kept.

use std::collections::{BTreeMap, BTreeSet};

use reef_core::{Message, RecordId, ReleaseId};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::call_state::CallState;
use crate::chat::check_conversation;
use crate::raw;
use crate::state::{ENTRIES_MAX, check_entry, check_owner, entry_bytes};
use crate::text::clean;
use crate::traffic::Bytes;
use crate::{Fault, FaultKind};

/// Bytes of a judgement's metadata.
const METADATA_BYTES_MAX: usize = 64 * 1024;
/// Messages of a transformed request.
const MESSAGES_MAX: usize = 4_096;

/// Optional exports that may be called.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Exports {
    /// `migrate`.
    pub migration: bool,
    /// `ingest`.
    pub live: bool,
    /// `transform-request`, and the operator grants it.
    pub requests: bool,
}

/// A request and its answer, as recorded.
#[derive(Debug, Clone, PartialEq)]
pub struct Exchange {
    /// The receipt.
    pub id: RecordId,
    /// Release that answered.
    pub release: ReleaseId,
    /// Milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// Session of the request.
    pub session: Option<String>,
    /// Tags of the request.
    pub tags: Vec<(String, String)>,
    /// The conversation that was sent.
    pub messages: Vec<Message>,
    /// Text of the answer.
    pub answer: String,
    /// Did the request offer tools?
    pub tools: bool,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens of the answer.
    pub answer_tokens: u32,
}

/// A request that waits for its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestView {
    /// The conversation.
    pub messages: Vec<Message>,
    /// Session of the request.
    pub session: Option<String>,
    /// Tags of the request.
    pub tags: Vec<(String, String)>,
}

/// A score that the recipe gives to an exchange of the call; each exchange gets at most one.
#[derive(Debug, Clone, PartialEq)]
pub struct Judgement {
    /// The exchange.
    pub receipt: RecordId,
    /// Finite.
    pub score: f64,
    /// Metadata of the report that it becomes.
    pub metadata: Map<String, Value>,
}

impl Bytes for Exchange {
    fn bytes(&self) -> u64 {
        const NUMBERS_BYTES: u64 = 17;
        let texts = (self.id.as_str(), self.release.as_str(), &self.answer).bytes();
        texts.saturating_add((&self.session, &self.tags, &self.messages).bytes()).saturating_add(NUMBERS_BYTES)
    }
}

impl Bytes for RequestView {
    fn bytes(&self) -> u64 {
        (&self.messages, &self.session, &self.tags).bytes()
    }
}

fn invalid(told: impl AsRef<str>) -> Fault {
    Fault::new(FaultKind::InvalidOutput, told)
}

/// The whole new state: every key once, within the limits of the bucket.
pub(crate) fn migrated(raw: raw::Entries, state: &CallState) -> Result<BTreeMap<String, Vec<u8>>, Fault> {
    let (_, bytes_max) = state.bucket.found();
    if raw.len() > ENTRIES_MAX {
        let told = format!("migrate returns {} entries and a bucket keeps at most {ENTRIES_MAX}", raw.len());
        return Err(invalid(told));
    }
    let (mut entries, mut bytes) = (BTreeMap::new(), 0_u64);
    for (key, value) in raw {
        let shown = clean(&key, 64);
        check_owner(&key).map_err(|told| invalid(format!("migrate: {told}")))?;
        check_entry(&key, &value).map_err(|told| invalid(format!("migrate: {told}")))?;
        bytes = bytes.saturating_add(entry_bytes(&key, &value));
        if bytes > bytes_max {
            return Err(invalid(format!("migrate returns more than the {bytes_max} bytes that a bucket may hold")));
        }
        if entries.insert(key, value).is_some() {
            return Err(invalid(format!("migrate returns the key '{shown}' twice")));
        }
    }
    Ok(entries)
}

/// Judgements of exchanges that were handed in.
pub(crate) fn judgements(raw: Vec<raw::Judgement>, handed: &BTreeSet<RecordId>) -> Result<Vec<Judgement>, Fault> {
    let mut judged = BTreeSet::new();
    raw.into_iter()
        .map(|judgement| {
            let shown = clean(&judgement.receipt, 64);
            let receipt = RecordId::parse(judgement.receipt).ok().filter(|receipt| handed.contains(receipt));
            let Some(receipt) = receipt else {
                return Err(invalid(format!("ingest judges '{shown}', which is no exchange of this call")));
            };
            if !judged.insert(receipt.clone()) {
                return Err(invalid(format!("ingest judges '{shown}' twice")));
            }
            if !judgement.score.is_finite() {
                return Err(invalid(format!("ingest gives '{shown}' the score {}", judgement.score)));
            }
            let metadata = metadata(&judgement.metadata_json)
                .map_err(|told| invalid(format!("ingest: the metadata of '{shown}' {told}")))?;
            Ok(Judgement { receipt, score: judgement.score, metadata })
        })
        .collect()
}

fn metadata(json: &str) -> Result<Map<String, Value>, String> {
    if json.len() > METADATA_BYTES_MAX {
        return Err(format!("has {} bytes and at most {METADATA_BYTES_MAX} are allowed", json.len()));
    }
    serde_json::from_str(json).map_err(|_| "is not a JSON object".to_owned())
}

/// The messages to answer instead.
pub(crate) fn transformed(raw: raw::Replacement) -> Result<Option<Vec<Message>>, Fault> {
    if let Some(messages) = &raw {
        check_conversation(messages, MESSAGES_MAX).map_err(|told| invalid(format!("transform-request: {told}")))?;
    }
    Ok(raw)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::testing;

    fn id(text: &str) -> RecordId {
        RecordId::parse(text.to_owned()).expect("id")
    }

    fn judged(given: &[(&str, f64, &str)]) -> Result<Vec<Judgement>, String> {
        let raw = given.iter().map(|(receipt, score, json)| raw::Judgement {
            receipt: (*receipt).to_owned(),
            score: *score,
            metadata_json: (*json).to_owned(),
        });
        judgements(raw.collect(), &BTreeSet::from([id("r1"), id("r2")])).map_err(|fault| fault.message)
    }

    #[test]
    fn judgements_are_finite_and_of_exchanges_that_were_handed_in() {
        let good = judged(&[("r2", 0.5, r#"{"why": "short"}"#), ("r1", -1.0, "{}")]).expect("valid");
        assert_eq!((good[0].receipt.as_str(), good[0].score, &good[0].metadata["why"]), ("r2", 0.5, &"short".into()));
        assert!(judged(&[("r3", 0.5, "{}")]).expect_err("forged").contains("'r3'"));
        assert!(judged(&[("../r1", 0.5, "{}")]).expect_err("no id").contains("no exchange"));
        assert!(judged(&[("r1", 0.5, "{}"), ("r1", 0.5, "{}")]).expect_err("twice").contains("twice"));
        assert!(judged(&[("r1", f64::NAN, "{}")]).expect_err("nan").contains("NaN"));
        for bad in ["", "[]", "1", "{", "null"] {
            assert!(judged(&[("r1", 0.5, bad)]).expect_err(bad).contains("not a JSON object"));
        }
        let large = format!(r#"{{"x": "{}"}}"#, "y".repeat(METADATA_BYTES_MAX));
        assert!(judged(&[("r1", 0.5, &large)]).expect_err("large").contains("bytes"));
    }

    #[test]
    fn a_migrated_state_keeps_the_limits_of_a_bucket() {
        let state = testing::state(0, vec![]);
        let bucket_max = state.bucket.found().1 as usize;
        let entry = |key: &str, bytes: usize| (key.to_owned(), vec![0; bytes]);
        assert_eq!(migrated(vec![entry("b", 1), entry("a", 0)], &state).expect("valid").len(), 2);
        assert!(migrated(vec![entry("a", 1), entry("a", 1)], &state).expect_err("twice").message.contains("twice"));
        assert!(migrated(vec![entry("", 1)], &state).is_err());
        assert!(migrated(vec![entry("a", 64 * 1024 + 1)], &state).is_err());
        let full = (0..=bucket_max / (64 * 1024)).map(|index| entry(&index.to_string(), 64 * 1024)).collect();
        assert!(migrated(full, &state).expect_err("full").message.contains("may hold"));
        let many = (0..=ENTRIES_MAX).map(|index| entry(&index.to_string(), 0)).collect();
        assert!(migrated(many, &state).expect_err("many").message.contains("10001 entries"));
        let fault = migrated(vec![entry("reef.critic", 1)], &state).expect_err("the host's");
        assert_eq!(fault.kind, FaultKind::InvalidOutput);
        assert!(fault.message.contains("belongs to the host"), "{}", fault.message);
    }

    #[test]
    fn a_transformed_request_is_a_conversation() {
        assert_eq!(transformed(None), Ok(None));
        let fault = transformed(Some(vec![])).expect_err("empty");
        assert_eq!(fault.kind, FaultKind::InvalidOutput);
        let message = Message { role: "root".into(), content: String::new() };
        assert!(transformed(Some(vec![message])).expect_err("role").message.contains("role 'root'"));
    }
}
