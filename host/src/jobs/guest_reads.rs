//! What a recipe may read beside columns: the tokenizer and chat template of the model, the conversation, tags and
//! session behind a sample, and the verdicts of the operator's verifiers. Steps, exchanges, replays and backtests give
//! the same; the sandbox asks only for records of the call's samples.

use std::sync::Arc;

use reef_core::{Message, RecordId};
use reef_engine::Engine;
use reef_sandbox::{Call, RecordView, Records, Tokens, Verifiers};
use reef_store::{RecordBody, Store};
use serde_json::Value;
use tokio::runtime::Handle;

use crate::scenarios::ScenarioKey;

/// What the calls of a process may read.
#[derive(Debug, Clone)]
pub struct GuestReads {
    /// The model whose tokenizer and chat template recipes use; none = they get errors for it.
    pub engine: Option<Engine>,
    /// Where the records are.
    pub store: Store,
    /// The operator's verifiers.
    pub verifiers: Verifiers,
}

impl GuestReads {
    /// The call, with what it may read in this scenario.
    pub fn give(&self, key: &ScenarioKey, call: Call) -> Call {
        let tokens = self.engine.clone().map(|engine| Arc::new(EngineTokens(engine)) as Arc<dyn Tokens>);
        let records = Arc::new(StoredRecords::new(&self.store, key));
        Call { tokens, records: Some(records), verifiers: Arc::clone(&self.verifiers), ..call }
    }
}

/// The tokenizer and the chat template of the engine's model.
#[derive(Debug)]
struct EngineTokens(Engine);

impl Tokens for EngineTokens {
    fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        self.0.encode(text).map_err(|error| error.to_string())
    }

    fn decode(&self, ids: &[u32]) -> Result<String, String> {
        self.0.decode(ids).map_err(|error| error.to_string())
    }

    fn render(&self, messages: &[Message]) -> Result<Vec<u32>, String> {
        self.0.render_chat(messages).map_err(|error| error.to_string())
    }
}

/// The records of one scenario. Every read blocks its own thread only.
#[derive(Debug)]
struct StoredRecords {
    store: Store,
    key: ScenarioKey,
    runtime: Handle,
}

impl StoredRecords {
    /// The current runtime drives the reads.
    fn new(store: &Store, key: &ScenarioKey) -> Self {
        Self { store: store.clone(), key: key.clone(), runtime: Handle::current() }
    }
}

impl Records for StoredRecords {
    fn record(&self, id: &RecordId) -> Result<Option<RecordView>, String> {
        let read = self.store.record(&self.key.0, &self.key.1, id);
        let stored = self.runtime.block_on(read).map_err(|error| error.to_string())?;
        Ok(stored.and_then(|stored| match stored.body {
            RecordBody::Inference(inference) => Some(RecordView {
                messages: messages(&inference.request),
                tags: inference.tags.iter().map(|(tag, value)| (tag.to_string(), value.clone())).collect(),
                session: inference.session.clone(),
            }),
            RecordBody::Report(_) => None,
        }))
    }
}

/// The conversation of a recorded request; parts that are no text are left out.
pub fn messages(request: &Value) -> Vec<Message> {
    let text = |content: &Value| match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => String::new(),
    };
    let message = |message: &Value| {
        let role = message["role"].as_str()?.to_owned();
        Some(Message { role, content: text(&message["content"]) })
    };
    request["messages"].as_array().into_iter().flatten().filter_map(message).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_recorded_conversation_is_read_with_its_text_parts() {
        let request = json!({ "messages": [
            { "role": "system", "content": "be brief" },
            { "role": "user", "content": [{ "type": "text", "text": "hi " }, { "type": "image" }, { "type": "text", "text": "there" }] },
            { "content": "no role" },
        ]});
        let read: Vec<_> = messages(&request).into_iter().map(|message| (message.role, message.content)).collect();
        assert_eq!(read, [("system".into(), "be brief".into()), ("user".into(), "hi there".into())]);
    }
}
