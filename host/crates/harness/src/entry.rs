//! One entry of a tree: its name, and what it says, as a type per kind. Everything from outside comes in through
//! `Entry::parse`; an entry that exists follows every rule, so that nothing after it checks again.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::{Problem, TreeError};
use crate::name::{EntryKind, EntryName, check_file_path, is_name};
use crate::text;

/// Characters of a description; what agent programs take of a skill.
const DESCRIPTION_CHARS_MAX: usize = 1024;
/// Files that belong to one skill.
const SKILL_FILES_MAX: usize = 32;
/// Bytes of one entry as JSON.
const ENTRY_BYTES_MAX: usize = 1 << 20;
/// Words of the command of an MCP server.
const ARGUMENTS_MAX: usize = 64;
/// Names in a list of tools or variables.
const NAMES_MAX: usize = 64;
/// Seconds that a hook may take.
const HOOK_SECONDS_MAX: u32 = 600;

/// Rules, or an addition to the system prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Text {
    /// What the agent reads.
    pub text: String,
}

/// A command that a person gives by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// One line for lists.
    pub description: String,
    /// What the agent is told.
    pub text: String,
}

/// A skill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Skill {
    /// When to use it, in one line; always in the prompt.
    pub description: String,
    /// The body, read when needed.
    pub text: String,
    /// Further files, by path.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, String>,
}

/// Code for one agent program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Code {
    /// Name of the adapter.
    pub adapter: String,
    /// The code, in the program's language.
    pub source: String,
}

/// Settings of one agent program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Name of the adapter.
    pub adapter: String,
    /// Merged into the program's settings.
    pub settings: Map<String, Value>,
}

/// A command that runs at an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hook {
    /// Name of the event, as the agent program calls it.
    pub event: String,
    /// Which tools or sources it is for; absent means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matcher: Option<String>,
    /// The command line.
    pub command: String,
    /// Time limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u32>,
}

/// An agent that the agent may start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subagent {
    /// When to start it, in one line.
    pub description: String,
    /// Its instructions.
    pub text: String,
}

/// A server of tools: a program on the client's machine, or an address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mcp {
    /// The program and its arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// The address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Names of the client's environment variables that the program gets; values are never in a tree.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub variables: BTreeSet<String>,
}

/// What an entry says.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Body {
    /// Rules or a prompt.
    Text(Text),
    /// A command.
    Command(Command),
    /// A skill.
    Skill(Skill),
    /// A code extension or a tool.
    Code(Code),
    /// Settings.
    Config(Config),
    /// A hook.
    Hook(Hook),
    /// A subagent.
    Subagent(Subagent),
    /// A server of tools.
    Mcp(Mcp),
}

/// One entry.
#[derive(Debug, Clone)]
pub struct Entry {
    name: EntryName,
    body: Body,
    /// Of its fields as JSON.
    bytes: usize,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.body == other.body
    }
}

impl Entry {
    /// Checks the JSON object of an entry's fields.
    pub fn parse(name: EntryName, config: &Value) -> Result<Self, TreeError> {
        let refused = |problem| TreeError::new(&name, problem);
        let bytes = config.to_string().len();
        if bytes > ENTRY_BYTES_MAX {
            return Err(refused(Problem::TooLong { bytes, most: ENTRY_BYTES_MAX }));
        }
        let body = read(name.kind(), config).map_err(refused)?;
        check(&body).map_err(|(part, problem)| TreeError::new(format_args!("{name}: {part}"), problem))?;
        Ok(Self { name, body, bytes })
    }

    /// The same from JSON text, as a recipe hands it over.
    pub fn parse_text(name: EntryName, config: &str) -> Result<Self, TreeError> {
        if config.len() > ENTRY_BYTES_MAX {
            return Err(TreeError::new(&name, Problem::TooLong { bytes: config.len(), most: ENTRY_BYTES_MAX }));
        }
        let value: Value = serde_json::from_str(config)
            .map_err(|error| TreeError::new(&name, fields(format!("the fields are not JSON: {error}"))))?;
        Self::parse(name, &value)
    }

    /// Its name.
    pub fn name(&self) -> &EntryName {
        &self.name
    }

    /// What it says.
    pub fn body(&self) -> &Body {
        &self.body
    }

    /// Its fields as a JSON object.
    pub fn config(&self) -> Value {
        // The types above hold strings, numbers, lists and maps with string keys only.
        serde_json::to_value(&self.body).unwrap_or(Value::Null)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its texts for people and models, by the name of the field.
    pub fn texts(&self) -> Vec<(&str, &str)> {
        match &self.body {
            Body::Text(body) => vec![("text", &body.text)],
            Body::Command(body) => vec![("description", &body.description), ("text", &body.text)],
            Body::Subagent(body) => vec![("description", &body.description), ("text", &body.text)],
            Body::Skill(body) => {
                let files = body.files.iter().map(|(path, text)| (path.as_str(), text.as_str()));
                [("description", body.description.as_str()), ("text", &body.text)].into_iter().chain(files).collect()
            }
            Body::Code(body) => vec![("source", &body.source)],
            Body::Config(_) | Body::Hook(_) | Body::Mcp(_) => Vec::new(),
        }
    }
}

fn fields(told: String) -> Problem {
    Problem::Fields { told }
}

fn read(kind: EntryKind, config: &Value) -> Result<Body, Problem> {
    fn typed<T: DeserializeOwned>(config: &Value) -> Result<T, Problem> {
        let told = |error: serde_json::Error| fields(format!("the fields do not fit the kind: {error}; correct them"));
        if config.is_object() {
            T::deserialize(config).map_err(told)
        } else {
            Err(fields("the fields are not a JSON object; send one".to_owned()))
        }
    }
    Ok(match kind {
        EntryKind::Config => Body::Config(typed(config)?),
        EntryKind::Rules | EntryKind::Prompt => Body::Text(typed(config)?),
        EntryKind::AgentCommand => Body::Command(typed(config)?),
        EntryKind::Skill => Body::Skill(typed(config)?),
        EntryKind::CodeExtension | EntryKind::Tool => Body::Code(typed(config)?),
        EntryKind::Hook => Body::Hook(typed(config)?),
        EntryKind::Subagent => Body::Subagent(typed(config)?),
        EntryKind::Mcp => Body::Mcp(typed(config)?),
    })
}

/// A part of an entry, and what is wrong with it.
type PartProblem = (String, Problem);

fn part(name: &str) -> impl Fn(Problem) -> PartProblem {
    let name = name.to_owned();
    move |problem| (name.clone(), problem)
}

fn check(body: &Body) -> Result<(), PartProblem> {
    match body {
        Body::Text(body) => {
            text::check(&body.text).map_err(part("text"))?;
            // Such a text becomes the head of a file, and some programs take commands from the fields there.
            if body.text.trim_start().starts_with("---") {
                let told = "it starts with '---', which programs read as fields; start with a line of text";
                return Err(part("text")(fields(told.to_owned())));
            }
            Ok(())
        }
        Body::Command(Command { description, text }) | Body::Subagent(Subagent { description, text }) => {
            check_description(description)?;
            text::check(text).map_err(part("text"))
        }
        Body::Skill(body) => check_skill(body),
        Body::Code(body) => {
            check_adapter(&body.adapter)?;
            text::check(&body.source).map_err(part("source"))
        }
        Body::Config(body) => {
            check_adapter(&body.adapter)?;
            check_settings(&body.settings)
        }
        Body::Hook(body) => check_hook(body),
        Body::Mcp(body) => check_mcp(body),
    }
}

fn check_description(description: &str) -> Result<(), PartProblem> {
    text::check_line(description).map_err(part("description"))?;
    let count = description.chars().count();
    if description.trim().is_empty() {
        return Err(part("description")(fields("it is empty; say when to use the entry".to_owned())));
    }
    if count > DESCRIPTION_CHARS_MAX {
        return Err(part("description")(Problem::TooMany { what: "characters", count, most: DESCRIPTION_CHARS_MAX }));
    }
    Ok(())
}

fn check_adapter(adapter: &str) -> Result<(), PartProblem> {
    if is_name(adapter) {
        return Ok(());
    }
    Err(part("adapter")(fields("it is not the name of an adapter; name one, such as 'pi'".to_owned())))
}

fn check_skill(skill: &Skill) -> Result<(), PartProblem> {
    check_description(&skill.description)?;
    text::check(&skill.text).map_err(part("text"))?;
    if skill.files.len() > SKILL_FILES_MAX {
        let problem = Problem::TooMany { what: "files", count: skill.files.len(), most: SKILL_FILES_MAX };
        return Err(part("files")(problem));
    }
    let mut seen: BTreeMap<String, &str> = BTreeMap::from([("skill.md".to_owned(), "SKILL.md")]);
    for (path, content) in &skill.files {
        check_file_path(path).map_err(part(path))?;
        text::check(content).map_err(part(path))?;
        if let Some(other) = seen.insert(path.to_ascii_lowercase(), path) {
            return Err(part(path)(Problem::Duplicate { other: other.to_owned() }));
        }
    }
    for path in skill.files.keys() {
        let folders = path.match_indices('/').filter_map(|(at, _)| path.get(..at));
        if let Some(other) = folders.filter_map(|folder| seen.get(&folder.to_ascii_lowercase())).next() {
            return Err(part(path)(Problem::Duplicate { other: (*other).to_owned() }));
        }
    }
    Ok(())
}

fn check_settings(settings: &Map<String, Value>) -> Result<(), PartProblem> {
    for (key, value) in settings {
        text::check_line(key).map_err(part("settings"))?;
        check_value(value).map_err(part(key))?;
    }
    Ok(())
}

fn check_value(value: &Value) -> Result<(), Problem> {
    match value {
        Value::String(text) => text::check(text),
        Value::Array(items) => items.iter().try_for_each(check_value),
        Value::Object(map) => map.iter().try_for_each(|(key, value)| {
            text::check_line(key)?;
            check_value(value)
        }),
        Value::Null => Err(fields("a setting is null; leave it out".to_owned())),
        Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

fn check_hook(hook: &Hook) -> Result<(), PartProblem> {
    if !is_name(&hook.event) {
        return Err(part("event")(fields(
            "it is not the name of an event; name one, such as 'PostToolUse'".to_owned(),
        )));
    }
    text::check_line(&hook.command).map_err(part("command"))?;
    text::check_line(hook.matcher.as_deref().unwrap_or("")).map_err(part("matcher"))?;
    if hook.command.trim().is_empty() {
        return Err(part("command")(fields("it is empty; give a command line".to_owned())));
    }
    if hook.timeout_s.is_some_and(|seconds| seconds == 0 || seconds > HOOK_SECONDS_MAX) {
        return Err(part("timeout_s")(fields(format!("it is not within 1 and {HOOK_SECONDS_MAX} seconds"))));
    }
    Ok(())
}

fn check_mcp(mcp: &Mcp) -> Result<(), PartProblem> {
    let wrong = |name: &str, told: &str| Err(part(name)(fields(told.to_owned())));
    if mcp.command.is_empty() == mcp.url.is_none() {
        return wrong("command", "give either 'command' or 'url'");
    }
    if mcp.command.len() > ARGUMENTS_MAX || mcp.variables.len() > NAMES_MAX {
        return wrong("command", "it has more than 64 words or variables; start a script instead");
    }
    mcp.command.iter().try_for_each(|word| text::check_line(word)).map_err(part("command"))?;
    if mcp.command.first().is_some_and(|program| program.trim().is_empty()) {
        return wrong("command", "the program has no name");
    }
    if mcp.url.as_deref().is_some_and(|url| host(url).is_none()) {
        return wrong("url", "it is not an address of http or https without user and password");
    }
    text::check_line(mcp.url.as_deref().unwrap_or("")).map_err(part("url"))?;
    if !mcp.variables.iter().all(|name| is_variable(name)) {
        return wrong("variables", "a variable is named with A-Z, a-z, 0-9 and '_', not starting with a digit");
    }
    Ok(())
}

/// Is this the name of an environment variable?
pub(crate) fn is_variable(name: &str) -> bool {
    let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    starts && name.len() <= 128 && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Host and port of an address of http or https, without user and password.
pub(crate) fn host(url: &str) -> Option<&str> {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"))?;
    let host = rest.split(['/', '?', '#']).next().unwrap_or("");
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '[' | ']');
    let printable = url.chars().all(|c| c.is_ascii_graphic() && !matches!(c, '"' | '\'' | '\\' | '`' | '<' | '>'));
    (!host.is_empty() && host.chars().all(plain) && printable).then_some(host)
}

#[cfg(test)]
#[path = "entry_tests.rs"]
mod tests;
