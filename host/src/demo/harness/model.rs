//! A model that follows a script, so that the demo needs no key and no network: it does three small tasks with the agent's
//! tools, ends its answers in the form that is wanted only if a certain skill stands in its prompt, and writes that skill
//! when it is asked to improve the harness. It speaks OpenAI's chat dialect.

use std::net::SocketAddr;

use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::tasks::TASKS;

/// The skill.
pub const SKILL: &str = "bare-last-line";
/// What it writes when it is asked for changes.
const CHANGES: &str = r##"{"notes": "answers end in a sentence where a program reads the last line",
 "changes": [{"op": "put", "kind": "skill", "id": "bare-last-line",
   "description": "How to end every answer: a program reads the last line",
   "text": "# The last line\n\nSay what you found, then put the bare result on a line of its own, and nothing after it.\n"}]}"##;

/// A scripted model in service.
#[derive(Debug)]
pub struct Scripted {
    /// Where it is.
    pub address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Scripted {
    /// Serves on a free port of this machine.
    pub async fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let router = Router::new().route("/v1/chat/completions", post(answer));
        let serving = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!(%error, "demo.model");
            }
        });
        Ok(Self { address, serving })
    }
}

async fn answer(Json(body): Json<Value>) -> Json<Value> {
    let message = message(&body);
    let finish = if message.get("tool_calls").is_some() { "tool_calls" } else { "stop" };
    Json(json!({
        "id": "scripted", "object": "chat.completion", "created": 0, "model": body["model"],
        "choices": [{ "index": 0, "message": message, "finish_reason": finish }],
        "usage": { "prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120 },
    }))
}

fn message(body: &Value) -> Value {
    if body.get("tools").is_none() {
        return said(CHANGES);
    }
    let messages = body["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |message: Option<&Value>| -> String {
        message.and_then(|message| message["content"].as_str()).unwrap_or_default().to_owned()
    };
    let (prompt, task) = (text(messages.first()), text(messages.get(1)));
    let skilled = prompt.contains(&format!("- {SKILL}:"));
    let done = messages.iter().filter(|message| message["role"] == "tool").count();
    let last = text(messages.last());
    let found = TASKS.iter().find(|known| task.trim() == known.instruction.trim());
    let Some(found) = found else { return said("I do not know this task.") };
    match (skilled, done) {
        (true, 0) => call("skill", &json!({ "name": SKILL })),
        (false, 0) | (true, 1) => call("exec", &json!({ "command": found.command })),
        (true, _) => said(&format!("I worked it out.\n{}", last.trim())),
        (false, _) => said(&format!("The result is {}, as far as I can see.", last.trim())),
    }
}

fn said(text: &str) -> Value {
    json!({ "role": "assistant", "content": text })
}

fn call(name: &str, arguments: &Value) -> Value {
    json!({ "role": "assistant", "content": null, "tool_calls": [{ "id": "call-1", "type": "function",
        "function": { "name": name, "arguments": arguments.to_string() } }] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_skill_alone_decides_the_form_of_the_answer() {
        let ask = |system: &str, tools: usize| {
            let mut messages = vec![
                json!({ "role": "system", "content": system }),
                json!({ "role": "user", "content": TASKS[0].instruction }),
            ];
            messages.extend((0..tools).map(|_| json!({ "role": "tool", "content": "42\n" })));
            message(&json!({ "tools": [], "messages": messages }))
        };
        let skilled = format!("# Skills\n\n- {SKILL}: how to end");
        assert_eq!(ask("", 1)["content"], "The result is 42, as far as I can see.");
        assert_eq!(ask(&skilled, 0)["tool_calls"][0]["function"]["name"], "skill");
        assert_eq!(ask(&skilled, 2)["content"], "I worked it out.\n42");
        let changes: Value = serde_json::from_str(CHANGES).expect("JSON");
        assert_eq!(changes["changes"][0]["id"], SKILL);
    }
}
