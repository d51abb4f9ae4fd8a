//! Model calls on named bindings. Each counts against the budget of the step and is recorded.

use alloc::string::String;
use alloc::vec::Vec;

use crate::host::{self, Host};
use crate::{Message, Result, Sampling};

/// The release that serves now.
pub const SERVED: &str = "served";
/// The candidate under evaluation.
pub const CANDIDATE: &str = "candidate";
/// The base model without an adapter.
pub const BASE: &str = "base";

/// The assistant's answer.
pub fn chat(binding: &str, messages: &[Message], how: Sampling) -> Result<String> {
    host::call(|host| Host::chat(host, binding, messages, how))
}

/// Number of held-out tasks of the scenario. They never meet the trainer.
pub fn held_out_count() -> Result<u32> {
    host::call(Host::held_out_count)
}

/// Scores in [0, 1] of greedy answers to the held-out tasks `first .. first + count`.
pub fn held_out_scores(binding: &str, first: u32, count: u32) -> Result<Vec<f64>> {
    host::call(|host| Host::held_out_scores(host, binding, first, count))
}
