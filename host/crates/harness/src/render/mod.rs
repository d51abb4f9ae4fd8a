//! Renders a tree for one agent program: the files of its home, and how it is started. Pure and deterministic: the same
//! tree, adapter and binding give the same bytes. What the program cannot take is left out and said so, never dropped in
//! silence.

mod entries;
mod start;

use std::collections::BTreeMap;

use reef_core::{ScenarioName, sha256_hex};
use semver::Version;
use serde::Serialize;
use serde_json::{Map, Value, json};

pub use start::{Client, Started};

use crate::adapter::{Adapter, fill_document, release_of};
use crate::document::{self, Format};
use crate::entry::{Body, host};
use crate::error::shown;
use crate::name::EntryName;
use crate::tree::Tree;

/// Characters of a model's name.
const MODEL_CHARS_MAX: usize = 200;
/// Bytes of the server's address.
const URL_BYTES_MAX: usize = 512;

/// What the rendered files point at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// Address of the server, without `/v1` and without a last slash.
    pub url: String,
    /// Name of the model, as requests give it.
    pub model: String,
    /// The scenario that learns from the runs.
    pub scenario: ScenarioName,
    /// The release, for the records' tag.
    pub release: String,
    /// Tokens of the model's context.
    pub context_tokens: u32,
    /// Tokens of one answer at most.
    pub output_tokens: u32,
    /// Version of the agent program; the adapter's pin by default.
    pub version: Option<Version>,
}

/// One file of the home.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RenderedFile {
    /// Under the home, plain names joined by `/`.
    pub path: String,
    /// Permissions.
    pub mode: u32,
    /// Content: UTF-8 without NUL.
    pub text: String,
    /// Of the content, 64 hex digits.
    pub sha256: String,
    /// The program changes it; each run starts from this content.
    pub client_writes: bool,
}

/// An entry that the program cannot take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Which entry.
    pub entry: EntryName,
    /// Why.
    pub reason: String,
}

/// A tree as one agent program reads it.
#[derive(Debug, Clone, PartialEq)]
pub struct Rendering {
    pub(crate) version: Version,
    pub(crate) files: Vec<RenderedFile>,
    pub(crate) left_out: Vec<LeftOut>,
    pub(crate) values: Map<String, Value>,
}

impl Rendering {
    /// Files, sorted by path.
    pub fn files(&self) -> &[RenderedFile] {
        &self.files
    }

    /// Entries that the program cannot take.
    pub fn left_out(&self) -> &[LeftOut] {
        &self.left_out
    }

    /// Version of the program that the files are for.
    pub fn version(&self) -> &Version {
        &self.version
    }
}

/// A tree that cannot be rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// The program's version is not one that the adapter knows.
    #[error("{adapter} {version}: {told}, or extend the adapter")]
    Version {
        /// Name of the adapter.
        adapter: String,
        /// The version asked for.
        version: Version,
        /// What the adapter knows and what to install.
        told: String,
    },
    /// A value of the binding cannot stand in a settings file.
    #[error("{name} '{shown}': {reason}")]
    Binding {
        /// Which value.
        name: &'static str,
        /// It, escaped and shortened.
        shown: String,
        /// Why, and what to use.
        reason: String,
    },
    /// Two entries would be the same file.
    #[error("{adapter}: two entries would be the file {path}; rename one")]
    Collision {
        /// Name of the adapter.
        adapter: String,
        /// The file.
        path: String,
    },
    /// A settings file cannot be written.
    #[error("{adapter}: {path}: {problem}; correct the entry or the adapter")]
    Document {
        /// Name of the adapter.
        adapter: String,
        /// The file.
        path: String,
        /// Why.
        problem: String,
    },
}

/// A settings file in the making.
struct Document {
    format: Format,
    value: Value,
    client_writes: bool,
}

/// Files in the making.
struct Draft<'a> {
    adapter: &'a Adapter,
    version: Version,
    documents: BTreeMap<String, Document>,
    texts: BTreeMap<String, String>,
    left_out: Vec<LeftOut>,
}

/// Renders the tree.
pub fn render(tree: &Tree, adapter: &Adapter, binding: &Binding) -> Result<Rendering, RenderError> {
    let version = binding.version.clone().unwrap_or_else(|| adapter.install.version().clone());
    let plain = release_of(&version);
    if !adapter.versions.matches(&plain) {
        let pin = adapter.install.version();
        let told = format!("the adapter holds for versions {}; install {pin}", adapter.versions);
        return Err(RenderError::Version { adapter: adapter.name.clone(), version, told });
    }
    let values = check_binding(adapter, binding)?;
    let mut draft =
        Draft { adapter, version: plain, documents: BTreeMap::new(), texts: BTreeMap::new(), left_out: Vec::new() };
    draft.settings(tree, &values)?;
    draft.entries(tree)?;
    let left_out = std::mem::take(&mut draft.left_out);
    Ok(Rendering { version, files: draft.finish()?, left_out, values })
}

fn check_binding(adapter: &Adapter, binding: &Binding) -> Result<Map<String, Value>, RenderError> {
    let refused = |name, value: &str, reason: &str| {
        Err(RenderError::Binding { name, shown: shown(value), reason: reason.to_owned() })
    };
    let url = binding.url.as_str();
    if host(url).is_none() || url.ends_with('/') || url.contains(['?', '#']) || url.len() > URL_BYTES_MAX {
        return refused(
            "url",
            url,
            "it is no address of http or https without a last '/'; use one like http://reef:8700",
        );
    }
    let model = binding.model.as_str();
    let printable = |c: char| !c.is_control() && !c.is_whitespace();
    if model.is_empty() || model.chars().count() > MODEL_CHARS_MAX || !model.chars().all(printable) {
        return refused("model", model, "a model is named with 1 to 200 characters without spaces; use such a name");
    }
    let release = binding.release.as_str();
    if release.len() > MODEL_CHARS_MAX || !release.chars().all(|c| c.is_ascii_alphanumeric()) {
        return refused("release", release, "a release is named with letters and digits; use its id");
    }
    for file in &adapter.files {
        for (name, value) in [("url", url), ("model", model)] {
            if let Some(sign) = file.interpolates.iter().find(|sign| value.contains(sign.as_str())) {
                let reason = format!("{} expands '{sign}' in {}; use a value without it", adapter.title, file.path);
                return refused(name, value, &reason);
            }
        }
    }
    let values = json!({
        "url": url, "model": model, "scenario": binding.scenario.as_str(), "release": release,
        "context_tokens": binding.context_tokens, "output_tokens": binding.output_tokens,
    });
    Ok(values.as_object().cloned().unwrap_or_default())
}

impl Draft<'_> {
    /// Settings files: the tree's settings, and over them what Reef binds.
    fn settings(&mut self, tree: &Tree, values: &Map<String, Value>) -> Result<(), RenderError> {
        let (adapter, version) = (self.adapter, self.version.clone());
        for file in adapter.files.iter().filter(|file| file.versions.matches(&version)) {
            let mut settings = Map::new();
            if file.settings {
                self.open_settings(tree, &mut settings);
            }
            let bound = fill_document(&file.document, values).map_err(|problem| self.wrong(&file.path, problem))?;
            let value = match bound {
                Some(Value::Object(bound)) => {
                    document::merge(&mut settings, &bound);
                    Value::Object(settings)
                }
                other => other.unwrap_or(Value::Object(settings)),
            };
            let document = Document { format: file.format, value, client_writes: file.client_writes };
            if self.documents.insert(file.path.clone(), document).is_some() {
                return Err(self.collision(&file.path));
            }
        }
        Ok(())
    }

    fn open_settings(&mut self, tree: &Tree, settings: &mut Map<String, Value>) {
        for entry in tree.entries() {
            let Body::Config(config) = entry.body() else { continue };
            if config.adapter != self.adapter.name {
                continue;
            }
            match config.settings.keys().find(|key| !self.adapter.open_settings.contains(*key)) {
                Some(key) => {
                    let open: Vec<&str> = self.adapter.open_settings.iter().map(String::as_str).collect();
                    let reason = format!("a tree may not set '{}'; it may set: {}", shown(key), open.join(", "));
                    self.left_out.push(LeftOut { entry: entry.name().clone(), reason });
                }
                None => document::merge(settings, &config.settings),
            }
        }
    }

    fn finish(self) -> Result<Vec<RenderedFile>, RenderError> {
        let mut files = Vec::new();
        for (path, document) in &self.documents {
            let text = document.format.write(&document.value).map_err(|problem| self.wrong(path, problem))?;
            files.push(file(path, text, document.client_writes));
        }
        files.extend(self.texts.iter().map(|(path, text)| file(path, text.clone(), false)));
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let mut seen = BTreeMap::new();
        for file in &files {
            if let Some(other) = seen.insert(file.path.to_ascii_lowercase(), &file.path) {
                return Err(self.collision(other));
            }
        }
        Ok(files)
    }

    fn collision(&self, path: &str) -> RenderError {
        RenderError::Collision { adapter: self.adapter.name.clone(), path: path.to_owned() }
    }

    fn wrong(&self, path: &str, problem: String) -> RenderError {
        RenderError::Document { adapter: self.adapter.name.clone(), path: path.to_owned(), problem }
    }
}

fn file(path: &str, text: String, client_writes: bool) -> RenderedFile {
    let sha256 = sha256_hex(text.as_bytes());
    // Prompts and addresses are the person's own business.
    RenderedFile { path: path.to_owned(), mode: 0o600, text, sha256, client_writes }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
