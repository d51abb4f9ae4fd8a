//! The configuration keys of the recipe, their defaults and ranges.

use reef_recipe::prelude::*;

use crate::dis::Dis;
use crate::gae::Lambda;

/// The host answers at most 1,000 calls a capability and step, and the mask is one call a sample.
const BATCH_SIZE_MAX: f64 = 512.0;
/// Updates of the critic that the host makes in one call.
const CRITIC_UPDATES_MAX: f64 = 64.0;

pub(crate) const BATCH_SIZE: Key<u32> =
    Key::count("batch_size", 32, "scored answers per step").within(1.0, BATCH_SIZE_MAX);
const GAMMA: Key<f64> = Key::number("gamma", 1.0, "discount per action token").within(0.0, 1.0);
const LAMBDA: Key<f64> =
    Key::number("lambda", 1.0, "GAE decay of the advantages; 0 = by response length, see alpha").within(0.0, 1.0);
const ALPHA: Key<f64> =
    Key::number("alpha", 1.5, "length-adaptive lambda is 1 - 1/(alpha * response length)").within(0.01, 1_000.0);
const EPS_LOW: Key<f64> =
    Key::number("eps_low", 0.3, "tokens count while the ratio is above 1 - eps_low; coding: 0.8").within(0.01, 1.0);
const EPS_HIGH: Key<f64> =
    Key::number("eps_high", 5.0, "tokens count while the ratio is below 1 + eps_high; coding: 3").within(0.01, 1_000.0);
// The paper's 1e-6 is for full weights. A LoRA of rank 16 starts with B = 0 and moves a product of two thin
// matrices: it needs a rate hundreds of times larger to change the policy as much.
const POLICY_LR: Key<f64> =
    Key::number("policy_lr", 5e-4, "learning rate of the LoRA; full weights need about 1e-6").within(1e-12, 1.0);
// The paper's 5e-6 moves a whole network. The host's critic is a linear head on frozen features.
const CRITIC_LR: Key<f64> =
    Key::number("critic_lr", 5e-3, "learning rate of the critic's linear head").within(1e-12, 1.0);
const CRITIC_WARMUP_STEPS: Key<u32> =
    Key::count("critic_warmup_steps", 1, "steps that fit only the critic before the first policy update")
        .within(0.0, 1_000.0);
const CRITIC_WARMUP_UPDATES: Key<u32> =
    Key::count("critic_warmup_updates", 50, "critic updates in a warm-up step; the head starts at zero")
        .within(1.0, CRITIC_UPDATES_MAX);
const CRITIC_STEPS_PER_ACTOR: Key<u32> =
    Key::count("critic_steps_per_actor", 2, "critic updates per policy update").within(1.0, CRITIC_UPDATES_MAX);
const GRADIENT_NORM_MAX: Key<f64> =
    Key::number("gradient_norm_max", 1.0, "the gradient is clipped to this norm; 0 = off").within(0.0, 1e6);

/// Declares every key.
pub(crate) fn keys(manifest: Manifest) -> Manifest {
    manifest
        .key(BATCH_SIZE)
        .key(GAMMA)
        .key(LAMBDA)
        .key(ALPHA)
        .key(EPS_LOW)
        .key(EPS_HIGH)
        .key(POLICY_LR)
        .key(CRITIC_LR)
        .key(CRITIC_WARMUP_STEPS)
        .key(CRITIC_WARMUP_UPDATES)
        .key(CRITIC_STEPS_PER_ACTOR)
        .key(GRADIENT_NORM_MAX)
}

/// What a step is made with; every value within its range.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub gamma: f64,
    pub lambda: Lambda,
    pub dis: Dis,
    pub policy: Optimizer,
    pub critic_lr: f64,
    pub critic_warmup_steps: u32,
    pub critic_warmup_updates: u32,
    pub critic_steps_per_actor: u32,
}

impl Settings {
    /// # Errors
    /// `invalid-config` naming the first key that is out of range.
    pub fn read() -> Result<Self> {
        let (fixed, alpha) = (LAMBDA.get()?, ALPHA.get()?);
        Ok(Self {
            gamma: GAMMA.get()?,
            lambda: if fixed == 0.0 { Lambda::Adaptive { alpha } } else { Lambda::Fixed(fixed) },
            dis: Dis::new(EPS_LOW.get()?, EPS_HIGH.get()?),
            policy: Optimizer { gradient_norm_max: GRADIENT_NORM_MAX.get()?, ..Optimizer::adamw(POLICY_LR.get()?) },
            critic_lr: CRITIC_LR.get()?,
            critic_warmup_steps: CRITIC_WARMUP_STEPS.get()?,
            critic_warmup_updates: CRITIC_WARMUP_UPDATES.get()?,
            critic_steps_per_actor: CRITIC_STEPS_PER_ACTOR.get()?,
        })
    }
}
