//! Limited-memory BFGS (Nocedal 1980) with a backtracking line search: minimises an [`Objective`] from where it is.

use std::collections::VecDeque;

use crate::objective::Objective;

/// Pairs of steps and gradient changes that are remembered.
const MEMORY: usize = 12;
/// Sufficient decrease (Armijo).
const DECREASE: f64 = 1e-4;
/// Halvings of one step before the search gives up.
const HALVINGS_MAX: u32 = 30;

/// When to stop.
#[derive(Debug, Clone, Copy)]
pub struct Stop {
    /// Largest entry of the gradient that counts as 0.
    pub gradient: f64,
    /// Steps.
    pub steps_max: u32,
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// z + length·direction.
fn along(z: &[f64], direction: &[f64], length: f64) -> Vec<f64> {
    z.iter().zip(direction).map(|(z, d)| z + length * d).collect()
}

/// Steps with what they changed in the gradient, and 1/(y·s).
type Memory = VecDeque<(Vec<f64>, Vec<f64>, f64)>;

/// Moves `z` to a local minimum of the objective.
pub fn minimize(objective: &mut Objective, z: &mut Vec<f64>, stop: Stop) {
    let mut gradient = vec![0.0; z.len()];
    let mut value = objective.evaluate(z, &mut gradient);
    let mut memory = Memory::with_capacity(MEMORY);
    let mut next_gradient = vec![0.0; z.len()];
    for _ in 0..stop.steps_max {
        let steepest = gradient.iter().fold(0.0, |most: f64, entry| most.max(entry.abs()));
        if steepest <= stop.gradient {
            return;
        }
        let mut direction = direction(&memory, &gradient);
        let mut slope = dot(&direction, &gradient);
        if slope >= 0.0 {
            memory.clear();
            direction = gradient.iter().map(|entry| -entry).collect();
            slope = -dot(&gradient, &gradient);
        }
        // Without memory the gradient has no scale: the first step moves no variable by more than 0.01.
        let mut length = if memory.is_empty() { 0.01 / steepest.max(0.01) } else { 1.0 };
        let mut halvings = 0;
        let (next, next_value) = loop {
            let next = along(z, &direction, length);
            let next_value = objective.evaluate(&next, &mut next_gradient);
            if next_value <= value + DECREASE * length * slope {
                break (next, next_value);
            }
            halvings += 1;
            if halvings > HALVINGS_MAX {
                return;
            }
            length *= 0.5;
        };
        let step: Vec<f64> = next.iter().zip(&*z).map(|(new, old)| new - old).collect();
        let change: Vec<f64> = next_gradient.iter().zip(&gradient).map(|(new, old)| new - old).collect();
        let curvature = dot(&step, &change);
        if curvature > 1e-12 * dot(&change, &change) {
            if memory.len() == MEMORY {
                memory.pop_front();
            }
            memory.push_back((step, change, 1.0 / curvature));
        }
        *z = next;
        value = next_value;
        std::mem::swap(&mut gradient, &mut next_gradient);
    }
}

/// −H·gradient by the two-loop recursion.
fn direction(memory: &Memory, gradient: &[f64]) -> Vec<f64> {
    let mut direction: Vec<f64> = gradient.iter().map(|entry| -entry).collect();
    let mut alphas = Vec::with_capacity(memory.len());
    for (step, change, rho) in memory.iter().rev() {
        let alpha = rho * dot(step, &direction);
        direction.iter_mut().zip(change).for_each(|(entry, change)| *entry -= alpha * change);
        alphas.push(alpha);
    }
    if let Some((step, change, _)) = memory.back() {
        let scale = dot(step, change) / dot(change, change);
        direction.iter_mut().for_each(|entry| *entry *= scale);
    }
    for ((step, change, rho), alpha) in memory.iter().zip(alphas.into_iter().rev()) {
        let beta = rho * dot(change, &direction);
        direction.iter_mut().zip(step).for_each(|(entry, step)| *entry += (alpha - beta) * step);
    }
    direction
}
