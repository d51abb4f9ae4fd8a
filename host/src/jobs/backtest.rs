//! Runs a recipe over the recorded stream of a scenario, beside what really happened, and changes nothing.
//! `reef recipe backtest` calls it. The rule: the reports arrive in their order, a selection follows each, and a step
//! takes no time. What serves, and so every lag, is what served when the report arrived; an imagined step starts from
//! that release, and what it proposes serves nobody.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use reef_core::{RecordId, ReleaseId, Report, Sample, ScenarioName, Step, StepOutcome, Surface, TenantId};
use reef_engine::Engine;
use reef_sandbox::{Blame, Call, Capability, Context, Fault, PoolSample, Proposal, Quarantine, Recipe};
use reef_store::{ListedRelease, RecordBody, RecordKind, Scenario, Unusable};
use serde::Serialize;
use serde_json::{Map, Value};

use super::guest_reads::GuestReads;
use super::held_out::HeldOut;
use super::learn_scenario::{chosen, seed};
use super::replay_step::outcome;
use super::rerun::{Folder, Proposer, blocking, engine, load, sandbox};
use super::run_step::{CRITIC_STATE, guest_state};
use super::stream_pool::{Moment, StreamPool};
use super::surface;
use super::transcript::content_of;
use crate::component_file;
use crate::config::Config;
use crate::error::StartError;
use crate::scenarios::ScenarioKey;
use crate::verifiers;

/// Steps of a backtest; their batches are in memory.
pub const STEPS_MAX: u32 = 1_000;
/// Reports that are read at once.
const PAGE: u32 = 64;

/// Which recipe, over what.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Data folder, model and limits.
    pub config: Config,
    /// Owner.
    pub tenant: TenantId,
    /// Scenario.
    pub scenario: ScenarioName,
    /// The component.
    pub recipe: PathBuf,
    /// Values over those of the scenario.
    pub values: Map<String, Value>,
    /// Steps after which it ends.
    pub steps_max: u32,
    /// Propose with the real trainer.
    pub train: bool,
}

/// One step, imagined or real.
#[derive(Debug, Clone, Serialize)]
pub struct Turned {
    /// Its number in its column.
    pub step: u32,
    /// Release that it starts from.
    pub head: ReleaseId,
    /// Its reports, in order.
    pub batch: Vec<RecordId>,
    /// Mean of their scores; none when none has a score.
    pub score_mean: Option<f64>,
    /// What came of it.
    pub outcome: String,
    /// Gauges of its calls.
    pub metrics: BTreeMap<String, f64>,
    /// The real step with the same batch in the same order.
    pub same_as: Option<u32>,
}

/// What a recipe made of the stream.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Column {
    /// Labels of the recipes.
    pub recipes: Vec<String>,
    /// Steps in order.
    pub steps: Vec<Turned>,
    /// Samples that were refused or retired, by kind of reason.
    pub refused: BTreeMap<String, u64>,
    /// Selections that waited; unknown for what really happened.
    pub waits: Option<u64>,
    /// Why the last of them did.
    pub last_wait: Option<String>,
    /// Faults and failures by reason.
    pub faults: BTreeMap<String, u64>,
}

/// Both sides.
#[derive(Debug, Clone, Serialize)]
pub struct Backtest {
    /// Reports that arrived.
    pub reports: u64,
    /// The recipe over the stream.
    pub imagined: Column,
    /// What really happened.
    pub recorded: Column,
    /// What to know when reading it.
    pub notes: Vec<String>,
}

/// Walks the stream; `progress` hears the number of reports so far.
pub async fn backtest(wanted: &Wanted, progress: &dyn Fn(u64)) -> Result<Backtest, StartError> {
    let folder = Folder::open(&wanted.config.data, &wanted.config.store).await?;
    let scenario = folder.scenario(&wanted.tenant, &wanted.scenario).await?;
    let mut walk = Walk::prepare(wanted, folder, &scenario).await?;
    let (mut after, mut reports) = (0, 0);
    'stream: loop {
        let page =
            walk.folder.store.records(&wanted.tenant, &wanted.scenario, after, PAGE, Some(RecordKind::Report)).await?;
        let Some(last) = page.last() else { break };
        after = last.sequence;
        let arrived: Vec<(i64, Box<Report>)> = page
            .into_iter()
            .filter_map(|record| match record.body {
                RecordBody::Report(report) => Some((record.sequence, report)),
                RecordBody::Inference(_) | RecordBody::Instruction(_) => None,
            })
            .collect();
        let ids: Vec<RecordId> = arrived.iter().map(|(_, report)| report.id.clone()).collect();
        let formed = walk.folder.store.formed(&wanted.tenant, &wanted.scenario, &ids).await?;
        let mut formed: HashMap<RecordId, Result<Sample, Unusable>> = formed.into_iter().collect();
        for (sequence, report) in arrived {
            let sample = formed.remove(&report.id);
            walk.arrive(sequence, &report, sample).await?;
            reports += 1;
            progress(reports);
            if walk.column.steps.len() >= wanted.steps_max.min(STEPS_MAX) as usize {
                walk.notes.push(format!("ended after {} steps, at report {reports}", walk.column.steps.len()));
                break 'stream;
            }
        }
    }
    walk.finish(reports).await
}

struct Walk<'a> {
    wanted: &'a Wanted,
    folder: Folder,
    recipe: Recipe,
    config: Map<String, Value>,
    max_staleness: u32,
    heads: std::iter::Peekable<std::vec::IntoIter<(ReleaseId, i64)>>,
    head: ReleaseId,
    chain: HashMap<ReleaseId, ReleaseId>,
    held_out: Option<HeldOut>,
    proposer: Option<Proposer>,
    reads: GuestReads,
    pool: StreamPool,
    state: BTreeMap<String, Vec<u8>>,
    quarantine: Quarantine,
    column: Column,
    recorded: Column,
    /// The real step of each report of the recorded batches.
    trained: HashMap<RecordId, usize>,
    scores: Vec<(f64, u32)>,
    notes: Vec<String>,
}

impl<'a> Walk<'a> {
    async fn prepare(wanted: &'a Wanted, folder: Folder, scenario: &Scenario) -> Result<Self, StartError> {
        let bytes = component_file::read_async(&wanted.recipe, wanted.config.sandbox.component_bytes_max).await?;
        let sandbox = sandbox(wanted.config.sandbox.clone(), wanted.config.recipes.compile_in_process)?;
        let recipe = load(&sandbox, bytes).await?;
        let (tenant, name) = (&wanted.tenant, &wanted.scenario);
        let recorded = recorded(&folder, &(tenant.clone(), name.clone()), surface::of(&recipe)).await?;
        let mut notes = Vec::new();
        let inputs = match recorded.steps.last() {
            Some(last) => folder.store.step_record(tenant, name, last.step).await?.map(|record| record.inputs),
            None => None,
        };
        let (settings, surface) = (&scenario.settings, surface::of(&recipe));
        let own = || settings.recipe_values(surface, !settings.harness_config.is_empty()).clone();
        let base = inputs.map_or_else(own, |inputs| inputs.config);
        let config = configuration(&recipe, base, wanted, &mut notes)?;
        let heads = folder.store.heads(tenant, name).await?;
        let listed = folder.store.releases_of(tenant, name, Surface::Weights).await?;
        let Some(first) = heads.first().map(|(id, _)| id.clone()) else {
            return Err(StartError::Config(format!("scenario '{name}' has no release; it has never served")));
        };
        let model = listed.first().map(|listed| listed.release.manifest.base_model.clone()).unwrap_or_default();
        let before = |one: &ListedRelease| surface::before(&one.release.manifest, &listed);
        let chain = listed.iter().filter_map(|one| Some((one.release.release_id.clone(), before(one)?)));
        let chain = chain.collect();
        let (engine, held_out) = engine_parts(wanted, &folder, &model, &recipe).await?;
        let lora = wanted.config.engine.lora;
        let proposer = match engine.clone().filter(|_| wanted.train) {
            Some(engine) => Some({
                let (named, ranks) = (folder.policies(&wanted.config).await?, wanted.config.training.workers);
                Proposer::new(engine, lora, named, ranks)?
            }),
            None => None,
        };
        let verifiers = verifiers::load(&sandbox, None, &wanted.config).await?;
        let reads = GuestReads { engine, store: folder.store.clone(), verifiers };
        let trained =
            (0..).zip(&recorded.steps).flat_map(|(at, step)| step.batch.iter().map(move |id| (id.clone(), at)));
        Ok(Self {
            config,
            max_staleness: scenario.settings.max_staleness,
            heads: heads.into_iter().peekable(),
            head: first,
            chain,
            held_out,
            proposer,
            reads,
            pool: StreamPool::new(wanted.config.training.pool_max),
            state: BTreeMap::new(),
            quarantine: Quarantine::default(),
            column: Column { recipes: vec![recipe.label()], waits: Some(0), ..Column::default() },
            trained: trained.collect(),
            scores: vec![(0.0, 0); recorded.steps.len()],
            recorded,
            notes,
            wanted,
            folder,
            recipe,
        })
    }

    async fn arrive(
        &mut self,
        sequence: i64,
        report: &Report,
        sample: Option<Result<Sample, Unusable>>,
    ) -> Result<(), StartError> {
        self.advance(sequence);
        if let (Some(at), Some(score)) = (self.trained.get(&report.id), report.score)
            && let Some((sum, count)) = self.scores.get_mut(*at)
        {
            *sum += score;
            *count += 1;
        }
        let fenced = match (&self.held_out, &sample) {
            (Some(held_out), Some(Ok(sample))) => held_out.is_answered_in(&sample.trajectory),
            _ => false,
        };
        self.pool.arrive(report, sample, fenced);
        while self.turn(report.created_at_ms).await? {}
        Ok(())
    }

    /// Moves to the release that served when the record with this sequence arrived.
    fn advance(&mut self, sequence: i64) {
        let mut moved = self.column.steps.is_empty() && self.pool.samples().is_empty();
        while let Some((head, _)) = self.heads.next_if(|(_, after)| *after < sequence) {
            moved |= self.head != head;
            self.head = head;
        }
        if moved {
            let mut lineage = vec![self.head.clone()];
            while lineage.len() <= self.max_staleness as usize
                && let Some(before) = lineage.last().and_then(|release| self.chain.get(release))
            {
                lineage.push(before.clone());
            }
            self.pool.advance(Moment { lineage, max_staleness: self.max_staleness });
        }
    }

    /// One selection and what follows from it; true: the pool may have more.
    async fn turn(&mut self, now_ms: i64) -> Result<bool, StartError> {
        if self.quarantine.blocked(now_ms).is_some()
            || self.column.steps.len() >= self.wanted.steps_max.min(STEPS_MAX) as usize
        {
            return Ok(false);
        }
        let wanted = self.pool.wanted();
        if !wanted.is_empty() {
            let samples = self.folder.store.samples(&self.wanted.tenant, &self.wanted.scenario, &wanted).await?;
            self.pool.fill(samples);
        }
        let samples = self.pool.samples();
        let mut step = self.draft(now_ms);
        let all = (0..u32::try_from(samples.len()).unwrap_or(0)).collect();
        let (state, unusable) = (guest_state(self.state.clone()), self.pool.unassembled());
        let call = Call { state, unusable, ..self.call(&step, &samples, all) };
        let outcome = self.recipe.select_samples(call).await;
        step.metrics.extend(outcome.metrics);
        let selection = match outcome.result {
            Ok(selection) => selection,
            Err(fault) => {
                self.fault(now_ms, &fault);
                return Ok(false);
            }
        };
        let id = |handle: &u32| samples.get(*handle as usize).map(|pooled| pooled.sample.report.clone());
        let named = |(handle, reason): &(u32, String)| id(handle).map(|id| (id, reason.clone()));
        let retired: Vec<_> = selection.retire.iter().filter_map(named).collect();
        let handles = chosen(selection);
        match &handles {
            Ok(handles) => step.batch = handles.iter().filter_map(id).collect(),
            Err(reason) => {
                self.column.waits = self.column.waits.map(|waits| waits + 1);
                self.column.last_wait = Some(reason.clone());
            }
        }
        let again = match handles {
            Ok(handles) => {
                step.seed = seed(&step);
                self.train(step, &samples, handles).await?
            }
            Err(_) => false,
        };
        drop(samples);
        self.pool.retire(&retired);
        Ok(again)
    }

    /// The batch is formed: proposes if that is wanted, and consumes it unless the recipe fails.
    async fn train(
        &mut self,
        mut step: Step,
        samples: &Arc<Vec<PoolSample>>,
        handles: Vec<u32>,
    ) -> Result<bool, StartError> {
        let batch: Vec<PoolSample> =
            handles.iter().filter_map(|handle| samples.get(*handle as usize).cloned()).collect();
        let scores: Vec<f64> = batch.iter().filter_map(|pooled| pooled.sample.score).collect();
        let mut told = "selected".to_owned();
        if let Some(proposer) = self.proposer.clone() {
            let files = self.folder.files(&step.parent).await?;
            let all = (0..u32::try_from(batch.len()).unwrap_or(0)).collect();
            let call = Call { state: self.state.clone(), ..self.call(&step, &Arc::new(batch), all) };
            let proposed = proposer.propose(&self.recipe, call, (step.parent.clone(), files)).await;
            let critic = proposed.critic();
            step.metrics.extend(proposed.outcome.metrics);
            match proposed.outcome.result {
                Err(fault) => {
                    self.fault(step.now_ms, &fault);
                    return Ok(fault.blame() != Blame::Host);
                }
                Ok(Proposal::Skip(reason)) => told = format!("skipped: {reason}"),
                Ok(Proposal::Harness(changes)) => told = format!("proposed {} changes of the harness", changes.len()),
                Ok(Proposal::Weights(candidate)) => {
                    let content = proposed.checkpoints.get(candidate as usize).and_then(content_of);
                    told = content.map_or("failed: no such candidate".to_owned(), |id| format!("proposed {id}"));
                }
            }
            for (key, value) in proposed.outcome.state {
                match value {
                    Some(value) => drop(self.state.insert(key, value)),
                    None => drop(self.state.remove(&key)),
                }
            }
            self.state.extend(critic.map(|bytes| (CRITIC_STATE.to_owned(), bytes)));
        }
        self.quarantine.success();
        self.pool.consume(&step.batch);
        let same_as = self.recorded.steps.iter().find(|real| real.batch == step.batch).map(|real| real.step);
        self.column.steps.push(Turned {
            step: step.step,
            head: step.parent,
            batch: step.batch,
            score_mean: mean(scores.iter().sum(), scores.len()),
            outcome: told,
            metrics: step.metrics,
            same_as,
        });
        Ok(true)
    }

    fn draft(&self, now_ms: i64) -> Step {
        Step {
            step: u32::try_from(self.column.steps.len()).unwrap_or(u32::MAX).saturating_add(1),
            surface: Some(Surface::Weights),
            parent: self.head.clone(),
            beside: BTreeMap::new(),
            batch: Vec::new(),
            recipe: self.recipe.label(),
            seed: 0,
            now_ms,
            metrics: BTreeMap::new(),
            calls: Vec::new(),
            traceparent: None,
            candidate: None,
            gate: None,
            outcome: StepOutcome::Running,
        }
    }

    fn call(&self, step: &Step, samples: &Arc<Vec<PoolSample>>, batch: Vec<u32>) -> Call {
        let context = Context {
            tenant: self.wanted.tenant.to_string(),
            scenario: self.wanted.scenario.to_string(),
            step: step.step,
            now_ms: step.now_ms,
            seed: step.seed,
            head: step.parent.to_string(),
            max_staleness: self.max_staleness,
        };
        let call = Call { samples: Arc::clone(samples), batch, config: self.config.clone(), ..Call::new(context) };
        self.reads.give(&(self.wanted.tenant.clone(), self.wanted.scenario.clone()), call)
    }

    fn fault(&mut self, now_ms: i64, fault: &Fault) {
        self.quarantine.record(now_ms, fault);
        *self.column.faults.entry(fault.to_string()).or_default() += 1;
    }

    async fn finish(mut self, reports: u64) -> Result<Backtest, StartError> {
        self.column.refused = self.pool.refused().clone();
        for (step, (sum, count)) in self.recorded.steps.iter_mut().zip(&self.scores) {
            step.score_mean = mean(*sum, *count as usize);
        }
        self.folder.store.close().await;
        Ok(Backtest { reports, imagined: self.column, recorded: self.recorded, notes: self.notes })
    }
}

fn mean(sum: f64, count: usize) -> Option<f64> {
    (count > 0).then(|| sum / count as f64)
}

/// Held-out prompts and recipes that read texts need the tokenizer, and proposals the whole model; without any of them
/// nothing is loaded.
async fn engine_parts(
    wanted: &Wanted,
    folder: &Folder,
    model: &str,
    recipe: &Recipe,
) -> Result<(Option<Engine>, Option<HeldOut>), StartError> {
    let tasks = folder.store.held_out(&wanted.tenant, &wanted.scenario).await?;
    if tasks.is_empty() && !wanted.train && !recipe.imports().contains(&Capability::Tokens) {
        return Ok((None, None));
    }
    let engine = engine(&wanted.config, model).await?;
    let copy = engine.clone();
    let held_out = blocking(move || HeldOut::new(&copy, tasks)).await??;
    Ok((Some(engine), Some(held_out)))
}

/// The scenario's values that the recipe knows, under those that were given for the backtest.
fn configuration(
    recipe: &Recipe,
    base: Map<String, Value>,
    wanted: &Wanted,
    notes: &mut Vec<String>,
) -> Result<Map<String, Value>, StartError> {
    let manifest = recipe.manifest();
    let (mut config, mut left) = (Map::new(), Vec::new());
    for (key, value) in base {
        let one = Map::from_iter([(key.clone(), value.clone())]);
        if manifest.check_config(&one).is_ok() {
            config.insert(key, value);
        } else {
            left.push(key);
        }
    }
    if !left.is_empty() {
        notes.push(format!("configuration that this recipe does not know is left out: {}", left.join(", ")));
    }
    config.extend(wanted.values.clone());
    manifest.check_config(&config).map_err(|problem| StartError::Config(format!("--set: {problem}")))?;
    Ok(config)
}

/// The steps of a surface that ended, the oldest first, without their scores.
async fn recorded(folder: &Folder, key: &ScenarioKey, surface: Surface) -> Result<Column, StartError> {
    let mut column = Column::default();
    for number in 1..=STEPS_MAX {
        let Some(step) = folder.store.step(&key.0, &key.1, number).await? else { break };
        if surface::of_step(&folder.store, key, &step).await? != surface {
            continue;
        }
        if !column.recipes.contains(&step.recipe) {
            column.recipes.push(step.recipe.clone());
        }
        match &step.outcome {
            StepOutcome::Running => {}
            StepOutcome::Failed { reason } => *column.faults.entry(reason.clone()).or_default() += 1,
            ended => column.steps.push(Turned {
                step: step.step,
                head: step.parent,
                batch: step.batch,
                score_mean: None,
                outcome: outcome(ended),
                metrics: step.metrics,
                same_as: None,
            }),
        }
    }
    let reasons = folder.store.retirement_reasons(&key.0, &key.1).await?;
    column.refused = reasons.into_iter().map(|(kind, times)| (kind, u64::try_from(times).unwrap_or(0))).collect();
    Ok(column)
}
