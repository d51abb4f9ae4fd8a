//! A verifier: upper bounds of the minimum overlap problem of Erdős. The task is the largest number of steps as JSON,
//! e.g. `1000`; the answer is a JSON list of the values of a step function h in [0, 1] with mean 1/2. The bound is
//! computed here and never taken from the answer. [`overlap`] is pure and native as well. It imports nothing.
#![no_std]
#![deny(missing_docs)]

extern crate alloc;

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use reef_recipe::{Outcome, Verifier, json};

/// Steps of a task: the bound takes their square in time.
pub const STEPS_MAX: usize = 4_096;
/// Keeps the score finite.
const FLOOR: f64 = 1e-8;

/// C₅ of a step function: max over shifts k of Σ_i h_i·(1 − h_{i+k}) · 2/n. A function of another mean is first
/// multiplied so that its mean is 1/2.
///
/// # Errors
/// One sentence: why the values are no such function.
pub fn overlap(values: &[f64]) -> Result<f64, String> {
    if values.is_empty() {
        return Err("there are no values".into());
    }
    in_unit(values, "")?;
    let half = values.len() as f64 / 2.0;
    let sum: f64 = values.iter().sum();
    if sum == 0.0 {
        return Err("all values are 0, so that no factor makes their mean 1/2".into());
    }
    let scaled: Vec<f64> = values.iter().map(|value| if sum == half { *value } else { value * (half / sum) }).collect();
    in_unit(&scaled, ", multiplied so that the mean is 1/2,")?;
    Ok(largest_correlation(&scaled) * 2.0 / scaled.len() as f64)
}

fn in_unit(values: &[f64], how: &str) -> Result<(), String> {
    match values.iter().enumerate().find(|(_, value)| !(0.0..=1.0).contains(*value)) {
        Some((i, value)) => Err(format!("value {i}{how} is {value} and must be in [0, 1]")),
        None => Ok(()),
    }
}

/// max_k Σ_i h_i·(1 − h_{i+k}) over all shifts, 1 − h being 0 outside of the function.
fn largest_correlation(h: &[f64]) -> f64 {
    let rest: Vec<f64> = h.iter().map(|value| 1.0 - value).collect();
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let shifted = |k: usize| {
        let (forward, backward) = (rest.get(k..).unwrap_or(&[]), h.get(k..).unwrap_or(&[]));
        dot(h, forward).max(dot(backward, &rest))
    };
    (0..h.len()).map(shifted).fold(0.0, f64::max)
}

/// The verifier: the score is 1/(10^-8 + C₅), 0 for what is no such function; smaller bounds score higher.
#[derive(Debug, Clone, Copy)]
pub struct ErdosOverlap;

impl Verifier for ErdosOverlap {
    fn check(task: &str, answer: &str) -> Result<Outcome, String> {
        let most = steps_of(task)?;
        let graded = match json::numbers(answer) {
            None => Err("the answer is not a JSON list of numbers".into()),
            Some(values) if values.len() > most => {
                Err(format!("{} values and at most {most} may be given", values.len()))
            }
            Some(values) => overlap(&values),
        };
        Ok(match graded {
            Ok(bound) => {
                Outcome { score: 1.0 / (FLOOR + bound), passed: true, detail: format!("overlap at most {bound:.10}") }
            }
            Err(reason) => Outcome::fail(reason),
        })
    }
}

fn steps_of(task: &str) -> Result<usize, String> {
    let count = json::number(task).filter(|count| (1.0..=STEPS_MAX as f64).contains(count) && count % 1.0 == 0.0);
    count
        .map(|count| count as usize)
        .ok_or_else(|| format!("the task is not the largest number of values: a whole number from 1 to {STEPS_MAX}"))
}

reef_recipe::export_verifier!(ErdosOverlap);
