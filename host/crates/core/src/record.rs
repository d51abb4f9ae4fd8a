//! Records: inference exchanges and the reports about them, as they are stored for ever.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{RecordId, ReleaseId, Tag};

/// How an inference exchange ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordStatus {
    /// The whole answer was produced.
    Complete,
    /// The client went away; what was produced until then is kept.
    Cancelled,
    /// The engine or the provider failed.
    Failed,
}

/// The sampling parameters that shaped the distribution of the log-probs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0 = greedy; log-probs are then those of temperature 1.
    pub temperature: f32,
    /// Nucleus mass in (0, 1]; 1 = off.
    pub top_p: f32,
    /// Candidates kept; 0 = off.
    pub top_k: u32,
    /// Seed of this request.
    pub seed: u64,
}

/// Output tokens `start..` up to the next span were sampled by `release`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseSpan {
    /// Index of the first output token.
    pub start: u32,
    /// The release whose weights sampled it.
    pub release: ReleaseId,
    /// Position of that release in its scenario's chain, from 0.
    pub sequence: u32,
}

/// Exactly what the engine read and sampled. Never re-tokenised.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenTrace {
    /// Token ids of the rendered prompt.
    pub prompt: Vec<u32>,
    /// Sampled token ids, the end-of-turn token included when it was sampled.
    pub output: Vec<u32>,
    /// Natural-log probability of each output token at the sampling temperature.
    pub logprobs: Vec<f32>,
    /// Which release sampled which tokens, in order.
    pub spans: Vec<ReleaseSpan>,
    /// The parameters they were sampled with.
    pub sampling: Sampling,
    /// What else was likely at each output token.
    #[serde(default, skip_serializing_if = "Alternatives::is_none")]
    pub alternatives: Alternatives,
}

/// The most likely tokens at each place, as the sampler recorded them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Alternatives {
    /// K, the same at every place; 0 = none recorded.
    pub k: u32,
    /// K ids a place, most likely first.
    pub ids: Vec<u32>,
    /// Their natural-log probabilities at the sampling temperature.
    pub logprobs: Vec<f32>,
}

impl Alternatives {
    /// None were recorded.
    pub const NONE: Self = Self { k: 0, ids: Vec::new(), logprobs: Vec::new() };

    /// None were recorded.
    pub fn is_none(&self) -> bool {
        self.k == 0
    }

    /// Do ids and log-probs fit that many places?
    pub fn fit(&self, places: usize) -> bool {
        let numbers = places.checked_mul(self.k as usize);
        numbers == Some(self.ids.len()) && numbers == Some(self.logprobs.len())
    }

    /// Adds places to the end: those of `more`, the first K of each, or places that mean nothing.
    pub(crate) fn extend(&mut self, places: usize, more: Option<&Self>) {
        let k = self.k as usize;
        match more.filter(|more| more.k >= self.k && more.fit(places)) {
            Some(more) if k > 0 => {
                let each = more.k as usize;
                self.ids.extend(more.ids.chunks(each).flat_map(|ids| ids.iter().take(k)));
                self.logprobs.extend(more.logprobs.chunks(each).flat_map(|logprobs| logprobs.iter().take(k)));
            }
            _ => {
                self.ids.extend(std::iter::repeat_n(0, places * k));
                self.logprobs.extend(std::iter::repeat_n(0.0, places * k));
            }
        }
    }

    /// Keeps the first places.
    pub(crate) fn truncate(&mut self, places: usize) {
        self.ids.truncate(places * self.k as usize);
        self.logprobs.truncate(places * self.k as usize);
    }
}

/// One answered (or attempted) model request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Inference {
    /// The receipt.
    pub id: RecordId,
    /// Milliseconds since the Unix epoch.
    pub created_at_ms: i64,
    /// Path that was called, e.g. `/v1/chat/completions`.
    pub path: String,
    /// How it ended.
    pub status: RecordStatus,
    /// False: served without becoming a training sample.
    pub capture: bool,
    /// Session identity from a tag or a harness's header.
    pub session: Option<String>,
    /// Opaque tags.
    pub tags: BTreeMap<Tag, String>,
    /// W3C `traceparent` of the request, so that later work continues its trace.
    pub traceparent: Option<String>,
    /// The request body as received.
    pub request: Value,
    /// The response body (assembled, for streams).
    pub response: Value,
    /// Tokens, when the embedded engine answered.
    pub tokens: Option<TokenTrace>,
}

/// Tag that says what a request was made for: `main`, or one of the side calls that harnesses make around a
/// conversation, such as `title`, `compaction` and `sub-agent`.
pub const CALL_TAG: &str = "kind";
/// Tag with the fact that made a request a side call. Without it the other tag is a client's own word.
pub const CALL_REASON_TAG: &str = "kind-reason";

impl Inference {
    /// The kind of side call that this is; none = a turn of the conversation. Side calls are kept and not trained.
    pub fn side_call(&self) -> Option<&str> {
        let value = |name| self.tags.iter().find(|(tag, _)| tag.as_str() == name).map(|(_, value)| value.as_str());
        value(CALL_TAG).filter(|_| value(CALL_REASON_TAG).is_some())
    }
}

/// Feedback on one or more inference records of the same scenario.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Given by the client, or fresh.
    pub id: RecordId,
    /// Milliseconds since the Unix epoch.
    pub created_at_ms: i64,
    /// Finite, if present.
    pub score: Option<f64>,
    /// Free text or structure from the reporter.
    pub feedback: Option<Value>,
    /// Receipts this report grades, without duplicates.
    pub references: Vec<RecordId>,
    /// Fields that a recipe may read.
    pub metadata: Map<String, Value>,
    /// An earlier report that this one replaces.
    pub amends: Option<RecordId>,
    /// W3C `traceparent` of the request, so that later work continues its trace.
    pub traceparent: Option<String>,
}

/// Why a report body is refused; names the field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("report field '{field}' {problem}")]
pub struct ReportError {
    /// The field.
    pub field: String,
    /// What is wrong with it.
    pub problem: String,
}

/// Start of the ids of reports that the server makes itself, of what a recipe judged.
pub const LIVE_REPORT_PREFIX: &str = "live-";
/// References a report may carry.
const REFERENCES_MAX: usize = 256;

impl Report {
    /// Reads a report body. Null means absent; unknown fields are refused by name.
    pub fn from_body(body: &Map<String, Value>, now_ms: i64) -> Result<Self, ReportError> {
        const KNOWN: [&str; 6] = ["score", "feedback", "references", "metadata", "agent_record_id", "amends"];
        if let Some(field) = body.keys().find(|key| !KNOWN.contains(&key.as_str())) {
            return Err(problem(
                field,
                "is not known; use score, feedback, references, metadata, agent_record_id or amends",
            ));
        }
        let id = optional_id(body, "agent_record_id")?.unwrap_or_else(RecordId::fresh);
        if id.as_str().starts_with(LIVE_REPORT_PREFIX) {
            return Err(problem("agent_record_id", "starts with 'live-', which is the server's own; use another id"));
        }
        Ok(Self {
            id,
            created_at_ms: now_ms,
            score: score(body)?,
            feedback: present(body, "feedback").cloned(),
            references: references(body)?,
            metadata: match present(body, "metadata") {
                None => Map::new(),
                Some(Value::Object(fields)) => fields.clone(),
                Some(_) => return Err(problem("metadata", "must be an object")),
            },
            amends: optional_id(body, "amends")?,
            traceparent: None,
        })
    }

    /// The parts that make two reports the same: everything but the time and the trace.
    pub fn same_content(&self, other: &Self) -> bool {
        self.id == other.id
            && self.score == other.score
            && self.feedback == other.feedback
            && self.references == other.references
            && self.metadata == other.metadata
            && self.amends == other.amends
    }
}

fn problem(field: &str, problem: &str) -> ReportError {
    ReportError { field: field.chars().take(64).collect(), problem: problem.to_owned() }
}

fn present<'a>(body: &'a Map<String, Value>, field: &str) -> Option<&'a Value> {
    body.get(field).filter(|value| !value.is_null())
}

fn score(body: &Map<String, Value>) -> Result<Option<f64>, ReportError> {
    match present(body, "score") {
        None => Ok(None),
        Some(Value::Number(number)) => match number.as_f64() {
            Some(score) if score.is_finite() => Ok(Some(score)),
            _ => Err(problem("score", "must be a finite number")),
        },
        Some(_) => Err(problem("score", "must be a finite number, not a string, boolean, list or object")),
    }
}

fn references(body: &Map<String, Value>) -> Result<Vec<RecordId>, ReportError> {
    let list = match present(body, "references") {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(_) => return Err(problem("references", "must be a list of receipts")),
    };
    if list.len() > REFERENCES_MAX {
        return Err(problem("references", "holds more than 256 receipts"));
    }
    let mut ids = Vec::with_capacity(list.len());
    for value in list {
        let text = value.as_str().ok_or_else(|| problem("references", "must hold strings only"))?;
        let id = RecordId::parse(text).map_err(|e| problem("references", &e.to_string()))?;
        if ids.contains(&id) {
            return Err(problem("references", &format!("names the receipt {id} twice")));
        }
        ids.push(id);
    }
    Ok(ids)
}

fn optional_id(body: &Map<String, Value>, field: &str) -> Result<Option<RecordId>, ReportError> {
    match present(body, field) {
        None => Ok(None),
        Some(Value::String(text)) => {
            RecordId::parse(text.as_str()).map(Some).map_err(|e| problem(field, &e.to_string()))
        }
        Some(_) => Err(problem(field, "must be a string")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(body: Value) -> Result<Report, ReportError> {
        Report::from_body(body.as_object().expect("object"), 7)
    }

    #[test]
    fn wrong_scores_are_refused_and_named() {
        for bad in [json!("0.5"), json!(true), json!({}), json!([])] {
            assert_eq!(read(json!({ "score": bad })).expect_err("refused").field, "score");
        }
        assert_eq!(read(json!({ "score": null })).expect("absent").score, None);
        assert_eq!(read(json!({ "score": 1e308 })).expect("finite").score, Some(1e308));
    }

    #[test]
    fn references_are_unique_receipts() {
        assert!(read(json!({ "references": ["a", "a"] })).expect_err("twice").problem.contains("twice"));
        assert!(read(json!({ "references": ["a b"] })).is_err());
        assert!(read(json!({ "references": "a" })).is_err());
        assert_eq!(read(json!({ "references": ["a", "b"] })).expect("ok").references.len(), 2);
    }

    #[test]
    fn ids_of_the_servers_own_reports_are_not_given_away() {
        let refusal = read(json!({ "agent_record_id": "live-0123" })).expect_err("the server's own");
        assert_eq!(refusal.field, "agent_record_id");
        assert_eq!(read(json!({ "agent_record_id": "alive-0123" })).expect("another").id.as_str(), "alive-0123");
    }

    #[test]
    fn unknown_fields_are_named() {
        assert_eq!(read(json!({ "scor": 1 })).expect_err("unknown").field, "scor");
    }
}
