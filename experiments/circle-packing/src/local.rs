//! The local optimiser of every arm: an augmented Lagrangian over centres and radii, then radii made smaller by what
//! still overlaps, so that a result is a packing without any tolerance.

use reef_verifier_circle_packing::Circle;

use crate::lbfgs::{Stop, minimize};
use crate::objective::Objective;

/// First penalty: soft, so that circles can still pass each other.
const PENALTY_FIRST: f64 = 30.0;
/// Growth of the penalty from round to round.
const PENALTY_GROWTH: f64 = 3.0;
/// Largest penalty.
const PENALTY_MAX: f64 = 3_000.0;
/// Rounds of multiplier updates.
const ROUNDS_MAX: u32 = 12;
/// Violation at which the rounds end.
const VIOLATION: f64 = 1e-8;
/// Steps of one round.
const STEPS: Stop = Stop { gradient: 1e-6, steps_max: 400 };
/// Taken off every radius at the end, against rounding in the check.
const ROUNDING: f64 = 1e-15;

/// The optimiser with its count of evaluations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Optimizer {
    /// Evaluations of the objective so far.
    pub evaluations: u64,
    /// Local optimisations so far.
    pub runs: u64,
}

impl Optimizer {
    /// The nearest local optimum, as a packing that is valid at tolerance 0; rarely it is none, see [`feasible`].
    pub fn optimize(&mut self, circles: &[Circle]) -> Vec<Circle> {
        let mut objective = Objective::new(circles.len(), PENALTY_FIRST);
        let part = |of: fn(&Circle) -> f64| circles.iter().map(of);
        let mut z: Vec<f64> =
            part(|circle| circle.x).chain(part(|circle| circle.y)).chain(part(|circle| circle.r)).collect();
        for _ in 0..ROUNDS_MAX {
            minimize(&mut objective, &mut z, STEPS);
            if objective.update_multipliers(&z) < VIOLATION {
                break;
            }
            objective.penalty = (objective.penalty * PENALTY_GROWTH).min(PENALTY_MAX);
        }
        self.evaluations += objective.evaluations;
        self.runs += 1;
        let n = circles.len();
        feasible((0..n).map(|i| Circle { x: z[i], y: z[n + i], r: z[2 * n + i] }).collect())
    }
}

/// The same centres with radii that are small enough: each gives way by half of its deepest overlap, and by what
/// reaches over a side. A circle that lies in another one, deeper than its own radius, has no such radius.
pub fn feasible(mut circles: Vec<Circle>) -> Vec<Circle> {
    for circle in &mut circles {
        (circle.x, circle.y) = (circle.x.clamp(0.0, 1.0), circle.y.clamp(0.0, 1.0));
        circle.r = circle.r.clamp(0.0, 0.5);
    }
    let excess: Vec<f64> = (0..circles.len())
        .map(|i| {
            let others = circles.iter().enumerate().filter(|(j, _)| *j != i);
            let deepest = others.map(|(_, other)| -circles[i].gap(other) / 2.0).fold(0.0, f64::max);
            deepest.max(-circles[i].margin())
        })
        .collect();
    for (circle, excess) in circles.iter_mut().zip(excess) {
        circle.r = (circle.r - excess - ROUNDING).max(0.0);
    }
    circles
}
