//! What is wrong before an episode can run. What goes wrong within one is an outcome and no error.

use std::path::PathBuf;

/// Why episodes cannot run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EpisodeError {
    /// A task folder breaks a rule.
    #[error("task {}: {problem}", path.display())]
    Task {
        /// The folder or file.
        path: PathBuf,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// The home of an agent cannot be read.
    #[error("harness home {}: {problem}", path.display())]
    Home {
        /// The folder or file.
        path: PathBuf,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// Programs cannot be caged here, and the operator wants them to be.
    #[error("agents cannot be isolated: {0}; install bubblewrap, or set harness.episodes.isolation to none")]
    NoCage(String),
}
