//! Adapters: what each agent program reads, as data. `harness-adapters/NAME/adapter.toml` and its templates are embedded
//! by the build script and checked here once; the renderer and the install script work from the checked form only.

mod place;
mod template;

use std::collections::{BTreeMap, BTreeSet};

use semver::{Version, VersionReq};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use place::{Form, Place};
pub use template::{Piece, Template, fill_document, names_in};

use crate::document::Format;
use crate::entry::is_variable;
use crate::name::{EntryKind, is_name};

include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

/// Names that a template of a file may hold.
pub const BINDING_NAMES: [&str; 6] = ["url", "model", "scenario", "release", "context_tokens", "output_tokens"];
/// Names that are known on the client only: they may stand in its environment and arguments.
pub const CLIENT_NAMES: [&str; 3] = ["home", "token", "session"];
/// The name of the task, in the arguments of a headless run.
pub const PROMPT_NAME: &str = "prompt";

/// An adapter that cannot be used; a mistake in its data.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("adapter {adapter}: {problem}; correct harness-adapters/{adapter}/adapter.toml")]
pub struct AdapterError {
    adapter: String,
    problem: String,
}

/// How the facts of an adapter are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AuditMethod {
    /// The program was run against a server that records what it is asked.
    Ran,
    /// The program's code or documents were read.
    Read,
    /// Neither; the facts are reported by others.
    None,
}

/// When and how the facts were checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Audit {
    /// Version of the program.
    pub version: Version,
    /// Day, as in 2026-11-30.
    pub date: String,
    /// How.
    pub method: AuditMethod,
    /// Facts that were not checked, and where they come from.
    #[serde(default)]
    pub not_audited: Vec<String>,
}

/// Where the program comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields, tag = "kind")]
pub enum Install {
    /// A package of npm.
    Npm {
        /// Its name.
        package: String,
        /// The pin.
        version: Version,
    },
    /// A package of PyPI.
    Pypi {
        /// Its name.
        package: String,
        /// The pin, as PyPI writes it.
        requirement: String,
        /// The same version as the program tells it.
        version: Version,
    },
    /// The person installs it.
    None {
        /// The version that the files are for.
        version: Version,
        /// How to get it.
        told: String,
    },
}

impl Install {
    /// The pinned version.
    pub fn version(&self) -> &Version {
        match self {
            Self::Npm { version, .. } | Self::Pypi { version, .. } | Self::None { version, .. } => version,
        }
    }
}

/// How the program is started.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// What it speaks: a path such as `/v1/messages`.
    pub endpoint: String,
    /// Arguments of every run.
    #[serde(default)]
    pub arguments: Vec<Template>,
    /// Further arguments of one task without a person.
    pub headless: Vec<Template>,
    /// Variables of every run.
    pub environment: BTreeMap<String, Template>,
    /// Variables of the person that would lead elsewhere.
    #[serde(default)]
    pub unset: Vec<String>,
}

/// Where the session of a run is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Session {
    /// Headers of every request, the most telling first; empty when it tells none.
    pub headers: Vec<String>,
    /// Its log, under the home, with `*` for what changes.
    #[serde(default)]
    pub log: Option<String>,
}

/// A settings file that is always there.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettingsFile {
    /// Under the home.
    pub path: String,
    /// Its language.
    pub format: Format,
    /// The file of the adapter that it starts from.
    template: String,
    /// Versions of the program that read it so; all by default.
    #[serde(default)]
    pub versions: VersionReq,
    /// Entries of kind config go here.
    #[serde(default)]
    pub settings: bool,
    /// The program itself changes it; each run starts from the release's content.
    #[serde(default)]
    pub client_writes: bool,
    /// Character sequences that the program expands in its strings; no bound value may hold one.
    #[serde(default)]
    pub interpolates: Vec<String>,
    /// The template.
    #[serde(skip)]
    pub document: Value,
}

/// A character sequence that gives a text powers, because the program expands it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expansion {
    /// In entries of these kinds.
    pub kinds: BTreeSet<EntryKind>,
    /// How it starts.
    pub start: String,
    /// Only at the start of a word.
    #[serde(default)]
    pub word: bool,
    /// What the program does.
    pub does: String,
}

/// One adapter.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adapter {
    /// Name of its folder.
    pub name: String,
    /// Name of the program, for people.
    pub title: String,
    /// The command.
    pub binary: String,
    /// Versions of the program that the data hold for.
    pub versions: VersionReq,
    /// How the facts are known.
    pub audit: Audit,
    /// Where it comes from.
    pub install: Install,
    /// How it is started.
    pub run: Run,
    /// Where sessions are told.
    pub session: Session,
    /// Settings that a tree may change, by their first key.
    #[serde(default)]
    pub open_settings: BTreeSet<String>,
    /// Settings files.
    #[serde(default, rename = "file")]
    pub files: Vec<SettingsFile>,
    /// Where entries go.
    #[serde(rename = "place")]
    pub places: Vec<Place>,
    /// Kinds that the program cannot take, and why.
    #[serde(default)]
    pub cannot: BTreeMap<EntryKind, String>,
    /// What its texts can do beyond being read.
    #[serde(default, rename = "expands")]
    pub expansions: Vec<Expansion>,
    /// What a person should know.
    #[serde(default)]
    pub limits: Vec<String>,
}

impl Adapter {
    /// Reads and checks an adapter: the texts of its folder by name.
    pub fn parse(folder: &str, texts: &[(&str, &str)]) -> Result<Self, AdapterError> {
        let error = |problem: String| AdapterError { adapter: folder.to_owned(), problem };
        let text = |name: &str| texts.iter().find(|(own, _)| *own == name).map(|(_, text)| *text);
        let definition = text("adapter.toml").ok_or_else(|| error("it has no adapter.toml".to_owned()))?;
        let mut adapter: Self = toml::from_str(definition).map_err(|toml| error(toml.to_string()))?;
        for file in &mut adapter.files {
            let template = text(&file.template).ok_or_else(|| error(format!("there is no {}", file.template)))?;
            let told = |problem| error(format!("{}: {problem}", file.template));
            file.document = file.format.read(template).map_err(told)?;
        }
        adapter.check(folder).map_err(error)?;
        Ok(adapter)
    }

    /// Kinds of entries that the program takes.
    pub fn takes(&self) -> BTreeSet<EntryKind> {
        let settings = self.files.iter().any(|file| file.settings).then_some(EntryKind::Config);
        self.places.iter().map(|place| place.kind).chain(settings).collect()
    }

    fn check(&self, folder: &str) -> Result<(), String> {
        if self.name != folder || !is_name(&self.name) {
            return Err(format!("its name is '{}' and its folder '{folder}'", self.name));
        }
        if !self.versions.matches(&release_of(self.install.version())) {
            return Err(format!("the pin {} is not within '{}'", self.install.version(), self.versions));
        }
        for kind in EntryKind::ALL.into_iter().filter(|kind| *kind != EntryKind::Config) {
            let placed = self.places.iter().any(|place| place.kind == kind);
            if placed == self.cannot.contains_key(&kind) {
                return Err(format!("kind {kind} needs a place, or a reason under 'cannot', and not both"));
            }
        }
        self.check_run()?;
        for file in &self.files {
            check_path(&file.path)?;
            let names = names_in(&file.document).map_err(|told| format!("{}: {told}", file.path))?;
            check_names(&file.path, names.iter().map(String::as_str), &[&BINDING_NAMES])?;
        }
        self.places.iter().try_for_each(|place| place.check(&self.files))
    }

    fn check_run(&self) -> Result<(), String> {
        let run = &self.run;
        let all: [&[&str]; 2] = [&BINDING_NAMES, &CLIENT_NAMES];
        for (name, value) in &run.environment {
            check_names(name, value.names(), &all)?;
        }
        for argument in &run.arguments {
            check_names("an argument", argument.names().filter(|name| *name != "token"), &all)?;
        }
        let headless = run.headless.iter().flat_map(Template::names);
        check_names("a headless argument", headless, &[&BINDING_NAMES, &["home", "session", PROMPT_NAME]])?;
        if !run.headless.iter().any(|argument| argument.names().any(|name| name == PROMPT_NAME)) {
            return Err("'headless' does not hold {{prompt}}".to_owned());
        }
        match run.environment.keys().chain(&run.unset).find(|name| !is_variable(name)) {
            Some(name) => Err(format!("'{name}' is not the name of a variable")),
            None => Ok(()),
        }
    }
}

/// The release that a version is, or that a pre-release leads to: what requirements of adapters are about.
pub(crate) fn release_of(version: &Version) -> Version {
    Version::new(version.major, version.minor, version.patch)
}

pub(crate) fn check_names<'a>(
    place: &str,
    names: impl Iterator<Item = &'a str>,
    known: &[&[&str]],
) -> Result<(), String> {
    match names.into_iter().find(|name| !known.iter().any(|set| set.contains(name))) {
        Some(name) => Err(format!("{place} names '{{{{{name}}}}}', which is not known there")),
        None => Ok(()),
    }
}

/// A path under the home: relative, plain names, hidden ones allowed.
pub(crate) fn check_path(path: &str) -> Result<(), String> {
    let plain = |part: &str| is_name(part.strip_prefix('.').unwrap_or(part).replace("{{id}}", "id").as_str());
    if path.split('/').all(plain) { Ok(()) } else { Err(format!("'{path}' is not a plain path under the home")) }
}

/// The adapters of this build.
#[derive(Debug, Clone)]
pub struct Adapters {
    adapters: Vec<Adapter>,
}

impl Adapters {
    /// Reads and checks them all.
    pub fn embedded() -> Result<Self, AdapterError> {
        let adapters = EMBEDDED.iter().map(|(folder, texts)| Adapter::parse(folder, texts));
        Ok(Self { adapters: adapters.collect::<Result<_, _>>()? })
    }

    /// The adapter of this name.
    pub fn get(&self, name: &str) -> Option<&Adapter> {
        self.adapters.iter().find(|adapter| adapter.name == name)
    }

    /// All, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Adapter> {
        self.adapters.iter()
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
