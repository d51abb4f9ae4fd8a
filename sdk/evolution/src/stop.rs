//! Why a step ends before it has a proposal. A reason is recorded and the batch is consumed; a failure undoes the call.

use reef_recipe::prelude::*;
use reef_recipe::{Entry, harness};

/// The end of a step without a proposal.
#[derive(Debug, Clone, PartialEq)]
pub enum Stop {
    /// Recorded with the step; what the recipe wrote to its state stays.
    Reason(String),
    /// The call fails and nothing is consumed.
    Failure(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

impl From<String> for Stop {
    fn from(reason: String) -> Self {
        Self::Reason(reason)
    }
}

impl Stop {
    /// What the host is told.
    ///
    /// # Errors
    /// The failure.
    pub fn settle(self) -> Result<Proposal> {
        match self {
            Self::Reason(reason) => Ok(Proposal::skip(reason)),
            Self::Failure(failure) => Err(failure),
        }
    }
}

/// Entries of the tree that serves, by kind and id.
///
/// # Errors
/// A reason where the host offers no harness.
pub fn incumbent() -> Result<Vec<Entry>, Stop> {
    harness::entries().map_err(|failure| unavailable(&failure))
}

/// Names of the tasks, sorted.
///
/// # Errors
/// A reason where the host offers no harness, or there is no task.
pub fn tasks() -> Result<Vec<String>, Stop> {
    let mut tasks = harness::tasks().map_err(|failure| unavailable(&failure))?;
    tasks.sort();
    tasks.dedup();
    if tasks.is_empty() {
        return Err(Stop::Reason("the harness has no task to try a change on".to_owned()));
    }
    Ok(tasks)
}

/// Would the tree admit the changes? Its refusal is a reason.
///
/// # Errors
/// A reason that names the refused change.
pub fn admitted(changes: &[reef_recipe::Mutation]) -> Result<(), Stop> {
    harness::check(changes).map_err(|failure| Stop::Reason(format!("not admitted: {}", failure.message())))
}

fn unavailable(failure: &Failure) -> Stop {
    Stop::Reason(format!("the harness is not available: {}", failure.message()))
}
