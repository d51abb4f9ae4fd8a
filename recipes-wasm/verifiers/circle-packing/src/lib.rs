//! A verifier: n circles in the unit square, as large in sum as they get. The task is the number of circles as JSON,
//! e.g. `26`; the answer is a JSON list of `[x, y, radius]`. [`check`] and [`parse`] are pure and native as well, so
//! that a search grades by the same code. It imports nothing.
#![no_std]
#![deny(missing_docs)]

extern crate alloc;

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use reef_recipe::maths::sqrt;
use reef_recipe::{Outcome, Verifier, json};

/// How far a circle may reach over a side or into another one. It is worth at most n/2 of it in the sum.
pub const TOLERANCE: f64 = 1e-6;
/// Circles of a task.
pub const CIRCLES_MAX: usize = 1_000;

/// A circle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Circle {
    /// Centre, from the left side.
    pub x: f64,
    /// Centre, from the lower side.
    pub y: f64,
    /// Radius, at least 0.
    pub r: f64,
}

impl Circle {
    /// Distance between the edges; negative where they overlap.
    pub fn gap(&self, other: &Self) -> f64 {
        let (dx, dy) = (self.x - other.x, self.y - other.y);
        sqrt(dx * dx + dy * dy) - (self.r + other.r)
    }

    /// Distance of the edge to the nearest side of the square; negative where it reaches over it.
    pub fn margin(&self) -> f64 {
        let Self { x, y, r } = *self;
        (x - r).min(1.0 - (x + r)).min(y - r).min(1.0 - (y + r))
    }
}

/// The sum of the radii, if every circle is inside the square and no two overlap, within `tolerance`.
///
/// # Errors
/// One sentence: the first rule that is broken, and by which circles (from 0).
pub fn check(circles: &[Circle], tolerance: f64) -> Result<f64, String> {
    for (i, circle) in circles.iter().enumerate() {
        if !(circle.x.is_finite() && circle.y.is_finite() && circle.r.is_finite()) {
            return Err(format!("circle {i} has a coordinate or radius that is not finite"));
        }
        if circle.r < 0.0 {
            return Err(format!("circle {i} has the radius {}, and it must be at least 0", circle.r));
        }
        if circle.margin() < -tolerance {
            return Err(format!("circle {i} reaches {:.3e} over a side of the square", -circle.margin()));
        }
        let earlier = circles.iter().take(i).map(|other| circle.gap(other)).enumerate();
        if let Some((j, gap)) = earlier.into_iter().find(|(_, gap)| *gap < -tolerance) {
            return Err(format!("circles {j} and {i} overlap by {:.3e}", -gap));
        }
    }
    Ok(circles.iter().map(|circle| circle.r).sum())
}

/// Reads an answer: nothing but a JSON list of `[x, y, radius]`, white space aside.
///
/// # Errors
/// One sentence: what is no such list.
pub fn parse(answer: &str) -> Result<Vec<Circle>, String> {
    let rows = json::rows(answer).ok_or("the answer is not a JSON list of [x, y, radius]")?;
    let circle = |(i, row): (usize, Vec<f64>)| match row.as_slice() {
        &[x, y, r] => Ok(Circle { x, y, r }),
        other => Err(format!("circle {i} has {} numbers instead of x, y and radius", other.len())),
    };
    rows.into_iter().enumerate().map(circle).collect()
}

/// Writes circles as an answer; [`parse`] gives the same back, bit for bit.
pub fn write(circles: &[Circle]) -> String {
    let rows: Vec<String> = circles.iter().map(|Circle { x, y, r }| format!("[{x:?},{y:?},{r:?}]")).collect();
    format!("[{}]", rows.join(","))
}

/// The verifier: the score is the sum of the radii, 0 for what is no packing.
#[derive(Debug, Clone, Copy)]
pub struct CirclePacking;

impl Verifier for CirclePacking {
    fn check(task: &str, answer: &str) -> Result<Outcome, String> {
        let wanted = circles_of(task)?;
        let graded = parse(answer).and_then(|circles| {
            if circles.len() == wanted {
                self::check(&circles, TOLERANCE)
            } else {
                Err(format!("{} circles instead of {wanted}", circles.len()))
            }
        });
        Ok(match graded {
            Ok(sum) => Outcome { score: sum, passed: true, detail: format!("radii sum to {sum:.10}") },
            Err(reason) => Outcome::fail(reason),
        })
    }
}

fn circles_of(task: &str) -> Result<usize, String> {
    let count = json::number(task).filter(|count| (1.0..=CIRCLES_MAX as f64).contains(count) && count % 1.0 == 0.0);
    count
        .map(|count| count as usize)
        .ok_or_else(|| format!("the task is not the number of circles: a whole number from 1 to {CIRCLES_MAX}"))
}

reef_recipe::export_verifier!(CirclePacking);
