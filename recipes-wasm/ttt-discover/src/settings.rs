//! The configuration keys of the recipe, their defaults and ranges.

use reef_recipe::prelude::*;

const KL_COEFFICIENT: Key<f64> =
    Key::number("kl_coefficient", 0.1, "pull towards the base model, added to the advantage; 0 = off")
        .within(0.0, 100.0);
const LEARNING_RATE: Key<f64> =
    Key::number("learning_rate", 4e-5, "Adam's step for the LoRA; the loss is a sum over tokens").within(1e-12, 1.0);
const BETA1: Key<f64> = Key::number("beta1", 0.9, "Adam's decay of the mean gradient").within(0.0, 0.9999);
const BETA2: Key<f64> = Key::number("beta2", 0.95, "Adam's decay of the mean squared gradient").within(0.0, 0.99999);

/// Declares every key.
pub(crate) fn keys(manifest: Manifest) -> Manifest {
    manifest.key(KL_COEFFICIENT).key(LEARNING_RATE).key(BETA1).key(BETA2)
}

/// What a step is made with; every value within its range.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub kl_coefficient: f64,
    /// Without weight decay; the gradient is not clipped, as published.
    pub optimizer: Optimizer,
}

impl Settings {
    /// # Errors
    /// `invalid-config` naming the first key that is out of range.
    pub fn read() -> Result<Self> {
        let adam = Optimizer::adamw(LEARNING_RATE.get()?);
        Ok(Self {
            kl_coefficient: KL_COEFFICIENT.get()?,
            optimizer: Optimizer { beta1: BETA1.get()?, beta2: BETA2.get()?, gradient_norm_max: 0.0, ..adam },
        })
    }
}
