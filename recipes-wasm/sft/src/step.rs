//! One step: every sample of the batch with the demonstrated answer instead of its own, and one optimizer step on
//! the likelihood of those answers. The prompts stay the recorded ids.

use reef_recipe::prelude::*;

use crate::answer::{answer, closing};
use crate::settings::Settings;

/// Why a sample can never be learned from, if so.
pub(crate) fn objection(sample: Sample, closing: &[u32], tokens_max: u32) -> Result<Option<String>> {
    Ok(match demonstrated(sample, closing)? {
        Err(reason) => Some(reason),
        Ok(answer) if answer.len() > tokens_max as usize => {
            Some(format!("its demonstration has {} tokens, answer_tokens_max is {tokens_max}", answer.len()))
        }
        Ok(_) => None,
    })
}

/// Learns from the batch: a candidate, or a skip with its reason.
pub(crate) fn propose(batch: &Batch, settings: &Settings) -> Result<Proposal> {
    let closing = closing()?;
    let mut answers = Vec::new();
    for &sample in batch.handles() {
        let answer = demonstrated(sample, &closing)?.map_err(Failure::other)?;
        answers.push(Trainer::derive(sample, None, Some(&answer))?);
    }
    let (answers, trainer) = (Samples::from(answers), Trainer::open()?);
    // Before the step: how likely the policy finds the demonstrations, in nats a token.
    let logprobs: Vec<f64> =
        trainer.forward(Policy::Current, &answers)?.values().iter().copied().map(f64::from).collect();
    metrics::gauge("demonstration_nll", -maths::mean(&logprobs));
    metrics::gauge("demonstration_tokens", logprobs.len() as f64);
    trainer.learn(&answers, Objective::Nll, settings.optimizer)
}

/// Ids of the demonstrated answer, or why there are none.
fn demonstrated(sample: Sample, closing: &[u32]) -> Result<Result<Vec<u32>, String>> {
    let text = match teacher::demonstration(sample)? {
        Ok(text) => text,
        Err(reason) => return Ok(Err(reason)),
    };
    let mut messages = experience::messages(sample)?;
    if messages.is_empty() {
        return Ok(Err("its request is no conversation that could be answered".to_owned()));
    }
    let asked = tokens::try_render(&messages)?;
    messages.push(Message::assistant(text));
    match (asked, tokens::try_render(&messages)?) {
        (Ok(asked), Ok(answered)) => answer(&asked, &answered, closing).map(Ok),
        (Err(reason), _) => Ok(Err(format!("its request has no ids: {reason}"))),
        (_, Err(reason)) => Ok(Err(format!("its demonstrated answer has no ids: {reason}"))),
    }
}
