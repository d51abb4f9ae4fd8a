//! The configuration keys of the recipe, their defaults and ranges.

use reef_recipe::prelude::*;

use crate::context::{self, Feedback, TEMPLATES, Templates};

/// What the environment said of the answer; the host gives out at most 64 KiB of it.
pub(crate) const FEEDBACK: Field<&'static str> =
    Field::new("feedback", "what the environment said of the answer, e.g. the failed check");

/// Samples that the host derives in one call: every answer may have a teacher's prompt of its own.
const BATCH_MAX: u32 = 256;
/// Tokens of a prompt that the host derives.
const TEACHER_TOKENS_LIMIT: f64 = 32_768.0;

const GROUPS_PER_STEP: Key<u32> =
    Key::count("groups_per_step", 4, "whole groups per step; the paper: 32").within(1.0, 256.0);
const ROLLOUTS_PER_GROUP: Key<u32> =
    Key::count("rollouts_per_group", 8, "scored answers to one request").within(2.0, 256.0);
const SUCCESS_REWARD_THRESHOLD: Key<f64> =
    Key::number("success_reward_threshold", 0.5, "an answer with at least this score is a solution").within(-1e6, 1e6);
const INCLUDE_ENVIRONMENT_FEEDBACK: Key<bool> =
    Key::flag("include_environment_feedback", false, "teachers read the feedback of the report");
const FEEDBACK_ONLY_WITHOUT_SOLUTION: Key<bool> = Key::flag(
    "environment_feedback_only_without_solution",
    true,
    "feedback is read only where no sibling has succeeded",
);
const SOLUTION_TEMPLATE: Key<&'static str> =
    Key::text("solution_template", TEMPLATES[0], "how a sibling that succeeded is told; {solution} is replaced");
const FEEDBACK_TEMPLATE: Key<&'static str> =
    Key::text("feedback_template", TEMPLATES[1], "how feedback is told; {feedback} is replaced");
const CLOSING_LINE: Key<&'static str> = Key::text("closing_line", TEMPLATES[2], "what the teacher reads last");
const MAX_TEACHER_TOKENS: Key<u32> = Key::count(
    "max_teacher_tokens",
    18_432,
    "tokens of the teacher's prompt and the answer; an answer beyond it has no teacher",
)
.within(1.0, TEACHER_TOKENS_LIMIT);
const TOP_K: Key<u32> =
    Key::count("top_k", 100, "ids that are compared, the student's likeliest, and one bucket for the rest")
        .within(1.0, 1_000.0);
const JSD_BETA: Key<f64> =
    Key::number("jsd_beta", 0.5, "weight of the teacher in the Jensen-Shannon mixture").within(0.01, 0.99);
const TEACHER_UPDATE_RATE: Key<f64> = Key::number(
    "teacher_update_rate",
    0.05,
    "how far the teacher follows the student before each step; 0 = frozen, 1 = the student itself",
)
.within(0.0, 1.0);
const IMPORTANCE_SAMPLING_CAP: Key<f64> =
    Key::number("importance_sampling_cap", 2.0, "cap of the ratios that correct for stale answers; 0 = off")
        .within(0.0, 1_000.0);
const LEARNING_RATE: Key<f64> =
    Key::number("learning_rate", 5e-4, "learning rate of the LoRA; full weights need about 1e-5").within(1e-12, 1.0);
const GRADIENT_NORM_MAX: Key<f64> =
    Key::number("gradient_norm_max", 1.0, "the gradient is clipped to this norm; 0 = off").within(0.0, 1e6);

/// Declares every key.
pub(crate) fn keys(manifest: Manifest) -> Manifest {
    manifest
        .key(GROUPS_PER_STEP)
        .key(ROLLOUTS_PER_GROUP)
        .key(SUCCESS_REWARD_THRESHOLD)
        .key(INCLUDE_ENVIRONMENT_FEEDBACK)
        .key(FEEDBACK_ONLY_WITHOUT_SOLUTION)
        .key(SOLUTION_TEMPLATE)
        .key(FEEDBACK_TEMPLATE)
        .key(CLOSING_LINE)
        .key(MAX_TEACHER_TOKENS)
        .key(TOP_K)
        .key(JSD_BETA)
        .key(TEACHER_UPDATE_RATE)
        .key(IMPORTANCE_SAMPLING_CAP)
        .key(LEARNING_RATE)
        .key(GRADIENT_NORM_MAX)
}

/// What a step is made with; every value within its range.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub grid: Grid,
    pub success: f64,
    pub feedback: Feedback,
    pub templates: Templates,
    pub max_teacher_tokens: u32,
    pub divergence: Divergence,
    pub support: Support,
    pub teacher_update_rate: f64,
    pub importance: Importance,
    pub optimizer: Optimizer,
}

impl Settings {
    /// # Errors
    /// `invalid-config` naming the first key that is out of range.
    pub fn read() -> Result<Self> {
        let (cap, gradient_norm_max) = (IMPORTANCE_SAMPLING_CAP.get()?, GRADIENT_NORM_MAX.get()?);
        let feedback = match (INCLUDE_ENVIRONMENT_FEEDBACK.get()?, FEEDBACK_ONLY_WITHOUT_SOLUTION.get()?) {
            (false, _) => Feedback::Never,
            (true, true) => Feedback::WithoutSolution,
            (true, false) => Feedback::Always,
        };
        Ok(Self {
            grid: Grid::read(&GROUPS_PER_STEP, &ROLLOUTS_PER_GROUP, BATCH_MAX)?,
            success: SUCCESS_REWARD_THRESHOLD.get()?,
            feedback,
            templates: Templates {
                solution: template(&SOLUTION_TEMPLATE, context::SOLUTION)?,
                feedback: template(&FEEDBACK_TEMPLATE, context::FEEDBACK)?,
                closing: CLOSING_LINE.get()?,
            },
            max_teacher_tokens: MAX_TEACHER_TOKENS.get()?,
            divergence: Divergence::jensen_shannon(JSD_BETA.get()? as f32),
            support: Support::TopKTail(TOP_K.get()?),
            teacher_update_rate: TEACHER_UPDATE_RATE.get()?,
            importance: if cap == 0.0 { Importance::Off } else { Importance::Token(cap as f32) },
            optimizer: Optimizer { gradient_norm_max, ..Optimizer::adamw(LEARNING_RATE.get()?) },
        })
    }
}

/// A template with its place in it.
fn template(key: &Key<&'static str>, place: &str) -> Result<String> {
    let template = key.get()?;
    if template.contains(place) { Ok(template) } else { Err(Failure::config(key.name, &format!("it has no {place}"))) }
}
