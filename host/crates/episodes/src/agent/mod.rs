//! The native agent: asks its model, does what it asks for with tools in one folder, until it answers or a limit is
//! reached. `reef native` and episodes run it. What the model and the tools say is material; nothing of it is trusted.

mod folder;
mod home;
mod prompt;
mod tools;

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

pub(crate) use self::folder::Folder;
pub use self::home::{HOME_VARIABLE, Home, Settings};
use self::tools::Call;
use crate::bounded::shortened;
use crate::cage::{Bounds, Cage, Inside};

/// Tool calls of one answer.
const CALLS_MAX: usize = 16;
/// Bytes of what a run is remembered by.
const TRACE_BYTES_MAX: usize = 8 << 10;
/// Bytes of one line of it.
const TRACE_LINE_BYTES_MAX: usize = 600;
/// Bytes of text that are about one token, to know when a conversation becomes too long.
const BYTES_PER_TOKEN: usize = 3;
/// What stands for a tool's result that is too long ago.
const FORGOTTEN: &str = "[left out: call the tool again if you need this]";

/// Why a model gave no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AskError {
    /// It would answer the same again: the request is at fault.
    Refused(String),
    /// The model or the way to it failed.
    Unavailable(String),
}

/// An answer and the receipt that came with it.
#[derive(Debug, Clone, PartialEq)]
pub struct Said {
    /// The body: an answer of `/v1/chat/completions`.
    pub body: Value,
    /// The receipt.
    pub receipt: Option<String>,
}

/// Sends the body of a request for `/v1/chat/completions`.
pub type Ask =
    Arc<dyn Fn(Map<String, Value>) -> Pin<Box<dyn Future<Output = Result<Said, AskError>> + Send>> + Send + Sync>;

/// What a run may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Answers of the model.
    pub turns: u32,
    /// Tokens of all requests and answers.
    pub tokens: u64,
    /// Wall time.
    pub time: Duration,
    /// Bytes of memory of a command.
    pub memory_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { turns: 30, tokens: 500_000, time: Duration::from_secs(900), memory_bytes: 1 << 30 }
    }
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// With an answer.
    Answered,
    /// At a limit, named.
    Limit(String),
    /// The model refused a request.
    Refused(String),
    /// The model could not be reached.
    Unavailable(String),
}

/// What a run used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    /// Answers of the model.
    pub turns: u32,
    /// Tool calls.
    pub tool_calls: u32,
    /// Tokens, as the model counts them.
    pub tokens: u64,
    /// Receipts of the answers, in order.
    pub receipts: Vec<String>,
}

/// A run that is over.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    /// How.
    pub stop: Stop,
    /// The last words; empty without an answer.
    pub answer: String,
    /// What happened, a line a step.
    pub trace: String,
    /// What it used.
    pub usage: Usage,
}

/// An agent that is ready to work.
pub struct Agent {
    home: Home,
    folder: Arc<Folder>,
    work: PathBuf,
    cage: Cage,
    ask: Ask,
    limits: Limits,
    seed: Option<u32>,
}

/// What a run has gathered.
#[derive(Default)]
struct Run {
    usage: Usage,
    trace: Vec<String>,
}

impl Run {
    fn note(&mut self, line: &str) {
        self.trace.push(shortened(&line.replace('\n', " ⏎ "), TRACE_LINE_BYTES_MAX));
    }
}

impl Agent {
    /// An agent that works in `work`; its commands run in the cage.
    pub fn new(home: Home, work: PathBuf, cage: Cage, ask: Ask) -> std::io::Result<Self> {
        let folder = Arc::new(Folder::open(&work, crate::episode::WORK_INSIDE)?);
        let mut limits = Limits::default();
        let settings = &home.settings;
        limits.turns = settings.turns_max.unwrap_or(limits.turns);
        limits.tokens = settings.tokens_max.unwrap_or(limits.tokens);
        limits.time = settings.seconds_max.map_or(limits.time, Duration::from_secs);
        Ok(Self { home, folder, work, cage, ask, limits, seed: None })
    }

    /// With these limits where they are lower than its own.
    pub fn within(mut self, limits: Limits) -> Self {
        self.limits = Limits {
            turns: self.limits.turns.min(limits.turns),
            tokens: self.limits.tokens.min(limits.tokens),
            time: self.limits.time.min(limits.time),
            memory_bytes: self.limits.memory_bytes.min(limits.memory_bytes),
        };
        self
    }

    /// With a seed for the model: equal seeds make comparable runs.
    pub fn seeded(self, seed: u32) -> Self {
        Self { seed: Some(seed), ..self }
    }

    /// Does the task.
    pub async fn run(&self, task: &str) -> Ended {
        let mut run = Run::default();
        let system = prompt::system(&self.home);
        let task = prompt::task(&self.home, task);
        let ended = tokio::time::timeout(self.limits.time, self.converse(&mut run, (system, task), false));
        let (stop, answer) = ended.await.unwrap_or_else(|_| {
            (Stop::Limit(format!("it worked longer than {} s", self.limits.time.as_secs())), String::new())
        });
        let told = match &stop {
            Stop::Answered => format!("answer: {answer}"),
            Stop::Limit(told) => format!("stopped: {told}"),
            Stop::Refused(told) | Stop::Unavailable(told) => format!("failed: {told}"),
        };
        run.note(&told);
        Ended { stop, answer, trace: shortened(&run.trace.join("\n"), TRACE_BYTES_MAX), usage: run.usage }
    }

    /// One conversation, to its answer or to a limit.
    async fn converse(&self, run: &mut Run, (system, task): (String, String), nested: bool) -> (Stop, String) {
        let tools = tools::offered(&self.home, nested);
        let mut messages =
            vec![json!({ "role": "system", "content": system }), json!({ "role": "user", "content": task })];
        loop {
            if let Some(told) = self.over(&run.usage) {
                return (Stop::Limit(told), String::new());
            }
            forget(&mut messages, self.home.settings.context_tokens as usize * BYTES_PER_TOKEN);
            let said = match (self.ask)(self.request(&messages, &tools, &run.usage)).await {
                Ok(said) => said,
                Err(AskError::Refused(told)) => return (Stop::Refused(told), String::new()),
                Err(AskError::Unavailable(told)) => return (Stop::Unavailable(told), String::new()),
            };
            run.usage.turns += 1;
            run.usage.tokens = run.usage.tokens.saturating_add(tokens(&said.body));
            run.usage.receipts.extend(said.receipt);
            let Some(message) = said.body.pointer("/choices/0/message").cloned() else {
                return (Stop::Unavailable("the model's answer has no message".to_owned()), String::new());
            };
            let text = message.get("content").and_then(Value::as_str).unwrap_or_default().to_owned();
            let calls: Vec<Value> = message.get("tool_calls").and_then(Value::as_array).cloned().unwrap_or_default();
            if calls.is_empty() {
                return (Stop::Answered, text);
            }
            messages.push(json!({ "role": "assistant", "content": text, "tool_calls": calls }));
            for (at, call) in calls.iter().enumerate() {
                let part = |path: &str| call.pointer(path).and_then(Value::as_str).unwrap_or_default();
                let (name, arguments) = (part("/function/name"), part("/function/arguments"));
                let result = if at < CALLS_MAX {
                    self.call(run, (name, arguments), nested).await
                } else {
                    Err(format!("at most {CALLS_MAX} calls at once"))
                };
                let content = tools::result(&result.unwrap_or_else(|told| format!("error: {told}")));
                run.note(&format!("{name} {arguments} -> {content}"));
                messages.push(json!({ "role": "tool", "tool_call_id": part("/id"), "content": content }));
            }
        }
    }

    fn over(&self, used: &Usage) -> Option<String> {
        if used.turns >= self.limits.turns {
            return Some(format!("it used its {} turns", self.limits.turns));
        }
        (used.tokens >= self.limits.tokens).then(|| format!("it used its {} tokens", self.limits.tokens))
    }

    fn request(&self, messages: &[Value], tools: &Value, used: &Usage) -> Map<String, Value> {
        let settings = &self.home.settings;
        let left = self.limits.tokens.saturating_sub(used.tokens).max(1);
        let mut body = Map::new();
        body.insert("model".to_owned(), json!(settings.model));
        body.insert("messages".to_owned(), json!(messages));
        body.insert("tools".to_owned(), tools.clone());
        body.insert("max_tokens".to_owned(), json!(u64::from(settings.output_tokens).min(left)));
        if let Some(temperature) = settings.temperature {
            body.insert("temperature".to_owned(), json!(temperature));
        }
        if let Some(seed) = self.seed {
            body.insert("seed".to_owned(), json!(seed));
        }
        body
    }

    async fn call(&self, run: &mut Run, (name, arguments): (&str, &str), nested: bool) -> Result<String, String> {
        run.usage.tool_calls += 1;
        match Call::parse(name, arguments)? {
            Call::Read { path, first, count } => {
                self.on_disk(move |folder| Ok(tools::lines(&folder.read(&path)?, first, count))).await
            }
            Call::Write { path, text } => {
                self.on_disk(move |folder| folder.write(&path, &text).map(|()| format!("{path} is written"))).await
            }
            Call::Search { text, path } => {
                self.on_disk(move |folder| Ok(tools::matches(&folder.walk(&path)?, &text))).await
            }
            Call::Exec { command, time } => self.exec(command, time).await,
            Call::Skill { name, file } => tools::skill(&self.home, &name, file.as_deref()),
            Call::Agent { .. } if nested => Err("an agent starts no further agent".to_owned()),
            Call::Agent { name, task } => self.start(run, (&name, task)).await,
        }
    }

    async fn on_disk(
        &self,
        work: impl FnOnce(&Folder) -> Result<String, String> + Send + 'static,
    ) -> Result<String, String> {
        let folder = Arc::clone(&self.folder);
        let done = tokio::task::spawn_blocking(move || work(&folder)).await;
        done.unwrap_or_else(|_| Err("the tool broke down".to_owned()))
    }

    async fn exec(&self, command: String, time: Duration) -> Result<String, String> {
        let inside = Inside { argv: vec!["sh".to_owned(), "-c".to_owned(), command], ..Inside::of(&self.work) };
        let bounds = Bounds { time, memory_bytes: self.limits.memory_bytes, ..Bounds::default() };
        let done = self.cage.run(&inside, bounds).await.map_err(|error| format!("the command cannot run: {error}"))?;
        let mut text = done.output;
        if !done.errors.is_empty() {
            text = format!("{text}\n[on standard error]\n{}", done.errors);
        }
        Ok(match (done.cut, done.code) {
            (Some(cut), _) => format!("{text}\n[ended: {cut}]"),
            (None, Some(0)) => text,
            (None, Some(code)) => format!("{text}\n[exit code {code}]"),
            (None, None) => format!("{text}\n[ended by a signal]"),
        })
    }

    /// Another conversation on the same budgets.
    async fn start(&self, run: &mut Run, (name, task): (&str, String)) -> Result<String, String> {
        let own =
            self.home.subagents.get(name).ok_or_else(|| format!("there is no agent '{}'", shortened(name, 64)))?;
        let said = (prompt::of_subagent(&self.home, own), task);
        run.note(&format!("agent {name} starts"));
        let (stop, answer) = Box::pin(self.converse(run, said, true)).await;
        match stop {
            Stop::Answered => Ok(answer),
            Stop::Limit(told) | Stop::Refused(told) | Stop::Unavailable(told) => Err(told),
        }
    }
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent").field("work", &self.work).field("limits", &self.limits).finish_non_exhaustive()
    }
}

fn tokens(body: &Value) -> u64 {
    let count = |name: &str| body.pointer(name).and_then(Value::as_u64);
    count("/usage/total_tokens").unwrap_or_else(|| {
        count("/usage/prompt_tokens").unwrap_or(0).saturating_add(count("/usage/completion_tokens").unwrap_or(0))
    })
}

/// Leaves out the oldest results of tools until the conversation fits; the task and all answers stay.
fn forget(messages: &mut [Value], bytes_max: usize) {
    let size = |message: &Value| message.to_string().len();
    let mut bytes: usize = messages.iter().map(size).sum();
    for message in messages.iter_mut() {
        if bytes <= bytes_max {
            return;
        }
        if message.get("role").and_then(Value::as_str) == Some("tool") {
            bytes -= size(message);
            if let Some(content) = message.get_mut("content") {
                *content = json!(FORGOTTEN);
            }
            bytes += size(message);
        }
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
