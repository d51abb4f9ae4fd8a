//! What a recipe may read beside columns: the tokenizer and chat template of the model, the conversation, tags and
//! session behind a sample, and the verdicts of the operator's verifiers. Steps, exchanges, replays and backtests give
//! the same; the sandbox asks only for records of the call's samples.

use std::sync::Arc;

use reef_core::{Inference, Message, RecordId};
use reef_dialects::{Dialect, Input, Part, Reply, Role, Turn};
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
                messages: messages(&inference),
                tags: inference.tags.iter().map(|(tag, value)| (tag.to_string(), value.clone())).collect(),
                session: inference.session.clone(),
                answer: answer(&inference),
            }),
            RecordBody::Instruction(asked) => Some(RecordView {
                messages: vec![Message { role: "user".to_owned(), content: asked.text.clone() }],
                tags: Vec::new(),
                session: asked.session.clone(),
                answer: String::new(),
            }),
            RecordBody::Report(_) => None,
        }))
    }
}

/// The conversation of a recorded request, in whatever dialect it was held; parts that are no text are left out.
pub fn messages(inference: &Inference) -> Vec<Message> {
    let dialect = Dialect::of_path(&inference.path);
    let asked = inference.request.as_object().and_then(|body| {
        let mut body = body.clone();
        // Imported records may have no model; the conversation is the same.
        body.entry("model").or_insert_with(|| Value::from("recorded"));
        dialect.parse(&body).ok()
    });
    match asked.map(|ask| ask.input) {
        Some(Input::Turns(turns)) => turns.iter().map(message).collect(),
        Some(Input::Text(text)) => vec![Message { role: "user".to_owned(), content: text }],
        // Ids have no text here, and what was recorded elsewhere may be no request that is understood.
        Some(Input::Tokens(_)) | None => Vec::new(),
    }
}

/// The text of a recorded answer, that of its first choice.
pub fn answer(inference: &Inference) -> String {
    let mut reply = Reply::default();
    for event in
        Dialect::of_path(&inference.path).read_whole(&inference.response, inference.id.as_str()).unwrap_or_default()
    {
        reply.push(&event);
    }
    reply.choices.first().map(|choice| text(&choice.parts)).unwrap_or_default()
}

fn message(turn: &Turn) -> Message {
    let role = match turn.role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    };
    Message { role: role.to_owned(), content: text(&turn.parts) }
}

fn text(parts: &[Part]) -> String {
    let part = |part: &Part| match part {
        Part::Text(text) | Part::Result { text, .. } => Some(text.clone()),
        Part::Reasoning { .. } | Part::Call { .. } | Part::Other { .. } => None,
    };
    parts.iter().filter_map(part).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use reef_core::RecordStatus;
    use serde_json::json;

    use super::*;

    fn recorded(path: &str, request: Value, response: Value) -> Inference {
        Inference {
            id: RecordId::fresh(),
            created_at_ms: 0,
            path: path.to_owned(),
            status: RecordStatus::Complete,
            capture: true,
            session: None,
            tags: BTreeMap::new(),
            traceparent: None,
            request,
            response,
            tokens: None,
        }
    }

    fn read(inference: &Inference) -> Vec<(String, String)> {
        messages(inference).into_iter().map(|message| (message.role, message.content)).collect()
    }

    #[test]
    fn recorded_conversations_of_every_dialect_are_read() {
        let user = json!([{ "type": "text", "text": "hi " }, { "type": "text", "text": "there" }]);
        let chat = json!({ "model": "m", "messages": [{ "role": "system", "content": "be brief" }, { "role": "user", "content": user }] });
        let said = json!({ "choices": [{ "index": 0, "message": { "role": "assistant", "content": "yes" }, "finish_reason": "stop" }], "complete": true });
        let chat = recorded("/v1/chat/completions", chat, said);
        let messages = json!({ "model": "m", "max_tokens": 5, "system": "be brief", "messages": [{ "role": "user", "content": "hi there" }] });
        let said = json!({ "type": "message", "role": "assistant", "content": [{ "type": "text", "text": "yes" }], "stop_reason": "end_turn", "usage": { "input_tokens": 1, "output_tokens": 1 } });
        let messages = recorded("/v1/messages", messages, said);
        for held in [chat, messages] {
            assert_eq!(read(&held), [("system".into(), "be brief".into()), ("user".into(), "hi there".into())]);
            assert_eq!(answer(&held), "yes");
        }
        let text = recorded("/v1/completions", json!({ "model": "m", "prompt": "once" }), json!({}));
        assert_eq!((read(&text), answer(&text)), (vec![("user".into(), "once".into())], String::new()));
        assert!(read(&recorded("/v1/chat/completions", json!({ "messages": 5 }), json!(null))).is_empty());
    }
}
