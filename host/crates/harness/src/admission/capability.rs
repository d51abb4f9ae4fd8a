//! What an entry can do beyond being read: run a command or code, reach an address, read a variable, change a setting,
//! or make a program expand its text. Admission compares the capabilities of two trees; nothing else reads them.

use std::collections::BTreeSet;
use std::fmt;

use reef_core::sha256_hex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::adapter::{Adapter, Expansion};
use crate::entry::{Body, Entry, host};
use crate::error::shown;

/// One capability.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Capability {
    /// Runs this command line on the client's machine.
    Command {
        /// The line, or the JSON list of program and arguments.
        line: String,
    },
    /// Loads code with this SHA-256 into the agent program.
    Code {
        /// 64 hex digits.
        sha256: String,
    },
    /// Reaches this host.
    Address {
        /// Host, and port if it is given.
        host: String,
    },
    /// Hands on this variable of the client's environment.
    Variable {
        /// Its name.
        name: String,
    },
    /// Sets this setting of an agent program.
    Setting {
        /// Name of the adapter.
        adapter: String,
        /// First key.
        key: String,
    },
    /// Has a text that an agent program expands.
    Expansion {
        /// Name of the adapter.
        adapter: String,
        /// The sequence that starts it.
        start: String,
        /// What follows on the line.
        line: String,
    },
}

impl Capability {
    /// Its kind.
    pub fn kind(&self) -> CapabilityKind {
        match self {
            Self::Command { .. } => CapabilityKind::Command,
            Self::Code { .. } => CapabilityKind::Code,
            Self::Address { .. } => CapabilityKind::Address,
            Self::Variable { .. } => CapabilityKind::Variable,
            Self::Setting { .. } => CapabilityKind::Setting,
            Self::Expansion { .. } => CapabilityKind::Expansion,
        }
    }
}

/// A kind of capabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CapabilityKind {
    /// Running a command.
    Command,
    /// Loading code.
    Code,
    /// Reaching a host.
    Address,
    /// Reading a variable.
    Variable,
    /// Changing a setting.
    Setting,
    /// Having a text expanded.
    Expansion,
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command { line } => write!(f, "run the command '{}'", shown(line)),
            Self::Code { sha256 } => write!(f, "load the code with SHA-256 {sha256}"),
            Self::Address { host } => write!(f, "reach {host}"),
            Self::Variable { name } => write!(f, "read the variable {name}"),
            Self::Setting { adapter, key } => write!(f, "set '{}' of {adapter}", shown(key)),
            Self::Expansion { adapter, start, line } => {
                write!(f, "have {adapter} expand '{}{}'", shown(start), shown(line))
            }
        }
    }
}

/// What the entry can do with these agent programs.
pub fn capabilities(entry: &Entry, adapters: &[&Adapter]) -> BTreeSet<Capability> {
    let mut found = BTreeSet::new();
    match entry.body() {
        Body::Hook(hook) => {
            found.insert(Capability::Command { line: hook.command.clone() });
        }
        Body::Code(code) => {
            found.insert(Capability::Code { sha256: sha256_hex(code.source.as_bytes()) });
        }
        Body::Mcp(mcp) => {
            if !mcp.command.is_empty() {
                found.insert(Capability::Command { line: json!(mcp.command).to_string() });
            }
            found.extend(mcp.url.as_deref().and_then(host).map(|host| Capability::Address { host: host.to_owned() }));
            found.extend(mcp.variables.iter().map(|name| Capability::Variable { name: name.clone() }));
        }
        Body::Config(config) => {
            let adapter = adapters.iter().find(|adapter| adapter.name == config.adapter);
            let open = |key: &&String| adapter.is_some_and(|adapter| adapter.open_settings.contains(*key));
            let closed = config.settings.keys().filter(|key| !open(key));
            found.extend(closed.map(|key| Capability::Setting { adapter: config.adapter.clone(), key: key.clone() }));
        }
        Body::Text(_) | Body::Command(_) | Body::Skill(_) | Body::Subagent(_) => {}
    }
    for adapter in adapters {
        for expansion in adapter.expansions.iter().filter(|own| own.kinds.contains(&entry.name().kind())) {
            each_string(&entry.config(), &mut |text| expand(adapter, expansion, text, &mut found));
        }
    }
    found
}

fn each_string(value: &Value, then: &mut dyn FnMut(&str)) {
    match value {
        Value::String(text) => then(text),
        Value::Array(items) => items.iter().for_each(|item| each_string(item, then)),
        Value::Object(map) => map.values().for_each(|item| each_string(item, then)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn expand(adapter: &Adapter, expansion: &Expansion, text: &str, found: &mut BTreeSet<Capability>) {
    for (at, start) in text.match_indices(&expansion.start) {
        let before = text.get(..at).and_then(|before| before.chars().next_back());
        if expansion.word && before.is_some_and(|c| !c.is_whitespace() && c != '(') {
            continue;
        }
        let rest = text.get(at + start.len()..).unwrap_or("");
        let line = rest.lines().next().unwrap_or("").trim_end();
        if expansion.word && line.chars().next().is_none_or(char::is_whitespace) {
            continue;
        }
        found.insert(Capability::Expansion {
            adapter: adapter.name.clone(),
            start: start.to_owned(),
            line: line.to_owned(),
        });
    }
}
