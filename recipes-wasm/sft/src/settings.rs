//! The configuration keys of the recipe, their defaults and ranges.

use reef_recipe::prelude::*;

/// Samples that one selection checks.
const BATCH_SIZE_MAX: f64 = 240.0;
/// Tokens of a response that the host derives.
const ANSWER_TOKENS_LIMIT: f64 = 32_768.0;

pub(crate) const BATCH_SIZE: Key<u32> =
    Key::count("batch_size", 32, "demonstrations per step").within(1.0, BATCH_SIZE_MAX);
pub(crate) const ANSWER_TOKENS_MAX: Key<u32> =
    Key::count("answer_tokens_max", 2_048, "tokens of a demonstrated answer; longer ones are retired")
        .within(1.0, ANSWER_TOKENS_LIMIT);
const LEARNING_RATE: Key<f64> =
    Key::number("learning_rate", 5e-4, "learning rate of the LoRA; full weights need about 1e-5").within(1e-12, 1.0);
const WEIGHT_DECAY: Key<f64> = Key::number("weight_decay", 0.0, "decay of AdamW").within(0.0, 1.0);
const GRADIENT_NORM_MAX: Key<f64> =
    Key::number("gradient_norm_max", 1.0, "the gradient is clipped to this norm; 0 = off").within(0.0, 1e6);

/// Declares every key.
pub(crate) fn keys(manifest: Manifest) -> Manifest {
    manifest.key(BATCH_SIZE).key(ANSWER_TOKENS_MAX).key(LEARNING_RATE).key(WEIGHT_DECAY).key(GRADIENT_NORM_MAX)
}

/// What a step is made with; every value within its range.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub optimizer: Optimizer,
}

impl Settings {
    /// # Errors
    /// `invalid-config` naming the first key that is out of range.
    pub fn read() -> Result<Self> {
        let (weight_decay, gradient_norm_max) = (WEIGHT_DECAY.get()?, GRADIENT_NORM_MAX.get()?);
        Ok(Self { optimizer: Optimizer { weight_decay, gradient_norm_max, ..Optimizer::adamw(LEARNING_RATE.get()?) } })
    }
}
