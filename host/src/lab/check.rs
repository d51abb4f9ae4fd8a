//! `reef recipe check`: would this server run the component, and is it well behaved? Each line says what was looked
//! at and what was found; the command fails when a line does. Behaviour is tried on generated pools.

use std::sync::Arc;

use reef_sandbox::{Blame, Capability, Fault, PoolSample, Recipe, SandboxConfig};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{call, pool};

/// Runs that must agree.
const RUNS: usize = 3;
/// Samples of the pool that behaviour is tried on.
const SAMPLES: usize = 64;
/// Share of a budget beyond which a line warns, in percent.
const BUDGET_WARN_PERCENT: u64 = 50;

/// How a line ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// As it should be.
    Ok,
    /// Works, and should be looked at.
    Warning,
    /// The recipe should not be used.
    Failed,
}

/// One line of the check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Line {
    /// What was looked at.
    pub what: &'static str,
    /// How it ended.
    pub finding: Finding,
    /// What was found.
    pub told: String,
}

fn line(what: &'static str, finding: Finding, told: impl Into<String>) -> Line {
    Line { what, finding, told: told.into() }
}

/// Looks at a recipe that has loaded: its world and its capabilities are in order by then.
pub async fn check(recipe: &Recipe, bytes: usize, config: &Map<String, Value>, limits: &SandboxConfig) -> Vec<Line> {
    let mut lines = vec![size(bytes, limits), world(recipe), capabilities(recipe), configuration(recipe, config)];
    for (what, samples) in [
        ("an empty pool", pool(1, 0)),
        ("one sample", pool(2, 1)),
        ("a pool of odd samples", pool(3, SAMPLES)),
        ("a large pool", pool(4, SAMPLES * 8)),
    ] {
        lines.push(selecting(recipe, what, &samples, config).await);
    }
    lines.extend(deterministic(recipe, config).await);
    lines.push(budgets(recipe, config, limits).await);
    lines
}

/// True when nothing failed.
pub fn passed(lines: &[Line]) -> bool {
    lines.iter().all(|line| line.finding != Finding::Failed)
}

fn size(bytes: usize, limits: &SandboxConfig) -> Line {
    let told = format!("{bytes} bytes of {} allowed", limits.component_bytes_max);
    let crowded = bytes as u64 > limits.component_bytes_max / 100 * BUDGET_WARN_PERCENT;
    line("size", if crowded { Finding::Warning } else { Finding::Ok }, told)
}

fn world(recipe: &Recipe) -> Line {
    let exports = recipe.exports();
    let optional: Vec<_> = [("migration", exports.migration), ("live", exports.live), ("requests", exports.requests)]
        .into_iter()
        .filter_map(|(name, there)| there.then_some(name))
        .collect();
    let also = if optional.is_empty() { String::new() } else { format!(" and {}", optional.join(", ")) };
    line("world", Finding::Ok, format!("reef:recipe@{}, exports strategy{also}", recipe.generation()))
}

fn capabilities(recipe: &Recipe) -> Line {
    let imports = recipe.imports();
    let idle: Vec<_> = recipe.manifest().capabilities.difference(&imports).map(Capability::to_string).collect();
    let names: Vec<_> = imports.iter().map(Capability::to_string).collect();
    let uses = if names.is_empty() { "uses none".to_owned() } else { format!("uses {}", names.join(", ")) };
    if idle.is_empty() {
        return line("capabilities", Finding::Ok, uses);
    }
    let told = format!("{uses}; asks for {} and does not import it: ask for what is used", idle.join(", "));
    line("capabilities", Finding::Warning, told)
}

fn configuration(recipe: &Recipe, config: &Map<String, Value>) -> Line {
    match recipe.manifest().check_config(config) {
        Ok(()) => line("configuration", Finding::Ok, format!("{} keys declared", recipe.manifest().config.len())),
        Err(problem) => line("configuration", Finding::Failed, problem),
    }
}

/// A recipe may wait, train, retire or decline; it may not fail.
async fn selecting(
    recipe: &Recipe,
    what: &'static str,
    samples: &Arc<Vec<PoolSample>>,
    config: &Map<String, Value>,
) -> Line {
    match recipe.select_samples(call(1, 1, samples, config)).await.result {
        Ok(selection) => line(what, Finding::Ok, super::trial::told_selection(&selection)),
        Err(fault) if fault.blame() == Blame::Recipe => line(what, Finding::Failed, fault.to_string()),
        Err(fault) => line(what, Finding::Warning, fault.to_string()),
    }
}

/// Everything that a call decides and costs, in one comparable value.
async fn decided(recipe: &Recipe, function: &str, config: &Map<String, Value>) -> Value {
    // A batch is what a selection would choose; scores that are absent are for the selection to sort out.
    let scored = |pooled: &&PoolSample| function == "select-samples" || pooled.sample.score.is_some();
    let samples: Arc<Vec<PoolSample>> = Arc::new(pool(5, SAMPLES).iter().filter(scored).cloned().collect());
    let call = call(1, 7, &samples, config);
    let told = |fault: Fault| json!({ "fault": fault.to_string() });
    let (answer, report, state, metrics) = match function {
        "select-samples" => {
            let ended = recipe.select_samples(call).await;
            (ended.result.map_or_else(told, |value| json!(value)), ended.report, ended.state, ended.metrics)
        }
        "propose-update" => {
            let ended = recipe.propose_update(call).await;
            (ended.result.map_or_else(told, |value| json!(value)), ended.report, ended.state, ended.metrics)
        }
        _ => {
            let ended = recipe.evaluate(call, 0).await;
            (ended.result.map_or_else(told, |value| json!(value)), ended.report, ended.state, ended.metrics)
        }
    };
    json!({ "answer": answer, "fuel": report.fuel, "host_calls": report.host_calls, "state": state, "metrics": metrics })
}

async fn deterministic(recipe: &Recipe, config: &Map<String, Value>) -> Vec<Line> {
    let mut lines = Vec::new();
    for (what, function) in [
        ("determinism of select-samples", "select-samples"),
        ("determinism of propose-update", "propose-update"),
        ("determinism of evaluate", "evaluate"),
    ] {
        let first = decided(recipe, function, config).await;
        let mut same = true;
        for _ in 1..RUNS {
            same &= decided(recipe, function, config).await == first;
        }
        lines.push(if !same {
            line(what, Finding::Failed, format!("{RUNS} runs on the same inputs differ; a step could not be replayed"))
        } else if let Some(fault) = first.pointer("/answer/fault").and_then(Value::as_str) {
            line(what, Finding::Warning, format!("{RUNS} runs agree, and all end in a fault: {fault}"))
        } else {
            line(what, Finding::Ok, format!("{RUNS} runs agree, fuel {}", first["fuel"]))
        });
    }
    lines
}

async fn budgets(recipe: &Recipe, config: &Map<String, Value>, limits: &SandboxConfig) -> Line {
    let samples = pool(6, SAMPLES);
    let ended = recipe.select_samples(call(1, 1, &samples, config)).await.report;
    let percent = |used: u64, allowed: u64| used.saturating_mul(100) / allowed.max(1);
    let (fuel, memory) =
        (percent(ended.fuel, limits.fuel_select), percent(ended.memory_peak_bytes, limits.memory_bytes_max));
    let told = format!(
        "{SAMPLES} samples: fuel {} ({fuel} % of the budget, {} a sample), memory {} bytes ({memory} %)",
        ended.fuel,
        ended.fuel / SAMPLES as u64,
        ended.memory_peak_bytes,
    );
    let crowded = fuel.max(memory) > BUDGET_WARN_PERCENT;
    line("budgets", if crowded { Finding::Warning } else { Finding::Ok }, told)
}
