//! The configuration keys of the recipe, their defaults and ranges.

use reef_recipe::Bounds;
use reef_recipe::prelude::*;

/// The host derives at most 256 samples in a call, one per turn with a hint.
const BATCH_SIZE_MAX: f64 = 256.0;
/// Sessions of one value of the state, at most 64 KiB.
const OPEN_SESSIONS_MAX: f64 = 256.0;

pub(crate) const BATCH_SIZE: Key<u32> =
    Key::count("batch_size", 16, "completed turns per step").within(1.0, BATCH_SIZE_MAX);
pub(crate) const SESSION_TTL_S: Key<f64> =
    Key::number("session_ttl_s", 900.0, "seconds of silence after which a session is over").within(1.0, 1e7);
pub(crate) const OPEN_SESSIONS: Key<u32> =
    Key::count("open_sessions_max", 256, "sessions followed at a time; the one silent for longest goes first")
        .within(1.0, OPEN_SESSIONS_MAX);
const JUDGE: Key<&str> = Key::text("judge", "judge", "model binding that votes");
const VOTES: Key<u32> = Key::count("votes", 3, "votes on the score, and as many on hints, per turn").within(1.0, 16.0);
const JUDGE_TEMPERATURE: Key<f64> = Key::number("judge_temperature", 0.6, "temperature of the judge").within(0.0, 10.0);
const JUDGE_TOKENS: Key<u32> =
    Key::count("judge_tokens_max", 2_048, "tokens of one vote; a judge that reasons needs more").within(16.0, 8_192.0);
const RL_WEIGHT: Key<f64> = Key::number("rl_weight", 1.0, "factor of the PPO term; 0 = off").within(0.0, 100.0);
const DISTILL_WEIGHT: Key<f64> =
    Key::number("distill_weight", 1.0, "factor of the distillation term; 0 = off").within(0.0, 100.0);
const ADVANTAGE_MAX: Key<f64> =
    Key::number("advantage_max", 1.0, "clamp of the log-prob difference to the teacher, nats").within(0.001, 100.0);
const EPS_LOW: Key<f64> = Key::number("eps_low", 0.2, "the ratio is clipped at 1 - eps_low").within(0.001, 0.999);
const EPS_HIGH: Key<f64> = Key::number("eps_high", 0.28, "the ratio is clipped at 1 + eps_high").within(0.001, 1_000.0);
// The published 1e-5 is for full weights; a thin LoRA that starts at zero needs more to change as much.
const LEARNING_RATE: Key<f64> =
    Key::number("learning_rate", 1e-4, "AdamW's step for the LoRA; published for full weights: 1e-5")
        .within(1e-12, 1.0);
const WEIGHT_DECAY: Key<f64> = Key::number("weight_decay", 0.1, "AdamW's decay of weights").within(0.0, 1.0);
const GRADIENT_NORM_MAX: Key<f64> =
    Key::number("gradient_norm_max", 1.0, "the gradient is clipped to this norm; 0 = off").within(0.0, 1e6);
pub(crate) const EVALUATE_TASKS: Key<u32> =
    Key::count("evaluate_tasks", 32, "held-out tasks per evaluation; 0 = none").within(0.0, 10_000.0);
pub(crate) const KEEP_TOLERANCE: Key<f64> =
    Key::number("keep_tolerance", 0.05, "held-out score points that a candidate may lose").within(0.0, 1.0);

/// Declares every key.
pub(crate) fn keys(manifest: Manifest) -> Manifest {
    manifest
        .key(BATCH_SIZE)
        .key(SESSION_TTL_S)
        .key(OPEN_SESSIONS)
        .key(JUDGE)
        .key(VOTES)
        .key(JUDGE_TEMPERATURE)
        .key(JUDGE_TOKENS)
        .key(RL_WEIGHT)
        .key(DISTILL_WEIGHT)
        .key(ADVANTAGE_MAX)
        .key(EPS_LOW)
        .key(EPS_HIGH)
        .key(LEARNING_RATE)
        .key(WEIGHT_DECAY)
        .key(GRADIENT_NORM_MAX)
        .key(EVALUATE_TASKS)
        .key(KEEP_TOLERANCE)
}

/// What a step is made with; every value within its range.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub judge: String,
    /// How one vote is drawn; as many are drawn as there are votes.
    pub voting: Sampling,
    pub rl_weight: f32,
    pub distill_weight: f32,
    pub advantage_max: f32,
    pub bounds: Bounds,
    pub optimizer: Optimizer,
}

impl Settings {
    /// # Errors
    /// `invalid-config` naming the first key that is out of range.
    pub fn read() -> Result<Self> {
        let (rl_weight, distill_weight) = (RL_WEIGHT.get()? as f32, DISTILL_WEIGHT.get()? as f32);
        if rl_weight == 0.0 && distill_weight == 0.0 {
            return Err(Failure::config(RL_WEIGHT.name, "0, and distill_weight is 0 as well: nothing is learned"));
        }
        let (low, high) = (1.0 - EPS_LOW.get()?, 1.0 + EPS_HIGH.get()?);
        Ok(Self {
            judge: JUDGE.get()?,
            voting: Sampling::at(JUDGE_TEMPERATURE.get()? as f32, JUDGE_TOKENS.get()?).draws(VOTES.get()?),
            rl_weight,
            distill_weight,
            advantage_max: ADVANTAGE_MAX.get()? as f32,
            bounds: Bounds { low: low as f32, high: high as f32 },
            optimizer: Optimizer {
                beta1: 0.9,
                beta2: 0.98,
                weight_decay: WEIGHT_DECAY.get()?,
                gradient_norm_max: GRADIENT_NORM_MAX.get()?,
                ..Optimizer::adamw(LEARNING_RATE.get()?)
            },
        })
    }
}
