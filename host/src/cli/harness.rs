//! `reef harness check|render|diff|run`: a harness as files, and tried on tasks. What a server would store is checked, shown
//! as an agent program gets it, and compared.

use std::fmt::Write;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use reef_core::ScenarioName;
use reef_harness::{Adapter, Adapters, Binding, Diff, RenderError, Rendering, render};
use serde_json::{Value, json};

use super::{harness_run, scenario_name, show};
use crate::error::StartError;
use crate::harness_source;
use crate::scenarios::HarnessContent;

#[derive(Debug, Subcommand)]
pub(super) enum HarnessCommand {
    /// Is it a tree, and what would each agent program leave out?
    #[command(
        after_help = "PATH is a folder with a tree's files, an answer of GET /reef/harness, or a list of mutations.\nExit code 0: it is a tree; 2: it is not.\nExamples:\n  reef harness check my-harness\n  reef harness check mutations.json --json"
    )]
    Check {
        /// Folder or JSON file.
        path: PathBuf,
        #[command(flatten)]
        target: Target,
        /// For machines.
        #[arg(long)]
        json: bool,
    },
    /// Write the files that an agent program gets.
    #[command(after_help = "Example:\n  reef harness render --adapter pi my-harness --out rendered")]
    Render {
        /// Folder or JSON file.
        path: PathBuf,
        /// Agent program.
        #[arg(long)]
        adapter: String,
        /// Folder that is absent or empty.
        #[arg(long)]
        out: PathBuf,
        #[command(flatten)]
        target: Target,
        /// For machines.
        #[arg(long)]
        json: bool,
    },
    /// Try a tree on tasks: episodes on a server that runs.
    #[command(
        after_help = "A task is a folder with task.toml, instruction.md and files/. Requests leave no record; the token in REEF_TOKEN needs the scopes read and evaluate.\nExit code 0: at least one episode has a score.\nExamples:\n  reef harness run my-tasks\n  reef harness run my-tasks/sum --adapter native --repeats 3 --json\n  reef harness run my-tasks --harness my-tree --scenario my-agent"
    )]
    Run(harness_run::RunArgs),
    /// What differs between two trees, as `git apply` takes it.
    #[command(after_help = "Example:\n  reef harness diff before after")]
    Diff {
        /// Folder or JSON file.
        before: PathBuf,
        /// Folder or JSON file.
        after: PathBuf,
        /// For machines.
        #[arg(long)]
        json: bool,
    },
}

/// What the rendered files point at.
#[derive(Debug, Args)]
pub(super) struct Target {
    /// Address of the server.
    #[arg(long, env = "REEF_URL", default_value = "http://127.0.0.1:8420")]
    url: String,
    /// Scenario that learns from the runs.
    #[arg(long, default_value = "default", value_parser = scenario_name)]
    scenario: ScenarioName,
    /// Model, as requests name it.
    #[arg(long, default_value = "model")]
    model: String,
}

impl Target {
    fn binding(self) -> Binding {
        Binding {
            url: self.url,
            model: self.model,
            scenario: self.scenario,
            release: "0".to_owned(),
            context_tokens: 8_192,
            output_tokens: 2_048,
            version: None,
        }
    }
}

pub(super) async fn run(command: HarnessCommand) -> Result<(), StartError> {
    match command {
        HarnessCommand::Run(args) => harness_run::run(args).await,
        HarnessCommand::Check { path, target, json } => {
            let found = checked(&harness_source::read(&path)?, &adapters()?, &target.binding());
            if json {
                return show(&found);
            }
            print!("{}", check_text(&found));
            Ok(())
        }
        HarnessCommand::Render { path, adapter, out, target, json } => {
            let (content, adapters) = (harness_source::read(&path)?, adapters()?);
            let adapter = adapters.get(&adapter).ok_or_else(|| unknown(&adapter, &adapters))?;
            let rendering = render(&content.tree, adapter, &target.binding()).map_err(told)?;
            let files = rendering.files().iter().map(|file| (file.path.as_str(), file.text.as_str()));
            harness_source::write(&out, files)?;
            if json {
                return show(&rendered(adapter, &rendering));
            }
            print!("{}", render_text(&rendering));
            Ok(())
        }
        HarnessCommand::Diff { before, after, json } => {
            let (before, after) = (harness_source::read(&before)?, harness_source::read(&after)?);
            let diff = Diff::of_trees(&before.tree, &after.tree);
            if json {
                return show(&json!(diff));
            }
            print!("{}", if diff.is_empty() { "the trees are equal\n".to_owned() } else { plain(&diff.to_text()) });
            Ok(())
        }
    }
}

fn adapters() -> Result<Adapters, StartError> {
    Adapters::embedded().map_err(|error| StartError::Other(error.to_string()))
}

fn unknown(name: &str, adapters: &Adapters) -> StartError {
    let known: Vec<&str> = adapters.iter().map(|adapter| adapter.name.as_str()).collect();
    let shown: String = name.chars().take(64).flat_map(char::escape_default).collect();
    StartError::Config(format!("--adapter '{shown}' is not known; use one of {}", known.join(", ")))
}

fn told(error: RenderError) -> StartError {
    StartError::Config(error.to_string())
}

fn rendered(adapter: &Adapter, rendering: &Rendering) -> Value {
    json!({
        "adapter": adapter.name,
        "version": rendering.version().to_string(),
        "files": rendering.files().iter().map(|file| json!({ "path": file.path, "sha256": file.sha256 })).collect::<Vec<_>>(),
        "left_out": rendering.left_out(),
    })
}

/// Entries, and for each agent program what it gets and what it does not.
fn checked(content: &HarnessContent, adapters: &Adapters, binding: &Binding) -> Value {
    let programs = adapters.iter().map(|adapter| match render(&content.tree, adapter, binding) {
        Ok(rendering) => rendered(adapter, &rendering),
        Err(error) => json!({ "adapter": adapter.name, "refused": error.to_string() }),
    });
    json!({
        "entries": content.tree.entries().map(|entry| entry.name().to_string()).collect::<Vec<_>>(),
        "requires": content.requires,
        "programs": programs.collect::<Vec<_>>(),
    })
}

fn check_text(found: &Value) -> String {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| plain(value.as_str().unwrap_or_default());
    let entries: Vec<String> = list(&found["entries"]).iter().map(text).collect();
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(out, "entries   {}: {}", entries.len(), entries.join(", "));
    for program in list(&found["programs"]) {
        let name = text(&program["adapter"]);
        if program["refused"].is_string() {
            let _ = writeln!(out, "{name:<9} refuses it: {}", text(&program["refused"]));
            continue;
        }
        let _ = writeln!(out, "{name:<9} {} files", list(&program["files"]).len());
        for left in list(&program["left_out"]) {
            let entry = format!("{}/{}", text(&left["entry"]["kind"]), text(&left["entry"]["id"]));
            let _ = writeln!(out, "          left out: {entry}: {}", text(&left["reason"]));
        }
    }
    out
}

fn render_text(rendering: &Rendering) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    for file in rendering.files() {
        let _ = writeln!(out, "{}  {}", file.sha256, file.path);
    }
    for left in rendering.left_out() {
        let _ = writeln!(out, "left out: {}: {}", left.entry, plain(&left.reason));
    }
    out
}

/// Text of somebody else for a terminal: line ends and tabs stay, other control characters do not.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && !matches!(c, '\n' | '\t') { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use reef_harness::{Tree, read_mutations};

    use super::*;

    fn content() -> HarnessContent {
        let mutations = json!([
            { "op": "create", "kind": "rules", "id": "style", "config": { "text": "Be brief.\n" } },
            { "op": "create", "kind": "skill", "id": "ropes", "config": { "description": "Knots", "text": "Tie.\n" } },
        ]);
        let mutations = read_mutations(&mutations).expect("mutations");
        HarnessContent { tree: Tree::default().apply(&mutations).expect("applied").tree, requires: Vec::new() }
    }

    #[test]
    fn a_check_names_what_each_program_leaves_out() {
        let target = Target {
            url: "http://127.0.0.1:8420".to_owned(),
            scenario: ScenarioName::parse("s").expect("a name"),
            model: "m".to_owned(),
        };
        let found = checked(&content(), &adapters().expect("adapters"), &target.binding());
        assert_eq!(found["entries"], json!(["rules/style", "skill/ropes"]));
        let told = check_text(&found);
        assert!(told.contains("entries   2: rules/style, skill/ropes"), "{told}");
        assert!(told.contains("left out: skill/ropes: aider has no skills"), "{told}");
    }

    #[test]
    fn control_characters_do_not_reach_a_terminal() {
        assert_eq!(plain("a\u{1b}[31m\n\tb"), "a [31m\n\tb");
    }
}
