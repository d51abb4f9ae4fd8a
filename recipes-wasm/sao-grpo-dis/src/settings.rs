//! The configuration keys of the recipe, their defaults and ranges.

use reef_recipe::prelude::*;

use crate::dis::Dis;

const GROUPS_PER_STEP: Key<u32> =
    Key::count("groups_per_step", 4, "whole groups per step; the paper's control: 16").within(1.0, 512.0);
const ROLLOUTS_PER_GROUP: Key<u32> =
    Key::count("rollouts_per_group", 8, "scored answers to one prompt").within(2.0, 512.0);
/// As many samples as a batch of sao holds.
const BATCH_MAX: u32 = 512;
const DIVIDE_BY_STD: Key<bool> =
    Key::flag("divide_by_std", true, "advantages in standard deviations of their group; false = in points of score");
const EPS_LOW: Key<f64> =
    Key::number("eps_low", 0.3, "tokens count while the ratio is above 1 - eps_low; coding: 0.8").within(0.01, 1.0);
const EPS_HIGH: Key<f64> =
    Key::number("eps_high", 5.0, "tokens count while the ratio is below 1 + eps_high; coding: 3").within(0.01, 1_000.0);
const POLICY_LR: Key<f64> =
    Key::number("policy_lr", 5e-4, "learning rate of the LoRA; full weights need about 1e-6").within(1e-12, 1.0);
const GRADIENT_NORM_MAX: Key<f64> =
    Key::number("gradient_norm_max", 1.0, "the gradient is clipped to this norm; 0 = off").within(0.0, 1e6);

/// Declares every key.
pub(crate) fn keys(manifest: Manifest) -> Manifest {
    manifest
        .key(GROUPS_PER_STEP)
        .key(ROLLOUTS_PER_GROUP)
        .key(DIVIDE_BY_STD)
        .key(EPS_LOW)
        .key(EPS_HIGH)
        .key(POLICY_LR)
        .key(GRADIENT_NORM_MAX)
}

/// What a step is made with; every value within its range.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub grid: Grid,
    pub divide_by_std: bool,
    pub dis: Dis,
    pub policy: Optimizer,
}

impl Settings {
    /// # Errors
    /// `invalid-config` naming the first key that is out of range.
    pub fn read() -> Result<Self> {
        Ok(Self {
            grid: Grid::read(&GROUPS_PER_STEP, &ROLLOUTS_PER_GROUP, BATCH_MAX)?,
            divide_by_std: DIVIDE_BY_STD.get()?,
            dis: Dis::new(EPS_LOW.get()?, EPS_HIGH.get()?),
            policy: Optimizer { gradient_norm_max: GRADIENT_NORM_MAX.get()?, ..Optimizer::adamw(POLICY_LR.get()?) },
        })
    }
}
