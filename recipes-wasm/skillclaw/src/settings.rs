//! The configuration keys of the recipe, their defaults and ranges.

use reef_evolution::calls::ANSWER_TOKENS_MAX;
use reef_recipe::prelude::*;

const BATCH_SIZE: Key<u32> = Key::count("batch_size", 60, "sessions of a step").within(1.0, 120.0);
const SESSIONS_PER_GROUP: Key<u32> =
    Key::count("sessions_per_group", 30, "sessions that one decision reads").within(1.0, 60.0);
const EVOLVER: Key<&'static str> =
    Key::text("evolver_binding", "evolver", "model binding that summarises, grades, decides and merges");
/// Three calls a session are enough for any step; `Calls` reads the key.
const MODEL_CALLS_MAX: Key<u32> =
    Key::count("max_model_calls_per_step", 240, "model calls that one step may make").within(1.0, 960.0);

/// Declares every key.
pub(crate) fn keys(manifest: Manifest) -> Manifest {
    manifest.key(BATCH_SIZE).key(SESSIONS_PER_GROUP).key(EVOLVER).key(MODEL_CALLS_MAX).key(ANSWER_TOKENS_MAX)
}

/// What a step is made with; every value within its range.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub batch_size: u32,
    pub sessions_per_group: usize,
    pub evolver: String,
}

impl Settings {
    /// # Errors
    /// `invalid-config` naming the first key that is out of range.
    pub fn read() -> Result<Self> {
        Ok(Self {
            batch_size: BATCH_SIZE.get()?,
            sessions_per_group: SESSIONS_PER_GROUP.get()? as usize,
            evolver: EVOLVER.get()?,
        })
    }
}
