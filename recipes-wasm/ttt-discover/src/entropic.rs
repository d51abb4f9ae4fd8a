//! Entropic leave-one-out advantages (arXiv 2601.16175): a softmax over the rewards of a group, as sharp as a fixed
//! distance from uniform allows, each weight compared with the mean of the others. Pure functions in f64.

use reef_recipe::maths::{exp, ln};
use reef_recipe::prelude::*;

/// KL(q_β ‖ uniform) that β is chosen for: as if half of the group counted.
const DISTANCE: f64 = core::f64::consts::LN_2;
/// β is not doubled beyond this.
const BETA_DOUBLED_MAX: f64 = 1e6;
/// Halvings of the interval around β.
const BISECTIONS: u32 = 60;
/// Keeps the mean of the others above 0.
const FLOOR: f64 = 1e-12;
/// Smallest group for which the formula is bounded by itself.
const GROUP_MIN: usize = 3;
/// Largest advantage in a smaller group. Of two different rewards the formula makes −1 and 10^12, since no β is sharp
/// enough for the distance; bounded, the better one counts as much as the worse one.
const SMALL_GROUP_ADVANTAGE_MAX: f64 = 1.0;

/// exp(β(r − max r)), one per reward.
fn exponentials(rewards: &[f64], beta: f64) -> Vec<f64> {
    let best = rewards.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    rewards.iter().map(|reward| exp(beta * (reward - best))).collect()
}

/// KL(q_β ‖ uniform) = Σ q (ln q + ln K), q ∝ exp(β·r); nats.
fn distance(rewards: &[f64], beta: f64) -> f64 {
    let weights = exponentials(rewards, beta);
    let (sum, log_k) = (weights.iter().sum::<f64>(), ln(rewards.len() as f64));
    weights.iter().map(|weight| weight / sum).filter(|&q| q > 0.0).map(|q| q * (ln(q) + log_k)).sum()
}

/// The β at which q_β is [`DISTANCE`] from uniform, by doubling and bisection; where ties make that impossible, the
/// last doubling. 0 for fewer than two rewards.
pub fn beta(rewards: &[f64]) -> f64 {
    if rewards.len() < 2 {
        return 0.0;
    }
    let (mut low, mut high) = (0.0, 1.0);
    while distance(rewards, high) < DISTANCE && high < BETA_DOUBLED_MAX {
        high *= 2.0;
    }
    if distance(rewards, high) < DISTANCE {
        return high;
    }
    for _ in 0..BISECTIONS {
        let middle = 0.5 * (low + high);
        if distance(rewards, middle) < DISTANCE {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// w_i − 1 with w_i = e_i / (mean of the other e), e_i = exp(β(r_i − max r)): the formula as published. It is not
/// zero-mean, and it does not change when all rewards are shifted or scaled by a positive factor.
pub fn leave_one_out(rewards: &[f64], beta: f64) -> Vec<f64> {
    let weights = exponentials(rewards, beta);
    let sum: f64 = weights.iter().sum();
    let mean_of_others = |own: f64| match weights.len() {
        0 | 1 => own,
        k => (sum - own) / (k - 1) as f64,
    };
    weights.iter().map(|&own| own / (mean_of_others(own) + FLOOR) - 1.0).collect()
}

/// The advantages of one group; in groups of fewer than three they are at most 1.
pub fn advantages(rewards: &[f64]) -> Vec<f64> {
    let mut advantages = leave_one_out(rewards, beta(rewards));
    if rewards.len() < GROUP_MIN {
        advantages.iter_mut().for_each(|advantage| *advantage = advantage.min(SMALL_GROUP_ADVANTAGE_MAX));
    }
    advantages
}
