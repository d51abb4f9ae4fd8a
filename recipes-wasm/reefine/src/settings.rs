//! The configuration keys of the recipe, their defaults and ranges.

use reef_evolution::calls::{ANSWER_TOKENS_MAX, MODEL_CALLS_MAX};
use reef_evolution::edits::{KINDS, Kinds};
use reef_recipe::prelude::*;

/// Characters of an instruction.
pub(crate) const INSTRUCTION_CHARS_MAX: usize = 4_000;

/// What the person wants.
pub(crate) const INSTRUCTION: Field<&'static str> =
    Field::new("instruction", "what the agent should do otherwise, in plain words; at most 4,000 characters");

const EDITOR: Key<&'static str> = Key::text("editor_binding", "editor", "model binding that edits");
const REVIEWER: Key<&'static str> =
    Key::text("reviewer_binding", "editor", "model binding that reviews the edit; may be the same");
const TEMPERATURE: Key<f64> = Key::number("temperature", 0.3, "temperature of the edit").within(0.0, 2.0);
const HEALTH_TASKS: Key<&'static str> =
    Key::text("health_tasks", "", "names of the tasks that a candidate must pass, with commas; empty = all");
const EPISODE_REPEATS: Key<u32> =
    Key::count("episode_repeats", 1, "episodes of each health task, each on its own seed").within(1.0, 100.0);
const FLOOR_SCORE: Key<f64> =
    Key::number("floor_score", 1.0, "every episode must score at least this").within(0.0, 1.0);
const REVIEW: Key<bool> = Key::flag("review", false, "a healthy candidate waits for a person");

/// Declares every key.
pub(crate) fn keys(manifest: Manifest) -> Manifest {
    manifest
        .key(KINDS)
        .key(EDITOR)
        .key(REVIEWER)
        .key(TEMPERATURE)
        .key(HEALTH_TASKS)
        .key(EPISODE_REPEATS)
        .key(FLOOR_SCORE)
        .key(REVIEW)
        .key(MODEL_CALLS_MAX)
        .key(ANSWER_TOKENS_MAX)
}

/// What a step is made with; every value within its range.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub kinds: Kinds,
    pub editor: String,
    pub reviewer: String,
    pub temperature: f32,
    pub health_tasks: Vec<String>,
    pub repeats: u32,
    pub floor_score: f64,
    pub review: bool,
}

impl Settings {
    /// # Errors
    /// `invalid-config` naming the first key that is out of range.
    pub fn read() -> Result<Self> {
        let named = HEALTH_TASKS.get()?;
        let named = named.split(',').map(str::trim).filter(|name| !name.is_empty());
        Ok(Self {
            kinds: Kinds::read()?,
            editor: EDITOR.get()?,
            reviewer: REVIEWER.get()?,
            temperature: TEMPERATURE.get()? as f32,
            health_tasks: named.map(str::to_owned).collect(),
            repeats: EPISODE_REPEATS.get()?,
            floor_score: FLOOR_SCORE.get()?,
            review: REVIEW.get()?,
        })
    }
}
