//! The configuration keys of the recipe, their defaults and ranges.

use reef_recipe::prelude::*;

/// Where the demonstration goes in the template.
const PLACE: &str = "{demonstration}";

/// Samples that one selection checks.
const BATCH_SIZE_MAX: f64 = 240.0;
/// Tokens of a prompt that the host derives.
const TEACHER_TOKENS_LIMIT: f64 = 32_768.0;

const BATCH_SIZE: Key<u32> = Key::count("batch_size", 32, "demonstrated answers per step").within(1.0, BATCH_SIZE_MAX);
const CONTEXT_TEMPLATE: Key<&'static str> = Key::text(
    "context_template",
    "A good answer to this, as an example: <example>{demonstration}</example> Now answer in your own words.",
    "what the teacher reads after the last user message; {demonstration} is replaced",
);
const MAX_TEACHER_TOKENS: Key<u32> =
    Key::count("max_teacher_tokens", 8_192, "tokens of the teacher's prompt and the answer; longer ones are retired")
        .within(1.0, TEACHER_TOKENS_LIMIT);
const TEACHER_UPDATE_RATE: Key<f64> = Key::number(
    "teacher_update_rate",
    0.01,
    "how far the teacher follows the student before each step; 0 = frozen, 1 = the student itself",
)
.within(0.0, 1.0);
const IMPORTANCE_SAMPLING_CAP: Key<f64> =
    Key::number("importance_sampling_cap", 2.0, "cap of the ratios that correct for stale answers; 0 = off")
        .within(0.0, 1_000.0);
const SKIP_RESPONSE_TOKENS: Key<u32> =
    Key::count("skip_response_tokens", 0, "tokens at the start of each answer that do not count; the paper's runs: 3")
        .within(0.0, TEACHER_TOKENS_LIMIT);
const LEARNING_RATE: Key<f64> =
    Key::number("learning_rate", 5e-4, "learning rate of the LoRA; full weights need about 1e-5").within(1e-12, 1.0);
const GRADIENT_NORM_MAX: Key<f64> =
    Key::number("gradient_norm_max", 1.0, "the gradient is clipped to this norm; 0 = off").within(0.0, 1e6);

/// Declares every key.
pub(crate) fn keys(manifest: Manifest) -> Manifest {
    manifest
        .key(BATCH_SIZE)
        .key(CONTEXT_TEMPLATE)
        .key(MAX_TEACHER_TOKENS)
        .key(TEACHER_UPDATE_RATE)
        .key(IMPORTANCE_SAMPLING_CAP)
        .key(SKIP_RESPONSE_TOKENS)
        .key(LEARNING_RATE)
        .key(GRADIENT_NORM_MAX)
}

/// What a step is made with; every value within its range.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub batch_size: u32,
    pub max_teacher_tokens: u32,
    pub teacher_update_rate: f64,
    pub importance: Importance,
    pub skip: u32,
    pub optimizer: Optimizer,
    template: String,
}

impl Settings {
    /// # Errors
    /// `invalid-config` naming the first key that is out of range.
    pub fn read() -> Result<Self> {
        let template = CONTEXT_TEMPLATE.get()?;
        if !template.contains(PLACE) {
            return Err(Failure::config(CONTEXT_TEMPLATE.name, &format!("it has no {PLACE}")));
        }
        let (cap, gradient_norm_max) = (IMPORTANCE_SAMPLING_CAP.get()?, GRADIENT_NORM_MAX.get()?);
        Ok(Self {
            batch_size: BATCH_SIZE.get()?,
            max_teacher_tokens: MAX_TEACHER_TOKENS.get()?,
            teacher_update_rate: TEACHER_UPDATE_RATE.get()?,
            importance: if cap == 0.0 { Importance::Off } else { Importance::Sequence(cap as f32) },
            skip: SKIP_RESPONSE_TOKENS.get()?,
            optimizer: Optimizer { gradient_norm_max, ..Optimizer::adamw(LEARNING_RATE.get()?) },
            template,
        })
    }

    /// What the teacher reads beside the request.
    pub fn context(&self, demonstration: &str) -> String {
        self.template.replace(PLACE, demonstration)
    }
}
