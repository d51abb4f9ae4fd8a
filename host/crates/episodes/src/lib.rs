//! Episodes: one try of one task by an agent that reads a rendered harness, and what it scored. With them the native
//! agent, a small loop without a screen, and the cage in which everything runs that somebody else wrote.
//! The binary's jobs and commands call it and give it the model and the component verifiers as functions; it knows no
//! database, no engine and no sandbox of recipes. Whatever an agent does ends in an `Outcome`.

#![deny(missing_docs)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod agent;
mod bounded;
mod cage;
mod episode;
mod error;
mod task;
mod verify;

pub use agent::{Agent, Ask, AskError, Ended, HOME_VARIABLE, Home, Limits, Said, Settings, Stop, Usage};
pub use cage::{Cage, Isolation, PATH, bridge};
pub use episode::{Episode, Gateway, HomeFile, Judge, Judged, Launch, Plan, Runner, Start, Status, WORK_INSIDE};
pub use error::EpisodeError;
pub use task::{Task, TaskLimits, VerifierSource, read_tasks};
