//! Why a demo ends early: each a sentence that names the thing and what to do about it.

use std::path::PathBuf;

/// A failure that ends the demo.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The options cannot be used.
    #[error("the demo cannot start: {0}")]
    Options(String),
    /// No connection, or it broke.
    #[error("the server at {url} does not answer: {reason}; check that it is running and that this is its address")]
    Unreachable {
        /// Address.
        url: String,
        /// The chain of causes.
        reason: String,
    },
    /// The server stayed busy for all tries.
    #[error(
        "{route} was answered 'busy' {tries} times, last: {body}; give the server fewer clients or a longer queue (engine.queue_max)"
    )]
    Busy {
        /// Method and path.
        route: String,
        /// Tries in all.
        tries: u32,
        /// Last body.
        body: String,
    },
    /// An error status.
    #[error("{route} was answered {status}: {body}; {remedy}")]
    Refused {
        /// Method and path.
        route: String,
        /// HTTP status.
        status: u16,
        /// Body, shortened.
        body: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A success whose content is not what the route promises.
    #[error("{route} was answered with something unexpected: {reason}; use the demo of the server's own version")]
    Surprise {
        /// Method and path.
        route: String,
        /// What is wrong.
        reason: String,
    },
    /// The scenario has learned before, so its first measurement would not be that of the base model.
    #[error(
        "scenario '{scenario}' has already learned (its head is release number {sequence}), so nothing measured would start from the base model; choose another seed or an empty data folder"
    )]
    ScenarioUsed {
        /// Its name.
        scenario: String,
        /// Position of its head.
        sequence: u32,
    },
    /// The learner does not get on.
    #[error(
        "the learner of scenario '{scenario}' keeps failing: {reason}; look at GET /reef/scenarios/{scenario}/steps and at the server's log"
    )]
    Learner {
        /// Its name.
        scenario: String,
        /// Its last error.
        reason: String,
    },
    /// The time was over before the first step ended.
    #[error(
        "family '{family}' made no step within {minutes:.1} minutes; the learner says: {learner}; give it more minutes or look at the server's log"
    )]
    NoStep {
        /// Its name.
        family: String,
        /// The limit.
        minutes: f64,
        /// Last error, or what it waits for.
        learner: String,
    },
    /// The page cannot be written.
    #[error("the page {path} cannot be written: {reason}; choose another path")]
    Page {
        /// Its path.
        path: PathBuf,
        /// The system's words.
        reason: std::io::Error,
    },
    /// The summary cannot be printed.
    #[error("the summary cannot be written to standard output: {0}")]
    Output(std::io::Error),
}
