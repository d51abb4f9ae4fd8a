//! `reef recipe check`: would this server run the component, and is it well behaved? Each line says what was looked
//! at and what was found; the command fails when a line does. Behaviour is tried on generated pools.

use std::sync::Arc;

use reef_sandbox::{Blame, Call, Capability, Fault, Outcome, PoolSample, Recipe, SandboxConfig};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::experience::{exchanges, request};
use super::{call, context, pool, told_fault};

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

/// What is looked at, under which configuration and limits.
struct Subject<'a> {
    recipe: &'a Recipe,
    config: &'a Map<String, Value>,
    limits: &'a SandboxConfig,
}

/// Looks at a recipe that has loaded: its world and its capabilities are in order by then.
pub async fn check(recipe: &Recipe, bytes: usize, config: &Map<String, Value>, limits: &SandboxConfig) -> Vec<Line> {
    let subject = Subject { recipe, config, limits };
    let mut lines = vec![size(bytes, limits), world(recipe), capabilities(recipe), configuration(recipe, config)];
    let (mut selections, top_k) = (Vec::new(), recipe.manifest().top_k);
    for (what, samples) in [
        ("an empty pool", pool(1, 0, top_k)),
        ("one sample", pool(2, 1, top_k)),
        ("a pool of odd samples", pool(3, SAMPLES, top_k)),
        ("a large pool", pool(4, SAMPLES * 8, top_k)),
    ] {
        selections.push(subject.selecting(what, &samples).await);
    }
    let never = selections.iter().all(|line| line.finding != Finding::Ok);
    lines.append(&mut selections);
    if never {
        let told = "no selection ends well, so nothing would ever be learned; the lines above say why";
        lines.push(line("selections", Finding::Failed, told));
    }
    lines.extend(subject.deterministic().await);
    lines.push(subject.budgets().await);
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

/// A recipe may decline; it may not fail.
fn blamed(blame: Blame) -> Finding {
    if blame == Blame::Recipe { Finding::Failed } else { Finding::Warning }
}

/// Everything that a call decides and costs, in one comparable value, and its fault.
fn parts<T>(ended: Outcome<T>, shown: impl FnOnce(T) -> Value) -> (Value, Option<Fault>) {
    let (report, state, metrics) = (ended.report, ended.state, ended.metrics);
    let (answer, fault) = match ended.result {
        Ok(value) => (shown(value), None),
        Err(fault) => (json!(fault.to_string()), Some(fault)),
    };
    let (fuel, host_calls) = (report.fuel, report.host_calls);
    let all = json!({ "answer": answer, "fuel": fuel, "host_calls": host_calls, "state": state, "metrics": metrics });
    (all, fault)
}

impl Subject<'_> {
    async fn selecting(&self, what: &'static str, samples: &Arc<Vec<PoolSample>>) -> Line {
        match self.recipe.select_samples(call(1, 1, samples, self.config)).await.result {
            Ok(selection) => line(what, Finding::Ok, super::trial::told_selection(&selection)),
            Err(fault) => line(what, blamed(fault.blame()), told_fault(&fault)),
        }
    }

    async fn decided(&self, function: &str) -> (Value, Option<Fault>) {
        // A batch is what a selection would choose; scores that are absent are for the selection to sort out.
        let scored = |pooled: &&PoolSample| function == "select-samples" || pooled.sample.score.is_some();
        let samples: Arc<Vec<PoolSample>> =
            Arc::new(pool(5, SAMPLES, self.recipe.manifest().top_k).iter().filter(scored).cloned().collect());
        let call = call(1, 7, &samples, self.config);
        match function {
            "select-samples" => parts(self.recipe.select_samples(call).await, |value| json!(value)),
            "propose-update" => parts(self.recipe.propose_update(call).await, |value| json!(value)),
            "evaluate" => parts(self.recipe.evaluate(call, 0).await, |value| json!(value)),
            _ => self.hook(function, call).await,
        }
    }

    /// An optional export. As in a server it has neither samples nor a trainer nor models.
    async fn hook(&self, function: &str, before: Call) -> (Value, Option<Fault>) {
        let call = Call { config: self.config.clone(), ..Call::new(context(1, 7)) };
        match function {
            "migrate" => {
                let written = self.recipe.propose_update(before).await.state;
                let state = written.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
                let version = &self.recipe.manifest().version;
                parts(self.recipe.migrate(Call { state, ..call }, version).await, |value| json!(value))
            }
            "ingest" => parts(self.recipe.ingest(call, exchanges()).await, |judged| {
                judged.iter().map(|one| json!([one.receipt, one.score, one.metadata])).collect()
            }),
            _ => parts(self.recipe.transform_request(call, request("lab")).await, |value| json!(value)),
        }
    }

    async fn deterministic(&self) -> Vec<Line> {
        let exports = self.recipe.exports();
        let mut lines = Vec::new();
        for (what, function, there) in [
            ("determinism of select-samples", "select-samples", true),
            ("determinism of propose-update", "propose-update", true),
            ("determinism of evaluate", "evaluate", true),
            ("determinism of migrate", "migrate", exports.migration),
            ("determinism of ingest", "ingest", exports.live),
            ("determinism of transform-request", "transform-request", exports.requests),
        ] {
            if there {
                lines.push(self.agreeing(what, function).await);
            }
        }
        lines
    }

    async fn agreeing(&self, what: &'static str, function: &str) -> Line {
        let (first, fault) = self.decided(function).await;
        let mut same = true;
        for _ in 1..RUNS {
            same &= self.decided(function).await.0 == first;
        }
        match fault {
            _ if !same => {
                let told = format!("{RUNS} runs on the same inputs differ; a step could not be replayed");
                line(what, Finding::Failed, told)
            }
            Some(fault) => {
                let told = told_fault(&fault);
                line(what, blamed(fault.blame()), format!("{RUNS} runs agree, and all end in a fault: {told}"))
            }
            None => line(what, Finding::Ok, format!("{RUNS} runs agree, fuel {}", first["fuel"])),
        }
    }

    /// What the operator may have given this recipe alone.
    fn own_limits(&self) -> SandboxConfig {
        let mut limits = self.limits.clone();
        if let Some(own) = self.limits.overrides.get(&self.recipe.manifest().name) {
            limits.memory_bytes_max = own.memory_bytes_max.unwrap_or(limits.memory_bytes_max);
            limits.fuel_select = own.fuel_select.unwrap_or(limits.fuel_select);
        }
        limits
    }

    async fn budgets(&self) -> Line {
        let (samples, limits) = (pool(6, SAMPLES, self.recipe.manifest().top_k), self.own_limits());
        let ended = self.recipe.select_samples(call(1, 1, &samples, self.config)).await.report;
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
}
