//! One turn of a conversation, with calls and their results.
//! Handlers make turns, the template renders them. A template that knows no tools gets them as plain text, in the
//! form that most models have seen: `<tools>`, `<tool_call>` and `<tool_response>` around JSON.

use reef_core::Message;
use serde_json::{Map, Value as Json, json};

use super::python::dumps;

/// One turn.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChatTurn {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// Text.
    pub content: String,
    /// What the model thought before it answered.
    pub reasoning: Option<String>,
    /// Functions that it called.
    pub calls: Vec<ChatCall>,
    /// Which call this is the result of (`tool_call_id`); in turns of role `tool`.
    pub answers: Option<String>,
    /// Name of the speaker, or of the function whose result this is.
    pub name: Option<String>,
}

/// A call in an assistant's turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatCall {
    /// Names the call in its result.
    pub id: String,
    /// The function.
    pub name: String,
    /// JSON text, perhaps incomplete.
    pub arguments: String,
}

impl From<&Message> for ChatTurn {
    fn from(message: &Message) -> Self {
        Self { role: message.role.clone(), content: message.content.clone(), ..Self::default() }
    }
}

impl ChatCall {
    /// An object where the text is one: templates write it as JSON.
    fn arguments(&self) -> Json {
        let parsed = serde_json::from_str::<Map<String, Json>>(&self.arguments);
        parsed.map_or_else(|_| Json::String(self.arguments.clone()), Json::Object)
    }
}

impl ChatTurn {
    /// An assistant's turn that says nothing: it is not rendered.
    pub(super) fn is_silent(&self) -> bool {
        let said = !self.content.is_empty() || self.reasoning.as_ref().is_some_and(|text| !text.is_empty());
        self.role == "assistant" && !said && self.calls.is_empty()
    }

    /// As templates read it. Members that do not apply are absent: templates ask whether they are there.
    pub(super) fn to_json(&self) -> Json {
        let mut turn =
            Map::from_iter([("role".to_owned(), json!(self.role)), ("content".to_owned(), json!(self.content))]);
        if let Some(reasoning) = &self.reasoning {
            turn.insert("reasoning_content".to_owned(), json!(reasoning));
        }
        if !self.calls.is_empty() {
            let function = |call: &ChatCall| json!({ "name": call.name, "arguments": call.arguments() });
            let call = |call: &ChatCall| json!({ "id": call.id, "type": "function", "function": function(call) });
            turn.insert("tool_calls".to_owned(), self.calls.iter().map(call).collect());
        }
        for (key, value) in [("tool_call_id", &self.answers), ("name", &self.name)] {
            if let Some(value) = value {
                turn.insert(key.to_owned(), json!(value));
            }
        }
        Json::Object(turn)
    }
}

/// The same conversation without tools: definitions, calls and results are text. Results that follow each other
/// share a user's turn.
pub(super) fn without_tools(turns: &[ChatTurn], tools: &[Json]) -> Vec<ChatTurn> {
    let mut plain: Vec<ChatTurn> = Vec::with_capacity(turns.len() + 1);
    let mut joins = false;
    for turn in turns {
        let result = turn.role == "tool" && turn.answers.is_some();
        let mut turn = turn.clone();
        if result {
            let content = format!("<tool_response>\n{}\n</tool_response>", turn.content);
            match plain.last_mut().filter(|_| joins) {
                Some(last) => {
                    last.content.push('\n');
                    last.content.push_str(&content);
                    continue;
                }
                None => turn = ChatTurn { role: "user".to_owned(), content, ..ChatTurn::default() },
            }
        }
        for call in std::mem::take(&mut turn.calls) {
            let space = if turn.content.is_empty() { "" } else { "\n" };
            let call = json!({ "name": call.name, "arguments": call.arguments() });
            turn.content.push_str(&format!("{space}<tool_call>\n{}\n</tool_call>", dumps(&call)));
        }
        joins = result;
        plain.push(turn);
    }
    if !tools.is_empty() {
        let told = tell(tools);
        match plain.first_mut().filter(|turn| turn.role == "system") {
            Some(system) if system.content.is_empty() => system.content = told,
            Some(system) => system.content.push_str(&format!("\n\n{told}")),
            None => plain.insert(0, ChatTurn { role: "system".to_owned(), content: told, ..ChatTurn::default() }),
        }
    }
    plain
}

/// What a model is told about its tools.
fn tell(tools: &[Json]) -> String {
    let list: Vec<String> = tools.iter().map(dumps).collect();
    format!(
        "You can call these functions; each line describes one as JSON:\n<tools>\n{}\n</tools>\n\
         To call a function, write its name and its arguments as one JSON object between these tags:\n\
         <tool_call>\n{{\"name\": \"the function's name\", \"arguments\": {{}}}}\n</tool_call>\n\
         Call only when a function helps; otherwise answer in plain words.",
        list.join("\n")
    )
}
