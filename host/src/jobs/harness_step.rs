//! One step of a recipe that evolves the harness: changes become a release of the second chain, a candidate that waits for
//! a person, a rejection or a skip. The learner calls it as it calls a step of weights; order and commit point are the
//! same: bytes to git → one database transaction. Clients pull what it releases; nothing is exchanged in memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reef_core::{
    DecidedBy, Gate, GateDecision, Measurement, Release, ReleaseDecision, ReleaseEvaluation, ReleaseManifest,
    ReleaseOrigin, ReleaseVerdict, StepOutcome, Surface, gate_decision, sha256_hex,
};
use reef_engine::Weights;
use reef_sandbox::{
    Call, Cancel, Context, Decision, EpisodeStatus, Fault, FaultKind, Harness, HarnessError, HarnessTree, Outcome,
    Proposal,
};
use reef_store::{Commit, STATE_WRITER_KEY, StepTranscript};

use super::gate_candidate::{Gated, SERVED, gated};
use super::harness_transcript::Recording;
use super::held_out::{Binding, Measured, Spent, StepModels};
use super::propose_harness::{corpus, needed};
use super::replay_harness::NOT_ADMITTED;
use super::run_step::{Ended, HEAD_MOVED, StepError, Work, Workshop, context, guest_state};
use super::step_context::{Staged, overlaid, refusal, transcript};
use super::step_harness::{CANDIDATE, Made, StepHarness};
use super::surface::weights_moved;
use super::transcript::{Recorder, Recording as ModelsRecording};
use crate::episodes::{Bench, ReleaseMode};
use crate::scenarios::{HarnessContent, ScenarioError};

/// Why a candidate that passed waits.
pub const REVIEWED: &str = "; held, because a person releases harnesses here (harness.release)";

/// Why a step fails when somebody moved the weights with which it measured.
pub const WEIGHTS_MOVED: &str =
    "the weights moved while the step measured a harness with them; its samples go back to the pool";

/// How the names of the host's counts of episodes begin.
pub const PLAYED: &str = "episodes/";

/// Runs a reserved step to its commit.
pub async fn run_harness_step(workshop: &Workshop, work: Work) -> Result<Ended, StepError> {
    let began = Instant::now();
    let head = workshop.scenarios.harness(&work.scenario).await?;
    let before = workshop.scenarios.harness_content(&work.step.parent).await?;
    let cancel = Cancel::new();
    let watchdog = tokio::spawn({
        let (cancel, step_max) = (cancel.clone(), workshop.step_max);
        async move {
            tokio::time::sleep(step_max).await;
            cancel.cancel();
        }
    });
    let harness = made(workshop, &work, (&before, &cancel)).await?;
    let (recorder, spent, state) = (Recorder::default(), Spent::default(), Staged::new());
    let (gate, evaluation) = (None, None);
    let mut run = Run { workshop, work, head, before, harness, cancel, recorder, spent, state, gate, evaluation };
    let decided = run.decide().await;
    watchdog.abort();
    let decided = if run.cancel.is_cancelled() { overdue(decided, workshop.step_max) } else { decided };
    run.measure(began.elapsed());
    run.commit(decided).await
}

async fn made(
    workshop: &Workshop,
    work: &Work,
    (before, cancel): (&HarnessContent, &Cancel),
) -> Result<StepHarness, StepError> {
    let (shop, scenario) = (&workshop.shop, &work.scenario);
    let told = |error: String| ScenarioError::Recipe(error);
    let tasks = shop.tasks(&scenario.key).await.map_err(told)?;
    let corpus = corpus(&workshop.store, scenario, &tasks).await.map_err(|error| told(error.to_string()))?;
    let weights = scenario.served().release.release_id.clone();
    let limits = &shop.section().episodes;
    Ok(StepHarness::new(Made {
        bench: shop.bench(&scenario.key, weights, tasks).await,
        incumbent: before.tree.clone(),
        corpus,
        adapters: Arc::clone(shop.adapters()),
        scenario: scenario.key.1.clone(),
        limits: (limits.per_step_max, limits.seconds_per_step_max),
        cancel: cancel.clone(),
    }))
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
    head: Release,
    before: HarnessContent,
    harness: StepHarness,
    cancel: Cancel,
    recorder: Recorder,
    spent: Spent,
    state: Staged,
    gate: Option<Gate>,
    evaluation: Option<ReleaseEvaluation>,
}

/// What the recipe and the gate want, before anything is committed.
enum Decided {
    Release(HarnessContent, String),
    Hold(HarnessContent, DecidedBy, String),
    Reject(String),
    Skip(String),
    Fail(String, Option<Fault>),
}

impl Run<'_> {
    async fn decide(&mut self) -> Decided {
        let call = self.call();
        let span = tracing::info_span!("propose", step = self.work.step.step);
        let proposed = tracing::Instrument::instrument(self.workshop.recipe.propose_update(call), span).await;
        let changes = match self.take(proposed) {
            Ok(Proposal::Harness(changes)) => changes,
            Ok(Proposal::Skip(reason)) => return Decided::Skip(reason),
            Ok(Proposal::Weights(_)) => return Decided::Fail("a harness recipe proposed weights".to_owned(), None),
            Err(fault) => return Decided::Fail(fault.to_string(), Some(fault)),
        };
        // What the recipe proposes is looked at again: it need not have asked.
        let harness = self.harness.clone();
        let admitted = tokio::task::spawn_blocking(move || harness.admitted(&changes)).await;
        let tree = match admitted {
            Ok(Ok(tree)) => tree,
            Ok(Err(refusals)) => return Decided::Reject(format!("{NOT_ADMITTED}{refusals}")),
            Err(_) => return Decided::Fail("the work on the tree was interrupted".to_owned(), None),
        };
        let content = HarnessContent { tree: tree.clone(), requires: self.before.requires.clone() };
        let (key, batch) = (&self.work.scenario.key, &self.work.step.batch);
        let content = match needed(&self.workshop.store, key, batch, content).await {
            Ok(content) => content,
            Err(error) => return Decided::Reject(format!("{NOT_ADMITTED}{error}")),
        };
        self.work.step.candidate = reef_release::content_id(&content.to_files()).ok();
        self.harness.set_candidate(tree);
        self.judge(content).await
    }

    /// The recipe's verdict, then the operator's gate, which has the last word.
    async fn judge(&mut self, content: HarnessContent) -> Decided {
        let call = self.call();
        let span = tracing::info_span!("evaluate", step = self.work.step.step);
        let judged = tracing::Instrument::instrument(self.workshop.recipe.evaluate(call, CANDIDATE), span).await;
        let verdict = match self.take(judged) {
            Ok(verdict) => verdict,
            Err(fault) => return Decided::Fail(fault.to_string(), Some(fault)),
        };
        self.work.step.metrics.extend(verdict.measurements.clone());
        match verdict.decision {
            Decision::Reject => Decided::Reject(verdict.reason),
            Decision::Hold => Decided::Hold(content, DecidedBy::Recipe, verdict.reason),
            Decision::Promote => match gated(&verdict, &self.ask_gate().await) {
                Gated::Release(reason) => match self.workshop.shop.section().release {
                    ReleaseMode::Auto => Decided::Release(content, reason),
                    ReleaseMode::Review => Decided::Hold(content, DecidedBy::Host, format!("{reason}{REVIEWED}")),
                },
                Gated::Reject(reason) => Decided::Reject(reason),
                Gated::Undecided(reason) => Decided::Fail(reason, None),
            },
        }
    }

    /// Asks the operator's gate; its answer is stored with the step.
    async fn ask_gate(&mut self) -> GateDecision {
        let settings = self.work.scenario.settings();
        let gate = settings.gate.or(self.workshop.scenarios.defaults().gate).unwrap_or(Gate::Always {});
        self.gate = Some(gate);
        let (mut harness, seed) = (self.recorded(), self.work.step.seed);
        let asked = tokio::task::spawn_blocking(move || gate_harness(gate, &mut harness, seed)).await;
        let interrupted = || (GateDecision::undecided("undecided: the work on it was interrupted"), Vec::new());
        let (decision, pairs) = asked.unwrap_or_else(|_| interrupted());
        self.work.step.gate = Some(decision.clone());
        self.evaluation = self.harness.bench().map(|bench| evaluation(bench, &pairs));
        decision
    }

    fn recorded(&self) -> Recording {
        Recording::new(Box::new(self.harness.clone()), self.recorder.clone())
    }

    fn call(&self) -> Call {
        let work = &self.work;
        let state = overlaid(guest_state(work.state.clone()), &self.state);
        let served = work.scenario.served();
        let bindings = vec![
            Binding { name: SERVED, weights: served.weights.clone(), content: Some(served.release.content_id.clone()) },
            Binding { name: "base", weights: Weights::Base, content: None },
        ];
        let (held_out, cache) = work.held_out.clone();
        let models = StepModels::new(self.workshop.engine.clone(), bindings, held_out, cache, Measured::default());
        let models = models.with_bound(self.workshop.bound.clone(), self.spent.clone());
        let call = Call {
            samples: Arc::clone(&work.samples),
            batch: (0..u32::try_from(work.samples.len()).unwrap_or(0)).collect(),
            config: work.inputs.config.clone(),
            state,
            models: Some(Box::new(ModelsRecording::new(Box::new(models), self.recorder.clone()))),
            harness: Some(Box::new(self.recorded())),
            cancel: self.cancel.clone(),
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

    fn measure(&mut self, took: Duration) {
        let spent = self.harness.spent();
        let metrics = &mut self.work.step.metrics;
        metrics.insert("step_seconds".to_owned(), took.as_secs_f64());
        metrics.insert(format!("{PLAYED}played"), f64::from(spent.episodes));
        metrics.insert(format!("{PLAYED}reused"), f64::from(spent.reused));
        metrics.insert(format!("{PLAYED}infrastructure_failed"), f64::from(spent.broken));
        metrics.insert("episodes_seconds".to_owned(), spent.seconds);
        metrics::counter!("reef_episodes_total").increment(u64::from(spent.episodes));
    }

    #[tracing::instrument(name = "release", skip_all, fields(step = self.work.step.step))]
    async fn commit(mut self, decided: Decided) -> Result<Ended, StepError> {
        let scenario = Arc::clone(&self.work.scenario);
        // Nobody else mints a release between the write and the end of the step.
        let minting = scenario.minting.lock().await;
        let (tenant, name) = &scenario.key;
        let head = self.workshop.store.harness_head(tenant, name).await?;
        let decided = if head.is_none_or(|head| head.release_id != self.work.step.parent) {
            Decided::Fail(HEAD_MOVED.to_owned(), None)
        } else if weights_moved(&scenario, &self.work.step) {
            Decided::Fail(WEIGHTS_MOVED.to_owned(), None)
        } else {
            decided
        };
        let recipe = self.workshop.recipe.manifest().name.clone();
        let state = std::mem::take(&mut self.state).into_iter().collect();
        let mut commit = Commit { state, recipe, ..Commit::default() };
        let mut fault = None;
        self.work.step.outcome = match decided {
            Decided::Release(content, reason) => {
                let release = self.write(&content, (ReleaseVerdict::Promoted, DecidedBy::Gate, &reason)).await?;
                let id = release.release_id.clone();
                commit.release = Some(release);
                StepOutcome::Released { release: id, reason }
            }
            Decided::Hold(content, by, reason) => {
                commit.held = Some(self.write(&content, (ReleaseVerdict::Held, by, &reason)).await?);
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
            commit.state.push((STATE_WRITER_KEY.to_owned(), Some(self.workshop.recipe.label().into_bytes())));
        }
        let mut released = commit.release.is_some();
        if let Err(error) = self.workshop.store.finish_step(tenant, name, &self.work.step, commit).await {
            let (reason, refused) = refusal(error)?;
            released = false;
            self.work.step.outcome = StepOutcome::Failed { reason };
            // What was refused may be in the transcript, and the step must end.
            let transcript = refused.is_none().then(|| self.transcript(&[]));
            fault = refused.or(fault);
            let nothing = Commit { transcript, ..Commit::default() };
            self.workshop.store.finish_step(tenant, name, &self.work.step, nothing).await?;
        }
        drop(minting);
        if released {
            metrics::counter!("reef_releases_total").increment(1);
            self.workshop.scenarios.align(&scenario, Surface::Harness).await;
        }
        Ok(Ended { outcome: self.work.step.outcome.clone(), fault })
    }

    fn transcript(&self, state: &[(String, Option<Vec<u8>>)]) -> StepTranscript {
        transcript((self.workshop, &self.work), self.gate, &self.recorder, state)
    }

    async fn write(
        &self,
        content: &HarnessContent,
        (verdict, by, reason): (ReleaseVerdict, DecidedBy, &str),
    ) -> Result<Release, ScenarioError> {
        let (step, parent) = (&self.work.step, &self.head.manifest);
        let ids: Vec<&str> =
            self.work.samples.iter().flat_map(|pooled| pooled.sample.records.iter().map(|id| id.as_str())).collect();
        // What was played anew, and how long it took, differs from run to run and would make the release id differ too.
        let timeless = |name: &str| !name.ends_with("_seconds") && !name.starts_with(PLAYED);
        let metrics = step.metrics.iter().filter(|(name, _)| timeless(name));
        let manifest = ReleaseManifest {
            tenant: parent.tenant.clone(),
            scenario: parent.scenario.clone(),
            surface: Surface::Harness,
            sequence: parent.sequence + 1,
            parent: Some(step.parent.clone()),
            origin: ReleaseOrigin::Step { step: step.step },
            base_model: parent.base_model.clone(),
            recipe: Some(step.recipe.clone()),
            seed: Some(step.seed),
            records: Some(sha256_hex(ids.join("\n").as_bytes())),
            metrics: metrics.map(|(name, value)| (name.clone(), *value)).collect(),
            evaluation: self.evaluation.clone(),
            decision: Some(ReleaseDecision { verdict, by, reason: reason.to_owned() }),
            created_at_ms: step.now_ms,
        };
        self.workshop.scenarios.write(manifest, content.to_files()).await
    }
}

/// A pair of a gate: candidate and incumbent on one task.
type Pair = (Measurement, Measurement);

/// Measures what the gate looks at and asks it; blocks. Every task is played once on each side, on the step's seed; what
/// the recipe played on it already is not played again.
pub fn gate_harness(gate: Gate, harness: &mut dyn Harness, seed: u32) -> (GateDecision, Vec<Pair>) {
    let unmeasured = |told: String| (GateDecision::undecided(format!("undecided: {told}")), Vec::new());
    if !gate.measures() {
        return (gate_decision(gate, &[], &[]), Vec::new());
    }
    let tasks = match harness.tasks() {
        Ok(tasks) => tasks,
        Err(error) => return unmeasured(error.to_string()),
    };
    let (mut candidate, mut incumbent) = (Vec::new(), Vec::new());
    for task in &tasks {
        let mut side = |on: HarnessTree| played(harness, on, task, seed);
        let new = side(HarnessTree::Candidate(CANDIDATE));
        let both = new.and_then(|new| {
            let old = if gate.compares() { side(HarnessTree::Incumbent)? } else { Measurement::Scored(0.0) };
            Ok((new, old))
        });
        match both {
            Ok((new, old)) => {
                candidate.push(new);
                incumbent.push(old);
            }
            Err(HarnessError::Budget(told)) => {
                return (GateDecision::plain(false, format!("the tasks could not be measured: {told}")), Vec::new());
            }
            Err(error) => return unmeasured(error.to_string()),
        }
        if gate.is_settled(&candidate, &incumbent) {
            break;
        }
    }
    let decision = gate_decision(gate, &candidate, if gate.compares() { &incumbent } else { &[] });
    (decision, candidate.into_iter().zip(incumbent).collect())
}

fn played(harness: &mut dyn Harness, on: HarnessTree, task: &str, seed: u32) -> Result<Measurement, HarnessError> {
    let episode = harness.run_episode(on, task, seed)?;
    Ok(match episode.status {
        EpisodeStatus::Scored | EpisodeStatus::AgentFailed => Measurement::of(episode.score),
        EpisodeStatus::VerifierFailed => Measurement::Failed(format!("the verifier of {task} failed")),
        EpisodeStatus::InfrastructureFailed => Measurement::Failed(format!("the machine failed in {task}")),
    })
}

fn evaluation(bench: &Bench, pairs: &[Pair]) -> ReleaseEvaluation {
    let both = pairs.iter().filter_map(|(new, old)| Some((new.score()?, old.score()?)));
    let (candidate, incumbent): (Vec<f64>, Vec<f64>) = both.unzip();
    let mean = |scores: &[f64]| (!scores.is_empty()).then(|| scores.iter().sum::<f64>() / scores.len() as f64);
    let compared = u32::try_from(candidate.len()).unwrap_or(u32::MAX);
    ReleaseEvaluation {
        tasks: bench.tasks_digest(),
        compared,
        candidate: mean(&candidate),
        incumbent: mean(&incumbent),
        weights: Some(bench.weights.clone()),
    }
}
