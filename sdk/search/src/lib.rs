//! Search over constructions or programs for one problem, as the recipe `ttt-discover` learns from it (arXiv
//! 2601.16175): an archive of what was found, PUCT to choose what to build on, and a driver that asks a problem for
//! children and their scores. It knows no server, no clock and no randomness but a seed; its whole state is JSON, so
//! that a search resumes where it was.
#![deny(missing_docs)]

mod archive;
mod error;
mod puct;
mod search;

pub use archive::{Archive, CONSTRUCTION_BYTES_MAX, Expansion, Node, NodeId, STATES_MAX};
pub use error::SearchError;
pub use puct::{Priority, State, priorities};
pub use search::{Problem, Rollout, Search, Settings, StepReport};

/// The example of the README compiles and holds.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
