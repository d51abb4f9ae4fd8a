//! Why a search cannot start, go on or be resumed.

use crate::archive::NodeId;

/// A refusal; names the thing and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    /// A setting.
    #[error("{key} is {value} and must be {wanted}")]
    Setting {
        /// Its name.
        key: &'static str,
        /// As given.
        value: f64,
        /// What it must be.
        wanted: &'static str,
    },
    /// No seed, or more than the archive may hold.
    #[error("{found} seeds are given; start with 1 to {most}")]
    Seeds {
        /// How many.
        found: usize,
        /// How many at most.
        most: usize,
    },
    /// A seed or a state of a saved search.
    #[error("state {index} cannot be kept: {problem}")]
    State {
        /// Its place in the list.
        index: usize,
        /// What is wrong.
        problem: String,
    },
    /// A parent that left the archive or never was in it.
    #[error("the archive has no state {0}; expand a state that it selected and that no update has replaced since")]
    UnknownState(NodeId),
    /// A saved search that is no search.
    #[error("the saved search cannot be read: {0}; give the JSON that `Search::to_json` wrote")]
    Json(#[from] serde_json::Error),
}
