//! A request that runs: its tokens, its pages, its text.
//! The batch moves it from step to step; `take` sends what a drawn token made visible and says whether it was the
//! last one. A request that gives its pages up computes them again and goes on as if nothing had happened.

use std::sync::Arc;

use reef_cpu::{PAGE, Page};
use tokio::sync::mpsc::Sender;

use crate::prefix::{Owner, Path, PrefixCache};
use crate::sampler::{Drawn, Sampler};
use crate::scheduler::{Event, Finish, FinishReason, Job, Token, Weights};
use crate::text::TextStream;
use crate::tokenizer::Tokenizer;

/// See the module.
#[derive(Debug)]
pub(crate) struct Running {
    /// Who asks.
    pub tenant: String,
    /// Prompt and sampled tokens.
    pub tokens: Vec<u32>,
    pub prompt: usize,
    /// Tokens whose keys and values are in the pages.
    pub cached: usize,
    pub pages: Vec<Arc<Page>>,
    /// Pages that are in the prefix cache, and where that is.
    kept: usize,
    path: Path,
    /// Tokens that were in the pages at some time, computed or found.
    reached: usize,
    /// Tokens of the prompt that others had computed.
    reused: usize,
    tokens_max: usize,
    pub weights: Weights,
    pub sampler: Sampler,
    text: TextStream,
    pub events: Sender<Event>,
    parent: tracing::Span,
    /// Open during prefill, then during decode.
    phase: tracing::Span,
}

/// What happened to a request in a step.
#[derive(Debug)]
pub(crate) enum Outcome {
    Goes,
    Ends(Event),
}

impl Running {
    pub fn new(job: Job, prefixes: &mut PrefixCache) -> Self {
        let Job { request, events, parent, waiting } = job;
        drop(waiting);
        Self {
            prompt: request.prompt.len(),
            cached: 0,
            pages: Vec::new(),
            kept: 0,
            path: prefixes.path(Owner::new(&request.tenant, request.weights.generation())),
            reached: 0,
            reused: 0,
            tokens_max: request.tokens_max as usize,
            sampler: Sampler::new(request.sampling, request.top_logprobs, request.adjustments, request.guide),
            text: TextStream::new(request.stop),
            weights: request.weights,
            events,
            phase: tracing::debug_span!(parent: &parent, "engine.prefill", tokens = request.prompt.len()),
            parent,
            tokens: request.prompt,
            tenant: request.tenant,
        }
    }

    /// Do the pages hold all but the last token?
    pub fn decodes(&self) -> bool {
        self.cached + 1 == self.tokens.len()
    }

    /// Tokens that no page holds yet.
    pub fn left(&self) -> usize {
        self.tokens.len() - self.cached
    }

    /// Takes pages that others computed, as far as they go; the last token is always computed, for its logits.
    pub fn reuse(&mut self, prefixes: &mut PrefixCache) {
        if !self.cached.is_multiple_of(PAGE) || self.cached != self.kept * PAGE {
            return;
        }
        let (whole, _) = self.tokens[..self.tokens.len() - 1].as_chunks::<PAGE>();
        for tokens in &whole[self.kept.min(whole.len())..] {
            let Some(page) = prefixes.get(&mut self.path, tokens) else { break };
            self.pages.truncate(self.kept);
            self.pages.push(page);
            self.kept += 1;
            self.cached += PAGE;
            if self.cached > self.reached && self.tokens.len() == self.prompt {
                self.reused += PAGE;
            }
            self.reached = self.reached.max(self.cached);
        }
    }

    /// Takes note of `count` tokens that were computed, and gives the pages that are full to others.
    pub fn keep(&mut self, count: usize, prefixes: &mut PrefixCache) {
        self.cached += count;
        self.reached = self.reached.max(self.cached);
        let (whole, _) = self.tokens[..self.cached].as_chunks::<PAGE>();
        for (tokens, page) in whole.iter().zip(&self.pages).skip(self.kept) {
            prefixes.put(&mut self.path, tokens, page);
            self.kept += 1;
        }
    }

    /// Gives all pages up; what others hold stays theirs. The beginning counts as used now, like the end.
    pub fn release(&mut self, prefixes: &mut PrefixCache) {
        self.path = prefixes.path(self.owner());
        let mut path = self.path;
        for tokens in self.tokens[..self.cached].as_chunks::<PAGE>().0 {
            if prefixes.get(&mut path, tokens).is_none() {
                break;
            }
        }
        self.pages.clear();
        (self.cached, self.kept) = (0, 0);
    }

    /// Whose pages these are.
    fn owner(&self) -> Owner {
        Owner::new(&self.tenant, self.weights.generation())
    }

    /// Tokens that this prompt shares with the start of another request whose pages it may have.
    pub fn shared_with(&self, other: &Self) -> usize {
        if self.weights.generation() != other.weights.generation() || self.tenant != other.tenant {
            return 0;
        }
        self.tokens.iter().zip(&other.tokens).take_while(|(own, others)| own == others).count()
    }

    /// Sends a sampled token; tells whether it was the last.
    pub fn take(&mut self, drawn: Drawn, tokenizer: &Tokenizer) -> Outcome {
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
            // Nothing of the text is left behind a stop string.
            Some(stop) => Outcome::Ends(Event::Done(Finish {
                text: String::new(),
                reason: FinishReason::Stop { matched: Some(stop) },
                reused: self.reused,
            })),
            None if ended => self.end(FinishReason::Stop { matched: None }),
            None if self.tokens.len() - self.prompt >= self.tokens_max => self.end(FinishReason::Length),
            None => Outcome::Goes,
        }
    }

    fn end(&mut self, reason: FinishReason) -> Outcome {
        Outcome::Ends(Event::Done(Finish { reason, text: self.text.finish(), reused: self.reused }))
    }
}
