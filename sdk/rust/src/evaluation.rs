//! Candidate and served release on the same held-out tasks, and the verdict that most recipes draw from it.

use alloc::format;
use alloc::vec::Vec;

use crate::{Capability, Failure, Key, Manifest, Result, Verdict, maths, models};

/// Configuration key: how many held-out tasks [`Verdict::on_held_out`] compares on.
pub const EVALUATE_TASKS: Key<u32> =
    Key::count("evaluate_tasks", 32, "held-out tasks per evaluation; 0 = none").within(0.0, 10_000.0);
/// Configuration key: what [`Verdict::on_held_out`] lets a candidate lose.
pub const KEEP_TOLERANCE: Key<f64> =
    Key::number("keep_tolerance", 0.05, "held-out score points that a candidate may lose").within(0.0, 1.0);

impl Manifest {
    /// Declares the keys of [`Verdict::on_held_out`], and asks for [`Capability::Models`].
    #[must_use]
    pub fn judged_on_held_out(self) -> Self {
        self.key(EVALUATE_TASKS).key(KEEP_TOLERANCE).asks(&[Capability::Models])
    }
}

impl Verdict {
    /// Compares candidate and served release on [`EVALUATE_TASKS`] held-out tasks and rejects a candidate that lost
    /// more than [`KEEP_TOLERANCE`]. Without tasks the operator's gate decides.
    ///
    /// # Errors
    /// The host's refusal, or `invalid-config` of a key.
    pub fn on_held_out() -> Result<Self> {
        let tolerance = KEEP_TOLERANCE.get()?;
        Ok(match Paired::held_out(EVALUATE_TASKS.get()?)? {
            Some(pair) => pair.verdict(tolerance),
            None => Self::promote("no held-out task to compare on: left to the operator's gate"),
        })
    }
}

/// Scores of the candidate and of the served release, pair by pair on the same tasks.
#[derive(Debug, Clone, PartialEq)]
pub struct Paired {
    candidate: Vec<f64>,
    served: Vec<f64>,
}

impl Paired {
    /// Pairs scores of the same tasks.
    ///
    /// # Errors
    /// `other` when there is nothing to pair or one list is longer.
    pub fn new(candidate: Vec<f64>, served: Vec<f64>) -> Result<Self> {
        if candidate.is_empty() || candidate.len() != served.len() {
            return Err(Failure::other(format!("{} and {} scores do not pair", candidate.len(), served.len())));
        }
        Ok(Self { candidate, served })
    }

    /// Scores both on the first `tasks` held-out tasks; `None` when there are none.
    ///
    /// # Errors
    /// The host's refusal.
    pub fn held_out(tasks: u32) -> Result<Option<Self>> {
        let count = models::held_out_count()?.min(tasks);
        if count == 0 {
            return Ok(None);
        }
        let candidate = models::held_out_scores(models::CANDIDATE, 0, count)?;
        let served = models::held_out_scores(models::SERVED, 0, count)?;
        Self::new(candidate, served).map(Some)
    }

    /// Mean score of the candidate.
    pub fn candidate_mean(&self) -> f64 {
        maths::mean(&self.candidate)
    }

    /// Mean score of the served release.
    pub fn served_mean(&self) -> f64 {
        maths::mean(&self.served)
    }

    /// Tasks on which the candidate is strictly better.
    pub fn wins(&self) -> usize {
        self.candidate.iter().zip(&self.served).filter(|(new, old)| new > old).count()
    }

    /// Tasks on which the candidate is strictly worse.
    pub fn losses(&self) -> usize {
        self.candidate.iter().zip(&self.served).filter(|(new, old)| new < old).count()
    }

    /// Promotes unless the mean fell by more than `tolerance`, and tells the numbers.
    pub fn verdict(&self, tolerance: f64) -> Verdict {
        let (new, old) = (self.candidate_mean(), self.served_mean());
        let told = format!("held-out {old:.4} → {new:.4} on {} tasks", self.candidate.len());
        let verdict = if new >= old - tolerance {
            Verdict::promote(told)
        } else {
            Verdict::reject(format!("{told}: more than {tolerance} lost"))
        };
        verdict
            .measure("held_out_candidate", new)
            .measure("held_out_served", old)
            .measure("wins", self.wins() as f64)
            .measure("losses", self.losses() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Decision;
    use alloc::vec;

    #[test]
    fn a_candidate_is_kept_within_the_tolerance_and_dropped_beyond_it() {
        let pair = |new: f64| Paired::new(vec![new, 0.5], vec![1.0, 0.5]).map(|pair| pair.verdict(0.05));
        assert_eq!(pair(0.9).map(|verdict| verdict.decision), Ok(Decision::Promote));
        assert_eq!(pair(0.8).map(|verdict| verdict.decision), Ok(Decision::Reject));
    }

    #[test]
    fn the_verdict_carries_its_numbers() {
        let verdict = Paired::new(vec![1.0, 0.0, 0.5], vec![0.0, 1.0, 0.5]).expect("pairs").verdict(0.0);
        let numbers: Vec<f64> = verdict.measurements.iter().map(|number| number.value).collect();
        assert_eq!(numbers, [0.5, 0.5, 1.0, 1.0]);
        assert_eq!(verdict.reason, "held-out 0.5000 → 0.5000 on 3 tasks");
    }

    #[test]
    fn scores_that_do_not_pair_are_refused() {
        assert!(Paired::new(vec![1.0], vec![]).is_err());
        assert!(Paired::new(vec![], vec![]).is_err());
    }
}
