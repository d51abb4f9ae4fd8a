//! The rendered harness as the native agent reads it: rules, prompts, skills, commands, subagents and settings, from the
//! folder that `harness-adapters/native` describes. It is read once, before the first request.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Deserialize;

use crate::error::EpisodeError;

/// The variable that names the home.
pub const HOME_VARIABLE: &str = "REEF_NATIVE_HOME";
/// Bytes of one file of the home.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Skills, commands or subagents.
const ENTRIES_MAX: usize = 512;

/// Where the model is and what a run may take; `settings.json` of the home.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Address of the server, without `/v1`.
    pub url: String,
    /// Name of the model.
    pub model: String,
    /// The scenario that learns from the runs.
    pub scenario: String,
    /// The harness release.
    pub release: String,
    /// Tokens of the model's context.
    pub context_tokens: u32,
    /// Tokens of one answer.
    pub output_tokens: u32,
    /// Temperature of the model; absent = the server's.
    #[serde(default)]
    pub temperature: Option<f64>,
    /// Answers of the model in one run.
    #[serde(default)]
    pub turns_max: Option<u32>,
    /// Tokens of all requests and answers of one run.
    #[serde(default)]
    pub tokens_max: Option<u64>,
    /// Seconds of one run.
    #[serde(default)]
    pub seconds_max: Option<u64>,
}

/// A text with a line that says when to use it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// In one line.
    pub description: String,
    /// The body.
    pub text: String,
    /// Further files, by path.
    pub files: BTreeMap<String, String>,
}

/// The harness.
#[derive(Debug, Clone, PartialEq)]
pub struct Home {
    /// Where the model is.
    pub settings: Settings,
    /// What the agent is; empty = the native agent's own words.
    pub prompt: String,
    /// What it keeps to.
    pub rules: String,
    /// Skills by name.
    pub skills: BTreeMap<String, Described>,
    /// Commands that a task may begin with, by name.
    pub commands: BTreeMap<String, Described>,
    /// Agents that it may start, by name.
    pub subagents: BTreeMap<String, Described>,
}

impl Home {
    /// Reads the folder.
    pub fn read(folder: &Path) -> Result<Self, EpisodeError> {
        let settings_at = folder.join("settings.json");
        let settings =
            text(&settings_at)?.ok_or_else(|| wrong(&settings_at, "it is not there; install the harness"))?;
        let settings = serde_json::from_str(&settings).map_err(|error| wrong(&settings_at, error))?;
        Ok(Self {
            settings,
            prompt: text(&folder.join("SYSTEM.md"))?.unwrap_or_default(),
            rules: text(&folder.join("AGENTS.md"))?.unwrap_or_default(),
            skills: skills(&folder.join("skills"))?,
            commands: described(&folder.join("prompts"))?,
            subagents: described(&folder.join("agents"))?,
        })
    }
}

fn wrong(path: &Path, problem: impl ToString) -> EpisodeError {
    EpisodeError::Home { path: path.to_owned(), problem: problem.to_string() }
}

/// The text of a plain file; none where there is no file.
fn text(path: &Path) -> Result<Option<String>, EpisodeError> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(wrong(path, error)),
    };
    if !found.is_file() || found.len() > FILE_BYTES_MAX {
        return Err(wrong(path, format!("it is no plain file of at most {FILE_BYTES_MAX} bytes; install again")));
    }
    fs::read_to_string(path).map(Some).map_err(|error| wrong(path, error))
}

/// Names in a folder, sorted; nothing where there is no folder.
fn names(folder: &Path) -> Result<Vec<String>, EpisodeError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(wrong(folder, error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| wrong(folder, error))?;
        names.push(entry.file_name().to_string_lossy().into_owned());
        if names.len() > ENTRIES_MAX {
            return Err(wrong(folder, format!("more than {ENTRIES_MAX} entries")));
        }
    }
    names.sort();
    Ok(names)
}

fn described(folder: &Path) -> Result<BTreeMap<String, Described>, EpisodeError> {
    let mut found = BTreeMap::new();
    for name in names(folder)? {
        let Some(id) = name.strip_suffix(".md") else { continue };
        if let Some(text) = text(&folder.join(&name))? {
            found.insert(id.to_owned(), parsed(&text, BTreeMap::new()));
        }
    }
    Ok(found)
}

fn skills(folder: &Path) -> Result<BTreeMap<String, Described>, EpisodeError> {
    let mut found = BTreeMap::new();
    for id in names(folder)? {
        let own = folder.join(&id);
        let Some(body) = text(&own.join("SKILL.md"))? else { continue };
        let mut files = BTreeMap::new();
        further(&own, "", &mut files)?;
        files.remove("SKILL.md");
        found.insert(id, parsed(&body, files));
    }
    Ok(found)
}

/// The files of a skill. Paths in a tree have at most a few folders.
fn further(folder: &Path, prefix: &str, files: &mut BTreeMap<String, String>) -> Result<(), EpisodeError> {
    for name in names(folder)? {
        let path = folder.join(&name);
        let found = fs::symlink_metadata(&path).map_err(|error| wrong(&path, error))?;
        if found.is_dir() && prefix.matches('/').count() < 8 {
            further(&path, &format!("{prefix}{name}/"), files)?;
        } else if let Some(text) = text(&path)? {
            files.insert(format!("{prefix}{name}"), text);
        }
        if files.len() > ENTRIES_MAX {
            return Err(wrong(folder, format!("more than {ENTRIES_MAX} files")));
        }
    }
    Ok(())
}

/// Takes the front matter from a text.
fn parsed(text: &str, files: BTreeMap<String, String>) -> Described {
    let mut description = String::new();
    let mut body = text;
    if let Some((head, rest)) = text.strip_prefix("---\n").and_then(|inner| inner.split_once("\n---\n")) {
        body = rest;
        for line in head.lines() {
            if let Some(value) = line.strip_prefix("description:") {
                let value = value.trim();
                description = serde_json::from_str(value).unwrap_or_else(|_| value.to_owned());
            }
        }
    }
    Described { description, text: body.to_owned(), files }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// A home with these files beside its settings.
    pub fn home(files: &[(&str, &str)]) -> (tempfile::TempDir, Home) {
        let folder = tempfile::tempdir().expect("a folder");
        let settings = r#"{"url":"http://127.0.0.1:1","model":"m","scenario":"s","release":"r","context_tokens":8192,"output_tokens":512}"#;
        for (path, text) in [("settings.json", settings)].iter().chain(files) {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(path, text).expect("written");
        }
        let home = Home::read(folder.path()).expect("a home");
        (folder, home)
    }
}

#[cfg(test)]
mod tests {
    use super::testing::home;
    use super::*;

    #[test]
    fn a_home_is_read_as_it_is_rendered() {
        let skill = "---\ndescription: \"Knots: \\\"how\\\"\"\nname: \"ropes\"\n---\n# Ropes\n";
        let (_folder, home) = home(&[
            ("AGENTS.md", "Be brief.\n"),
            ("skills/ropes/SKILL.md", skill),
            ("skills/ropes/references/knots.md", "bowline"),
            ("prompts/greet.md", "---\ndescription: \"Greets\"\n---\nGreet $1.\n"),
        ]);
        assert_eq!((home.rules.as_str(), home.prompt.as_str(), home.settings.model.as_str()), ("Be brief.\n", "", "m"));
        let ropes = &home.skills["ropes"];
        assert_eq!((ropes.description.as_str(), ropes.text.as_str()), ("Knots: \"how\"", "# Ropes\n"));
        assert_eq!(ropes.files["references/knots.md"], "bowline");
        assert_eq!(home.commands["greet"].text, "Greet $1.\n");
    }

    #[test]
    fn a_home_that_is_none_is_told_with_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(Home::read(folder.path()).expect_err("empty").to_string().contains("settings.json: it is not there"));
        fs::write(folder.path().join("settings.json"), "{}").expect("written");
        assert!(Home::read(folder.path()).expect_err("no url").to_string().contains("missing field `url`"));
        let (folder, _) = home(&[]);
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("AGENTS.md")).expect("linked");
        assert!(Home::read(folder.path()).expect_err("a link").to_string().contains("no plain file"));
    }
}
