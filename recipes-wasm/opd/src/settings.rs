//! The configuration keys of the recipe, their defaults and ranges.

use reef_recipe::prelude::*;

pub(crate) const BATCH_SIZE: Key<u32> = Key::count("batch_size", 32, "answers per step").within(1.0, 512.0);
const TEACHER: Key<&'static str> =
    Key::text("teacher", "teacher", "model binding of the teacher; it needs the tokenizer of the student");
const LEARNING_RATE: Key<f64> =
    Key::number("learning_rate", 5e-4, "learning rate of the LoRA; full weights need about 1e-6").within(1e-12, 1.0);
const GRADIENT_NORM_MAX: Key<f64> =
    Key::number("gradient_norm_max", 1.0, "the gradient is clipped to this norm; 0 = off").within(0.0, 1e6);

/// Declares every key.
pub(crate) fn keys(manifest: Manifest) -> Manifest {
    manifest.key(BATCH_SIZE).key(TEACHER).key(LEARNING_RATE).key(GRADIENT_NORM_MAX)
}

/// What a step is made with; every value within its range.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub teacher: String,
    pub optimizer: Optimizer,
}

impl Settings {
    /// # Errors
    /// `invalid-config` naming the first key that is out of range.
    pub fn read() -> Result<Self> {
        let (teacher, gradient_norm_max) = (TEACHER.get()?, GRADIENT_NORM_MAX.get()?);
        if teacher.trim().is_empty() {
            return Err(Failure::config(TEACHER.name, "it names no model binding"));
        }
        Ok(Self { teacher, optimizer: Optimizer { gradient_norm_max, ..Optimizer::adamw(LEARNING_RATE.get()?) } })
    }
}
