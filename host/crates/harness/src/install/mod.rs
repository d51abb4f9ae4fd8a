//! The install script and the wrapper that it writes, as POSIX shell. Everything that varies is made here, quoted, at
//! the head; what is the same for every agent program is in the `.sh` files beside this one. The script holds no token:
//! it and the wrapper read `REEF_TOKEN` when they run.

mod shell;

use std::fmt::Write;

use reef_core::{ContentId, ReleaseId, sha256_hex};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::adapter::{Adapter, Install, Template};
use crate::entry::{host, is_variable};
use crate::error::{Problem, TreeError};
use crate::name::is_name;
use crate::render::{Binding, Rendering};
use crate::text;
use shell::{document, filled, needs_cut, word};

const COMMON: &str = include_str!("common.sh");
const INSTALL: &str = include_str!("install.sh");
const WRAPPER: &str = include_str!("wrapper.sh");
/// Permissions of the staged wrapper; the script makes it executable.
const WRAPPER_MODE: u32 = 0o600;
/// Tokens of the smoke inference.
const SMOKE_TOKENS: u32 = 16;

/// What a requirement asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequirementKind {
    /// A person's consent.
    Permission,
    /// A variable of the client's environment.
    Env,
    /// An address that answers.
    Service,
}

impl RequirementKind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Permission => "permission",
            Self::Env => "env",
            Self::Service => "service",
        }
    }
}

/// What a release needs on the client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawRequirement")]
pub struct Requirement {
    kind: RequirementKind,
    name: String,
    reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRequirement {
    kind: RequirementKind,
    name: String,
    #[serde(default)]
    reason: String,
}

impl TryFrom<RawRequirement> for Requirement {
    type Error = TreeError;
    fn try_from(raw: RawRequirement) -> Result<Self, TreeError> {
        Self::new(raw.kind, &raw.name, &raw.reason)
    }
}

impl Requirement {
    /// Checks the name, which a shell will read: a variable, an address of http or https, or a plain name.
    pub fn new(kind: RequirementKind, name: &str, reason: &str) -> Result<Self, TreeError> {
        let refused = |problem| TreeError::new(format_args!("requirement {}", kind.as_str()), problem);
        let (valid, rule) = match kind {
            RequirementKind::Permission => (is_name(name), "a permission is named like an entry"),
            RequirementKind::Env => (is_variable(name), "a variable is named with A-Z, a-z, 0-9 and '_'"),
            RequirementKind::Service => (host(name).is_some(), "a service is an address of http or https"),
        };
        if !valid {
            return Err(refused(Problem::Name { shown: crate::error::shown(name), rule }));
        }
        text::check_line(reason).map_err(refused)?;
        Ok(Self { kind, name: name.to_owned(), reason: reason.to_owned() })
    }
}

/// The release that is installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstalledRelease {
    /// Its commit.
    pub release_id: ReleaseId,
    /// Hash of what it contains.
    pub content_id: ContentId,
    /// Its number, for the address of its page.
    pub step: u32,
    /// What it needs on the client.
    pub requires: Vec<Requirement>,
}

/// The script that installs a rendered release for one agent program. It is complete only with its last line, so that
/// half of it does nothing.
pub fn install_script(
    adapter: &Adapter,
    release: &InstalledRelease,
    rendering: &Rendering,
    binding: &Binding,
) -> String {
    let mut files = staged(rendering);
    let manifest: String =
        files.iter().map(|file| format!("{}  {}\n", sha256_hex(file.text.as_bytes()), file.path)).collect();
    let wrapper = wrapper(adapter, release, rendering, binding, &sha256_hex(manifest.as_bytes()));
    files.push(Staged { path: "meta/manifest".to_owned(), mode: 0o600, text: manifest });
    files.push(Staged { path: "meta/wrapper".to_owned(), mode: WRAPPER_MODE, text: wrapper });

    let mut script = format!(
        "#!/bin/sh\n# Installs the harness of Reef's release {} for {}, under ~/.reef; see the function main at the end.\n\
         # The token comes from the environment variable REEF_TOKEN.\nset -eu\nLC_ALL=C\nexport LC_ALL\n",
        release.release_id,
        one_line(&adapter.title)
    );
    script += &constants(adapter, release, rendering, binding);
    let (kind, package, pin, told) = match &adapter.install {
        Install::Npm { package, .. } => ("npm", package.as_str(), rendering.version.to_string(), ""),
        Install::Pypi { package, requirement, version } => {
            let own = *version == rendering.version;
            ("pypi", package.as_str(), if own { requirement.clone() } else { rendering.version.to_string() }, "")
        }
        Install::None { told, .. } => ("none", "", String::new(), told.as_str()),
    };
    let smoke = smoke(adapter, binding);
    for (name, value) in [
        ("install", kind),
        ("package", package),
        ("pin", &pin),
        ("told", told),
        ("binary", &adapter.binary),
        ("endpoint", &adapter.run.endpoint),
        ("smoke", &smoke),
    ] {
        line(&mut script, &format!("reef_{name}={}", word(value)));
    }
    script += &environment(adapter, rendering);
    script += &requirements(release);
    script += &left_out(rendering);
    script += COMMON;
    script += "\nstage_files() {\n";
    for file in &files {
        let cut = if needs_cut(&file.text) { " cut" } else { "" };
        let sum = sha256_hex(file.text.as_bytes());
        script += &document(&format!("stage {} {:o} {sum}{cut}", word(&file.path), file.mode), &file.text);
    }
    script += "}\n";
    script += INSTALL;
    script
}

struct Staged {
    path: String,
    mode: u32,
    text: String,
}

/// Files under the root: those of the home, and the originals of those that the program changes.
fn staged(rendering: &Rendering) -> Vec<Staged> {
    let staged = |file: &crate::render::RenderedFile| {
        let folder = if file.client_writes { "restore" } else { "home" };
        Staged { path: format!("{folder}/{}", file.path), mode: file.mode, text: file.text.clone() }
    };
    rendering.files.iter().map(staged).collect()
}

fn wrapper(
    adapter: &Adapter,
    release: &InstalledRelease,
    rendering: &Rendering,
    binding: &Binding,
    manifest: &str,
) -> String {
    let mut text = format!(
        "# The wrapper of Reef for {}, release {}; install writes it and update replaces it.\nset -eu\n\
         reef_locale=${{LC_ALL-}}\nreef_umask=$(umask)\nLC_ALL=C\nexport LC_ALL\n",
        one_line(&adapter.title),
        release.release_id
    );
    text += &constants(adapter, release, rendering, binding);
    line(&mut text, &format!("reef_manifest={}", word(manifest)));
    text += &environment(adapter, rendering);
    let words = |arguments: &[Template]| -> String {
        arguments.iter().map(|argument| format!(" {}", filled(argument, &rendering.values))).collect()
    };
    let (always, headless) = (words(&adapter.run.arguments), words(&adapter.run.headless));
    line(&mut text, &format!("reef_start() {{ exec \"$program\"{always} \"$@\"; }}"));
    line(&mut text, &format!("reef_task() {{ exec \"$program\"{always}{headless} </dev/null; }}"));
    text += &requirements(release);
    text += COMMON;
    text += WRAPPER;
    text
}

fn constants(adapter: &Adapter, release: &InstalledRelease, rendering: &Rendering, binding: &Binding) -> String {
    let mut text = String::new();
    for (name, value) in [
        ("adapter", adapter.name.as_str()),
        ("title", &adapter.title),
        ("url", &binding.url),
        ("scenario", binding.scenario.as_str()),
        ("release", release.release_id.as_str()),
        ("step", &release.step.to_string()),
        ("version", &rendering.version.to_string()),
    ] {
        line(&mut text, &format!("reef_{name}={}", word(value)));
    }
    text
}

/// `reef_environment`: what every run of the program gets.
fn environment(adapter: &Adapter, rendering: &Rendering) -> String {
    let mut text = "reef_environment() {\n".to_owned();
    line(&mut text, "  REEF_TOKEN=${REEF_TOKEN:-none} REEF_SESSION=${REEF_SESSION:-none}");
    for name in &adapter.run.unset {
        line(&mut text, &format!("  unset {name} || :"));
    }
    for (name, value) in &adapter.run.environment {
        line(&mut text, &format!("  {name}={}", filled(value, &rendering.values)));
        line(&mut text, &format!("  export {name}"));
    }
    text + "}\n"
}

/// `reef_requirements`: kind, name and reason, with tabs between them, a line each.
fn requirements(release: &InstalledRelease) -> String {
    let rows: String = release
        .requires
        .iter()
        .map(|own| format!("{}\t{}\t{}\n", own.kind.as_str(), own.name, own.reason.replace('\t', " ")))
        .collect();
    format!("reef_requirements() {{\n{}}}\n", document("cat", &rows))
}

/// `reef_left_out`: says what the program cannot take.
fn left_out(rendering: &Rendering) -> String {
    let mut text = "reef_left_out() {\n  :\n".to_owned();
    for left in &rendering.left_out {
        let told = format!("left out: {}: {}", left.entry, one_line(&left.reason));
        line(&mut text, &format!("  say {}", word(&told)));
    }
    text + "}\n"
}

fn smoke(adapter: &Adapter, binding: &Binding) -> String {
    let ask = "Reply with ok.";
    let body: Value = if adapter.run.endpoint.ends_with("/responses") {
        json!({ "model": binding.model, "max_output_tokens": SMOKE_TOKENS, "input": ask })
    } else {
        json!({ "model": binding.model, "max_tokens": SMOKE_TOKENS, "messages": [{ "role": "user", "content": ask }] })
    };
    body.to_string()
}

fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

fn line(text: &mut String, line: &str) {
    // Writing to a String cannot fail.
    let _written = writeln!(text, "{line}");
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
