//! Model calls of one decision, counted before they are made: a budget of ten stops at ten.

use reef_recipe::prelude::*;
use reef_recipe::{ChatRequest, models};

use crate::Stop;

/// Configuration key: model calls of one step.
pub const MODEL_CALLS_MAX: Key<u32> =
    Key::count("max_model_calls_per_step", 16, "model calls that one step may make").within(1.0, 960.0);
/// Configuration key: tokens of one answer.
pub const ANSWER_TOKENS_MAX: Key<u32> =
    Key::count("answer_tokens_max", 4_096, "tokens of one answer of a model").within(16.0, 8_192.0);

/// Conversations that the host answers in one call.
const REQUESTS_MAX: usize = 64;

/// What is left of the budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Calls {
    binding: String,
    tokens_max: u32,
    most: u32,
    used: u32,
}

impl Calls {
    /// A whole budget, for calls on `binding`.
    ///
    /// # Errors
    /// `invalid-config` of a key.
    pub fn on(binding: String) -> Result<Self> {
        Ok(Self { binding, tokens_max: ANSWER_TOKENS_MAX.get()?, most: MODEL_CALLS_MAX.get()?, used: 0 })
    }

    /// Makes calls on another binding within the same budget.
    pub fn lend<T>(&mut self, binding: &str, run: impl FnOnce(&mut Self) -> T) -> T {
        let own = core::mem::replace(&mut self.binding, binding.to_owned());
        let outcome = run(self);
        self.binding = own;
        outcome
    }

    /// Calls made so far.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Calls that may still be made.
    pub fn left(&self) -> u32 {
        self.most - self.used
    }

    /// One answer to an instruction and its material.
    ///
    /// # Errors
    /// A reason when the budget is used up, or the host's refusal.
    pub fn ask(&mut self, instruction: &str, material: &str, temperature: f32) -> Result<String, Stop> {
        let answers = self.ask_all(&[(instruction, material)], temperature)?;
        answers.into_iter().next().ok_or_else(|| Stop::Failure(Failure::capability("models: the host gave no answer")))
    }

    /// One answer each, all or none.
    ///
    /// # Errors
    /// A reason when the budget does not hold them all, or the host's refusal.
    pub fn ask_all(&mut self, asked: &[(&str, &str)], temperature: f32) -> Result<Vec<String>, Stop> {
        let wanted = asked.len() as u32;
        if wanted > self.left() {
            let (used, most, name) = (self.used, self.most, MODEL_CALLS_MAX.name);
            return Err(Stop::Reason(format!(
                "the step has made {used} model calls and needs {wanted} more; {name} is {most}"
            )));
        }
        self.used += wanted;
        let how = Sampling::at(temperature, self.tokens_max);
        let requests: Vec<ChatRequest> = asked
            .iter()
            .map(|(instruction, material)| ChatRequest {
                messages: vec![Message::system(*instruction), Message::user(*material)],
                how: how.clone(),
            })
            .collect();
        let mut answers = Vec::new();
        for part in requests.chunks(REQUESTS_MAX) {
            answers.extend(models::chat(&self.binding, part)?.into_iter().flatten().map(|answer| answer.text));
        }
        if answers.len() == asked.len() {
            return Ok(answers);
        }
        let told = format!("models: {} answers to {wanted} conversations", answers.len());
        Err(Stop::Failure(Failure::capability(told)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reef_recipe::testing::{Call, FakeHost};

    #[test]
    fn a_budget_of_ten_stops_at_ten() {
        let mut host = FakeHost::default().config(MODEL_CALLS_MAX.name, "10").answers("judge", "yes");
        let stopped = host.call(|| {
            let mut calls = Calls::on("judge".into())?;
            for _ in 0..10 {
                assert_eq!(calls.ask("is it?", "it", 0.0), Ok("yes".into()));
            }
            Ok((calls.ask("is it?", "it", 0.0), calls.used()))
        });
        let told = "the step has made 10 model calls and needs 1 more; max_model_calls_per_step is 10";
        assert_eq!(stopped, Ok((Err(Stop::Reason(told.into())), 10)));
        assert_eq!(host.calls.iter().filter(|call| matches!(call, Call::Chat { .. })).count(), 10);
    }

    #[test]
    fn many_conversations_are_answered_in_few_calls_of_the_host() {
        let mut host = FakeHost::default().config(MODEL_CALLS_MAX.name, "100").answers("judge", "yes");
        let answers = host.call(|| Ok(Calls::on("judge".into())?.ask_all(&[("is it?", "it"); 70], 0.5)));
        assert_eq!(answers.expect("answers").map(|all| all.len()), Ok(70));
        assert_eq!(host.calls.len(), 2);
    }
}
