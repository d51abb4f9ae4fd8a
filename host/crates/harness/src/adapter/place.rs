//! Where entries of one kind go: into one file together, into a file each, or as records into a settings file.

use std::collections::BTreeMap;

use semver::VersionReq;
use serde::Deserialize;
use serde_json::Value;

use super::{SettingsFile, Template, check_names, check_path, names_in};
use crate::document::Format;
use crate::name::EntryKind;

/// Names of the fields of an entry, for templates of front matter, records and paths.
const ENTRY_NAMES: [&str; 14] = [
    "id",
    "description",
    "text",
    "source",
    "event",
    "matcher",
    "command",
    "timeout_s",
    "program",
    "arguments",
    "argv",
    "url",
    "environment",
    "variables",
];

/// Where entries of one kind go.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Place {
    /// Of which kind.
    pub kind: EntryKind,
    /// Versions of the program that read it there; all by default.
    #[serde(default)]
    pub versions: VersionReq,
    /// How.
    #[serde(flatten)]
    pub form: Form,
}

/// How entries are written.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "form", rename_all = "snake_case", deny_unknown_fields)]
pub enum Form {
    /// All texts in one file, a blank line between them. Several kinds may share the file.
    Joined {
        /// The file.
        path: String,
        /// Write the file also when it is empty.
        #[serde(default)]
        always: bool,
    },
    /// A file for each, with `{{id}}` in its path; the files of a skill go beside it.
    Each {
        /// The file.
        path: String,
        /// YAML front matter before the text.
        #[serde(default)]
        front_matter: BTreeMap<String, Template>,
    },
    /// A document for each, with `{{id}}` in its path.
    Document {
        /// The file.
        path: String,
        /// Its language.
        format: Format,
        /// Its content.
        record: Value,
    },
    /// A record in a settings file.
    Record {
        /// Path of the settings file.
        file: String,
        /// Keys down to it; a last key `+` appends to a list.
        at: Vec<Template>,
        /// The record.
        record: Value,
        /// The record of an MCP server that is an address.
        #[serde(default)]
        remote: Option<Value>,
        /// How the file names a variable of the client, with `*` for the variable.
        #[serde(default)]
        variable: Option<String>,
    },
    /// All texts together as one string in a settings file.
    Value {
        /// Path of the settings file.
        file: String,
        /// Keys down to it.
        at: Vec<Template>,
    },
}

impl Place {
    pub(super) fn check(&self, files: &[SettingsFile]) -> Result<(), String> {
        self.form.check(files).map_err(|problem| format!("place of {}: {problem}", self.kind))
    }
}

impl Form {
    fn check(&self, files: &[SettingsFile]) -> Result<(), String> {
        match self {
            Self::Joined { path, .. } => check_path(path),
            Self::Each { path, front_matter } => {
                check_each(path)?;
                check_names("front matter", front_matter.values().flat_map(Template::names), &[&ENTRY_NAMES])
            }
            Self::Document { path, record, .. } => {
                check_each(path)?;
                check_record(record)
            }
            Self::Record { file, at, record, remote, variable } => {
                check_known(file, files)?;
                check_names("at", at.iter().flat_map(Template::names), &[&ENTRY_NAMES])?;
                check_record(record)?;
                remote.as_ref().map_or(Ok(()), check_record)?;
                let starred = variable.as_ref().is_none_or(|form| form.contains('*'));
                if starred { Ok(()) } else { Err("'variable' has no '*'".to_owned()) }
            }
            Self::Value { file, at } => {
                check_known(file, files)?;
                check_names("at", at.iter().flat_map(Template::names), &[])
            }
        }
    }
}

fn check_known(path: &str, files: &[SettingsFile]) -> Result<(), String> {
    let known = files.iter().any(|file| file.path == path);
    if known { Ok(()) } else { Err(format!("'{path}' is not one of its files")) }
}

fn check_each(path: &str) -> Result<(), String> {
    check_path(path)?;
    let folders = path.rsplit_once('/').map_or("", |(folders, _)| folders);
    if folders.is_empty() || path.matches("{{id}}").count() != 1 {
        return Err(format!("'{path}' needs a folder and {{{{id}}}}"));
    }
    Ok(())
}

fn check_record(record: &Value) -> Result<(), String> {
    check_names("record", names_in(record)?.iter().map(String::as_str), &[&ENTRY_NAMES])
}
