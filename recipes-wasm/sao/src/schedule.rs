//! When the policy learns: only after the critic has had its warm-up steps, then on every step.
//! The count is the only state of the recipe.

use reef_recipe::prelude::*;

/// State key: warm-up steps done, u32.
const DONE: &str = "critic_warmup_done";

/// What this step does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Fits the critic and leaves the policy alone.
    WarmUp {
        /// Number of this warm-up step, from 1.
        number: u32,
        /// How many there are.
        of: u32,
    },
    /// Trains the policy.
    Actor,
}

/// The turn after `done` of `steps` warm-up steps.
pub fn turn(done: u32, steps: u32) -> Turn {
    if done < steps { Turn::WarmUp { number: done + 1, of: steps } } else { Turn::Actor }
}

/// The turn of this step, counted.
///
/// # Errors
/// The host's refusal.
pub fn take_turn(steps: u32) -> Result<Turn> {
    let turn = turn(state::get(DONE)?.unwrap_or(0), steps);
    if let Turn::WarmUp { number, .. } = turn {
        state::set(DONE, &number)?;
    }
    Ok(turn)
}
