//! The configuration keys of the recipe, their defaults and ranges.

use reef_evolution::calls::{ANSWER_TOKENS_MAX, MODEL_CALLS_MAX};
use reef_evolution::edits::{KINDS, Kinds};
use reef_recipe::prelude::*;

/// The task that an answer tried; without it, the answer is only read.
pub(crate) const TASK: Field<&'static str> =
    Field::new("task", "name of the harness task that this answer tried, if it tried one");

const MINIBATCH_SIZE: Key<u32> =
    Key::count("minibatch_size", 3, "training tasks of a step, and scored answers that begin one").within(1.0, 12.0);
const SEED: Key<u32> = Key::count("seed", 0, "seed of the draws and of every episode");
const SKIP_PERFECT_SCORE: Key<bool> =
    Key::flag("skip_perfect_score", true, "a parent that is perfect on the minibatch is left alone");
const PERFECT_SCORE: Key<f64> = Key::number("perfect_score", 1.0, "the score that is perfect").within(0.0, 1.0);
const MAX_METRIC_CALLS: Key<u32> =
    Key::count("max_metric_calls", 150, "episodes of the whole search; 0 = no limit").within(0.0, 1e6);
const ARCHIVE_MAX: Key<u32> = Key::count("archive_max", 14, "candidates that are kept").within(3.0, 14.0);
const TEXT_CHARS_MAX: Key<u32> =
    Key::count("text_chars_max", 8_000, "characters of a text that the model writes").within(100.0, 16_000.0);
const REFLECTION: Key<&'static str> =
    Key::text("reflection_binding", "reflection", "model binding that reflects and writes");
const TEMPERATURE: Key<f64> = Key::number("temperature", 1.0, "temperature of that model").within(0.0, 2.0);

/// Declares every key.
pub(crate) fn keys(manifest: Manifest) -> Manifest {
    manifest
        .key(MINIBATCH_SIZE)
        .key(SEED)
        .key(SKIP_PERFECT_SCORE)
        .key(PERFECT_SCORE)
        .key(MAX_METRIC_CALLS)
        .key(ARCHIVE_MAX)
        .key(KINDS)
        .key(TEXT_CHARS_MAX)
        .key(REFLECTION)
        .key(TEMPERATURE)
        .key(MODEL_CALLS_MAX)
        .key(ANSWER_TOKENS_MAX)
}

/// What a step is made with; every value within its range.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub minibatch_size: u32,
    pub seed: u32,
    /// Scores from here on are perfect; `None` = never skip.
    pub perfect: Option<f64>,
    /// Episodes of the whole search; `None` = no limit.
    pub metric_calls_max: Option<u32>,
    pub archive_max: usize,
    pub kinds: Kinds,
    pub text_chars_max: usize,
    pub reflection: String,
    pub temperature: f32,
}

impl Settings {
    /// # Errors
    /// `invalid-config` naming the first key that is out of range.
    pub fn read() -> Result<Self> {
        let (skip, perfect) = (SKIP_PERFECT_SCORE.get()?, PERFECT_SCORE.get()?);
        Ok(Self {
            minibatch_size: MINIBATCH_SIZE.get()?,
            seed: SEED.get()?,
            perfect: skip.then_some(perfect),
            metric_calls_max: Some(MAX_METRIC_CALLS.get()?).filter(|&most| most > 0),
            archive_max: ARCHIVE_MAX.get()? as usize,
            kinds: Kinds::read()?,
            text_chars_max: TEXT_CHARS_MAX.get()? as usize,
            reflection: REFLECTION.get()?,
            temperature: TEMPERATURE.get()? as f32,
        })
    }
}
