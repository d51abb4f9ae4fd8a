//! Measurements of the two sides of a gate, and how they are paired.
//! The host makes a `Measurement` for each answer; the gates compare the pairs. A failure is never a score of 0: its
//! pair is left out and counted.

use serde::{Deserialize, Serialize};

/// More failed pairs than this share leave a comparison undecided: who fails is rarely chance.
pub const FAILED_SHARE_MAX: f64 = 0.1;

/// One answer to one held-out task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measurement {
    /// Graded, in [0, 1].
    Scored(f64),
    /// Not graded; says why.
    Failed(String),
}

impl Measurement {
    /// The measurement of a grade: one that is not a number from 0 to 1 is a failure.
    pub fn of(grade: f64) -> Self {
        if (0.0..=1.0).contains(&grade) {
            Self::Scored(grade)
        } else {
            Self::Failed(format!("the grade {grade} is not a number from 0 to 1"))
        }
    }

    /// The score, unless it failed or cannot be a score.
    pub fn score(&self) -> Option<f64> {
        match self {
            Self::Scored(score) if (0.0..=1.0).contains(score) => Some(*score),
            _ => None,
        }
    }

    fn failure(&self) -> Option<String> {
        match self {
            Self::Failed(reason) => Some(reason.clone()),
            Self::Scored(score) if self.score().is_none() => Some(format!("the score {score} is not from 0 to 1")),
            Self::Scored(_) => None,
        }
    }
}

/// The scores of both sides on the tasks that both answered.
#[derive(Debug, Default)]
pub(super) struct Paired {
    pub(super) candidate: Vec<f64>,
    pub(super) incumbent: Vec<f64>,
    pub(super) failed: usize,
    /// The first reason.
    pub(super) failure: Option<String>,
}

impl Paired {
    /// Pairs two lists of the same length, in task order.
    pub(super) fn of(candidate: &[Measurement], incumbent: &[Measurement]) -> Self {
        let mut paired = Self::default();
        for (new, old) in candidate.iter().zip(incumbent) {
            match (new.score(), old.score()) {
                (Some(new), Some(old)) => {
                    paired.candidate.push(new);
                    paired.incumbent.push(old);
                }
                _ => {
                    paired.failed += 1;
                    paired.failure = paired.failure.take().or_else(|| new.failure()).or_else(|| old.failure());
                }
            }
        }
        paired
    }

    /// Candidate minus incumbent, in task order.
    pub(super) fn differences(&self) -> Vec<f64> {
        self.candidate.iter().zip(&self.incumbent).map(|(new, old)| new - old).collect()
    }

    /// Why nothing can be said, if too many failed.
    pub(super) fn unusable(&self) -> Option<String> {
        let all = self.candidate.len() + self.failed;
        if !too_many_failed(self.failed, all) {
            return None;
        }
        let reason = self.failure.as_deref().unwrap_or("no reason was given");
        Some(format!("undecided: evaluation failed: {} of {all} tasks could not be scored ({reason})", self.failed))
    }
}

/// Is the share of failures over `FAILED_SHARE_MAX`?
pub(super) fn too_many_failed(failed: usize, all: usize) -> bool {
    failed as f64 > FAILED_SHARE_MAX * all as f64
}

pub(super) fn mean(scores: &[f64]) -> f64 {
    scores.iter().sum::<f64>() / scores.len() as f64
}
