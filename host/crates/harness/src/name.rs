//! Names: the kinds of entries, their ids, and the paths of files that belong to them. Parsing is the only way to make
//! one, so that a name is always a safe name of a file on every common file system.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Problem, shown};

/// Characters of an id; the longest that every agent program takes as the name of a skill.
pub const ID_CHARS_MAX: usize = 64;
/// Bytes of the path of a file that belongs to a skill.
const FILE_PATH_BYTES_MAX: usize = 120;
/// Folders and name of such a path.
const FILE_PATH_PARTS_MAX: usize = 4;

const ID_RULE: &str = "use 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-', starting with a letter or digit, not ending with '.', and no device name";
const SKILL_RULE: &str = "a skill is named with 1 to 64 of a-z, 0-9 and '-', starting with a letter or digit";
const PATH_RULE: &str = "a file is named by at most 4 such names joined by '/', of at most 120 bytes";

/// Names that Windows keeps for devices, whatever their ending.
const DEVICES: [&str; 4] = ["con", "prn", "aux", "nul"];
/// Such names that a digit follows.
const NUMBERED_DEVICES: [&str; 2] = ["com", "lpt"];

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal),+ $(,)?) => {
        /// What an entry is.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum EntryKind { $($(#[$doc])* $kind),+ }

        impl EntryKind {
            /// All kinds.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$kind),+];

            /// Its name, as in paths and in JSON.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$kind => $name),+ }
            }
        }
    };
}

kinds! {
    /// Settings of one agent program.
    Config = "config",
    /// Rules that the agent always reads.
    Rules = "rules",
    /// A command that a person gives by name.
    AgentCommand = "agent_command",
    /// A skill that the agent reads when it needs it.
    Skill = "skill",
    /// Code that one agent program loads.
    CodeExtension = "code_extension",
    /// Code of a tool of one agent program.
    Tool = "tool",
    /// A command that runs at an event.
    Hook = "hook",
    /// An agent that the agent may start.
    Subagent = "subagent",
    /// A server of tools.
    Mcp = "mcp",
    /// Text added to the system prompt.
    Prompt = "prompt",
}

impl fmt::Display for EntryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for EntryKind {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        let found = Self::ALL.into_iter().find(|kind| kind.as_str() == text);
        found.ok_or_else(|| Problem::Name { shown: shown(text), rule: "a kind is one of config, rules, agent_command, skill, code_extension, tool, hook, subagent, mcp and prompt" })
    }
}

/// Names an entry: its kind, and its id within that kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "RawName")]
pub struct EntryName {
    kind: EntryKind,
    id: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawName {
    kind: EntryKind,
    id: String,
}

impl TryFrom<RawName> for EntryName {
    type Error = Problem;
    fn try_from(raw: RawName) -> Result<Self, Problem> {
        Self::parse(raw.kind, &raw.id)
    }
}

impl EntryName {
    /// Checks the id against the rule of its kind.
    pub fn parse(kind: EntryKind, id: &str) -> Result<Self, Problem> {
        let skill = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let rule = if kind == EntryKind::Skill { SKILL_RULE } else { ID_RULE };
        let valid = is_name(id) && (kind != EntryKind::Skill || id.chars().all(skill));
        if valid { Ok(Self { kind, id: id.to_owned() }) } else { Err(Problem::Name { shown: shown(id), rule }) }
    }

    /// Its kind.
    pub fn kind(&self) -> EntryKind {
        self.kind
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl fmt::Display for EntryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.id)
    }
}

/// Is this a name that every common file system, git and a shell take without quotes?
pub(crate) fn is_name(text: &str) -> bool {
    let starts = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'));
    starts && plain && text.len() <= ID_CHARS_MAX && !text.ends_with('.') && !is_device(text)
}

fn is_device(text: &str) -> bool {
    let stem = text.split('.').next().unwrap_or("").to_ascii_lowercase();
    let numbered = |name: &str| {
        stem.strip_prefix(name).is_some_and(|rest| rest.len() == 1 && rest.chars().all(|c| c.is_ascii_digit()))
    };
    DEVICES.contains(&stem.as_str()) || NUMBERED_DEVICES.into_iter().any(numbered)
}

/// Checks the path of a file that belongs to a skill.
pub(crate) fn check_file_path(path: &str) -> Result<(), Problem> {
    let parts = path.split('/').count();
    let fits = path.len() <= FILE_PATH_BYTES_MAX && parts <= FILE_PATH_PARTS_MAX && path.split('/').all(is_name);
    if fits { Ok(()) } else { Err(Problem::Name { shown: shown(path), rule: PATH_RULE }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_are_refused_with_the_rule() {
        let long = "a".repeat(65);
        for bad in ["", "..", ".", "a/b", "a\0b", "a b", "-a", ".git", "a.", "con", "Aux.md", "LPT1", "ü", "a\n", &long]
        {
            assert!(matches!(EntryName::parse(EntryKind::Rules, bad), Err(Problem::Name { .. })), "{bad}");
        }
        for good in ["a", "A.b_c-d", "10-style", "console", &long[..64]] {
            assert!(EntryName::parse(EntryKind::Rules, good).is_ok(), "{good}");
        }
        for bad in ["Ropes", "a.b", "a_b", &long] {
            assert!(EntryName::parse(EntryKind::Skill, bad).is_err(), "{bad}");
        }
        assert!(EntryName::parse(EntryKind::Skill, &long[..64]).is_ok());
        assert!(serde_json::from_str::<EntryName>(r#"{"kind":"rules","id":"../x"}"#).is_err());
    }

    #[test]
    fn files_stay_within_their_skill() {
        for bad in ["/etc/passwd", "a/../b", "a//b", "a/b/c/d/e", ".hidden", "a\\b", "a/"] {
            assert!(check_file_path(bad).is_err(), "{bad}");
        }
        assert_eq!(check_file_path("references/knots.md"), Ok(()));
    }
}
