//! The requests that run, oldest first, and what one step does to them.
//! The scheduler's thread owns the only one. A step runs one token of every decoding request and some prompt tokens
//! of the others in one forward, samples, and sends. Where pages run out the youngest request gives its own up and
//! computes them again later: the oldest always gets on, and what each answers stays the same.

use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use reef_cpu::{Network, PAGE, Pages, Span, Workspace};

use crate::engine::ServingLoad;
use crate::error::EngineError;
use crate::prefix::{Owner, PrefixCache};
use crate::running::{Outcome, Running};
use crate::sampler::Weights;
use crate::scheduler::{Event, Job, Request};
use crate::tokenizer::Tokenizer;

/// Prompt tokens of a step in which nobody decodes.
const PREFILL_TOKENS_MAX: usize = 512;
/// Prompt tokens of a step beside decoding requests, for each of these: their next token waits about a step longer.
const PREFILL_TOKENS_EACH: usize = 2;
/// Bounds of these tokens: fewer cost more each, more would be waited for.
const PREFILL_TOKENS_BESIDE: RangeInclusive<usize> = 8..=32;

/// Tokens of one request in this step: its place among the running, and how many.
type Share = (usize, usize);

/// All requests that run.
#[derive(Debug)]
pub(crate) struct Batch {
    network: Arc<Network>,
    tokenizer: Arc<Tokenizer>,
    load: Arc<ServingLoad>,
    work: Workspace,
    pages: Pages,
    prefixes: PrefixCache,
    running: Vec<Running>,
    /// Memory of the sampler.
    weights: Weights,
    logits: Vec<f32>,
}

impl Batch {
    pub fn new(
        network: Arc<Network>,
        tokenizer: Arc<Tokenizer>,
        load: Arc<ServingLoad>,
        work: Workspace,
        pages: Pages,
    ) -> Self {
        let (prefixes, weights) = (PrefixCache::default(), Weights::default());
        Self { network, tokenizer, load, work, pages, prefixes, running: Vec::new(), weights, logits: Vec::new() }
    }

    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    pub fn count(&self) -> usize {
        self.running.len()
    }

    /// Are there pages for this prompt and its first token beside what the running requests still need for theirs?
    /// Pages of its beginning that another request holds anyway are not counted.
    pub fn has_room(&self, job: &Job) -> bool {
        let Request { prompt, weights, tenant, .. } = &job.request;
        let missing = |running: &Running| (running.tokens.len() + 1).div_ceil(PAGE).saturating_sub(running.pages.len());
        let promised: usize = self.running.iter().map(missing).sum();
        let wanted = (prompt.len() + 1).div_ceil(PAGE) + promised;
        let owner = Owner::new(tenant, weights.generation());
        self.running.is_empty()
            || wanted <= self.pages.free()
            || wanted <= self.pages.free() + self.prefixes.idle() + self.prefixes.held(owner, prompt)
    }

    /// Does a request of this tenant run?
    pub fn serves(&self, tenant: &str) -> bool {
        self.running.iter().any(|running| running.tenant == tenant)
    }

    /// Lets a request run.
    pub fn admit(&mut self, job: Job) {
        self.load.prompt_tokens.fetch_add(job.request.prompt.len() as u64, Ordering::Relaxed);
        self.running.push(Running::new(job, &mut self.prefixes));
        self.load.active.fetch_add(1, Ordering::Relaxed);
        self.load.queued.fetch_sub(1, Ordering::Relaxed);
    }

    /// One forward for all requests, or what is left of them after cancellations.
    pub fn step(&mut self) {
        for place in (0..self.running.len()).rev() {
            if self.running[place].events.is_closed() {
                self.remove(place, None);
            }
        }
        let mut shares = self.shares();
        if shares.is_empty() {
            return;
        }
        // Tokens of the same adapter stand together: their deltas are computed together.
        shares.sort_by_key(|(place, _)| self.running[*place].weights.generation());
        match self.forward(&shares) {
            Ok(()) => self.advance(&shares),
            Err(error) if shares.len() == 1 => self.remove(shares[0].0, Some(Event::Failed(error.to_string()))),
            Err(error) => {
                tracing::warn!(%error, "a step over several requests failed; each runs alone once");
                self.step_alone(&shares);
            }
        }
        self.load.pages_used.store(self.pages.max() - self.pages.free(), Ordering::Relaxed);
        self.load.pages_kept.store(self.prefixes.len(), Ordering::Relaxed);
    }

    /// Ends every request with a failure and forgets the cache.
    pub fn fail_all(&mut self, message: &str) {
        for place in (0..self.running.len()).rev() {
            self.remove(place, Some(Event::Failed(message.to_owned())));
        }
        self.prefixes.clear();
    }

    /// Which tokens run in this step: the last one of decoding requests, then prompts, oldest first.
    fn shares(&mut self) -> Vec<Share> {
        let mut shares = Vec::with_capacity(self.running.len());
        let mut place = 0;
        // Requests that give their pages up are the youngest, so what is listed already keeps its own.
        while place < self.running.len() {
            if self.running[place].decodes() && self.make_room(place, 1, true) {
                shares.push((place, 1));
            }
            place += 1;
        }
        let budget = match shares.len() * PREFILL_TOKENS_EACH {
            0 => PREFILL_TOKENS_MAX,
            beside => beside.clamp(*PREFILL_TOKENS_BESIDE.start(), *PREFILL_TOKENS_BESIDE.end()),
        };
        self.share_prompts(&mut shares, budget);
        shares
    }

    /// Adds prompt tokens to the shares: the budget is parted among the tenants, what one does not need goes to the
    /// others, and of one tenant the oldest request comes first.
    fn share_prompts(&mut self, shares: &mut Vec<Share>, mut budget: usize) {
        let mut lines: Vec<(String, Vec<usize>)> = Vec::new();
        for (place, running) in self.running.iter().enumerate().filter(|(_, running)| !running.decodes()) {
            match lines.iter_mut().find(|(tenant, _)| *tenant == running.tenant) {
                Some((_, line)) => line.push(place),
                None => lines.push((running.tenant.clone(), vec![place])),
            }
        }
        // Whoever needs least is served first, so that what it leaves is parted among those that need more.
        let needed = |line: &[usize]| -> usize { line.iter().map(|place| self.running[*place].left()).sum() };
        lines.sort_by_key(|(_, line)| needed(line));
        let mut tenants = lines.len();
        for (_, line) in lines {
            let mut part = budget.div_ceil(tenants);
            tenants -= 1;
            for place in line {
                let given = self.share_prompt(place, part, shares);
                part -= given;
                budget -= given;
            }
        }
    }

    /// At most `most` tokens of one prompt; how many there are room for.
    fn share_prompt(&mut self, place: usize, most: usize, shares: &mut Vec<Share>) -> usize {
        if most == 0 {
            return 0;
        }
        self.running[place].reuse(&mut self.prefixes);
        if self.waits_for_another(place) {
            return 0;
        }
        // The first may take pages of younger ones, so that somebody always gets on; others take what is free, so that
        // an old prompt collects its pages before a young one that needs fewer.
        let may_preempt = shares.is_empty();
        let count = self.running[place].left().min(most);
        let count = if may_preempt { count } else { count.min(self.room(place)) };
        if count > 0 && self.make_room(place, count, may_preempt) {
            shares.push((place, count));
            return count;
        }
        0
    }

    /// Does an older request compute a page that this one can have soon?
    fn waits_for_another(&self, place: usize) -> bool {
        let own = &self.running[place];
        let useful = |other: &Running| {
            let shared = own.shared_with(other).min(own.prompt - 1);
            shared / PAGE > own.cached / PAGE && other.cached < shared && !other.decodes()
        };
        self.running[..place].iter().any(useful)
    }

    /// Tokens that a request can add without pages of another one.
    fn room(&self, place: usize) -> usize {
        let running = &self.running[place];
        let own = running.pages.len() * PAGE - running.cached;
        own + (self.pages.free() + self.prefixes.idle()) * PAGE
    }

    /// Takes pages for `count` more tokens of a request; where there are none, from the prefix cache and, if it
    /// `may_preempt`, from requests younger than it.
    fn make_room(&mut self, place: usize, count: usize, may_preempt: bool) -> bool {
        let running = &self.running[place];
        let wanted = (running.cached + count).div_ceil(PAGE).saturating_sub(running.pages.len());
        while self.pages.free() < wanted {
            self.prefixes.evict(wanted - self.pages.free());
            if self.pages.free() >= wanted {
                break;
            }
            let younger = (place + 1..self.running.len()).rev().find(|other| !self.running[*other].pages.is_empty());
            match younger.filter(|_| may_preempt) {
                Some(other) => self.running[other].release(&mut self.prefixes),
                None => return false,
            }
        }
        let pages = std::iter::from_fn(|| self.pages.take()).take(wanted);
        self.running[place].pages.extend(pages);
        true
    }

    /// Runs the shares; their logits are in `self.logits`, for those whose tokens are then all cached.
    fn forward(&mut self, shares: &[Share]) -> Result<(), EngineError> {
        let mut order: Vec<(usize, &mut Running)> = self.running.iter_mut().enumerate().collect();
        order.retain(|(place, _)| shares.iter().any(|(shared, _)| shared == place));
        order.sort_by_key(|(place, _)| shares.iter().position(|(shared, _)| shared == place));
        let spans = order.iter_mut().zip(shares).map(|((_, running), (_, count))| {
            let Running { tokens, cached, pages, weights, .. } = &mut **running;
            Span {
                tokens: &tokens[*cached..*cached + count],
                start: *cached,
                pages,
                adapter: weights.adapter().map(|adapter| adapter.served()),
                logits: *cached + count == tokens.len(),
            }
        });
        let mut spans: Vec<Span<'_>> = spans.collect();
        let (network, work, logits) = (&self.network, &mut self.work, &mut self.logits);
        let computed = catch_unwind(AssertUnwindSafe(|| network.step(work, &mut spans, logits)));
        self.load.steps.fetch_add(1, Ordering::Relaxed);
        match computed {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(EngineError::Invalid(error.to_string())),
            Err(_) => Err(EngineError::Invalid("the model met an internal error".to_owned())),
        }
    }

    /// Samples for every request whose tokens are now all cached, and removes those that end.
    fn advance(&mut self, shares: &[Share]) {
        let mut logits = std::mem::take(&mut self.logits);
        let mut rows = logits.chunks_exact_mut(self.network.vocabulary());
        let mut ended = Vec::new();
        for (place, count) in shares {
            let running = &mut self.running[*place];
            running.keep(*count, &mut self.prefixes);
            if running.left() > 0 {
                continue;
            }
            let Some(logits) = rows.next() else { continue };
            let outcome = match running.sampler.draw(logits, &mut self.weights) {
                Ok(drawn) => running.take(drawn, &self.tokenizer),
                Err(error) => Outcome::Ends(Event::Failed(error.to_string())),
            };
            self.load.output_tokens.fetch_add(1, Ordering::Relaxed);
            if let Outcome::Ends(event) = outcome {
                ended.push((*place, event));
            }
        }
        self.logits = logits;
        // From the back: a removal moves only requests behind it.
        ended.sort_unstable_by_key(|(place, _)| std::cmp::Reverse(*place));
        for (place, event) in ended {
            self.remove(place, Some(event));
        }
    }

    /// After a failed step: each request alone, so that only the one at fault ends.
    fn step_alone(&mut self, shares: &[Share]) {
        let mut shares = shares.to_vec();
        shares.sort_unstable_by_key(|(place, _)| std::cmp::Reverse(*place));
        for share in shares {
            match self.forward(&[share]) {
                Ok(()) => self.advance(&[share]),
                Err(error) => self.remove(share.0, Some(Event::Failed(error.to_string()))),
            }
        }
    }

    /// Ends a request: it gets its last event and its pages are free, or stay in the prefix cache.
    fn remove(&mut self, place: usize, event: Option<Event>) {
        let mut ended = self.running.remove(place);
        ended.release(&mut self.prefixes);
        self.load.active.fetch_sub(1, Ordering::Relaxed);
        if let Some(event) = event {
            // Full never happens, closed means that nobody waits.
            let _ = ended.events.try_send(event);
        }
    }
}
