//! Does a stored step again and compares: selection, seed, candidate, decision, fuel, metrics and state.
//! `reef replay` calls it. Everything that the step was given comes from the store and what it heard from models
//! comes from its transcript; only the trainer works anew. Nothing is written anywhere.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use reef_core::{CallReport, Gate, GateDecision, RecordId, ScenarioName, Step, StepOutcome, TenantId, sha256_hex};
use reef_engine::{Engine, LoraConfig};
use reef_sandbox::{Call, Capability, Context, Decision, Fault, Outcome, PoolSample, Proposal, Recipe};
use reef_store::{Environment, RecordedStep, StepInputs, StepTranscript};
use serde::Serialize;

use super::gate_candidate::{Gated, gate_candidate, gated};
use super::guest_reads::GuestReads;
use super::harness_step::REVIEWED;
use super::invariants;
use super::learn_scenario::{chosen, seed, state_of};
use super::named_policies::{self, NamedPolicies, bindings};
use super::rerun::{Folder, Proposer, engine, load, sandbox};
use super::run_step::{CRITIC_STATE, HEAD_MOVED, HEAD_STAYS, OTHER_SURFACE, guest_state};
use super::step_context::overlaid;
use super::surface::is_harness;
use super::transcript::{Playback, content_of};
use crate::config::Config;
use crate::error::StartError;
use crate::recipe_files;
use crate::scenarios::ScenarioKey;
use crate::store_place::StoreSection;
use crate::verifiers;

/// Ids of a list that are shown.
const SHOWN_IDS_MAX: usize = 3;

/// Which step, and with what.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Folder of the server.
    pub data: PathBuf,
    /// Where its database is.
    pub store: StoreSection,
    /// Owner.
    pub tenant: TenantId,
    /// Scenario.
    pub scenario: ScenarioName,
    /// The step's number.
    pub step: u32,
    /// The base model.
    pub model: PathBuf,
    /// Threads of the trainer; none = as many as the step had.
    pub threads: Option<usize>,
    /// Compile the recipe in this process, as `recipes.compile_in_process` says for a server.
    pub compile_in_process: bool,
}

/// One thing of the step, as it was and as it is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Item {
    /// What it is.
    pub name: String,
    /// As it is stored.
    pub was: String,
    /// As the replay made it.
    pub is: String,
    /// Are they equal?
    pub same: bool,
}

/// A step that was done again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Replayed {
    /// The step's number.
    pub step: u32,
    /// The recipe.
    pub recipe: String,
    /// Is everything the same?
    pub same: bool,
    /// What was compared.
    pub items: Vec<Item>,
    /// What explains a difference, or was not compared.
    pub notes: Vec<String>,
}

/// Does the step again.
pub async fn replay_step(wanted: &Wanted) -> Result<Replayed, StartError> {
    let folder = Folder::open(&wanted.data, &wanted.store).await?;
    folder.scenario(&wanted.tenant, &wanted.scenario).await?;
    let (step, inputs, transcript) = stored(&folder, wanted).await?;
    let limits = serde_json::from_value(transcript.environment.sandbox.clone()).map_err(|error| {
        StartError::Config(format!("step {} ran under limits that this version does not know: {error}", step.step))
    })?;
    let digest = step.recipe.rsplit_once("#sha256:").map_or("", |(_, digest)| digest).to_owned();
    let sandbox = sandbox(limits, wanted.compile_in_process)?;
    let recipe = load(&sandbox, recipe_files::read(&folder.path, &digest)?).await?;
    let verifiers = verifiers::recorded(&sandbox, &folder.path, &transcript.environment.verifiers).await?;
    let trains = step.calls.len() > 1 && !is_harness(&recipe);
    let engine = if trains || recipe.imports().contains(&Capability::Tokens) {
        Some(model(wanted, &transcript.environment).await?)
    } else {
        None
    };
    let mut replay = Replay {
        key: (wanted.tenant.clone(), wanted.scenario.clone()),
        reads: GuestReads { engine: engine.clone(), store: folder.store.clone(), verifiers },
        context: Context {
            tenant: wanted.tenant.to_string(),
            scenario: wanted.scenario.to_string(),
            step: step.step,
            now_ms: step.now_ms,
            seed: 0,
            head: step.parent.to_string(),
            max_staleness: inputs.max_staleness,
        },
        step,
        inputs,
        transcript,
        recipe,
        items: Vec::new(),
        notes: Vec::new(),
        calls: Vec::new(),
        metrics: BTreeMap::new(),
        state: BTreeMap::new(),
    };
    replay.select(&folder, wanted).await?;
    if replay.step.calls.len() > 1 && is_harness(&replay.recipe) {
        replay.update_harness(&folder, wanted).await?;
    } else if replay.step.calls.len() > 1
        && let Some(engine) = engine
    {
        replay.update(&folder, wanted, engine).await?;
    } else {
        replay.notes.push("the step ended before the recipe was asked for an update".to_owned());
    }
    Ok(replay.end())
}

/// The step and what was recorded with it, or why it cannot be done again.
async fn stored(folder: &Folder, wanted: &Wanted) -> Result<(Step, StepInputs, StepTranscript), StartError> {
    let Wanted { tenant, scenario, step: number, .. } = wanted;
    let refuse = |problem: &str| StartError::Config(format!("step {number} of scenario '{scenario}' {problem}"));
    let step = folder.store.step(tenant, scenario, *number).await?;
    let step = step.ok_or_else(|| refuse("does not exist; list the steps with GET /reef/scenarios/{s}/steps"))?;
    if step.outcome == StepOutcome::Running {
        return Err(refuse("is running; replay it when it has ended"));
    }
    match folder.store.step_record(tenant, scenario, *number).await? {
        Some(RecordedStep { inputs, transcript: Some(transcript) }) => Ok((step, inputs, transcript)),
        _ => Err(refuse(
            "has no record of its inputs: records of it were erased, or an earlier version made it; it cannot be replayed",
        )),
    }
}

/// The model of the step, set up as it was then.
async fn model(wanted: &Wanted, environment: &Environment) -> Result<Engine, StartError> {
    let mut config = Config { model: wanted.model.clone(), ..Config::default() };
    config.engine.lora = shape(environment);
    config.engine.context_max = usize::try_from(environment.context).unwrap_or(config.engine.context_max);
    config.engine.threads = wanted.threads.unwrap_or(usize::try_from(environment.threads).unwrap_or(0));
    engine(&config, &environment.model).await
}

fn shape(environment: &Environment) -> LoraConfig {
    serde_json::from_value(environment.lora.clone()).unwrap_or_default()
}

/// A step in the making.
pub(super) struct Replay {
    pub(super) key: ScenarioKey,
    reads: GuestReads,
    pub(super) context: Context,
    pub(super) step: Step,
    pub(super) inputs: StepInputs,
    pub(super) transcript: StepTranscript,
    pub(super) recipe: Recipe,
    items: Vec<Item>,
    pub(super) notes: Vec<String>,
    calls: Vec<CallReport>,
    pub(super) metrics: BTreeMap<String, f64>,
    pub(super) state: BTreeMap<String, Option<Vec<u8>>>,
}

impl Replay {
    pub(super) fn compare(&mut self, name: impl Into<String>, was: impl Into<String>, is: impl Into<String>) {
        let (was, is) = (was.into(), is.into());
        self.items.push(Item { name: name.into(), same: was == is, was, is });
    }

    pub(super) fn call(&self, samples: &Arc<Vec<PoolSample>>, state: BTreeMap<String, Vec<u8>>) -> Call {
        let call = Call {
            samples: Arc::clone(samples),
            batch: (0..u32::try_from(samples.len()).unwrap_or(0)).collect(),
            config: self.inputs.config.clone(),
            state,
            unusable: self.inputs.unassembled.clone(),
            ..Call::new(self.context.clone())
        };
        self.reads.give(&self.key, call)
    }

    pub(super) fn take<T>(&mut self, outcome: Outcome<T>) -> Result<T, Fault> {
        self.calls.push(outcome.report);
        self.metrics.extend(outcome.metrics);
        let value = outcome.result?;
        self.state.extend(outcome.state);
        Ok(value)
    }

    /// The selection over the recorded pool.
    async fn select(&mut self, folder: &Folder, wanted: &Wanted) -> Result<(), StartError> {
        let ids: Vec<RecordId> = self.inputs.pool.iter().map(|entry| entry.report.clone()).collect();
        let pool = Arc::new(self.samples(folder, wanted, &ids).await?);
        let call = self.call(&pool, guest_state(state_of(&self.inputs)));
        let outcome = self.recipe.select_samples(call).await;
        let selection = self.take(outcome);
        // What a selection stages is dropped in the step too.
        self.state.clear();
        let id = |handle: &u32| pool.get(*handle as usize).map(|pooled| pooled.sample.report.clone());
        let (batch, retired) = match selection {
            Ok(selection) => {
                let named = |(handle, reason): &(u32, String)| id(handle).map(|id| (id, reason.clone()));
                let retired: Vec<_> = selection.retire.iter().filter_map(named).collect();
                (chosen(selection).map(|handles| handles.iter().filter_map(id).collect::<Vec<RecordId>>()), retired)
            }
            Err(fault) => (Err(fault.to_string()), Vec::new()),
        };
        let (shown, again) = match batch {
            Ok(batch) => (list(&batch), seed(&Step { batch, ..self.step.clone() })),
            Err(reason) => (format!("waits: {reason}"), self.step.seed),
        };
        self.compare("selection", list(&self.step.batch), shown);
        self.compare("retired", told(&self.inputs.retired), told(&retired));
        self.compare("seed", self.step.seed.to_string(), again.to_string());
        Ok(())
    }

    pub(super) async fn samples(
        &self,
        folder: &Folder,
        wanted: &Wanted,
        ids: &[RecordId],
    ) -> Result<Vec<PoolSample>, StartError> {
        let lags: BTreeMap<&RecordId, u32> = self.inputs.pool.iter().map(|entry| (&entry.report, entry.lag)).collect();
        let (scenario, parent) = ((&wanted.tenant, &wanted.scenario), &self.step.parent);
        let samples = match is_harness(&self.recipe) {
            true => folder.store.text_samples(scenario, ids, parent).await?,
            false => folder.store.samples(scenario.0, scenario.1, ids).await?,
        };
        let lag = |report: &RecordId| lags.get(report).copied().unwrap_or(u32::MAX);
        Ok(samples.into_iter().map(|sample| PoolSample { lag: lag(&sample.report), sample }).collect())
    }

    /// The proposal with the real trainer, then the verdict, both against the transcript.
    async fn update(&mut self, folder: &Folder, wanted: &Wanted, engine: Engine) -> Result<(), StartError> {
        self.context.seed = self.step.seed;
        let samples = Arc::new(self.samples(folder, wanted, &self.step.batch).await?);
        let bindings = bindings(&self.transcript.environment.policies);
        let named = named_policies::load(&bindings, |release| async move { folder.files(&release).await }).await?;
        let proposer = self.proposer(engine, named)?;
        let files = folder.files(&self.step.parent).await?;
        let playback = Playback::new(self.transcript.calls.clone());
        let mut call = self.call(&samples, state_of(&self.inputs));
        call.models = Some(Box::new(playback.clone()));
        let proposed = proposer.propose(&self.recipe, call, (self.step.parent.clone(), files)).await;
        // Steps of versions that did not measure it have nothing to compare.
        if self.step.metrics.keys().any(|name| name.starts_with(invariants::PREFIX)) {
            self.metrics.extend(proposed.invariants.figures(&samples));
        }
        let critic = proposed.critic();
        let checkpoints = proposed.checkpoints;
        let decision = match self.take(proposed.outcome) {
            Err(fault) => failed(&fault),
            Ok(Proposal::Skip(reason)) => format!("skipped: {reason}"),
            Ok(Proposal::Harness(_)) => format!("failed: {OTHER_SURFACE}"),
            Ok(Proposal::Weights(candidate)) => match checkpoints.get(candidate as usize) {
                None => "failed: the proposal names a candidate that was not taken in this step".to_owned(),
                Some(files) => {
                    let id =
                        |content: Option<reef_core::ContentId>| content.map_or("none".to_owned(), |c| c.to_string());
                    self.compare("candidate", id(self.step.candidate.clone()), id(content_of(files)));
                    let call = self.judging(&samples, &playback);
                    let gate = |gate, replay: &Self| {
                        gate_candidate(gate, Some(&mut playback.clone()), replay.transcript.held_out.0)
                    };
                    self.judge(call, candidate, gate).await
                }
            },
        };
        self.compare_heard(&playback);
        self.state.extend(critic.map(|bytes| (CRITIC_STATE.to_owned(), Some(bytes))));
        self.conclude(decision);
        Ok(())
    }

    fn proposer(&mut self, engine: Engine, named: Arc<NamedPolicies>) -> Result<Proposer, StartError> {
        let environment = &self.transcript.environment;
        let lora = shape(environment);
        let here =
            super::environment::environment(&engine, lora, environment.share, &Default::default(), &Default::default());
        let recorded = environment.clone();
        for (what, was, is) in [
            ("Reef", recorded.reef, here.reef),
            ("wasmtime", recorded.wasmtime, here.wasmtime),
            ("machine", recorded.machine, here.machine),
            ("threads", recorded.threads.to_string(), here.threads.to_string()),
        ] {
            if was != is {
                self.notes.push(format!("{what} was {was} and is {is}: a difference may come from that"));
            }
        }
        let ranks = usize::try_from(environment.workers).unwrap_or_default();
        Proposer::new(engine, lora, named, ranks)
    }

    /// The call that judges: on the state that the proposal left, and with what was heard in the step.
    pub(super) fn judging(&self, samples: &Arc<Vec<PoolSample>>, playback: &Playback) -> Call {
        let mut call = self.call(samples, guest_state(overlaid(state_of(&self.inputs), &self.state)));
        call.models = Some(Box::new(playback.clone()));
        call
    }

    /// The recipe's verdict, then the gate.
    pub(super) async fn judge(
        &mut self,
        call: Call,
        candidate: u32,
        gate: impl FnOnce(Gate, &Self) -> GateDecision,
    ) -> String {
        let outcome = self.recipe.evaluate(call, candidate).await;
        match self.take(outcome) {
            Err(fault) => failed(&fault),
            Ok(verdict) => {
                self.metrics.extend(verdict.measurements.clone());
                match verdict.decision {
                    Decision::Reject => format!("rejected: {}", verdict.reason),
                    Decision::Hold => format!("held: {}", verdict.reason),
                    Decision::Promote => {
                        match gated(&verdict, &gate(self.transcript.gate.unwrap_or(Gate::Always {}), self)) {
                            Gated::Release(reason) => format!("released: {reason}"),
                            Gated::Reject(reason) => format!("rejected: {reason}"),
                            Gated::Undecided(reason) => format!("failed: {reason}"),
                        }
                    }
                }
            }
        }
    }

    /// Were the models asked what the step asked them, in its order?
    fn compare_heard(&mut self, playback: &Playback) {
        let heard = format!("{} calls", self.transcript.calls.len());
        let again = playback.divergence().unwrap_or_else(|| heard.clone());
        self.compare("model calls", heard, again);
        if !self.transcript.complete {
            self.notes.push("the step heard more from models than is kept; its decision may not be reached".to_owned());
        }
    }

    /// Decision and state, unless the step ended for a reason that lies outside the recipe.
    pub(super) fn conclude(&mut self, decision: String) {
        if matches!(&self.step.outcome, StepOutcome::Failed { reason } if reason == HEAD_MOVED) {
            self.notes.push(format!("decision and state are not compared: {HEAD_MOVED}; the recipe said: {decision}"));
            return;
        }
        if decision.starts_with("failed: ") {
            self.state.clear();
        }
        let was = match &self.step.outcome {
            StepOutcome::Held { reason } if let Some(reason) = reason.strip_suffix(REVIEWED) => {
                self.notes.push(format!("the candidate passed{REVIEWED}"));
                format!("released: {reason}")
            }
            StepOutcome::Held { reason } if let Some(reason) = reason.strip_suffix(HEAD_STAYS) => {
                self.notes.push(format!("the candidate passed{HEAD_STAYS}"));
                format!("released: {reason}")
            }
            ended => outcome(ended),
        };
        self.compare("decision", was, decision);
        let digest = |value: Option<&Vec<u8>>| value.map_or("deleted".to_owned(), |value| short(&sha256_hex(value)));
        let was: Vec<String> = (self.transcript.state.iter())
            .map(|(key, value)| format!("{key} {}", digest(value.as_ref().map(|bytes| &bytes.0))))
            .collect();
        let is: Vec<String> =
            self.state.iter().map(|(key, value)| format!("{key} {}", digest(value.as_ref()))).collect();
        self.compare("state", none_or(was.join(", ")), none_or(is.join(", ")));
    }

    fn end(mut self) -> Replayed {
        for at in 0..self.step.calls.len().max(self.calls.len()) {
            let (was, is) = (self.step.calls.get(at).cloned(), self.calls.get(at).cloned());
            let name = was.as_ref().or(is.as_ref()).map(|call| call.function.clone()).unwrap_or_default();
            self.compare(name, cost(was.as_ref()), cost(is.as_ref()));
        }
        let differing = differing(&self.step.metrics, &self.metrics);
        let count = format!("{} equal", self.metrics.len());
        let is = if differing.is_empty() { count.clone() } else { differing.join(", ") };
        self.compare("metrics", count, is);
        Replayed {
            step: self.step.step,
            recipe: self.step.recipe,
            same: self.items.iter().all(|item| item.same),
            items: self.items,
            notes: self.notes,
        }
    }
}

pub(super) fn failed(fault: &Fault) -> String {
    format!("failed: {fault}")
}

fn none_or(text: String) -> String {
    if text.is_empty() { "none".to_owned() } else { text }
}

fn short(digest: &str) -> String {
    digest.chars().take(12).collect()
}

/// How many, which come first, and a digest of all.
fn list(ids: &[RecordId]) -> String {
    let all: Vec<&str> = ids.iter().map(RecordId::as_str).collect();
    let first: Vec<&str> = all.iter().take(SHOWN_IDS_MAX).copied().collect();
    let more = if ids.len() > SHOWN_IDS_MAX { ", …" } else { "" };
    format!("{} reports ({}{more}) {}", ids.len(), first.join(", "), short(&sha256_hex(all.join("\n").as_bytes())))
}

fn told(retired: &[(RecordId, String)]) -> String {
    let all: Vec<String> = retired.iter().map(|(id, reason)| format!("{id}: {reason}")).collect();
    none_or(all.join("; "))
}

/// An outcome in one line, without the release that it led to.
pub fn outcome(outcome: &StepOutcome) -> String {
    match outcome {
        StepOutcome::Running => "running".to_owned(),
        StepOutcome::Released { reason, .. } => format!("released: {reason}"),
        StepOutcome::Rejected { reason } => format!("rejected: {reason}"),
        StepOutcome::Held { reason } => format!("held: {reason}"),
        StepOutcome::Skipped { reason } => format!("skipped: {reason}"),
        StepOutcome::Failed { reason } => format!("failed: {reason}"),
    }
}

/// The part of a call's report that does not depend on the clock.
fn cost(call: Option<&CallReport>) -> String {
    let Some(call) = call else { return "no call".to_owned() };
    let calls: Vec<String> = call.host_calls.iter().map(|(name, count)| format!("{count} {name}")).collect();
    let fault = call.fault.as_ref().map(|fault| format!("; {fault}")).unwrap_or_default();
    format!("fuel {}; {}{fault}", call.fuel, none_or(calls.join(", ")))
}

/// Names of metrics that are not equal bit for bit; wall times are not compared.
fn differing(was: &BTreeMap<String, f64>, is: &BTreeMap<String, f64>) -> Vec<String> {
    let names: std::collections::BTreeSet<&String> =
        was.keys().chain(is.keys()).filter(|name| !name.ends_with("_seconds")).collect();
    let shown = |value: Option<&f64>| value.map_or("absent".to_owned(), f64::to_string);
    let equal = |name: &str| was.get(name).map(|v| v.to_bits()) == is.get(name).map(|v| v.to_bits());
    names
        .into_iter()
        .filter(|name| !equal(name))
        .map(|name| format!("{name} was {} is {}", shown(was.get(name)), shown(is.get(name))))
        .collect()
}
