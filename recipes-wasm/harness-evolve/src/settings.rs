//! The configuration keys of the recipe, their defaults and ranges.

use reef_evolution::calls::{ANSWER_TOKENS_MAX, MODEL_CALLS_MAX};
use reef_evolution::edits::{KINDS, Kinds};
use reef_evolution::trials::{EPISODE_REPEATS, MIN_WIN_MARGIN, SIGNIFICANCE};
use reef_recipe::prelude::*;

const BATCH_SIZE: Key<u32> = Key::count("batch_size", 1, "failed traces of a step").within(1.0, 16.0);
const MAX_SCORE: Key<f64> =
    Key::number("max_score", 0.0, "a trace with at most this score has failed").within(-1e6, 1e6);
const PROPOSER: Key<&'static str> = Key::text("proposer_binding", "proposer", "model binding that writes the changes");
const TEMPERATURE: Key<f64> = Key::number("temperature", 0.7, "temperature of that model").within(0.0, 2.0);

/// Declares every key.
pub(crate) fn keys(manifest: Manifest) -> Manifest {
    manifest
        .key(BATCH_SIZE)
        .key(MAX_SCORE)
        .key(EPISODE_REPEATS)
        .key(MIN_WIN_MARGIN)
        .key(SIGNIFICANCE)
        .key(KINDS)
        .key(PROPOSER)
        .key(TEMPERATURE)
        .key(MODEL_CALLS_MAX)
        .key(ANSWER_TOKENS_MAX)
}

/// What a step is made with; every value within its range.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub batch_size: u32,
    pub max_score: f64,
    pub repeats: u32,
    pub margin: usize,
    pub significance: f64,
    pub kinds: Kinds,
    pub proposer: String,
    pub temperature: f32,
}

impl Settings {
    /// # Errors
    /// `invalid-config` naming the first key that is out of range.
    pub fn read() -> Result<Self> {
        Ok(Self {
            batch_size: BATCH_SIZE.get()?,
            max_score: MAX_SCORE.get()?,
            repeats: EPISODE_REPEATS.get()?,
            margin: MIN_WIN_MARGIN.get()? as usize,
            significance: SIGNIFICANCE.get()?,
            kinds: Kinds::read()?,
            proposer: PROPOSER.get()?,
            temperature: TEMPERATURE.get()? as f32,
        })
    }
}
