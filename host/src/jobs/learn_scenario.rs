//! The learner of one surface of a scenario: waits for feedback, asks the recipe what to learn from, runs the step.
//! Started for every scenario that comes alive. Where two surfaces have a recipe, they take turns, so that what a step
//! measures against stands still. Serving never waits for it, and whatever happens is written to status and store.

mod sift;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use reef_core::{HeldOutTask, RecordId, Sample, Step, StepOutcome, Surface, sha256_hex};
use reef_sandbox::{Blame, Call, Choice, Context, Fault, FaultKind, PoolSample, Quarantine, Selection};
use reef_store::{Commit, PoolEntry, RecordedStep, StepInputs, TrainingMode};
use tracing::Instrument;

use super::exchange_recipe::ExchangeError;
use super::harness_step::WEIGHTS_MOVED;
use super::held_out::{HeldOut, ScoreCache};
use super::ingest_live::ingest_live;
use super::recheck_head::recheck_when_due;
use super::run_step::{Ended, StepError, Work, Workshop, context, guest_state, recorded_state, run_step};
use super::surface;
use crate::clock::now_ms;
use crate::scenarios::{Scenario, Side};
use crate::telemetry;

/// Steps that are looked at to tell whether a recipe has worked before.
const STEPS_LOOKED_AT: u32 = 100;
/// A learner that hears nothing looks again after this time.
const IDLE_LOOK: Duration = Duration::from_secs(60);
/// First pause after a failure that was not the recipe's; doubles with each further one.
const RETRY_PAUSE: Duration = Duration::from_secs(2);
/// Longest of those pauses.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(600);

/// Learns until the scenario is forgotten or the process ends. The recipe of the workshop is exchanged for that of the
/// surface before each turn.
pub async fn learn_scenario(workshop: Workshop, (scenario, surface): (Arc<Scenario>, Surface), pool_max: u32) {
    let mut learner = Learner {
        workshop,
        scenario,
        surface,
        pool_max,
        quarantine: Quarantine::default(),
        known: false,
        failures: 0,
        tasks: None,
    };
    while !learner.scenario.is_retired() {
        match learner.turn().await {
            Ok(Turn::Again) => {}
            // A time-out is only a reason to look again.
            Ok(Turn::Wait) => drop(tokio::time::timeout(IDLE_LOOK, learner.side().wake.notified()).await),
            Ok(Turn::Rest(pause)) => learner.rest(pause).await,
            Err(error) => {
                tracing::error!(scenario = %learner.scenario.key.1, %error, "learner.error");
                let pause = learner.failed(error.to_string());
                learner.rest(pause).await;
            }
        }
    }
}

enum Turn {
    /// Something changed; look again at once.
    Again,
    /// Nothing to do until feedback comes.
    Wait,
    /// Something failed; leave it alone for this long, unless the settings change.
    Rest(Duration),
}

type Tasks = (Vec<HeldOutTask>, Arc<HeldOut>, ScoreCache);

struct Learner {
    workshop: Workshop,
    scenario: Arc<Scenario>,
    surface: Surface,
    pool_max: u32,
    quarantine: Quarantine,
    /// The quarantine is the stored one.
    known: bool,
    /// Failures in a row that were not the recipe's.
    failures: u32,
    tasks: Option<Tasks>,
}

impl Learner {
    fn side(&self) -> &Side {
        self.scenario.side(self.surface)
    }

    /// One turn, during which no other surface has its own and nobody exchanges the recipe.
    async fn turn(&mut self) -> Result<Turn, StepError> {
        let scenario = Arc::clone(&self.scenario);
        let _learning = scenario.learning.lock().await;
        if scenario.is_retired() {
            return Ok(Turn::Again);
        }
        self.workshop
            .exchange
            .settle(&scenario, self.surface)
            .await
            .map_err(|error| StepError::Recipe(error.to_string()))?;
        let Some(now) = self.side().recipe() else { return Ok(Turn::Wait) };
        if now.recipe.digest() != self.workshop.recipe.digest() {
            self.workshop.recipe = now.recipe;
            self.known = false;
        }
        self.learn().await
    }

    fn manual(&self) -> bool {
        self.scenario.settings().training_mode == TrainingMode::Manual
    }

    /// Does somebody ask for a change that the recipe could make?
    async fn asked_for(&self) -> Result<bool, StepError> {
        let (tenant, name) = &self.scenario.key;
        Ok(self.surface == Surface::Harness && self.workshop.store.instruction_waits(tenant, name).await?)
    }

    async fn learn(&mut self) -> Result<Turn, StepError> {
        let (tenant, name) = self.scenario.key.clone();
        if self.manual() && !self.asked_for().await? {
            self.waiting("training_mode is manual");
            return Ok(Turn::Wait);
        }
        self.recall().await?;
        if let Some(until_ms) = self.quarantine.blocked(now_ms()).map(|block| block.until_ms) {
            self.side().set_status(|status| status.quarantined_until_ms = Some(until_ms));
            let pause = u64::try_from(until_ms - now_ms()).unwrap_or(0);
            return Ok(Turn::Rest(Duration::from_millis(pause.max(10))));
        }
        self.side().set_status(|status| status.quarantined_until_ms = None);
        self.workshop.scenarios.refresh(&self.scenario).await?;
        let (held_out, cache) = self.held_out().await?;
        self.side().set_status(|status| status.held_out = held_out.len());
        if let Some(step) = self.workshop.store.running_step(&tenant, &name).await? {
            let owner = surface::of_step(&self.workshop.store, &self.scenario.key, &step).await?;
            if owner != self.surface {
                return self.leave(step, owner).await;
            }
            let samples = surface::samples(&self.workshop, &self.scenario.key, &step).await?;
            // A step is named by its recipe's digest, and what was held out meanwhile must not be trained on.
            if step.recipe != self.workshop.recipe.label() {
                return self.give_up(step, "the recipe was exchanged").await;
            }
            if samples.iter().any(|sample| held_out.is_answered_in(&sample.trajectory)) {
                return self.give_up(step, "one of its prompts is held out now").await;
            }
            if surface::is_harness(&self.workshop.recipe) && surface::weights_moved(&self.scenario, &step) {
                return self.give_up(step, WEIGHTS_MOVED).await;
            }
            let recorded = self.workshop.store.step_record(&tenant, &name, step.step).await?;
            let inputs = match recorded {
                Some(RecordedStep { inputs, .. }) => inputs,
                None => self.inputs().await?,
            };
            return self.run((step, inputs), samples, (held_out, cache)).await;
        }
        match ingest_live(&self.workshop, &self.scenario).await? {
            None => {}
            Some(Ok(())) => return Ok(Turn::Again),
            Some(Err(fault)) => {
                self.fault(&fault).await?;
                return Ok(Turn::Rest(self.failed(fault.to_string())));
            }
        }
        let Some(((step, inputs), samples)) = self.select(&held_out).await? else {
            return Ok(if self.quarantine.blocked(now_ms()).is_some() { Turn::Again } else { Turn::Wait });
        };
        self.workshop.store.begin_step(&tenant, &name, &step, Some(&inputs)).await?;
        self.run((step, inputs), samples, (held_out, cache)).await
    }

    /// A step of another surface that was cut off goes first, unless nothing evolves that surface any more.
    async fn leave(&self, step: Step, owner: Surface) -> Result<Turn, StepError> {
        if self.scenario.side(owner).recipe().is_none() {
            return self.give_up(step, "its surface has no recipe any more").await;
        }
        self.waiting(&format!("step {} of the {} ends first", step.step, owner.as_str()));
        Ok(Turn::Wait)
    }

    /// Ends a step that cannot be done any more; its samples are free again.
    async fn give_up(&self, mut step: Step, reason: &str) -> Result<Turn, StepError> {
        let (tenant, name) = &self.scenario.key;
        step.outcome = StepOutcome::Failed { reason: reason.to_owned() };
        self.workshop.store.finish_step(tenant, name, &step, Commit::default()).await?;
        Ok(Turn::Again)
    }

    /// Waits out a failure. New feedback does not help; changed settings may, so they end it and clear the record.
    async fn rest(&mut self, pause: Duration) {
        if tokio::time::timeout(pause, self.side().changed.notified()).await.is_ok() {
            self.quarantine = Quarantine::default();
            self.succeeded();
            if let Err(error) = self.remember().await {
                tracing::error!(scenario = %self.scenario.key.1, %error, "learner.quarantine");
            }
        }
    }

    /// Reads what the recipe is known for, once.
    async fn recall(&mut self) -> Result<(), StepError> {
        if self.known {
            return Ok(());
        }
        let (tenant, name) = &self.scenario.key;
        let record = self.workshop.store.quarantine(tenant, name, &self.workshop.recipe.label()).await?;
        // A record that this version does not understand is one that it did not write: the recipe starts clean.
        self.quarantine = record.and_then(|record| serde_json::from_value(record).ok()).unwrap_or_default();
        self.known = true;
        Ok(())
    }

    /// Writes what the recipe is known for.
    async fn remember(&self) -> Result<(), StepError> {
        let (tenant, name) = &self.scenario.key;
        let record = serde_json::to_value(&self.quarantine).ok().filter(|_| !self.quarantine.is_clean());
        Ok(self.workshop.store.set_quarantine(tenant, name, &self.workshop.recipe.label(), record.as_ref()).await?)
    }

    /// Notes a failure that was not the recipe's; how long to leave it alone.
    fn failed(&mut self, reason: String) -> Duration {
        self.side().set_status(|status| status.last_error = Some(reason));
        let pause = RETRY_PAUSE.saturating_mul(1 << self.failures.min(16)).min(RETRY_PAUSE_MAX);
        self.failures = self.failures.saturating_add(1);
        pause
    }

    fn succeeded(&mut self) {
        self.failures = 0;
        self.side().set_status(|status| status.last_error = None);
    }

    fn waiting(&self, reason: &str) {
        self.side().set_status(|status| status.waiting = Some(reason.to_owned()));
    }

    /// The held-out tasks, rendered again only when they changed.
    async fn held_out(&mut self) -> Result<(Arc<HeldOut>, ScoreCache), StepError> {
        let (tenant, name) = &self.scenario.key;
        let tasks = self.workshop.store.held_out(tenant, name).await?;
        if let Some((known, held_out, cache)) = &self.tasks
            && *known == tasks
        {
            return Ok((Arc::clone(held_out), Arc::clone(cache)));
        }
        let (engine, copy) = (self.workshop.engine.clone(), tasks.clone());
        let rendered = tokio::task::spawn_blocking(move || HeldOut::new(&engine, copy))
            .await
            .map_err(|_| StepError::Interrupted)?;
        let held_out = Arc::new(rendered.map_err(|error| StepError::HeldOut(error.to_string()))?);
        let cache = ScoreCache::default();
        self.tasks = Some((tasks, Arc::clone(&held_out), Arc::clone(&cache)));
        Ok((held_out, cache))
    }

    /// Asks the recipe; `None` = wait.
    async fn select(&mut self, held_out: &HeldOut) -> Result<Option<((Step, StepInputs), Vec<Sample>)>, StepError> {
        let pool = surface::pool(&self.workshop, &self.scenario, self.pool_max).await?;
        let (mut usable, mut retired) = self.sift(pool.samples, held_out).await?;
        if self.manual() {
            // What a person asks for is about no exchange but its own record.
            usable.retain(|pooled| pooled.sample.records.first() == Some(&pooled.sample.report));
        }
        let mut inputs = self.inputs().await?;
        let entry = |pooled: &PoolSample| PoolEntry { report: pooled.sample.report.clone(), lag: pooled.lag };
        inputs.pool = usable.iter().map(entry).collect();
        inputs.unassembled =
            pool.unusable.iter().filter_map(|(report, why)| Some((report.clone(), why.assembly?))).collect();
        inputs.unusable = pool.unusable.into_iter().map(|(report, why)| (report, why.reason)).collect();
        retired.extend(inputs.unusable.iter().cloned());
        let mut step = self.draft().await?;
        let samples: Arc<Vec<PoolSample>> = Arc::new(usable);
        let outcome = self.workshop.recipe.select_samples(self.call(&step, &samples, &inputs)).await;
        step.calls.push(outcome.report);
        step.metrics.extend(outcome.metrics);
        let selection = match outcome.result {
            Ok(selection) => selection,
            Err(fault) => {
                self.fault(&fault).await?;
                self.retire(retired).await?;
                return Ok(None);
            }
        };
        let id = |handle: &u32| samples.get(*handle as usize).map(|pooled| pooled.sample.report.clone());
        let named = |(handle, reason): &(u32, String)| id(handle).map(|id| (id, reason.clone()));
        inputs.retired = selection.retire.iter().filter_map(named).collect();
        retired.extend(inputs.retired.iter().cloned());
        self.retire(retired).await?;
        let handles = match chosen(selection) {
            Ok(handles) => handles,
            Err(reason) => {
                self.waiting(&reason);
                return Ok(None);
            }
        };
        let batch: Vec<Sample> = handles
            .iter()
            .filter_map(|handle| samples.get(*handle as usize))
            .map(|pooled| pooled.sample.clone())
            .collect();
        step.batch = batch.iter().map(|sample| sample.report.clone()).collect();
        step.seed = seed(&step);
        Ok(Some(((step, inputs), batch)))
    }

    /// What a step would be given now, but for its pool.
    async fn inputs(&self) -> Result<StepInputs, StepError> {
        let (tenant, name) = &self.scenario.key;
        let state = self.workshop.store.recipe_state(tenant, name, &self.workshop.recipe.manifest().name).await?;
        Ok(StepInputs {
            config: self.workshop.exchange.config(&self.scenario, self.surface),
            state: recorded_state(state),
            max_staleness: self.scenario.settings().max_staleness,
            pool_max: self.pool_max,
            ..StepInputs::default()
        })
    }

    fn call(&self, step: &Step, samples: &Arc<Vec<PoolSample>>, inputs: &StepInputs) -> Call {
        let call = Call {
            samples: Arc::clone(samples),
            batch: (0..u32::try_from(samples.len()).unwrap_or(0)).collect(),
            config: inputs.config.clone(),
            state: guest_state(state_of(inputs)),
            unusable: inputs.unassembled.clone(),
            ..Call::new(Context { max_staleness: inputs.max_staleness, ..context(&self.scenario, step) })
        };
        self.workshop.exchange.reads.give(&self.scenario.key, call)
    }

    async fn draft(&self) -> Result<Step, StepError> {
        let (tenant, name) = &self.scenario.key;
        Ok(Step {
            step: self.workshop.store.next_step_number(tenant, name).await?,
            surface: Some(self.surface),
            parent: surface::head(&self.workshop, &self.scenario).await?,
            beside: surface::beside(&self.workshop, &self.scenario).await?,
            batch: Vec::new(),
            recipe: self.workshop.recipe.label(),
            seed: 0,
            now_ms: now_ms(),
            metrics: BTreeMap::new(),
            calls: Vec::new(),
            traceparent: None,
            candidate: None,
            gate: None,
            outcome: StepOutcome::Running,
        })
    }

    async fn retire(&self, retired: Vec<(RecordId, String)>) -> Result<(), StepError> {
        if retired.is_empty() {
            return Ok(());
        }
        let (tenant, name) = &self.scenario.key;
        metrics::counter!("reef_samples_retired_total").increment(retired.len() as u64);
        Ok(self.workshop.store.retire((tenant, name), self.surface, &retired, now_ms()).await?)
    }

    async fn run(
        &mut self,
        (mut step, inputs): (Step, StepInputs),
        samples: Vec<Sample>,
        held_out: (Arc<HeldOut>, ScoreCache),
    ) -> Result<Turn, StepError> {
        let (_, name) = self.scenario.key.clone();
        let state = state_of(&inputs);
        let span = tracing::info_span!("step", scenario = %name, step = step.step, samples = samples.len());
        telemetry::continue_trace(
            &span,
            surface::report_trace(&self.workshop.store, &self.scenario.key, &step).await?.as_deref(),
        );
        step.traceparent = telemetry::traceparent(&span);
        let max_staleness = self.scenario.settings().max_staleness;
        let lineage = surface::lineage(&self.workshop.store, &self.scenario, max_staleness).await?;
        let seen: HashMap<&RecordId, u32> = inputs.pool.iter().map(|entry| (&entry.report, entry.lag)).collect();
        let lag = |sample: &Sample| {
            if let Some(lag) = seen.get(&sample.report) {
                return *lag;
            }
            let position = lineage.iter().position(|release| *release == sample.release).unwrap_or(lineage.len());
            u32::try_from(position).unwrap_or(u32::MAX)
        };
        let samples: Vec<_> = samples.into_iter().map(|sample| PoolSample { lag: lag(&sample), sample }).collect();
        self.side().set_status(|status| {
            status.running = true;
            status.waiting = None;
        });
        let number = step.step;
        let (samples, tasks) = (Arc::new(samples), Arc::clone(&held_out.0));
        let work = Work { scenario: Arc::clone(&self.scenario), step, samples, state, inputs, held_out };
        let ended = run_step(&self.workshop, work).instrument(span).await;
        self.side().set_status(|status| status.running = false);
        // Whoever waited for this step to end looks again.
        self.scenario.wake();
        let Ended { outcome, fault } = ended?;
        tracing::info!(scenario = %name, step = number, ?outcome, "step.ended");
        match (&outcome, fault) {
            (_, Some(fault)) => {
                self.fault(&fault).await?;
                // What is not held against the recipe would otherwise be tried again at once, for ever.
                if fault.blame() == Blame::Host || fault.kind == FaultKind::Cancelled {
                    return Ok(Turn::Rest(self.failed(fault.to_string())));
                }
            }
            (StepOutcome::Failed { reason }, None) => {
                let reason = reason.clone();
                return Ok(Turn::Rest(self.failed(reason)));
            }
            _ => {
                let stained = !self.quarantine.is_clean();
                self.quarantine.success();
                self.succeeded();
                if stained {
                    self.remember().await?;
                }
                if !surface::is_harness(&self.workshop.recipe) {
                    recheck_when_due(&self.workshop, &self.scenario, &tasks).await?;
                }
            }
        }
        Ok(Turn::Again)
    }

    async fn fault(&mut self, fault: &Fault) -> Result<(), StepError> {
        tracing::warn!(scenario = %self.scenario.key.1, %fault, "recipe.fault");
        self.quarantine.record(now_ms(), fault);
        self.side().set_status(|status| status.last_error = Some(fault.to_string()));
        self.remember().await?;
        if self.quarantine.blocked(now_ms()).is_some() && !self.proven().await? {
            self.fall_back(fault).await;
        }
        Ok(())
    }

    /// Has the recipe ended a step without a fault in this scenario?
    async fn proven(&self) -> Result<bool, StepError> {
        let (tenant, name) = &self.scenario.key;
        let label = self.workshop.recipe.label();
        let steps = self.workshop.store.steps(tenant, name, STEPS_LOOKED_AT).await?;
        Ok(steps.iter().any(|step| step.recipe == label && !matches!(step.outcome, StepOutcome::Failed { .. })))
    }

    /// A new recipe that is quarantined before it did anything well makes way for the one before it.
    async fn fall_back(&self, fault: &Fault) {
        match self.workshop.exchange.fall_back(&self.scenario, self.surface, fault).await {
            Ok(back) => {
                let told = format!("fell back to {} {}: {fault}", back.now.name, back.now.version);
                self.side().set_status(|status| status.last_error = Some(told));
            }
            Err(ExchangeError::NothingBefore) => {}
            Err(error) => tracing::error!(scenario = %self.scenario.key.1, %error, "recipe.fall_back"),
        }
    }
}

/// The recipe's state before the step, as the learner and the trainer use it.
pub fn state_of(inputs: &StepInputs) -> BTreeMap<String, Vec<u8>> {
    inputs.state.iter().map(|(key, value)| (key.clone(), value.0.clone())).collect()
}

/// Handles in training order, or why to wait.
pub fn chosen(selection: Selection) -> Result<Vec<u32>, String> {
    match selection.choice {
        Choice::Wait(reason) => Err(reason),
        Choice::Train(handles) => Ok(handles),
        Choice::TrainGroups(groups) => Ok(groups.into_iter().flat_map(|group| group.slots).collect()),
    }
}

/// A step is named by its batch and recipe; its seed follows from them, so a restart draws the same one.
pub fn seed(step: &Step) -> u32 {
    let ids: Vec<&str> = step.batch.iter().map(RecordId::as_str).collect();
    let digest = sha256_hex(format!("{}\n{}\n{}", step.recipe, step.step, ids.join("\n")).as_bytes());
    digest.get(..8).and_then(|hex| u32::from_str_radix(hex, 16).ok()).unwrap_or(0)
}
