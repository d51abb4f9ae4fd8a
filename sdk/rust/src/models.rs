//! Model calls on named bindings. Each counts against the budget of the step and is recorded.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

pub use crate::bindings::reef::recipe::models::Finish;
use crate::host::{self, Host};
use crate::{ChatRequest, Completion, Failure, Message, Result, Sampling, Usage};

/// The release that serves now.
pub const SERVED: &str = "served";
/// The candidate under evaluation.
pub const CANDIDATE: &str = "candidate";
/// The base model without an adapter.
pub const BASE: &str = "base";

/// Bindings of this call.
pub fn bindings() -> Result<Vec<String>> {
    host::call(Host::bindings)
}

/// Answers to each request, request by request, each drawn `how.n` times. The host runs them together, so that
/// one call with many requests is the fast way; at most 64.
pub fn chat(binding: &str, requests: &[ChatRequest]) -> Result<Vec<Vec<Completion>>> {
    host::call(|host| Host::chat(host, binding, requests))
}

/// One answer to one conversation, whatever `how.n` says.
pub fn ask(binding: &str, messages: &[Message], how: Sampling) -> Result<Completion> {
    let request = ChatRequest { messages: messages.to_vec(), how: how.draws(1) };
    let answer = chat(binding, &[request])?.into_iter().flatten().next();
    answer.ok_or_else(|| Failure::capability("models: the host gave no answer"))
}

/// Log-prob of each token of `answer` after the conversation.
pub fn score(binding: &str, messages: &[Message], answer: &str) -> Result<Vec<f32>> {
    host::call(|host| Host::score(host, binding, messages, answer))
}

/// What the step has used so far.
pub fn spent() -> Result<Usage> {
    host::call(Host::spent)
}

/// Number of held-out tasks of the scenario. They never meet the trainer.
pub fn held_out_count() -> Result<u32> {
    host::call(Host::held_out_count)
}

/// Scores in [0, 1] of greedy answers to the held-out tasks `first .. first + count`.
pub fn held_out_scores(binding: &str, first: u32, count: u32) -> Result<Vec<f64>> {
    host::call(|host| Host::held_out_scores(host, binding, first, count))
}

impl Message {
    /// What the operator says.
    pub fn system(content: impl Into<String>) -> Self {
        Self { role: "system".to_string(), content: content.into() }
    }

    /// What the person says.
    pub fn user(content: impl Into<String>) -> Self {
        Self { role: "user".to_string(), content: content.into() }
    }

    /// What the model says.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self { role: "assistant".to_string(), content: content.into() }
    }
}

impl Sampling {
    /// The likeliest answer, of at most `tokens_max` tokens.
    pub fn greedy(tokens_max: u32) -> Self {
        Self::at(0.0, tokens_max)
    }

    /// One answer at a temperature in [0, 10], from the whole distribution, with a seed from the step's.
    pub fn at(temperature: f32, tokens_max: u32) -> Self {
        Self { temperature, top_p: 1.0, tokens_max, stop: Vec::new(), n: 1, seed: None }
    }

    /// Draws this many answers, 1 to 64.
    #[must_use]
    pub fn draws(mut self, n: u32) -> Self {
        self.n = n;
        self
    }

    /// Ends an answer at this text.
    #[must_use]
    pub fn stop_at(mut self, text: impl Into<String>) -> Self {
        self.stop.push(text.into());
        self
    }

    /// Seeds the first answer; the next ones count up.
    #[must_use]
    pub fn seeded(mut self, seed: u32) -> Self {
        self.seed = Some(seed);
        self
    }
}
