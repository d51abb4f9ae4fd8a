//! The trainer's own thread, and the `training` capability that recipes reach it through.
//! A step opens trainers by handle; calls travel to the thread over a bounded queue and block the caller,
//! which is never the serving runtime. Handles die with the step.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::time::Duration;

use reef_core::{Alternatives, ReleaseId, Sample};
use reef_engine::train::{Beside, TrainControl, Trainer, Workers};
use reef_engine::{Engine, EngineError, LoraConfig};
use reef_sandbox::{Cancel, Optimizer, Policy, PoolSample, Term, Training, TrainingError};

use super::held_out::HeldOut;
use super::invariants::Invariants;
use super::named_policies::NamedPolicies;
use super::training_terms::{self, Names};

/// Files of a release or a checkpoint.
pub type Files = Vec<(String, Vec<u8>)>;

type Job = Box<dyn FnOnce(&mut Desk) + Send>;

/// What the thread owns.
struct Desk {
    trainers: BTreeMap<u32, Trainer>,
    /// Who trains with it.
    workers: Option<Workers>,
}

/// Calls waiting for the thread; one step runs at a time, so more than a few are a bug.
const QUEUE_MAX: usize = 4;
/// Trainers one step may open.
const TRAINERS_MAX: u32 = 4;
/// Checkpoints one step may take.
const CHECKPOINTS_MAX: usize = 4;

/// Handle of the thread.
#[derive(Debug, Clone)]
pub struct TrainerThread {
    jobs: mpsc::SyncSender<Job>,
    end: Arc<End>,
}

/// How the thread ends before its last handle is gone.
#[derive(Debug, Default)]
struct End {
    state: Mutex<EndState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct EndState {
    asked: bool,
    ended: bool,
    /// Of the trainers of the running step.
    trainers: Vec<TrainControl>,
}

impl End {
    fn state(&self) -> std::sync::MutexGuard<'_, EndState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self, control: TrainControl, first: bool) {
        let mut state = self.state();
        if state.asked {
            control.cancel();
        }
        if first {
            state.trainers.clear();
        }
        state.trainers.push(control);
    }
}

/// Tells that the thread has ended, however it does.
struct Ended(Arc<End>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.state().ended = true;
        self.0.changed.notify_all();
    }
}

impl TrainerThread {
    /// Starts the thread; `workers` train with it.
    pub fn start(workers: Option<Workers>) -> std::io::Result<Self> {
        let (jobs, queue) = mpsc::sync_channel::<Job>(QUEUE_MAX);
        let end = Arc::new(End::default());
        let ended = Ended(Arc::clone(&end));
        std::thread::Builder::new().name("reef-trainer".to_owned()).spawn(move || {
            let ended = ended;
            let mut desk = Desk { trainers: BTreeMap::new(), workers };
            while let Ok(job) = queue.recv()
                && !ended.0.state().asked
            {
                // A panic in one job must not end training for every scenario.
                if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job(&mut desk))).is_err() {
                    tracing::error!("trainer.panic");
                    desk.trainers.clear();
                }
            }
        })?;
        Ok(Self { jobs, end })
    }

    /// Aborts what the thread does and ends it; false when it still computed after so long. Whoever waits for the
    /// thread hears that it stopped.
    pub fn stop(&self, wait_max: Duration) -> bool {
        {
            let mut state = self.end.state();
            state.asked = true;
            state.trainers.iter().for_each(TrainControl::cancel);
        }
        // Wakes a thread that waits; one whose queue is full looks up by itself.
        let _ = self.jobs.try_send(Box::new(|_| {}));
        let waited = self.end.changed.wait_timeout_while(self.end.state(), wait_max, |state| !state.ended);
        waited.unwrap_or_else(PoisonError::into_inner).0.ended
    }

    fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Desk) -> Result<T, TrainingError> + Send + 'static,
    ) -> Result<T, TrainingError> {
        let stopped = || TrainingError::Other("the trainer thread stopped".to_owned());
        let (reply, answer) = mpsc::sync_channel(1);
        let job: Job = Box::new(move |desk| drop(reply.send(work(desk))));
        self.jobs.send(job).map_err(|_| stopped())?;
        answer.recv().map_err(|_| stopped())?
    }
}

/// Aborts a step from outside: its guest and the trainers that the guest opened.
#[derive(Debug, Clone, Default)]
pub struct Abort {
    guest: Cancel,
    trainers: Arc<Mutex<Vec<TrainControl>>>,
}

impl Abort {
    /// Makes the running calls, and every later one, end as cancelled.
    pub fn cancel(&self) {
        self.guest.cancel();
        self.trainers.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(TrainControl::cancel);
    }

    /// The flag for the sandbox.
    pub fn guest(&self) -> Cancel {
        self.guest.clone()
    }

    fn watch(&self, control: TrainControl) {
        let mut trainers = self.trainers.lock().unwrap_or_else(PoisonError::into_inner);
        // Looked at under the lock: `cancel` sets the flag first, so a late trainer is caught by one of the two.
        if self.guest.is_cancelled() {
            control.cancel();
        }
        trainers.push(control);
    }
}

/// What a step starts from.
#[derive(Debug, Clone)]
pub struct Start {
    /// The engine whose base is trained on.
    pub engine: Engine,
    /// Shape of a fresh adapter.
    pub lora: LoraConfig,
    /// Files of the head release.
    pub files: Arc<Files>,
    /// Share of wall time while requests run.
    pub share: f64,
    /// Tasks whose prompts never meet the trainer.
    pub held_out: Arc<HeldOut>,
    /// Policies that recipes name.
    pub named: Arc<NamedPolicies>,
    /// The head release.
    pub release: ReleaseId,
}

/// The `training` capability of one step.
#[derive(Debug)]
pub struct StepTraining {
    thread: TrainerThread,
    start: Start,
    samples: Arc<Vec<PoolSample>>,
    /// Items after the samples.
    derived: Vec<Arc<Sample>>,
    abort: Abort,
    opened: u32,
    checkpoints: Arc<Mutex<Vec<Files>>>,
    invariants: Invariants,
}

impl StepTraining {
    /// `checkpoints` receives what the recipe freezes; candidate handle = index. `invariants` hears of every batch.
    pub fn new(
        thread: TrainerThread,
        start: Start,
        samples: Arc<Vec<PoolSample>>,
        abort: Abort,
        (checkpoints, invariants): (Arc<Mutex<Vec<Files>>>, Invariants),
    ) -> Self {
        Self { thread, start, samples, derived: Vec::new(), abort, opened: 0, checkpoints, invariants }
    }

    /// What terms refer to.
    fn names(&self) -> Names<'_> {
        Names { policies: &self.start.named, samples: &self.samples, derived: &self.derived }
    }

    fn on<T: Send + 'static>(
        &self,
        trainer: u32,
        items: &[u32],
        work: impl FnOnce(&mut Trainer, &[&Sample]) -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, TrainingError> {
        let (samples, derived) = (Arc::clone(&self.samples), self.derived.clone());
        let items = items.to_vec();
        self.thread.call(move |desk| {
            let trainer = desk
                .trainers
                .get_mut(&trainer)
                .ok_or_else(|| TrainingError::Other(format!("trainer {trainer} is gone")))?;
            let batch = items.iter().map(|item| training_terms::sample(&samples, &derived, *item));
            let batch = batch.collect::<Result<Vec<&Sample>, _>>()?;
            work(trainer, &batch).map_err(refusal)
        })
    }
}

fn refusal(error: EngineError) -> TrainingError {
    match error {
        EngineError::Cancelled => TrainingError::Cancelled,
        EngineError::Invalid(message) => TrainingError::Invalid(message),
        other => TrainingError::Other(other.to_string()),
    }
}

impl Training for StepTraining {
    fn open(&mut self) -> Result<u32, TrainingError> {
        if self.opened >= TRAINERS_MAX {
            return Err(TrainingError::Budget(format!("a step opens at most {TRAINERS_MAX} trainers")));
        }
        let (start, abort, handle) = (self.start.clone(), self.abort.clone(), self.opened);
        let end = Arc::clone(&self.thread.end);
        self.thread.call(move |desk| {
            if handle == 0 {
                desk.trainers.clear();
            }
            let control = TrainControl::default();
            control.set_share(start.share).map_err(refusal)?;
            abort.watch(control.clone());
            end.watch(control.clone(), handle == 0);
            let files = (!start.files.is_empty()).then_some(start.files.as_slice());
            let beside = Beside { release: Some(start.release), workers: desk.workers.as_mut(), control };
            let mut trainer = Trainer::open_beside(&start.engine, &start.lora, files, beside).map_err(refusal)?;
            for (_, files) in &start.named.releases {
                trainer.add_policy(files).map_err(refusal)?;
            }
            desk.trainers.insert(handle, trainer);
            Ok(())
        })?;
        self.opened += 1;
        Ok(handle)
    }

    fn derive(
        &mut self,
        item: u32,
        prompt: Option<Vec<u32>>,
        response: Option<Vec<u32>>,
    ) -> Result<u32, TrainingError> {
        let source = self.samples.get(item as usize);
        let source = source.ok_or_else(|| TrainingError::Other(format!("sample {item} is gone")))?;
        let made = derived(&source.sample, prompt, response);
        if self.start.held_out.is_answered_in(&made.trajectory) {
            return Err(TrainingError::Invalid("prompt: it is the prompt of a held-out task".to_owned()));
        }
        self.derived.push(Arc::new(made));
        u32::try_from(self.samples.len() + self.derived.len() - 1)
            .map_err(|_| TrainingError::Budget("a step has no room for more samples".to_owned()))
    }

    fn forward(&mut self, trainer: u32, which: Policy, items: &[u32]) -> Result<Vec<f32>, TrainingError> {
        let which = training_terms::policy(which, &self.names())?;
        self.on(trainer, items, move |trainer, batch| trainer.forward(which, batch))
    }

    fn train(
        &mut self,
        trainer: u32,
        items: &[u32],
        terms: Vec<Term>,
        optimizer: Optimizer,
    ) -> Result<BTreeMap<String, f64>, TrainingError> {
        let (terms, optimizer) = (training_terms::terms(terms, &self.names())?, training_terms::optimizer(optimizer));
        let told = self.on(trainer, items, move |trainer, batch| trainer.train(batch, &terms, &optimizer))?;
        self.invariants.observe(trainer, &told, true);
        Ok(told)
    }

    fn forward_backward(
        &mut self,
        trainer: u32,
        items: &[u32],
        terms: Vec<Term>,
    ) -> Result<BTreeMap<String, f64>, TrainingError> {
        let terms = training_terms::terms(terms, &self.names())?;
        let told = self.on(trainer, items, move |trainer, batch| trainer.forward_backward(batch, &terms))?;
        self.invariants.observe(trainer, &told, false);
        Ok(told)
    }

    fn backward(
        &mut self,
        trainer: u32,
        items: &[u32],
        gradients: Vec<f32>,
    ) -> Result<BTreeMap<String, f64>, TrainingError> {
        self.on(trainer, items, move |trainer, batch| trainer.backward(batch, &gradients))
    }

    fn optimizer_step(&mut self, trainer: u32, optimizer: Optimizer) -> Result<BTreeMap<String, f64>, TrainingError> {
        let optimizer = training_terms::optimizer(optimizer);
        let told = self.on(trainer, &[], move |trainer, _| trainer.optimizer_step(&optimizer))?;
        self.invariants.moved(trainer);
        Ok(told)
    }

    fn update_ema(&mut self, trainer: u32, rate: f64) -> Result<(), TrainingError> {
        self.on(trainer, &[], move |trainer, _| trainer.update_ema(rate))
    }

    fn values(&mut self, trainer: u32, items: &[u32]) -> Result<Vec<f32>, TrainingError> {
        self.on(trainer, items, |trainer, batch| trainer.values(batch))
    }

    fn fit_values(
        &mut self,
        trainer: u32,
        items: &[u32],
        returns: Vec<f32>,
        learning_rate: f64,
        updates: u32,
    ) -> Result<BTreeMap<String, f64>, TrainingError> {
        self.on(trainer, items, move |trainer, batch| trainer.fit_values(batch, &returns, learning_rate, updates))
    }

    fn checkpoint(&mut self, trainer: u32) -> Result<u32, TrainingError> {
        let taken = self.checkpoints.lock().unwrap_or_else(PoisonError::into_inner).len();
        if taken >= CHECKPOINTS_MAX {
            return Err(TrainingError::Budget(format!("a step takes at most {CHECKPOINTS_MAX} checkpoints")));
        }
        let files = self.on(trainer, &[], |trainer, _| trainer.checkpoint())?;
        let mut checkpoints = self.checkpoints.lock().unwrap_or_else(PoisonError::into_inner);
        checkpoints.push(files);
        Ok((checkpoints.len() - 1) as u32)
    }
}

impl Drop for StepTraining {
    fn drop(&mut self) {
        // The memory of the trainers goes back as soon as the step ends; a dead thread has none.
        let _ = self.thread.jobs.try_send(Box::new(|desk| desk.trainers.clear()));
    }
}

/// A sample with another prompt, another response or both; a new response is all action tokens without log-probs. It
/// is no record any more, so that nobody takes its log-probs for those of serving.
fn derived(source: &Sample, prompt: Option<Vec<u32>>, response: Option<Vec<u32>>) -> Sample {
    let mut sample = Sample { records: Vec::new(), ..source.clone() };
    let trajectory = &mut sample.trajectory;
    let (own_prompt, own_response) = trajectory.tokens.split_at(trajectory.prompt_length.min(trajectory.tokens.len()));
    let prompt = prompt.unwrap_or_else(|| own_prompt.to_vec());
    let tokens = response.as_deref().unwrap_or(own_response);
    let joined = [prompt.as_slice(), tokens].concat();
    if let Some(response) = response {
        trajectory.mask = vec![1; response.len()];
        trajectory.logprobs = vec![0.0; response.len()];
        trajectory.turns.clear();
        trajectory.alternatives = Alternatives::default();
    }
    trajectory.prompt_length = prompt.len();
    trajectory.tokens = joined;
    sample
}
