//! A host for native tests: samples in memory, scripted answers, and a record of what the recipe asked.
//! It checks handles and lengths as the real host does, so that a recipe that passes here is not refused
//! there. It does not compute: nothing is learned.

mod fake_host;
mod sample;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

pub use sample::FakeSample;

pub use crate::bindings::reef::recipe::log::Level;
use crate::host::Host;
use crate::{
    Candidate, Context, CriticOptimizer, Failure, Measurement, Objective, Optimizer, Policy, Pool, Proposal, Recipe,
    Result, Sample, Samples, Selection, Verdict,
};

/// The first sample has this handle: never 0, so that an index is not mistaken for a handle.
const FIRST_SAMPLE: Sample = 100;
/// Handle of the only trainer.
const TRAINER: u32 = 7;
/// Handle of the only candidate.
const CANDIDATE: u32 = 9;

/// What a recipe asked of training and models, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Call {
    /// `training.open`
    Open,
    /// `training.forward`
    Forward {
        /// Whose distribution.
        which: Policy,
        /// On which samples.
        items: Vec<Sample>,
    },
    /// `training.train`
    Train {
        /// On which samples.
        items: Vec<Sample>,
        /// The loss.
        objective: Objective,
        /// The step.
        optimizer: Optimizer,
    },
    /// `training.values`
    Values(Vec<Sample>),
    /// `training.fit-values`
    FitValues {
        /// On which samples.
        items: Vec<Sample>,
        /// Targets, concatenated.
        returns: Vec<f32>,
        /// How often and how fast.
        optimizer: CriticOptimizer,
    },
    /// `training.checkpoint`
    Checkpoint,
    /// `models.chat`: binding and last message.
    Chat(String, String),
    /// `models.held-out-scores`: binding, first and count.
    HeldOut(String, u32, u32),
}

/// The test double. Build it, hand it a recipe's call, and look at what was recorded.
#[derive(Debug, Clone, Default)]
pub struct FakeHost {
    /// What was asked, in order.
    pub calls: Vec<Call>,
    /// Gauges by name.
    pub metrics: BTreeMap<String, f64>,
    /// Log lines.
    pub logs: Vec<(Level, String)>,
    /// State after the last call that succeeded.
    pub state: BTreeMap<String, Vec<u8>>,
    samples: Vec<FakeSample>,
    config: BTreeMap<String, String>,
    train_measurements: Vec<Measurement>,
    fit_measurements: Vec<Measurement>,
    held_out: BTreeMap<String, Vec<f64>>,
    answers: BTreeMap<String, String>,
    step: u32,
}

impl FakeHost {
    /// A host whose configuration holds the defaults of the recipe's manifest.
    pub fn of<R: Recipe>() -> Self {
        let config = R::describe().config.into_iter().map(|key| (key.name, key.default_value)).collect();
        Self { config, step: 1, ..Self::default() }
    }

    /// Sets a configuration value, as JSON.
    #[must_use]
    pub fn config(mut self, key: &str, json: &str) -> Self {
        self.config.insert(key.to_owned(), json.to_owned());
        self
    }

    /// Adds a sample at the end of the pool.
    #[must_use]
    pub fn sample(mut self, sample: FakeSample) -> Self {
        self.samples.push(sample);
        self
    }

    /// What `train` measures.
    #[must_use]
    pub fn measures_training(mut self, name: &str, value: f64) -> Self {
        self.train_measurements.push(Measurement { name: name.to_owned(), value });
        self
    }

    /// What `fit-values` measures.
    #[must_use]
    pub fn measures_fit(mut self, name: &str, value: f64) -> Self {
        self.fit_measurements.push(Measurement { name: name.to_owned(), value });
        self
    }

    /// Scores of a binding on the held-out tasks; their number is the number of tasks.
    #[must_use]
    pub fn held_out(mut self, binding: &str, scores: &[f64]) -> Self {
        self.held_out.insert(binding.to_owned(), scores.to_vec());
        self
    }

    /// What `chat` answers on a binding.
    #[must_use]
    pub fn answers(mut self, binding: &str, answer: &str) -> Self {
        self.answers.insert(binding.to_owned(), answer.to_owned());
        self
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
            now_ms: 0.0,
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
        self.call(|| R::propose(&ctx, &batch))
    }

    /// Calls `evaluate` with a candidate.
    pub fn evaluate<R: Recipe>(&mut self) -> Result<Verdict> {
        let ctx = self.context();
        self.call(|| R::evaluate(&ctx, Candidate::from(CANDIDATE)))
    }

    /// Runs one call of a recipe on this host; what it wrote to the state is dropped if it fails.
    pub fn call<T>(&mut self, run: impl FnOnce() -> Result<T>) -> Result<T> {
        let state = self.state.clone();
        let shared = Rc::new(RefCell::new(std::mem::take(self)));
        let outcome = with_host(shared.clone(), run);
        *self = shared.take();
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
