//! How much better an answer is than the other answers to the same prompt (GRPO: arXiv 2402.03300, section 4.1.2).
//! A pure function in f64.

use reef_recipe::maths::{mean, sqrt, variance};
use reef_recipe::prelude::*;

/// Spread of rewards that counts as none: rounding, and not a difference.
const SPREAD_MIN: f64 = 1e-9;

/// (r − mean)/σ of a group with the population's σ, or r − mean; `None` of a constant group, which says nothing.
pub fn group_relative(rewards: &[f64], divide_by_std: bool) -> Option<Vec<f64>> {
    let (centre, spread) = (mean(rewards), sqrt(variance(rewards)));
    let largest = rewards.iter().fold(1.0, |top: f64, reward| top.max(reward.abs()));
    if spread <= SPREAD_MIN * largest {
        return None;
    }
    let unit = if divide_by_std { spread } else { 1.0 };
    Some(rewards.iter().map(|reward| (reward - centre) / unit).collect())
}
