//! The thread that serves: it admits requests, runs one forward for all of them, and sends their tokens.
//! Handles submit jobs through a bounded queue (`queue.rs`); each job has its own channel, wide enough for its whole
//! answer, so that a slow reader delays nobody. A request that fails, panics or is cancelled leaves alone. Weights are
//! those a request came with, to its end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use reef_core::Sampling;
use reef_cpu::{Network, PAGE, Workspace};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::adapter::{Adapter, BASE_GENERATION};
use crate::batch::Batch;
use crate::engine::{EngineConfig, ModelInfo, ServingLoad};
use crate::error::EngineError;
use crate::guide::Guide;
use crate::queue::{Fit, Queue};
use crate::sampler::{Adjustments, TOP_MAX};
use crate::tokenizer::Tokenizer;

/// Stop strings of a request, and bytes of one.
const STOPS_MAX: usize = 16;
const STOP_BYTES_MAX: usize = 1024;
/// Highest temperature; above it the distribution is flat for every purpose.
const TEMPERATURE_MAX: f32 = 100.0;

/// Which weights answer.
#[derive(Debug, Clone)]
pub enum Weights {
    /// The base model.
    Base,
    /// The base model with an adapter.
    Adapter(Arc<Adapter>),
}

impl Weights {
    /// The adapter, if there is one.
    pub(crate) fn adapter(&self) -> Option<&Arc<Adapter>> {
        match self {
            Self::Base => None,
            Self::Adapter(adapter) => Some(adapter),
        }
    }

    /// The number under which the cache keeps what these weights computed.
    pub(crate) fn generation(&self) -> u64 {
        self.adapter().map_or(BASE_GENERATION, |adapter| adapter.generation())
    }
}

/// One answer that is wanted.
#[derive(Debug)]
pub struct Request {
    /// Who asks; waiting requests of different tenants take turns.
    pub tenant: String,
    /// Rendered prompt; at least one token.
    pub prompt: Vec<u32>,
    /// Weights, kept to the end of the request.
    pub weights: Weights,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Tokens of the answer; the context may end it earlier.
    pub tokens_max: u32,
    /// Strings that end the answer and do not appear in it; at most 16 of 1,024 bytes.
    pub stop: Vec<String>,
    /// Alternatives per token, 0 to 20.
    pub top_logprobs: u32,
    /// Biases and penalties.
    pub adjustments: Adjustments,
    /// What the answer must match; see `Engine::guide`.
    pub guide: Option<Guide>,
}

impl Request {
    /// A request without a stop string, alternatives or adjustments.
    pub fn new(tenant: &str, prompt: Vec<u32>, weights: Weights, sampling: Sampling, tokens_max: u32) -> Self {
        Self {
            tenant: tenant.to_owned(),
            prompt,
            weights,
            sampling,
            tokens_max,
            stop: Vec::new(),
            top_logprobs: 0,
            adjustments: Adjustments::default(),
            guide: None,
        }
    }
}

/// What a request's channel carries: tokens, then one `Done` or `Failed`.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A sampled token.
    Token(Token),
    /// The end.
    Done(Finish),
    /// The request failed; a sentence.
    Failed(String),
}

/// A sampled token.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    /// Id.
    pub id: u32,
    /// Natural-log probability at the sampling temperature, over the whole vocabulary.
    pub logprob: f32,
    /// Most probable tokens with their log-probs, best first.
    pub top: Vec<(u32, f32)>,
    /// Text that became certain with this token; the end token has none. All texts and that of `Finish`,
    /// concatenated, are the answer.
    pub text: String,
}

/// How an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finish {
    /// Why.
    pub reason: FinishReason,
    /// Text that was held back until now.
    pub text: String,
    /// Tokens of the prompt that were not computed, because another request had computed them.
    pub reused: usize,
}

/// Why an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended it, or a stop string did.
    Stop {
        /// That string.
        matched: Option<String>,
    },
    /// `tokens_max` or the context.
    Length,
    /// The receiver was dropped.
    Cancelled,
}

/// A request on its way to the thread.
#[derive(Debug)]
pub(crate) struct Job {
    pub request: Request,
    pub events: Sender<Event>,
    /// The caller's span, under which the phases are logged.
    pub parent: tracing::Span,
    /// Open while the job waits.
    pub waiting: tracing::Span,
}

impl Job {
    /// Checks `request` against the model.
    pub fn new(mut request: Request, info: &ModelInfo) -> Result<(Self, Receiver<Event>), EngineError> {
        check(&request, info)?;
        let room = info.context_length - request.prompt.len();
        request.tokens_max = request.tokens_max.min(u32::try_from(room).unwrap_or(u32::MAX));
        // Every token and the end fit: sending never waits.
        let (events, receiver) = channel(request.tokens_max as usize + 1);
        let parent = tracing::Span::current();
        let waiting = tracing::debug_span!(parent: &parent, "engine.queue");
        Ok((Self { request, events, parent, waiting }, receiver))
    }
}

/// Is `prompt` one that the model can continue?
pub(crate) fn check_prompt(prompt: &[u32], info: &ModelInfo) -> Result<(), EngineError> {
    let invalid = |message: String| Err(EngineError::Invalid(message));
    if prompt.len() >= info.context_length {
        return Err(EngineError::ContextExceeded { prompt: prompt.len(), max: info.context_length });
    }
    if prompt.is_empty() {
        return invalid("the prompt is empty".to_owned());
    }
    if let Some(id) = prompt.iter().find(|id| **id as usize >= info.vocabulary) {
        return invalid(format!("prompt token {id} is outside the vocabulary of {}", info.vocabulary));
    }
    Ok(())
}

fn check(request: &Request, info: &ModelInfo) -> Result<(), EngineError> {
    check_prompt(&request.prompt, info)?;
    let invalid = |message: String| Err(EngineError::Invalid(message));
    let Sampling { temperature, top_p, .. } = request.sampling;
    if !(0.0..=TEMPERATURE_MAX).contains(&temperature) {
        return invalid(format!("temperature {temperature} must be in 0..={TEMPERATURE_MAX}"));
    }
    if !(top_p > 0.0 && top_p <= 1.0) {
        return invalid(format!("top_p {top_p} must be above 0 and at most 1"));
    }
    if request.tokens_max == 0 || request.top_logprobs > TOP_MAX {
        return invalid(format!("at least 1 token and at most {TOP_MAX} alternatives can be asked for"));
    }
    let Adjustments { frequency_penalty, presence_penalty, logit_bias } = &request.adjustments;
    if [frequency_penalty, presence_penalty].iter().any(|penalty| !penalty.is_finite())
        || logit_bias.iter().any(|(id, bias)| !bias.is_finite() || *id as usize >= info.vocabulary)
    {
        return invalid("penalties and biases must be finite, and biased tokens in the vocabulary".to_owned());
    }
    if request.stop.len() > STOPS_MAX || request.stop.iter().any(|stop| stop.len() > STOP_BYTES_MAX) {
        return invalid(format!("stop: at most {STOPS_MAX} strings of {STOP_BYTES_MAX} bytes"));
    }
    Ok(())
}

/// Queues a job, or says that the queue is full.
pub(crate) fn submit(queue: &Queue, job: Job, load: &ServingLoad) -> Result<(), EngineError> {
    load.queued.fetch_add(1, Ordering::Relaxed);
    let pushed = queue.push(job);
    load.queued.fetch_sub(*pushed.as_ref().unwrap_or(&1), Ordering::Relaxed);
    pushed.map(drop)
}

/// Starts the thread. It ends when the queue is closed and the running and waiting requests are done.
pub(crate) fn start(
    config: &EngineConfig,
    network: &Arc<Network>,
    tokenizer: &Arc<Tokenizer>,
    load: &Arc<ServingLoad>,
) -> Result<Arc<Queue>, EngineError> {
    let failed = |source| EngineError::Io { path: config.model.clone(), source };
    let queue = Arc::new(Queue::new(config.queue_max));
    let work = Workspace::new(config.threads).map_err(failed)?;
    let one_context = network.config().context.div_ceil(PAGE);
    let page_bytes = network.pages(0).page_bytes().max(1);
    let pages = network.pages((config.cache_bytes_max / page_bytes).max(one_context));
    load.pages_max.store(pages.max(), Ordering::Relaxed);
    let batch = Batch::new(Arc::clone(network), Arc::clone(tokenizer), Arc::clone(load), work, pages);
    let rows = Rows { all: config.batch_max, kept: usize::from(config.tenants > 1 && config.batch_max > 1) };
    let (jobs, load) = (Arc::clone(&queue), Arc::clone(load));
    let thread = std::thread::Builder::new().name("reef-engine".to_owned());
    thread.spawn(move || serve(batch, &jobs, &load, rows)).map_err(failed)?;
    Ok(queue)
}

/// Requests that run together, and how many of their rows are kept for tenants that have none.
#[derive(Debug, Clone, Copy)]
struct Rows {
    all: usize,
    kept: usize,
}

impl Rows {
    /// May this job have one of the free rows?
    fn fit(self, batch: &Batch, job: &Job) -> Fit {
        let free = self.all.saturating_sub(batch.count());
        if free <= self.kept && batch.serves(&job.request.tenant) {
            return Fit::NotThisTenant;
        }
        if batch.has_room(job) { Fit::Fits } else { Fit::NotYet }
    }
}

fn serve(mut batch: Batch, queue: &Queue, load: &ServingLoad, rows: Rows) {
    loop {
        if batch.is_empty() && !queue.wait() {
            return;
        }
        // Only what can run leaves the queue: its bound stays the bound of waiting requests.
        while batch.count() < rows.all {
            let (job, dropped) = queue.take(|job| rows.fit(&batch, job));
            load.queued.fetch_sub(dropped, Ordering::Relaxed);
            let Some(job) = job else { break };
            batch.admit(job);
        }
        // State after a panic is rebuilt from scratch, so nothing half-done is seen again.
        if catch_unwind(AssertUnwindSafe(|| batch.step())).is_err() {
            batch.fail_all("the engine met an internal error; the request was ended");
        }
    }
}
