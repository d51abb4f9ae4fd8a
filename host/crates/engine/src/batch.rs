//! The requests that hold a row, and what one step does to them.
//! The scheduler's thread owns the only one. Row i of the cache belongs to request i: a request that ends gives
//! its place to the last one. A step runs one token of every decoding request and some prompt tokens of the
//! others in one forward, samples, and sends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tch::Tensor;
use tokio::sync::mpsc::Sender;

use crate::engine::ServingLoad;
use crate::error::EngineError;
use crate::kv::KvCache;
use crate::model::Model;
use crate::plan::Segment;
use crate::sampler::{Distributions, Drawn, Sampler};
use crate::scheduler::{Event, Finish, FinishReason, Job, Token, Weights};
use crate::text::TextStream;
use crate::tokenizer::Tokenizer;

/// Prompt tokens of one step: decoding requests wait no longer than this takes.
const PREFILL_TOKENS_MAX: usize = 512;
/// Shortest common start of two prompts that is copied instead of computed.
const PREFIX_MIN: usize = 8;

/// A request with a row.
#[derive(Debug)]
struct Running {
    /// Prompt and sampled tokens.
    tokens: Vec<u32>,
    prompt: usize,
    /// Tokens whose keys and values are in the cache.
    cached: usize,
    tokens_max: usize,
    weights: Weights,
    sampler: Sampler,
    text: TextStream,
    events: Sender<Event>,
    parent: tracing::Span,
    /// Open during prefill, then during decode.
    phase: tracing::Span,
}

/// What happened to a request in a step.
enum Outcome {
    Goes,
    Ends(Event),
}

/// All requests with a row.
#[derive(Debug)]
pub(crate) struct Batch {
    model: Arc<Model>,
    tokenizer: Arc<Tokenizer>,
    load: Arc<ServingLoad>,
    cache: KvCache,
    running: Vec<Running>,
}

/// Tokens of one request in this step: row, and how many.
type Share = (usize, usize);

impl Running {
    fn new(job: Job) -> Self {
        let Job { request, events, parent, waiting } = job;
        drop(waiting);
        Self {
            prompt: request.prompt.len(),
            cached: 0,
            tokens_max: request.tokens_max as usize,
            sampler: Sampler::new(request.sampling, request.top_logprobs),
            text: TextStream::new(request.stop),
            weights: request.weights,
            events,
            phase: tracing::debug_span!(parent: &parent, "engine.prefill", tokens = request.prompt.len()),
            parent,
            tokens: request.prompt,
        }
    }

    /// Sends a sampled token; tells whether it was the last.
    fn take(&mut self, drawn: Drawn, tokenizer: &Tokenizer) -> Outcome {
        if self.tokens.len() == self.prompt {
            self.phase = tracing::debug_span!(parent: &self.parent, "engine.decode");
        }
        self.tokens.push(drawn.id);
        let ended = tokenizer.is_eos(drawn.id);
        let shown = self.text.push(if ended { &[] } else { tokenizer.bytes(drawn.id) });
        let token = Token { id: drawn.id, logprob: drawn.logprob, top: drawn.top, text: shown.text };
        if self.events.try_send(Event::Token(token)).is_err() {
            return self.end(FinishReason::Cancelled);
        }
        match shown.matched {
            Some(stop) => Outcome::Ends(Event::Done(Finish {
                reason: FinishReason::Stop { matched: Some(stop) },
                text: String::new(),
            })),
            None if ended => self.end(FinishReason::Stop { matched: None }),
            None if self.tokens.len() - self.prompt >= self.tokens_max => self.end(FinishReason::Length),
            None => Outcome::Goes,
        }
    }

    fn end(&mut self, reason: FinishReason) -> Outcome {
        Outcome::Ends(Event::Done(Finish { reason, text: self.text.finish() }))
    }

    /// Does the cache hold all but the last token?
    fn decodes(&self) -> bool {
        self.cached + 1 == self.tokens.len()
    }

    /// Tokens that this prompt shares with the start of another request, without its own last one.
    fn shared_with(&self, other: &Self) -> usize {
        let own = self.tokens.get(..self.prompt.saturating_sub(1)).unwrap_or_default();
        if self.weights.same(&other.weights) {
            own.iter().zip(&other.tokens).take_while(|(a, b)| a == b).count()
        } else {
            0
        }
    }
}

impl Batch {
    pub fn new(model: Arc<Model>, tokenizer: Arc<Tokenizer>, load: Arc<ServingLoad>) -> Result<Self, EngineError> {
        let cache = KvCache::new(model.config())?;
        Ok(Self { model, tokenizer, load, cache, running: Vec::new() })
    }

    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    pub fn rows(&self) -> usize {
        self.running.len()
    }

    /// Gives a request a row.
    pub fn admit(&mut self, job: Job) {
        self.load.prompt_tokens.fetch_add(job.request.prompt.len() as u64, Ordering::Relaxed);
        self.running.push(Running::new(job));
        self.load.active.fetch_add(1, Ordering::Relaxed);
        self.load.queued.fetch_sub(1, Ordering::Relaxed);
    }

    /// One forward for all requests, or what is left of them after cancellations.
    pub fn step(&mut self) {
        for row in (0..self.running.len()).rev() {
            if self.running.get(row).is_some_and(|running| running.events.is_closed()) {
                self.remove(row, None);
            }
        }
        if self.running.is_empty() {
            return;
        }
        let computed = self.shares().and_then(|shares| Ok((self.forward(&shares)?, shares)));
        match computed {
            Ok((logits_sv, shares)) => self.advance(&logits_sv, &shares),
            Err(error) if self.running.len() == 1 => self.fail_all(&error.to_string()),
            Err(error) => {
                tracing::warn!(%error, "a step over several requests failed; each runs alone once");
                self.step_alone();
            }
        }
    }

    /// Ends every request with a failure and forgets the cache.
    pub fn fail_all(&mut self, message: &str) {
        while let Some(row) = self.running.len().checked_sub(1) {
            self.remove(row, Some(Event::Failed(message.to_owned())));
        }
    }

    /// Which tokens run in this step: the last one of decoding requests, then prompts in order.
    fn shares(&mut self) -> Result<Vec<Share>, EngineError> {
        let mut shares: Vec<Share> =
            self.running.iter().enumerate().filter(|(_, r)| r.decodes()).map(|(row, _)| (row, 1)).collect();
        let rows = self.running.len();
        self.cache.reserve(rows, self.running.iter().map(|r| r.tokens.len()).max().unwrap_or(0))?;
        let mut budget = PREFILL_TOKENS_MAX;
        for row in 0..rows {
            if self.running.get(row).is_none_or(Running::decodes) || !self.reuse_prefix(row)? {
                continue;
            }
            let left = self.running.get(row).map_or(0, |r| r.tokens.len() - r.cached);
            let count = left.min(budget);
            budget -= count;
            if count > 0 {
                shares.push((row, count));
            }
        }
        Ok(shares)
    }

    /// Copies the start that a request shares with another one. False: it pays to wait for the other's prefill.
    fn reuse_prefix(&mut self, row: usize) -> Result<bool, EngineError> {
        let Some(own) = self.running.get(row).filter(|own| own.cached == 0) else { return Ok(true) };
        let others = self.running.iter().enumerate().filter(|(other, _)| *other != row);
        let shared = others.map(|(other, running)| (own.shared_with(running), running.cached, other));
        let earlier = |(shared, cached, other): &(usize, usize, usize)| {
            *shared >= PREFIX_MIN && (*cached >= PREFIX_MIN || *other < row)
        };
        let Some((shared, cached, other)) = shared.filter(earlier).max_by_key(|(shared, cached, _)| (*shared, *cached))
        else {
            return Ok(true);
        };
        if cached < shared && other < row {
            return Ok(false);
        }
        let ready = shared.min(cached);
        self.cache.copy_row(other, row, ready)?;
        if let Some(own) = self.running.get_mut(row) {
            own.cached = ready;
        }
        Ok(true)
    }

    /// Runs the shares; logits `[shares, v]`.
    fn forward(&mut self, shares: &[Share]) -> Result<Tensor, EngineError> {
        let mut segments = Vec::with_capacity(shares.len());
        for (row, count) in shares {
            let running =
                self.running.get(*row).ok_or_else(|| EngineError::Invalid(format!("no request has row {row}")))?;
            let tokens = running.tokens.get(running.cached..running.cached + count).unwrap_or_default();
            segments.push(Segment { row: *row, start: running.cached, tokens, adapter: running.weights.adapter() });
        }
        let logits_sv = catch_unwind(AssertUnwindSafe(|| self.model.step(&segments, &mut self.cache)));
        self.load.steps.fetch_add(1, Ordering::Relaxed);
        logits_sv.unwrap_or_else(|_| Err(EngineError::Invalid("the model met an internal error".to_owned())))
    }

    /// Samples for every request whose tokens are now all cached, and removes those that end.
    fn advance(&mut self, logits_sv: &Tensor, shares: &[Share]) {
        let temperatures: Vec<f32> =
            shares.iter().map(|(row, _)| self.running.get(*row).map_or(0.0, |r| r.sampler.temperature())).collect();
        let distributions = match Distributions::new(logits_sv, &temperatures) {
            Ok(distributions) => distributions,
            Err(error) => return self.fail_all(&error.to_string()),
        };
        let mut ended = Vec::new();
        for (index, (row, count)) in shares.iter().enumerate() {
            let Some(running) = self.running.get_mut(*row) else { continue };
            running.cached += count;
            if running.cached < running.tokens.len() {
                continue;
            }
            let outcome = match running.sampler.draw(&distributions, index) {
                Ok(drawn) => running.take(drawn, &self.tokenizer),
                Err(error) => Outcome::Ends(Event::Failed(error.to_string())),
            };
            self.load.output_tokens.fetch_add(1, Ordering::Relaxed);
            if let Outcome::Ends(event) = outcome {
                ended.push((*row, event));
            }
        }
        // From the back: a removal moves only requests behind it.
        ended.sort_unstable_by_key(|(row, _)| std::cmp::Reverse(*row));
        for (row, event) in ended {
            self.remove(row, Some(event));
        }
    }

    /// After a failed step: each request alone, so that only the one at fault ends.
    fn step_alone(&mut self) {
        for row in (0..self.running.len()).rev() {
            let Some(running) = self.running.get(row) else { continue };
            let share = (row, (running.tokens.len() - running.cached).min(PREFILL_TOKENS_MAX));
            match self.forward(&[share]) {
                Ok(logits_sv) => self.advance(&logits_sv, &[share]),
                Err(error) => self.remove(row, Some(Event::Failed(error.to_string()))),
            }
        }
    }

    /// Frees a row: its request gets its last event, and the last request moves into its place.
    fn remove(&mut self, row: usize, event: Option<Event>) {
        if let Err(error) = self.vacate(row) {
            tracing::warn!(%error, "a row of the cache could not be freed; all requests compute theirs again");
            self.forget();
        }
        let ended = self.running.swap_remove(row);
        self.load.active.fetch_sub(1, Ordering::Relaxed);
        if let Some(event) = event {
            // Full never happens, closed means that nobody waits.
            let _ = ended.events.try_send(event);
        }
        if self.running.is_empty() {
            self.forget();
        }
    }

    /// Moves the last request's row to `row` and zeroes what this leaves. The masked positions of a row are read
    /// with weight 0, and 0 × NaN is NaN: what one request wrote must not stay for the next.
    fn vacate(&mut self, row: usize) -> Result<(), EngineError> {
        let last = self.running.len() - 1;
        if last == 0 {
            return Ok(());
        }
        let written = |row: usize| self.running.get(row).map_or((0, 0), |r| (r.cached, r.tokens.len()));
        let ((_, ended), (cached, moved)) = (written(row), written(last));
        self.cache.zero_row(row, ended)?;
        if row == last {
            return Ok(());
        }
        if cached > 0 {
            self.cache.copy_row(last, row, cached)?;
        }
        self.cache.zero_row(last, moved)
    }

    /// Empties the cache; requests that go on compute their keys again.
    fn forget(&mut self) {
        for running in &mut self.running {
            running.cached = 0;
        }
        if self.cache.clear().is_err() {
            tracing::warn!("the memory of the cache could not be given back");
        }
    }
}
