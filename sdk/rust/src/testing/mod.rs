//! A host for native tests: samples in memory, scripted answers, and a record of what the recipe asked.
//! It checks handles and lengths as the real host does, so that a recipe that passes here is not refused
//! there. It does not compute: nothing is learned.

mod call;
mod fake_host;
mod sample;
mod scripts;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

pub use call::Call;
pub use sample::FakeSample;

use crate::experience::UnusableReport;
use crate::harness::Episode;
use crate::host::Host;
pub use crate::log::Level;
use crate::{
    Candidate, Context, Entry, Exchange, Failure, Judgement, Live, Measurement, Migration, Mutation, Outcome, Pool,
    Proposal, Recipe, Result, Sample, Samples, Selection, StateEntry, Usage, Verdict,
};

/// The first sample has this handle: never 0, so that an index is not mistaken for a handle.
const FIRST_SAMPLE: Sample = 100;
/// The first derived sample has this handle.
const FIRST_DERIVED: Sample = 1_000_000;
/// Handle of the only trainer.
const TRAINER: u32 = 7;
/// Handle of the only candidate.
const CANDIDATE: u32 = 9;

/// A line of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// How grave.
    pub level: Level,
    /// Where in the recipe.
    pub context: String,
    /// What.
    pub message: String,
}

/// [`crate::Verifier::check`] of an installed verifier.
type Grader = fn(&str, &str) -> Result<Outcome, String>;

/// How an episode on a tree with these entries ends: entries, task and seed.
type Player = fn(&[Entry], &str, u32) -> Episode;

/// The test double. Build it, hand it a recipe's call, and look at what was recorded.
#[derive(Debug, Clone, Default)]
pub struct FakeHost {
    /// What was asked, in order.
    pub calls: Vec<Call>,
    /// Gauges by name.
    pub metrics: BTreeMap<String, f64>,
    /// Log lines.
    pub logs: Vec<Line>,
    /// State after the last call that succeeded.
    pub state: BTreeMap<String, Vec<u8>>,
    samples: Vec<FakeSample>,
    derived: Vec<FakeSample>,
    unusable: Vec<UnusableReport>,
    config: BTreeMap<String, String>,
    train_measurements: Vec<Measurement>,
    fit_measurements: Vec<Measurement>,
    held_out: BTreeMap<String, Vec<f64>>,
    answers: BTreeMap<String, Vec<String>>,
    answers_given: BTreeMap<String, u32>,
    scores: BTreeMap<String, Vec<f32>>,
    spent: Option<Usage>,
    verifiers: BTreeMap<String, Grader>,
    entries: Vec<Entry>,
    episodes: BTreeMap<String, Episode>,
    tasks: Vec<String>,
    player: Option<Player>,
    no_harness: Option<String>,
    /// Changes that the last proposal wants.
    candidate: Vec<Mutation>,
    context_length: Option<usize>,
    step: u32,
    now_ms: f64,
    refused_chats: Vec<String>,
    report_fields_left: Option<u32>,
}

impl FakeHost {
    /// A host whose configuration holds the defaults of the recipe's manifest.
    pub fn of<R: Recipe>() -> Self {
        let config = R::describe().config.into_iter().map(|key| (key.name, key.default_value)).collect();
        Self { config, step: 1, ..Self::default() }
    }

    /// Every sample, oldest first.
    pub fn pool(&self) -> Pool {
        (FIRST_SAMPLE..).take(self.samples.len()).collect::<Vec<_>>().into()
    }

    /// The context of the step.
    pub fn context(&self) -> Context {
        Context {
            tenant: "test".to_owned(),
            scenario: "test".to_owned(),
            step: self.step,
            now_ms: self.now_ms,
            seed: 1,
            head: "0".repeat(40),
            max_staleness: 4,
        }
    }

    /// Calls `select` with every sample.
    pub fn select<R: Recipe>(&mut self) -> Result<Selection> {
        let (ctx, pool) = (self.context(), self.pool());
        self.call(|| R::select(&ctx, &pool))
    }

    /// Calls `propose` with every sample as the batch, and counts the step.
    pub fn propose<R: Recipe>(&mut self) -> Result<Proposal> {
        let batch: Samples = self.pool();
        let ctx = self.context();
        self.step += 1;
        let proposal = self.call(|| R::propose(&ctx, &batch))?;
        if let Proposal::Mutations(changes) = &proposal {
            self.candidate.clone_from(changes);
        }
        Ok(proposal)
    }

    /// Calls `evaluate` with a candidate.
    pub fn evaluate<R: Recipe>(&mut self) -> Result<Verdict> {
        let ctx = self.context();
        self.call(|| R::evaluate(&ctx, Candidate::from(CANDIDATE)))
    }

    /// Calls `ingest` with these exchanges.
    pub fn ingest<R: Live>(&mut self, exchanges: &[Exchange]) -> Result<Vec<Judgement>> {
        let ctx = self.context();
        self.call(|| R::ingest(&ctx, exchanges))
    }

    /// Calls `migrate` with the whole state, and keeps what it returns instead.
    pub fn migrate<R: Migration>(&mut self, from_version: &str) -> Result<()> {
        let entries = self.state.iter().map(|(key, value)| StateEntry::new(key, value)).collect();
        let migrated = R::migrate(from_version, entries)?;
        self.state = migrated.into_iter().map(|entry| (entry.key, entry.value)).collect();
        Ok(())
    }

    /// Runs one call of a recipe on this host; what it wrote to the state is dropped if it fails.
    pub fn call<T>(&mut self, run: impl FnOnce() -> Result<T>) -> Result<T> {
        let state = self.state.clone();
        let shared = Rc::new(RefCell::new(std::mem::take(self)));
        let outcome = with_host(shared.clone(), run);
        *self = shared.take();
        self.derived.clear();
        if outcome.is_err() {
            self.state = state;
        }
        outcome
    }
}

thread_local! {
    static INSTALLED: RefCell<Option<Rc<RefCell<dyn Host>>>> = const { RefCell::new(None) };
}

/// Runs `run` with `host` as the host of this thread.
pub fn with_host<T>(host: Rc<RefCell<dyn Host>>, run: impl FnOnce() -> T) -> T {
    let previous = INSTALLED.replace(Some(host));
    let outcome = run();
    INSTALLED.set(previous);
    outcome
}

/// Runs `ask` on the host of this thread.
pub(crate) fn installed<R>(ask: impl FnOnce(&mut (dyn Host + 'static)) -> Result<R>) -> Result<R> {
    match INSTALLED.with_borrow(Clone::clone) {
        Some(host) => ask(&mut *host.borrow_mut()),
        None => Err(Failure::other("no host: call the recipe through testing::FakeHost")),
    }
}
