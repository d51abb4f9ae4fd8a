//! One step: a reserved batch becomes a release, a rejection or a skip.
//! The learner calls it with a step that is already durable; it calls the recipe, the trainer and the
//! gate. Order: bytes to git → one database transaction, which is the commit point → swap. A crash
//! anywhere re-forms the same batch, seed and step.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use reef_core::{
    DecidedBy, Gate, GateDecision, Release, ReleaseDecision, ReleaseManifest, ReleaseOrigin, ReleaseVerdict, Step,
    StepOutcome, Surface, sha256_hex,
};
use reef_engine::train::CRITIC_FILE;
use reef_engine::{Engine, Weights};
use reef_release::ReleaseFile;
use reef_sandbox::{
    Call, Context, Decision, Fault, FaultKind, Models, Outcome, PoolSample, Proposal, Recipe, Training,
};
use reef_store::{Commit, Environment, STATE_WRITER_KEY, StepInputs, StepTranscript, Store};

use super::bound_models::BoundModels;
use super::exchange_recipe::Exchange;
use super::gate_candidate::{CANDIDATE, Gated, SERVED, gate_candidate, gated};
use super::harness_step::run_harness_step;
use super::held_out::{Binding, HeldOut, Measured, ScoreCache, Spent, StepModels};
use super::invariants::{self, Alarm, Invariants};
use super::named_policies;
use super::step_context::{Staged, overlaid, refusal, transcript};
pub use super::step_context::{context, context_outside, guest_state, record_call, recorded_state};
use super::surface::is_harness;
use super::trainer_thread::{Abort, Files, Start, StepTraining, TrainerThread};
use super::transcript::{Recorder, Recording, content_of};
use crate::episodes::Shop;
use crate::provider::config::BindingSection;
use crate::scenarios::{Scenario, ScenarioError, Scenarios, Served};
use crate::telemetry;

/// The scenario's critic.
pub const CRITIC_STATE: &str = "reef.critic";

/// Why a step ends when somebody else minted a release meanwhile.
pub const HEAD_MOVED: &str = "the head moved while the step ran; its samples go back to the pool";
/// Why a step fails whose recipe proposes something else than it said.
pub const OTHER_SURFACE: &str = "the recipe proposes changes of the harness and says that it evolves weights";
/// Why a candidate that passed is held.
pub const HEAD_STAYS: &str = "; held, because the head stays while a rollout runs";

/// What every step of a process shares.
#[derive(Debug, Clone)]
pub struct Workshop {
    /// The truth.
    pub store: Store,
    /// Heads and weights.
    pub scenarios: Arc<Scenarios>,
    /// The engine.
    pub engine: Engine,
    /// The recipe.
    pub recipe: Recipe,
    /// The trainer's thread.
    pub trainer: TrainerThread,
    /// Shape of adapters.
    pub lora: reef_engine::LoraConfig,
    /// Share of wall time while requests run.
    pub share: f64,
    /// Steps of weights that end well between two checks of the head; 0 = never.
    pub recheck_every: u32,
    /// Roll back when a check shows that the head has become worse.
    pub recheck_rollback: bool,
    /// A step that takes longer is aborted.
    pub step_max: Duration,
    /// One step trains at a time; the others wait their turn.
    pub turn: Arc<tokio::sync::Semaphore>,
    /// Where steps run; recorded with each.
    pub environment: Environment,
    /// Which recipe a scenario uses, and how it falls back.
    pub exchange: Exchange,
    /// Upstream models that recipes may call.
    pub bound: BoundModels,
    /// The configured bindings.
    pub bindings: BTreeMap<String, BindingSection>,
    /// Where episodes are played.
    pub shop: Shop,
}

/// What one step works on.
#[derive(Debug)]
pub struct Work {
    /// The scenario.
    pub scenario: Arc<Scenario>,
    /// The step, reserved.
    pub step: Step,
    /// Its samples, in order.
    pub samples: Arc<Vec<PoolSample>>,
    /// Recipe state before the step.
    pub state: BTreeMap<String, Vec<u8>>,
    /// What the batch was formed from; the step keeps to its configuration and staleness.
    pub inputs: StepInputs,
    /// Held-out tasks and what is known of their scores.
    pub held_out: (Arc<HeldOut>, ScoreCache),
}

/// How a step ended, for the learner.
#[derive(Debug)]
pub struct Ended {
    /// As stored.
    pub outcome: StepOutcome,
    /// The sandbox's fault, if one ended it.
    pub fault: Option<Fault>,
}

/// Why a step could not even be recorded; it stays reserved and is re-formed.
pub type StepError = ScenarioError;

/// Runs a reserved step to its commit.
pub async fn run_step(workshop: &Workshop, work: Work) -> Result<Ended, StepError> {
    // A closed semaphore means that the process ends; the step is re-formed at the next start.
    let _turn = workshop.turn.acquire().await.map_err(|_| ScenarioError::Interrupted)?;
    if is_harness(&workshop.recipe) {
        return run_harness_step(workshop, work).await;
    }
    let began = Instant::now();
    let abort = Abort::default();
    let watchdog = tokio::spawn({
        let (abort, step_max) = (abort.clone(), workshop.step_max);
        async move {
            tokio::time::sleep(step_max).await;
            abort.cancel();
        }
    });
    let mut run = Run {
        workshop,
        work,
        abort,
        state: Staged::new(),
        checkpoints: Arc::default(),
        measured: Measured::default(),
        recorder: Recorder::default(),
        spent: Spent::default(),
        gate: None,
        invariants: Invariants::default(),
    };
    let decided = run.decide().await;
    watchdog.abort();
    run.watch();
    let decided = if run.abort.guest().is_cancelled() { overdue(decided, workshop.step_max) } else { decided };
    run.work.step.metrics.insert("step_seconds".to_owned(), began.elapsed().as_secs_f64());
    run.commit(decided).await
}

/// Only the watchdog cancels a step, and a recipe whose steps do not end is held to account for it.
fn overdue(decided: Decided, step_max: Duration) -> Decided {
    let Decided::Fail(_, Some(Fault { kind: FaultKind::Cancelled, .. })) = decided else { return decided };
    let told = format!("the step took longer than {} s (training.step_seconds_max)", step_max.as_secs());
    let fault = Fault { kind: FaultKind::Deadline, message: told };
    Decided::Fail(fault.to_string(), Some(fault))
}

struct Run<'a> {
    workshop: &'a Workshop,
    work: Work,
    abort: Abort,
    state: Staged,
    checkpoints: Arc<Mutex<Vec<Files>>>,
    measured: Measured,
    recorder: Recorder,
    spent: Spent,
    gate: Option<Gate>,
    invariants: Invariants,
}

/// What the recipe and the gate want, before anything is committed.
enum Decided {
    Release { files: Files, weights: Weights, reason: String },
    Hold { files: Files, by: DecidedBy, reason: String },
    Reject(String),
    Skip(String),
    Fail(String, Option<Fault>),
}

impl Run<'_> {
    async fn decide(&mut self) -> Decided {
        let training = match self.training().await {
            Ok(training) => training,
            Err(error) => return Decided::Fail(error.to_string(), None),
        };
        let models = self.models(None);
        let call = self.call(Some(Box::new(training)), Some(Box::new(models)));
        let span = tracing::info_span!("propose", step = self.work.step.step);
        let proposed = tracing::Instrument::instrument(self.workshop.recipe.propose_update(call), span).await;
        let candidate = match self.take(proposed) {
            Ok(Proposal::Weights(candidate)) => candidate,
            Ok(Proposal::Skip(reason)) => return Decided::Skip(reason),
            Ok(Proposal::Harness(_)) => return Decided::Fail(OTHER_SURFACE.to_owned(), None),
            Err(fault) => return Decided::Fail(fault.to_string(), Some(fault)),
        };
        let checkpoint =
            self.checkpoints.lock().unwrap_or_else(PoisonError::into_inner).get(candidate as usize).cloned();
        let Some(files) = checkpoint else {
            return Decided::Fail("the proposal names a candidate that was not taken in this step".to_owned(), None);
        };
        self.work.step.candidate = content_of(&files);
        let adapter = match self.workshop.engine.adapter_from_files(&files) {
            Ok(adapter) => adapter,
            Err(error) => return Decided::Fail(format!("the candidate does not load: {error}"), None),
        };
        self.judge(candidate, files, Weights::Adapter(adapter)).await
    }

    async fn training(&self) -> Result<StepTraining, ScenarioError> {
        let mut files = self.workshop.scenarios.files(&self.work.step.parent).await?;
        // The critic learns in steps that release nothing too, so the scenario's own is newer than the release's.
        if let Some(critic) = self.work.state.get(CRITIC_STATE) {
            files.retain(|(path, _)| path != CRITIC_FILE);
            files.push((CRITIC_FILE.to_owned(), critic.clone()));
        }
        let scenarios = &self.workshop.scenarios;
        let read = |release| async move { scenarios.files(&release).await };
        let named = named_policies::load(&self.workshop.bindings, read).await?;
        let start = Start {
            engine: self.workshop.engine.clone(),
            lora: self.workshop.lora,
            files: Arc::new(files),
            share: self.workshop.share,
            held_out: Arc::clone(&self.work.held_out.0),
            named,
            release: self.work.step.parent.clone(),
        };
        Ok(StepTraining::new(
            self.workshop.trainer.clone(),
            start,
            Arc::clone(&self.work.samples),
            self.abort.clone(),
            (Arc::clone(&self.checkpoints), self.invariants.clone()),
        ))
    }

    /// Stores what must hold in every step, and tells an operator where it does not.
    fn watch(&mut self) {
        let (step, samples) = (&mut self.work.step, &self.work.samples);
        step.metrics.extend(self.invariants.figures(samples));
        let alarms = invariants::alarms(step.step, &step.metrics);
        invariants::publish(&step.metrics, samples, &alarms);
        for Alarm { invariant, told } in &alarms {
            tracing::warn!(scenario = %self.work.scenario.key.1, invariant, told, "step.alarm");
        }
        let told = alarms.into_iter().map(|alarm| alarm.told).collect();
        self.work.scenario.side(Surface::Weights).set_status(|status| status.training = told);
    }

    /// The models of a call, of which one is the candidate where there is one. What the step hears from them is one
    /// transcript, and what it may ask of them one budget.
    fn models(&self, candidate: Option<&Weights>) -> Recording {
        let served = self.work.scenario.served();
        let binding = candidate.map(|weights| Binding { name: CANDIDATE, weights: weights.clone(), content: None });
        let others = [
            Binding { name: SERVED, weights: served.weights.clone(), content: Some(served.release.content_id.clone()) },
            Binding { name: "base", weights: Weights::Base, content: None },
        ];
        let bindings = binding.into_iter().chain(others).collect();
        // Who proposes learns nothing of the tasks that will measure the proposal.
        let (held_out, cache) = if candidate.is_some() { self.work.held_out.clone() } else { Default::default() };
        let engine = self.workshop.engine.clone();
        let models = StepModels::new(engine, bindings, held_out, cache, self.measured.clone())
            .with_bound(self.workshop.bound.clone(), self.spent.clone());
        Recording::new(Box::new(models), self.recorder.clone())
    }

    /// The recipe's verdict, then the operator's gate, which has the last word.
    async fn judge(&mut self, candidate: u32, files: Files, weights: Weights) -> Decided {
        let (models, tasks) = (self.models(Some(&weights)), self.work.held_out.0.len());
        let call = self.call(None, Some(Box::new(models)));
        let span = tracing::info_span!("evaluate", step = self.work.step.step);
        let mut judged = tracing::Instrument::instrument(self.workshop.recipe.evaluate(call, candidate), span).await;
        let models = judged.models.take();
        let verdict = match self.take(judged) {
            Ok(verdict) => verdict,
            Err(fault) => return Decided::Fail(fault.to_string(), Some(fault)),
        };
        self.work.step.metrics.extend(verdict.measurements.clone());
        match verdict.decision {
            Decision::Reject => Decided::Reject(verdict.reason),
            Decision::Hold => Decided::Hold { files, by: DecidedBy::Recipe, reason: verdict.reason },
            Decision::Promote => match gated(&verdict, &self.gate(models, tasks).await) {
                Gated::Release(reason) => Decided::Release { files, weights, reason },
                Gated::Reject(reason) => Decided::Reject(reason),
                Gated::Undecided(reason) => Decided::Fail(reason, None),
            },
        }
    }

    /// Asks the operator's gate; its answer is stored with the step.
    async fn gate(&mut self, models: Option<Box<dyn Models>>, tasks: usize) -> GateDecision {
        let settings = self.work.scenario.settings();
        let gate = settings.gate.or(self.workshop.scenarios.defaults().gate).unwrap_or(Gate::Always {});
        self.gate = Some(gate);
        let tasks = u32::try_from(tasks).unwrap_or(u32::MAX);
        let ask = move || {
            let mut models = models;
            gate_candidate(gate, models.as_mut().map(|models| models.as_mut() as &mut dyn Models), tasks)
        };
        let asked = tokio::task::spawn_blocking(ask).await;
        let decision = asked.unwrap_or_else(|_| GateDecision::undecided("undecided: the work on it was interrupted"));
        self.work.step.gate = Some(decision.clone());
        decision
    }

    fn call(&self, training: Option<Box<dyn Training>>, models: Option<Box<dyn Models>>) -> Call {
        let work = &self.work;
        let state = overlaid(guest_state(work.state.clone()), &self.state);
        let call = Call {
            samples: Arc::clone(&work.samples),
            batch: (0..u32::try_from(work.samples.len()).unwrap_or(0)).collect(),
            config: work.inputs.config.clone(),
            state,
            training,
            models,
            cancel: self.abort.guest(),
            ..Call::new(Context { max_staleness: work.inputs.max_staleness, ..context(&work.scenario, &work.step) })
        };
        self.workshop.exchange.reads.give(&work.scenario.key, call)
    }

    /// Books what a call used; keeps its staged state only if it succeeded.
    fn take<T>(&mut self, outcome: Outcome<T>) -> Result<T, Fault> {
        self.work.step.calls.push(outcome.report);
        self.work.step.metrics.extend(outcome.metrics);
        let value = outcome.result?;
        self.state.extend(outcome.state);
        Ok(value)
    }

    /// The critic of the last checkpoint, whatever became of its adapter.
    fn keep_critic(&mut self) {
        let checkpoints = self.checkpoints.lock().unwrap_or_else(PoisonError::into_inner);
        let critic = checkpoints.last().and_then(|files| files.iter().find(|(path, _)| path == CRITIC_FILE));
        self.state.extend(critic.map(|(_, bytes)| (CRITIC_STATE.to_owned(), Some(bytes.clone()))));
    }

    #[tracing::instrument(name = "release", skip_all, fields(step = self.work.step.step))]
    async fn commit(mut self, decided: Decided) -> Result<Ended, StepError> {
        let scenario = Arc::clone(&self.work.scenario);
        // Nobody else mints a release between the write and the swap.
        let _minting = scenario.minting.lock().await;
        // A rollback while the step ran: whatever it found out is about weights that no longer serve.
        let moved = scenario.served().release.release_id != self.work.step.parent;
        let decided = if moved { Decided::Fail(HEAD_MOVED.to_owned(), None) } else { decided };
        let decided = match decided {
            Decided::Release { files, reason, .. } if scenario.rollout().is_some() => {
                Decided::Hold { files, by: DecidedBy::Host, reason: format!("{reason}{HEAD_STAYS}") }
            }
            decided => decided,
        };
        self.keep_critic();
        let mut commit = Commit {
            release: None,
            held: None,
            state: std::mem::take(&mut self.state).into_iter().collect(),
            recipe: self.workshop.recipe.manifest().name.clone(),
            transcript: None,
        };
        let mut next = None;
        let mut fault = None;
        self.work.step.outcome = match decided {
            Decided::Release { files, weights, reason } => {
                let decision = decision(ReleaseVerdict::Promoted, DecidedBy::Gate, &reason);
                let release = self.write(files, decision).await?;
                commit.release = Some(release.clone());
                next = Some((release.clone(), weights));
                StepOutcome::Released { release: release.release_id, reason }
            }
            Decided::Hold { files, by, reason } => {
                let decision = decision(ReleaseVerdict::Held, by, &reason);
                commit.held = Some(self.write(files, decision).await?);
                StepOutcome::Held { reason }
            }
            Decided::Reject(reason) => StepOutcome::Rejected { reason },
            Decided::Skip(reason) => StepOutcome::Skipped { reason },
            Decided::Fail(reason, cause) => {
                commit.state.clear();
                fault = cause;
                StepOutcome::Failed { reason }
            }
        };
        commit.transcript = Some(self.transcript(&commit.state));
        if !matches!(self.work.step.outcome, StepOutcome::Failed { .. }) {
            let label = self.workshop.recipe.label().into_bytes();
            commit.state.push((STATE_WRITER_KEY.to_owned(), Some(label)));
        }
        let (tenant, name) = &scenario.key;
        if let Err(error) = self.workshop.store.finish_step(tenant, name, &self.work.step, commit).await {
            let (reason, refused) = refusal(error)?;
            next = None;
            self.work.step.outcome = StepOutcome::Failed { reason };
            // What was refused may be in the transcript, and the step must end.
            let transcript = refused.is_none().then(|| self.transcript(&[]));
            fault = refused.or(fault);
            let nothing = Commit { transcript, ..Commit::default() };
            self.workshop.store.finish_step(tenant, name, &self.work.step, nothing).await?;
        }
        if let Some((release, weights)) = next {
            self.swap(&scenario, release, weights).await;
        }
        Ok(Ended { outcome: self.work.step.outcome.clone(), fault })
    }

    fn transcript(&self, state: &[(String, Option<Vec<u8>>)]) -> StepTranscript {
        transcript((self.workshop, &self.work), self.gate, &self.recorder, state)
    }

    async fn write(&self, files: Files, decision: ReleaseDecision) -> Result<Release, ScenarioError> {
        let step = &self.work.step;
        let served = self.work.scenario.served();
        let parent = &served.release.manifest;
        let ids: Vec<&str> =
            self.work.samples.iter().flat_map(|pooled| pooled.sample.records.iter().map(|id| id.as_str())).collect();
        let manifest = ReleaseManifest {
            tenant: parent.tenant.clone(),
            scenario: parent.scenario.clone(),
            surface: Surface::Weights,
            sequence: parent.sequence + 1,
            parent: Some(step.parent.clone()),
            origin: ReleaseOrigin::Step { step: step.step },
            base_model: parent.base_model.clone(),
            recipe: Some(step.recipe.clone()),
            seed: Some(step.seed),
            records: Some(sha256_hex(ids.join("\n").as_bytes())),
            // Wall times differ from run to run and would make the release id differ too.
            metrics: step
                .metrics
                .iter()
                .filter(|(name, _)| !name.ends_with("_seconds"))
                .map(|(name, value)| (name.clone(), *value))
                .collect(),
            evaluation: self.measured.evaluation(&self.work.held_out.0),
            decision: Some(decision),
            created_at_ms: step.now_ms,
        };
        let files = files.into_iter().map(|(path, bytes)| ReleaseFile { path, bytes }).collect();
        self.workshop.scenarios.write(manifest, files).await
    }

    async fn swap(&self, scenario: &Scenario, release: Release, weights: Weights) {
        let (_, cache) = &self.work.held_out;
        cache
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(release.content_id.clone(), self.measured.scores(CANDIDATE));
        self.workshop.scenarios.weights().keep(release.release_id.clone(), weights.clone());
        let traceparent = telemetry::traceparent(&tracing::Span::current());
        let id = release.release_id.clone();
        scenario.serve(Served::new(release, weights, traceparent));
        metrics::counter!("reef_releases_total").increment(1);
        // The database has the head already; a branch that lags is aligned at the next start.
        if let Err(error) = self.workshop.scenarios.align_ref(&scenario.key, &id).await {
            tracing::warn!(%error, release.id = %id, "release.align_ref");
        }
    }
}

fn decision(verdict: ReleaseVerdict, by: DecidedBy, reason: &str) -> ReleaseDecision {
    ReleaseDecision { verdict, by, reason: reason.to_owned() }
}
