//! One proposal: what the model reads, and the changes in its answer. An answer that cannot be used is asked for once
//! more with the reason, as far as the budget goes, and is then the reason of the step.

use reef_evolution::edits::{FORM, shown};
use reef_evolution::stop::{admitted, incumbent};
use reef_evolution::traces::trace;
use reef_evolution::untrusted::{WARNING, quoted};
use reef_evolution::{Calls, Edits, Stop, attempts};
use reef_recipe::prelude::*;
use reef_recipe::{Entry, Mutation};

use crate::settings::Settings;

/// Characters of one trace in the prompt.
const TRACE_CHARS_MAX: usize = 6_000;
/// Characters of one entry in the prompt.
const ENTRY_CHARS_MAX: usize = 8_000;
/// Answers that are asked for.
const ANSWERS_MAX: u32 = 2;

/// The changes that a model makes of the failed traces.
pub(crate) fn propose(batch: &Batch, settings: &Settings) -> Result<Vec<Mutation>, Stop> {
    let entries = incumbent()?;
    let mut calls = Calls::on(settings.proposer.clone())?;
    let mut material = material(batch, &entries, settings)?;
    loop {
        let answer = calls.ask(&instruction(settings), &material, settings.temperature)?;
        metrics::gauge("model_calls", f64::from(calls.used()));
        match usable(&answer, &entries, settings) {
            Ok(edits) => {
                attempts::proposed(&edits)?;
                return Ok(edits.changes);
            }
            Err(Stop::Reason(reason)) => {
                attempts::unusable(&reason)?;
                if calls.used() >= ANSWERS_MAX || calls.left() == 0 {
                    return Err(Stop::Reason(reason));
                }
                material = format!("{material}\n\nYour last answer cannot be used: {}", quoted("reason", &reason, 600));
            }
            Err(failure) => return Err(failure),
        }
    }
}

fn usable(answer: &str, entries: &[Entry], settings: &Settings) -> Result<Edits, Stop> {
    let edits = Edits::read(answer, entries, &settings.kinds)?;
    admitted(&edits.changes)?;
    Ok(edits)
}

fn instruction(settings: &Settings) -> String {
    format!(
        "You improve the harness of an AI agent: the texts that it reads before it works. Find out why it failed, and \
change as little as helps in general. You may change entries of these kinds: {}. {WARNING}\n\n{FORM}",
        settings.kinds.names()
    )
}

fn material(batch: &Batch, entries: &[Entry], settings: &Settings) -> Result<String> {
    let mut parts = vec![format!("The harness now:\n{}", shown(entries, &settings.kinds, ENTRY_CHARS_MAX))];
    for (&sample, score) in batch.handles().iter().zip(batch.scores()?) {
        let trace = quoted("trace", &trace(sample, TRACE_CHARS_MAX)?, TRACE_CHARS_MAX);
        parts.push(format!("A trace that scored {score}:\n{trace}"));
    }
    parts.push(attempts::shown()?);
    parts.retain(|part| !part.is_empty());
    Ok(parts.join("\n\n"))
}
