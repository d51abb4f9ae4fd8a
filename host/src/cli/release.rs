//! `reef release …` and `reef step …`: what a running server released, why, and at what cost.

use std::fmt::Write;
use std::path::PathBuf;

use clap::Subcommand;
use reef_core::{ReleaseId, ScenarioName};
use reef_release::ReleaseKey;
use serde_json::{Value, json};

use super::release_chain::{self, ChainCommand};
use super::rollout::{self, RolloutCommand};
use super::{Remote, release_id, scenario_name, show};
use crate::error::StartError;

/// Metrics that are shown on one line.
const METRICS_LINE_MAX: usize = 3;
/// Reports that are told; the page has more.
const REPORTS_MAX: usize = 8;

#[derive(Debug, Subcommand)]
pub(super) enum ReleaseCommand {
    /// Newest first.
    #[command(after_help = "Example:\n  reef release list my-agent")]
    List {
        /// Scenario.
        #[arg(value_parser = scenario_name)]
        scenario: ScenarioName,
        #[command(flatten)]
        remote: Remote,
    },
    /// Why a release exists, what made it, what each call cost, and how to do its step again.
    #[command(after_help = "Example:\n  reef release show my-agent 3f1c…")]
    Show {
        /// Scenario.
        #[arg(value_parser = scenario_name)]
        scenario: ScenarioName,
        /// Release.
        #[arg(value_parser = release_id)]
        release: ReleaseId,
        /// For machines.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        remote: Remote,
    },
    /// Serve the content of an earlier release again, as a new release.
    #[command(after_help = "Example:\n  reef release rollback my-agent 3f1c…")]
    Rollback {
        /// Scenario.
        #[arg(value_parser = scenario_name)]
        scenario: ScenarioName,
        /// Release to return to.
        #[arg(value_parser = release_id)]
        release: ReleaseId,
        #[command(flatten)]
        remote: Remote,
    },
    /// Serve a held candidate.
    Promote {
        /// Scenario.
        #[arg(value_parser = scenario_name)]
        scenario: ScenarioName,
        /// Held release.
        #[arg(value_parser = release_id)]
        release: ReleaseId,
        #[command(flatten)]
        remote: Remote,
    },
    /// Refuse a held candidate.
    Reject {
        /// Scenario.
        #[arg(value_parser = scenario_name)]
        scenario: ScenarioName,
        /// Held release.
        #[arg(value_parser = release_id)]
        release: ReleaseId,
        #[command(flatten)]
        remote: Remote,
    },
    /// Make a key that signs releases, and its public key beside it (FILE.pub).
    #[command(after_help = "Example:\n  reef release key release.key    # then releases.signing_key: release.key")]
    Key {
        /// File that does not exist yet.
        file: PathBuf,
    },
    #[command(flatten)]
    Rollout(RolloutCommand),
    #[command(flatten)]
    Chain(ChainCommand),
}

#[derive(Debug, Subcommand)]
pub(super) enum StepCommand {
    /// A step, whether or not it released anything, and what each call of it cost.
    #[command(after_help = "Example:\n  reef step show my-agent 7")]
    Show {
        /// Scenario.
        #[arg(value_parser = scenario_name)]
        scenario: ScenarioName,
        /// Number of the step.
        step: u32,
        /// For machines.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        remote: Remote,
    },
}

pub(super) async fn run(command: ReleaseCommand) -> Result<(), StartError> {
    let (remote, scenario, action, release) = match command {
        ReleaseCommand::List { scenario, remote } => {
            let listed = remote.client()?.get(&format!("/reef/scenarios/{scenario}/releases")).await?;
            return show(&listed);
        }
        ReleaseCommand::Show { scenario, release, json, remote } => {
            let path = format!("/reef/scenarios/{scenario}/releases/{release}");
            let found = remote.client()?.get(&path).await?;
            return print(&found, json, release_text);
        }
        ReleaseCommand::Rollback { scenario, release, remote } => (remote, scenario, "rollback", release),
        ReleaseCommand::Promote { scenario, release, remote } => (remote, scenario, "promote", release),
        ReleaseCommand::Reject { scenario, release, remote } => (remote, scenario, "reject", release),
        ReleaseCommand::Key { file } => {
            let key = ReleaseKey::create(&file).map_err(|error| StartError::Config(error.to_string()))?;
            println!("{} signs as {}; hand out {0}.pub", file.display(), key.public().id());
            return Ok(());
        }
        ReleaseCommand::Rollout(command) => return rollout::run(command).await,
        ReleaseCommand::Chain(command) => return release_chain::run(command).await,
    };
    let body = json!({ "release_id": release });
    show(&remote.client()?.post(&format!("/reef/scenarios/{scenario}/{action}"), &body).await?)
}

pub(super) async fn run_step(command: StepCommand) -> Result<(), StartError> {
    let StepCommand::Show { scenario, step, json, remote } = command;
    let found = remote.client()?.get(&format!("/reef/scenarios/{scenario}/steps/{step}")).await?;
    print(&found, json, step_text)
}

fn print(found: &Value, json: bool, text: fn(&Value) -> String) -> Result<(), StartError> {
    if json {
        return show(found);
    }
    print!("{}", text(found));
    Ok(())
}

/// A text of the value, empty when it is absent.
fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn line(out: &mut String, name: &str, told: impl std::fmt::Display) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{name:<12} {told}");
}

fn release_text(found: &Value) -> String {
    let (release, step) = (&found["release"], &found["step"]);
    let mut out = String::new();
    line(&mut out, "release", format!("{} ({})", text(release, "release_id"), text(release, "status")));
    line(&mut out, "content", text(release, "content_id"));
    line(&mut out, "of", format!("{}/{} r{}", text(release, "tenant"), text(release, "scenario"), release["sequence"]));
    line(&mut out, "surface", text(release, "surface"));
    line(&mut out, "parent", release["parent"].as_str().unwrap_or("none"));
    let origin = &release["origin"];
    let place = origin.get("to").and_then(Value::as_str).map(|to| format!(" to {to}")).unwrap_or_default();
    let number = origin.get("step").map(|step| format!(" {step}")).unwrap_or_default();
    let named = ["id", "of"].into_iter().filter_map(|field| origin.get(field)?.as_str());
    let named: String = named.map(|name| format!(" {name}")).collect();
    line(&mut out, "origin", format!("{}{number}{named}{place}", text(origin, "kind")));
    if let Some(records) = release["records"].as_str() {
        line(&mut out, "records", format!("sha256:{records}"));
    }
    explained_text(&mut out, release, &found["explained"]);
    if step.is_object() {
        out.push_str(&step_text(step));
    }
    if let Some(replay) = found["replay"].as_str() {
        line(&mut out, "replay", replay);
    }
    if let Some(page) = found["page"].as_str() {
        line(&mut out, "page", page);
    }
    out
}

/// How it was measured and decided upon, what it changed, and what it learned from.
fn explained_text(out: &mut String, release: &Value, explained: &Value) {
    let (decision, measured) = (&release["decision"], &release["evaluation"]);
    if decision.is_object() {
        line(
            out,
            "decision",
            format!("{} by {}: {}", text(decision, "verdict"), text(&decision["by"], "kind"), text(decision, "reason")),
        );
    }
    if measured.is_object() {
        let (compared, candidate, incumbent) = (&measured["compared"], &measured["candidate"], &measured["incumbent"]);
        line(out, "measured", format!("candidate {candidate} against {incumbent} on {compared} tasks"));
    }
    for file in list(&explained["files"]) {
        let bytes =
            |side: &str| file[side]["size"].as_u64().map_or_else(|| "absent".to_owned(), |size| size.to_string());
        line(out, "changed", format!("{} ({} → {} bytes)", text(file, "path"), bytes("before"), bytes("after")));
    }
    let total = |side: usize| {
        let blocks = list(&explained["norms"]).map(|block| &block[side]);
        let squares = blocks.flat_map(list).filter_map(Value::as_f64).map(|norm| norm * norm);
        squares.sum::<f64>().sqrt()
    };
    if total(0) > 0.0 {
        line(out, "norm", format!("{:.4} of the adapter's deltas together, {:.4} before", total(0), total(1)));
    }
    for note in list(&explained["notes"]).filter_map(Value::as_str) {
        line(out, "note", note);
    }
    let reports = list(&explained["reports"]);
    for (at, report) in reports.take(REPORTS_MAX).enumerate() {
        let told = format!("{} score {} {}", text(report, "id"), report["score"], text(report, "feedback"));
        line(out, if at == 0 { "reports" } else { "" }, told);
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn step_text(step: &Value) -> String {
    let mut out = String::new();
    line(&mut out, "step", &step["step"]);
    line(&mut out, "verdict", format!("{}: {}", text(step, "kind"), text(step, "reason")));
    line(&mut out, "reports", step["batch"].as_array().map_or(0, Vec::len));
    line(&mut out, "recipe", text(step, "recipe"));
    line(&mut out, "seed", &step["seed"]);
    line(&mut out, "from", text(step, "parent"));
    if let Some(candidate) = step["candidate"].as_str() {
        line(&mut out, "candidate", candidate);
    }
    let metrics: Vec<String> =
        by_name(&step["metrics"]).into_iter().map(|(name, value)| format!("{name} {value}")).collect();
    for (at, metrics) in metrics.chunks(METRICS_LINE_MAX).enumerate() {
        line(&mut out, if at == 0 { "metrics" } else { "" }, metrics.join(", "));
    }
    out.push_str(&calls_text(step));
    out
}

/// The fields of an object, sorted.
fn by_name(object: &Value) -> std::collections::BTreeMap<&String, &Value> {
    object.as_object().into_iter().flatten().collect()
}

/// The calls as a table: what each used.
fn calls_text(step: &Value) -> String {
    let header = ["call", "fuel", "guest µs", "host µs", "memory KiB", "host calls", "fault"].map(str::to_owned);
    let mut rows = vec![header];
    for call in step["calls"].as_array().into_iter().flatten() {
        let calls: Vec<String> =
            by_name(&call["host_calls"]).into_iter().map(|(name, count)| format!("{count} {name}")).collect();
        rows.push([
            text(call, "function").to_owned(),
            call["fuel"].to_string(),
            call["guest_us"].to_string(),
            call["host_us"].to_string(),
            (call["memory_peak_bytes"].as_u64().unwrap_or(0) >> 10).to_string(),
            calls.join(", "),
            text(call, "fault").to_owned(),
        ]);
    }
    table(&rows)
}

/// Columns as wide as their widest cell.
pub(super) fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..N).map(|column| width(column).unwrap_or(0)).collect();
    let mut out = String::new();
    for row in rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        out.push_str(cells.join("  ").trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_told_with_its_step_its_calls_and_its_replay() {
        let call = json!({ "function": "propose-update", "fuel": 1234, "guest_us": 5, "host_us": 6,
            "memory_peak_bytes": 65_536, "host_calls": { "training": 3, "state": 1 }, "fault": null });
        let found = json!({
            "release": { "release_id": "aa", "status": "served", "content_id": "cc", "tenant": "acme", "scenario": "spell",
                "sequence": 3, "parent": "bb", "origin": { "kind": "step", "step": 7 }, "records": "dd" },
            "step": { "step": 7, "kind": "released", "reason": "better", "batch": ["a", "b"], "seed": 9, "parent": "bb",
                "recipe": "sao@0.1.0#sha256:ee", "candidate": "cc", "metrics": { "loss": 0.5 }, "calls": [call] },
            "replay": "reef replay --tenant acme --scenario spell 7",
        });
        let shown = release_text(&found);
        for part in [
            "aa (served)",
            "acme/spell r3",
            "step 7",
            "sha256:dd",
            "released: better",
            "reports      2",
            "ee",
            "loss 0.5",
            "propose-update  1234",
            "1 state, 3 training",
            "64",
            "reef replay --tenant acme",
        ] {
            assert!(shown.contains(part), "'{part}' in\n{shown}");
        }
        let base =
            json!({ "release": { "release_id": "aa", "origin": { "kind": "rollback", "to": "bb" } }, "step": null });
        assert!(release_text(&base).contains("rollback to bb"));
    }
}
