//! All runs of an experiment, and what they say: per number of circles and seed, which arm found more.

use reef_search::SearchError;
use serde::{Deserialize, Serialize};

use crate::arms::{Arm, Run, run};

/// Best of plain SLSQP restarts (547 runs of 26 circles, 263 of 32), and best of the field.
const KNOWN: [(usize, f64, f64); 2] = [(26, 2.628457, 2.635983), (32, 2.919836, 2.939573)];

/// Sums closer than this are the same; the field's best is known to six decimals.
const EQUAL: f64 = 1e-6;

/// How an arm stands against restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It found more, by over 10^-6.
    Won,
    /// Both found the same.
    Tied,
    /// It found less.
    Lost,
}

/// A run beside the restarts of the same seed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Circles.
    pub circles: usize,
    /// Seed.
    pub seed: u64,
    /// The arm that is compared with restarts.
    pub arm: Arm,
    /// What it found.
    pub best: f64,
    /// What the restarts found with at least as many evaluations.
    pub restarts: f64,
    /// Which of the two is more.
    pub outcome: Outcome,
    /// More than plain SLSQP restarts reach; false where that is not known.
    pub beats_slsqp_restarts: bool,
    /// Evaluations after which the arm was within 10^-6 of the field's best; none if never.
    pub field_after: Option<u64>,
    /// The same of the restarts.
    pub restarts_field_after: Option<u64>,
}

/// An experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Experiment {
    /// Evaluations of the objective that a search may spend; restarts get as many as the search that spent most.
    pub evaluations: u64,
    /// Which arm found more.
    pub comparisons: Vec<Comparison>,
    /// Every run.
    pub runs: Vec<Run>,
}

impl Experiment {
    /// Runs all arms for each number of circles and seed, and tells each run to `told` as it ends.
    ///
    /// # Errors
    /// As [`run`].
    pub fn run(circles: &[usize], seeds: &[u64], evaluations: u64, told: impl Fn(&Run)) -> Result<Self, SearchError> {
        let (mut runs, mut comparisons) = (Vec::new(), Vec::new());
        for (&circles, &seed) in circles.iter().flat_map(|circles| seeds.iter().map(move |seed| (circles, seed))) {
            let mut searches = Vec::new();
            for arm in [Arm::Puct, Arm::Greedy] {
                let search = run(arm, circles, seed, evaluations)?;
                told(&search);
                searches.push(search);
            }
            let spent = searches.iter().map(|search| search.evaluations).max().unwrap_or(evaluations);
            let restarts = run(Arm::Restarts, circles, seed, spent)?;
            told(&restarts);
            comparisons.extend(searches.iter().map(|search| Comparison::of(search, &restarts)));
            runs.extend(searches);
            runs.push(restarts);
        }
        Ok(Self { evaluations, comparisons, runs })
    }

    /// One line a comparison.
    pub fn table(&self) -> String {
        let after = |evaluations: Option<u64>| evaluations.map_or("never".to_owned(), |count| format!("after {count}"));
        let line = |row: &Comparison| {
            format!(
                "{} circles, seed {}: {:?} {:.6}, restarts {:.6}: {:?}; the field's best {}, restarts {}",
                row.circles,
                row.seed,
                row.arm,
                row.best,
                row.restarts,
                row.outcome,
                after(row.field_after),
                after(row.restarts_field_after)
            )
        };
        self.comparisons.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

impl Comparison {
    /// Compares a search with the restarts of the same seed.
    pub fn of(search: &Run, restarts: &Run) -> Self {
        let known = KNOWN.iter().find(|(circles, ..)| *circles == search.circles);
        let reached = |run: &Run| {
            let (.., field) = known?;
            run.improvements.iter().find(|found| found.sum > field - EQUAL).map(|found| found.evaluations)
        };
        let outcome = if (search.best - restarts.best).abs() <= EQUAL {
            Outcome::Tied
        } else if search.best > restarts.best {
            Outcome::Won
        } else {
            Outcome::Lost
        };
        Self {
            circles: search.circles,
            seed: search.seed,
            arm: search.arm,
            best: search.best,
            restarts: restarts.best,
            outcome,
            beats_slsqp_restarts: known.is_some_and(|(_, slsqp, _)| search.best > *slsqp),
            field_after: reached(search),
            restarts_field_after: reached(restarts),
        }
    }
}
