//! The pull towards the base model, as part of the advantage: A_t += c·(d̄ − d_t), d_t = log π_rollout − log π_base.
//! The mean d̄ is over the action tokens of the whole batch, so that the term redistributes and adds nothing.

use reef_recipe::prelude::*;

/// c·(d̄ − d_t) for every token, in concatenated columns; 0 where the mask is 0.
pub fn pull(rollout: &[f32], base: &[f32], mask: &[u8], coefficient: f64) -> Vec<f64> {
    let distances = rollout.iter().zip(base).map(|(&rollout, &base)| f64::from(rollout) - f64::from(base));
    let distances: Vec<f64> = distances.collect();
    let action = |(_, bit): &(&f64, &u8)| **bit != 0;
    let counted: Vec<f64> = distances.iter().zip(mask).filter(action).map(|(&distance, _)| distance).collect();
    let mean = maths::mean(&counted);
    let pulled = distances.iter().zip(mask).map(|(distance, &bit)| if bit == 0 { 0.0 } else { mean - distance });
    pulled.map(|difference| coefficient * difference).collect()
}
