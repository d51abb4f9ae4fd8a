//! Generalised advantage estimation that skips observations (arXiv 2607.07508; GAE: arXiv 1506.02438).
//! Columns have one entry per response token; "next" always means the next *action* token, and nothing
//! comes after the last one. Pure functions in f64.

use reef_recipe::prelude::*;

/// How far an advantage looks ahead.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Lambda {
    /// The same for every answer, in (0, 1].
    Fixed(f64),
    /// 1 − 1/(α·ℓ), clamped to [0, 1]: the longer the answer, the further.
    Adaptive {
        /// α > 0.
        alpha: f64,
    },
}

impl Lambda {
    /// λ for a response of `length` tokens, observations included.
    pub fn at(self, length: usize) -> f64 {
        match self {
            Self::Fixed(lambda) => lambda,
            Self::Adaptive { alpha } => (1.0 - 1.0 / (alpha * length as f64)).clamp(0.0, 1.0),
        }
    }
}

/// A_t = δ_t + γλ·A_next with δ_t = r_t + γ·V_next − V_t; the reward is on the last action token.
/// 0 on observations.
pub fn advantages(values: &[f64], mask: &[u8], reward: f64, gamma: f64, lambda: f64) -> Vec<f64> {
    let mut advantages = vec![0.0; mask.len()];
    let (mut reward, mut next_value, mut next_advantage) = (reward, 0.0, 0.0);
    for ((advantage, value), _) in backwards(&mut advantages, values, mask) {
        let delta = reward + gamma * next_value - value;
        *advantage = delta + gamma * lambda * next_advantage;
        (reward, next_value, next_advantage) = (0.0, *value, *advantage);
    }
    advantages
}

/// R_t = A_t + V_t: what the critic should have said. 0 on observations.
pub fn returns(advantages: &[f64], values: &[f64], mask: &[u8]) -> Vec<f64> {
    let mut returns = advantages.to_vec();
    for ((target, value), _) in backwards(&mut returns, values, mask) {
        *target += value;
    }
    returns
}

/// The critic's targets: always λ = 1, i.e. the discounted reward itself.
pub fn critic_targets(values: &[f64], mask: &[u8], reward: f64, gamma: f64) -> Vec<f64> {
    returns(&advantages(values, mask, reward, gamma, 1.0), values, mask)
}

/// Action tokens of a column with their values, last first.
fn backwards<'a>(
    column: &'a mut [f64],
    values: &'a [f64],
    mask: &'a [u8],
) -> impl Iterator<Item = ((&'a mut f64, &'a f64), &'a u8)> {
    column.iter_mut().zip(values).zip(mask).rev().filter(|(_, action)| **action != 0)
}
