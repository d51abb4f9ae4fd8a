//! The tools of the native agent: read, write, search and exec in the working folder, skills, and agents to start. What
//! a tool gives back is bounded, and a call that cannot be carried out is an answer that says why.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::folder::Walked;
use super::home::{Described, Home};
use crate::bounded::shortened;

/// Bytes that one tool call gives back.
const RESULT_BYTES_MAX: usize = 16 << 10;
/// Lines that one search gives back.
const MATCHES_MAX: usize = 100;
/// Bytes of a line that a search shows.
const MATCH_BYTES_MAX: usize = 300;
/// Seconds of one command, unless the call says fewer.
const EXEC_SECONDS: u64 = 60;

/// What a model asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum Call {
    /// The text of a file, from a line on.
    Read { path: String, first: usize, count: usize },
    /// Writes a file.
    Write { path: String, text: String },
    /// Runs a command line.
    Exec { command: String, time: Duration },
    /// Lines that hold a text; without one, the names of files.
    Search { text: String, path: String },
    /// The body of a skill, or a file of it.
    Skill { name: String, file: Option<String> },
    /// Starts an agent.
    Agent { name: String, task: String },
}

/// The tools as a request offers them. `nested`: within an agent that was started no further one is.
pub fn offered(home: &Home, nested: bool) -> Value {
    let tool = |name: &str, what: &str, fields: Value, required: &[&str]| {
        json!({ "type": "function", "function": { "name": name, "description": what, "parameters": {
            "type": "object", "properties": fields, "required": required, "additionalProperties": false } } })
    };
    let text = |what: &str| json!({ "type": "string", "description": what });
    let number = |what: &str| json!({ "type": "integer", "description": what });
    let mut tools = vec![
        tool(
            "read",
            "Reads a text file.",
            json!({ "path": text("the file"), "first": number("first line, from 1"), "count": number("lines") }),
            &["path"],
        ),
        tool(
            "write",
            "Writes a text file; replaces what is there.",
            json!({ "path": text("the file"), "text": text("its whole content") }),
            &["path", "text"],
        ),
        tool(
            "search",
            "Shows the lines of files that hold a text; without a text, the names of the files.",
            json!({ "text": text("what to find"), "path": text("a folder; all by default") }),
            &[],
        ),
        tool(
            "exec",
            "Runs a command line with sh in the folder and shows what it prints. It has no network.",
            json!({ "command": text("the command line"), "seconds": number("time limit") }),
            &["command"],
        ),
    ];
    if !home.skills.is_empty() {
        let fields = json!({ "name": text("the skill"), "file": text("a file of it, instead of its text") });
        tools.push(tool("skill", "Shows the text of a skill.", fields, &["name"]));
    }
    if !nested && !home.subagents.is_empty() {
        let fields = json!({ "name": text("the agent"), "task": text("what it should do") });
        tools.push(tool("agent", "Starts an agent and shows its answer.", fields, &["name", "task"]));
    }
    Value::Array(tools)
}

impl Call {
    /// Reads name and arguments as a model writes them; the error is for the model.
    pub fn parse(name: &str, arguments: &str) -> Result<Self, String> {
        let arguments = if arguments.trim().is_empty() { "{}" } else { arguments };
        let fields: Map<String, Value> = serde_json::from_str(arguments)
            .map_err(|error| format!("the arguments of '{name}' are not a JSON object: {error}"))?;
        let text = |field: &str| fields.get(field).and_then(Value::as_str).map(str::to_owned);
        let need = |field: &str| text(field).ok_or_else(|| format!("'{name}' needs the text '{field}'"));
        let number = |field: &str| fields.get(field).and_then(Value::as_u64);
        let size = |field: &str, other: usize| {
            number(field).map_or(other, |value| usize::try_from(value).unwrap_or(usize::MAX))
        };
        Ok(match name {
            "read" => Self::Read { path: need("path")?, first: size("first", 1), count: size("count", usize::MAX) },
            "write" => Self::Write { path: need("path")?, text: need("text")? },
            "search" => Self::Search { text: text("text").unwrap_or_default(), path: text("path").unwrap_or_default() },
            "exec" => {
                let seconds = number("seconds").unwrap_or(EXEC_SECONDS).clamp(1, EXEC_SECONDS);
                Self::Exec { command: need("command")?, time: Duration::from_secs(seconds) }
            }
            "skill" => Self::Skill { name: need("name")?, file: text("file") },
            "agent" => Self::Agent { name: need("name")?, task: need("task")? },
            _ => return Err(format!("there is no tool '{}'", shortened(name, 64))),
        })
    }
}

/// What a tool gives back: no more than a prompt can stand.
pub fn result(text: &str) -> String {
    if text.is_empty() { "(nothing)".to_owned() } else { shortened(text, RESULT_BYTES_MAX) }
}

/// Lines of a text.
pub fn lines(text: &str, first: usize, count: usize) -> String {
    let lines: Vec<&str> = text.lines().skip(first.saturating_sub(1)).take(count).collect();
    lines.join("\n")
}

/// Lines with a text, as `file:line: text`; the names of the files without one.
pub fn matches((files, complete): &Walked, text: &str) -> String {
    let mut found: Vec<String> = Vec::new();
    for (path, content) in files {
        if text.is_empty() {
            found.push(path.clone());
            continue;
        }
        for (at, line) in content.iter().flat_map(|content| content.lines().enumerate()) {
            if line.contains(text) {
                found.push(format!("{path}:{}: {}", at + 1, shortened(line, MATCH_BYTES_MAX)));
            }
        }
    }
    let more = found.len().saturating_sub(MATCHES_MAX);
    found.truncate(MATCHES_MAX);
    if more > 0 {
        found.push(format!("[{more} more]"));
    }
    if !complete {
        found.push("[there are more files than were looked at]".to_owned());
    }
    if found.is_empty() { "(nothing found)".to_owned() } else { found.join("\n") }
}

/// A skill, or a file of it.
pub fn skill(home: &Home, name: &str, file: Option<&str>) -> Result<String, String> {
    let found =
        |name: &str| home.skills.get(name).ok_or_else(|| format!("there is no skill '{}'", shortened(name, 64)));
    let Described { text, files, .. } = found(name)?;
    match file {
        Some(file) => files.get(file).cloned().ok_or_else(|| format!("the skill '{name}' has no file '{file}'")),
        None if files.is_empty() => Ok(text.clone()),
        None => {
            let names: Vec<&str> = files.keys().map(String::as_str).collect();
            Ok(format!("{text}\nFurther files: {}", names.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::home::testing::home;
    use super::*;

    #[test]
    fn calls_are_read_and_what_is_wrong_is_told_to_the_model() {
        let read = Call::parse("read", r#"{"path":"a","first":2,"count":3}"#);
        assert_eq!(read, Ok(Call::Read { path: "a".into(), first: 2, count: 3 }));
        let exec = Call::parse("exec", r#"{"command":"ls","seconds":99999}"#);
        assert_eq!(exec, Ok(Call::Exec { command: "ls".into(), time: Duration::from_secs(60) }));
        assert_eq!(Call::parse("search", ""), Ok(Call::Search { text: String::new(), path: String::new() }));
        for (name, arguments, words) in [
            ("read", "{}", "needs the text 'path'"),
            ("read", "[", "not a JSON object"),
            ("write", r#"{"path":"a"}"#, "needs the text 'text'"),
            ("fly", "{}", "no tool 'fly'"),
        ] {
            assert!(Call::parse(name, arguments).expect_err(name).contains(words), "{name}");
        }
    }

    #[test]
    fn results_are_bounded() {
        assert!(result(&"x".repeat(100_000)).len() < RESULT_BYTES_MAX + 64);
        let files: Vec<_> = (0..150).map(|n| (format!("f{n}"), Some("one\ntwo".to_owned()))).collect();
        let found = matches(&(files.clone(), false), "two");
        assert!(found.starts_with("f0:2: two") && found.contains("[50 more]") && found.ends_with("looked at]"));
        assert_eq!(matches(&(files[..1].to_vec(), true), "three"), "(nothing found)");
        assert_eq!(matches(&(files[..2].to_vec(), true), ""), "f0\nf1");
        assert_eq!(lines("a\nb\nc", 2, 1), "b");
    }

    #[test]
    fn skills_and_agents_are_offered_only_where_there_are_some() {
        let names = |tools: &Value| -> Vec<String> {
            let names = tools.as_array().expect("a list").iter().map(|tool| tool["function"]["name"].as_str());
            names.map(|name| name.expect("a name").to_owned()).collect()
        };
        let (_folder, bare) = home(&[]);
        assert_eq!(names(&offered(&bare, false)), ["read", "write", "search", "exec"]);
        let (_folder, rich) = home(&[
            ("skills/a/SKILL.md", "---\ndescription: \"A\"\n---\nbody\n"),
            ("skills/a/x.md", "more"),
            ("agents/b.md", "---\ndescription: \"B\"\n---\nbody\n"),
        ]);
        assert_eq!(names(&offered(&rich, false))[4..], ["skill", "agent"]);
        assert_eq!(names(&offered(&rich, true))[4..], ["skill"]);
        assert_eq!(skill(&rich, "a", None), Ok("body\n\nFurther files: x.md".to_owned()));
        assert_eq!(skill(&rich, "a", Some("x.md")), Ok("more".to_owned()));
        assert!(skill(&rich, "../b", None).is_err() && skill(&rich, "a", Some("y")).is_err());
    }
}
