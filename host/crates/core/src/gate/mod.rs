//! The operator's gate on a candidate: it has the last word over the recipe.
//! The host measures candidate and incumbent on the same held-out tasks and asks `gate_decision`; nothing here measures,
//! and nothing here draws a number that is not in the code. A failure to measure is never a low score: it leaves a
//! decision open, which releases nothing and may be tried again.

mod betting;
mod decision;
mod measurement;
mod recheck;
mod sequential;
mod sign_flip;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use betting::Interval;
pub use decision::{Evidence, GateDecision, Method, Tested, gate_decision};
pub use measurement::{FAILED_SHARE_MAX, Measurement};
pub use recheck::{Recheck, recheck, recheck_due};
pub use sequential::{Progress, Sequential, SequentialPlan};

/// Smallest α: the Monte Carlo test cannot show less.
pub const ALPHA_MIN: f64 = 0.0001;
/// Largest α: above it a test says nothing.
pub const ALPHA_MAX: f64 = 0.5;
/// Largest least number of pairs; a scenario has no more held-out tasks.
pub const PAIRS_MAX: u32 = 10_000;

/// The operator's rule for releasing a candidate.
///
/// Scores, `delta` and `margin` are score points, in [0, 1]; the compared mean is the mean over held-out tasks. A rule
/// with `alpha` asks for proof: it passes only if a paired test shows its claim with an error of at most `alpha`, on at
/// least `minimum` scored tasks. A rule without compares the two means alone, so that chance decides close calls.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind", deny_unknown_fields)]
pub enum Gate {
    /// Release whatever the recipe promotes. Braces, because unknown fields beside a bare word would pass unseen.
    Always {},
    /// Release only if the candidate's own mean score reaches `minimum`; the incumbent is not asked.
    Floor {
        /// Mean score.
        minimum: f64,
    },
    /// Release only if the mean score rises.
    ScoreComparison {},
    /// Release only if the mean score rises by at least `delta`.
    MinImprovement {
        /// Score points.
        delta: f64,
    },
    /// Release unless the mean score falls by more than `margin`. Without `alpha` and `minimum`: unless the measured
    /// mean does. With both: only if it is shown that the true mean does not, which takes 70 tasks with equal scores
    /// for a margin of 0.05 and 34 for 0.1, at an alpha of 0.05.
    NonInferiority {
        /// Score points.
        margin: f64,
        /// Chance of releasing a candidate that is worse by more than the margin, at most.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        alpha: Option<f64>,
        /// Least number of scored tasks.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        minimum: Option<u32>,
        /// Stop measuring as soon as it is decided. The held-out tasks must then be in random order.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        early_stop: bool,
    },
    /// Release only if it is shown that the mean score rises by more than `delta`.
    Superiority {
        /// Score points.
        #[serde(default)]
        delta: f64,
        /// Chance of releasing a candidate that is not better by more than delta, at most.
        alpha: f64,
        /// Least number of scored tasks.
        minimum: u32,
        /// Stop measuring as soon as it is decided. The held-out tasks must then be in random order.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        early_stop: bool,
    },
}

/// The proof that a gate asks for.
#[derive(Debug, Clone, Copy)]
struct Proof {
    /// The mean difference that is to be exceeded.
    threshold: f64,
    alpha: f64,
    minimum: u32,
    early_stop: bool,
}

impl Gate {
    /// Non-inferiority by the measured means alone.
    pub const fn non_inferiority(margin: f64) -> Self {
        Self::NonInferiority { margin, alpha: None, minimum: None, early_stop: false }
    }

    /// Refuses numbers that no score can meet; names the field.
    pub fn check(self) -> Result<(), String> {
        match self {
            Self::Always {} | Self::ScoreComparison {} => return Ok(()),
            Self::Floor { minimum } => share("minimum", minimum)?,
            Self::MinImprovement { delta } | Self::Superiority { delta, .. } => share("delta", delta)?,
            Self::NonInferiority { margin, .. } => share("margin", margin)?,
        }
        if let Self::NonInferiority { alpha, minimum, early_stop, .. } = self {
            match (alpha, minimum) {
                (Some(_), None) => return Err("gate.minimum is missing; a test needs it beside alpha".to_owned()),
                (None, Some(_)) => return Err("gate.alpha is missing; a test needs it beside minimum".to_owned()),
                (None, None) if early_stop => {
                    return Err("gate.early_stop needs gate.alpha and gate.minimum: means alone are no test".to_owned());
                }
                _ => {}
            }
        }
        self.proof().map_or(Ok(()), Proof::check)
    }

    /// Does it look at scores of the candidate?
    pub fn measures(self) -> bool {
        !matches!(self, Self::Always {})
    }

    /// Does it look at scores of the incumbent too?
    pub fn compares(self) -> bool {
        !matches!(self, Self::Always {} | Self::Floor { .. })
    }

    /// Does it stop measuring as soon as it is decided?
    pub fn stops_early(self) -> bool {
        self.proof().is_some_and(|proof| proof.early_stop)
    }

    /// Is it decided by what was measured so far, so that no more needs to be? Only ever with `early_stop`.
    pub fn is_settled(self, candidate: &[Measurement], incumbent: &[Measurement]) -> bool {
        let Some(proof) = self.proof().filter(|proof| proof.early_stop) else { return false };
        let run = proof.run(candidate, incumbent);
        run.is_ok_and(|(_, progress)| progress != Progress::Continue)
    }

    fn proof(self) -> Option<Proof> {
        match self {
            Self::NonInferiority { margin, alpha: Some(alpha), minimum: Some(minimum), early_stop } => {
                Some(Proof { threshold: -margin, alpha, minimum, early_stop })
            }
            Self::Superiority { delta, alpha, minimum, early_stop } => {
                Some(Proof { threshold: delta, alpha, minimum, early_stop })
            }
            _ => None,
        }
    }
}

impl std::fmt::Display for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Always {} => write!(f, "gate always"),
            Self::Floor { minimum } => write!(f, "gate floor {minimum}"),
            Self::ScoreComparison {} => write!(f, "gate score-comparison"),
            Self::MinImprovement { delta } => write!(f, "gate min-improvement {delta}"),
            Self::NonInferiority { margin, .. } => write!(f, "gate non-inferiority {margin}"),
            Self::Superiority { delta, .. } => write!(f, "gate superiority {delta}"),
        }
    }
}

fn share(field: &str, value: f64) -> Result<(), String> {
    let fits = (0.0..=1.0).contains(&value);
    if fits { Ok(()) } else { Err(format!("gate.{field} is {value}; use a number from 0 to 1")) }
}

impl Proof {
    /// The sign-flip test is right only for "no difference", and only for a number of pairs that was fixed.
    fn is_by_sign_flip(self) -> bool {
        self.threshold == 0.0 && !self.early_stop
    }

    fn check(self) -> Result<(), String> {
        let Self { threshold, alpha, minimum, .. } = self;
        if !(ALPHA_MIN..=ALPHA_MAX).contains(&alpha) {
            return Err(format!("gate.alpha is {alpha}; use a number from {ALPHA_MIN} to {ALPHA_MAX}"));
        }
        if threshold.abs() >= 1.0 {
            return Err("gate.delta or gate.margin is 1, which leaves nothing to show; use less".to_owned());
        }
        let fewest = if self.is_by_sign_flip() {
            (1..=PAIRS_MAX).find(|pairs| 0.5_f64.powf(f64::from(*pairs)) <= alpha)
        } else {
            betting::pairs_needed(1.0, threshold, alpha, PAIRS_MAX)
        };
        match fewest {
            None => Err(format!("gate.delta is {threshold}: even {PAIRS_MAX} tasks cannot show it; use less")),
            Some(fewest) if minimum < fewest || minimum > PAIRS_MAX => Err(format!(
                "gate.minimum is {minimum}; use {fewest} to {PAIRS_MAX}, since fewer tasks never reach alpha {alpha}"
            )),
            Some(_) => Ok(()),
        }
    }

    /// The comparison that may stop early, run over what was measured.
    fn run(self, candidate: &[Measurement], incumbent: &[Measurement]) -> Result<(Sequential, Progress), String> {
        let Self { threshold, alpha, minimum, .. } = self;
        let plan = SequentialPlan { threshold, alpha, pairs_min: minimum, pairs_max: u32::MAX };
        let mut sequential = Sequential::new(plan)?;
        let mut progress = Progress::Continue;
        for (new, old) in candidate.iter().zip(incumbent) {
            progress = sequential.push(new, old);
        }
        Ok((sequential, progress))
    }
}
