//! Where a request belongs: its session, where the client names none, and the kind of call that it is.
//! The handler asks once for each request, before anything changes its body; the exchange tells the answer, so that the
//! next request is known by it. Only the conversation itself is learned from: other kinds are recorded without capture.

use std::sync::{Arc, Mutex, PoisonError};

use reef_core::{CALL_REASON_TAG, Tag};
use reef_intake::{Answer, IndexLimits, KIND_TAG, Placed, SessionIndex, Transcript, call_of, named_session};
use serde_json::{Map, Value};

use crate::http::caller::Caller;
use crate::scenarios::ScenarioKey;

/// The sessions of requests that name none; shared by all requests.
#[derive(Debug, Clone)]
pub struct Sessions(Arc<Mutex<SessionIndex>>);

/// None so far.
impl Default for Sessions {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(SessionIndex::new(IndexLimits::default()))))
    }
}

impl Sessions {
    /// Gives the caller's request its kind, and its session if that is known by what it says; then its answer is
    /// waited for.
    pub fn place(
        &self,
        key: &ScenarioKey,
        caller: &mut Caller,
        body: &Map<String, Value>,
        fresh: &str,
    ) -> Option<Placed> {
        let is_side_call = mark_kind(caller, body);
        if caller.session.is_some() {
            return None;
        }
        let cache_key = body.get("prompt_cache_key").and_then(Value::as_str);
        if let Some((session, _)) = named_session(None, |_| None, cache_key) {
            caller.session = Some(session.to_owned());
            return None;
        }
        // A call beside the conversation is none to go on with.
        if is_side_call {
            return None;
        }
        let said = Transcript::of(body)?;
        let mut index = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let placed = index.place((&key.0, &key.1), &said, fresh);
        caller.session = Some(placed.session.to_string());
        Some(placed)
    }

    /// Remembers how a placed request was answered.
    pub fn answered(&self, key: &ScenarioKey, placed: &Placed, response: &Value) {
        let Some(answer) = Answer::of(response) else { return };
        let mut index = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        index.answered((&key.0, &key.1), placed, answer);
    }
}

/// Is it a call beside the conversation? The kind and what decided it are tags of the record then; the client's own tag
/// stays as it is.
fn mark_kind(caller: &mut Caller, body: &Map<String, Value>) -> bool {
    let tag = caller.tags.iter().find(|(tag, _)| tag.as_str() == KIND_TAG).map(|(_, value)| value.as_str());
    let header = |name: &str| caller.harness.get(name).map(String::as_str);
    let call = call_of(tag, header, body);
    if call.is_main() {
        return false;
    }
    caller.capture = false;
    for (name, value) in [(KIND_TAG, call.kind.to_string()), (CALL_REASON_TAG, call.reason)] {
        if let Ok(tag) = Tag::parse(name) {
            caller.tags.entry(tag).or_insert(value);
        }
    }
    true
}
