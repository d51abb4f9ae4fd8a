//! The durable log: scenarios, records, samples, steps, releases and recipe state in one SQLite file or in Postgres.
//! The binary calls `Store`; every write goes through one writer task that commits many callers at once,
//! and every read through a small pool. A call that returned `Ok` survives a crash, and every accepted
//! sample is pending, reserved, consumed or retired: exactly one. No other crate knows SQL.
#![deny(missing_docs)]

mod append;
mod bytes;
mod codec;
mod dead_letters;
mod derived;
mod entry;
mod erase;
mod error;
mod feedback;
mod fill;
mod fold;
mod forget;
mod held_out;
mod home;
mod inputs;
mod instructions;
mod key;
mod needles;
mod parquet;
mod postgres;
mod proposals;
mod quarantine;
mod reading;
mod recipe_uses;
mod recipes;
mod records;
mod refused;
mod releases;
mod remove;
mod reports;
mod retention;
mod rollouts;
mod samples;
mod scenarios;
mod scrub;
mod sql;
mod sqlite;
mod state;
mod steps;
mod store;
mod surfaces;
mod trajectory;
mod transfer;
mod writer;

pub use bytes::Bytes;
pub use dead_letters::DeadLetter;
pub use erase::{Erased, Selector, Tombstone};
pub use error::StoreError;
pub use feedback::Retracted;
pub use inputs::{Environment, ModelCall, PoolEntry, RecordedState, RecordedStep, StepInputs, StepTranscript};
pub use instructions::InstructionState;
pub use proposals::{HarnessProposal, PROPOSAL_REASON_BYTES_MAX};
pub use recipe_uses::{RecipeState, RecipeUse, STATE_WRITER_KEY, UseReason};
pub use recipes::KeptRecipe;
pub use records::{RecordBody, RecordKind, StoredRecord};
pub use refused::RefusedProposal;
pub use releases::{ListedRelease, ReleaseStatus};
pub use remove::Cause;
pub use reports::Appended;
pub use retention::{Dropped, Retention, Stored};
pub use rollouts::{ROLLOUT_TAG, ROLLOUT_UNIT_TAG, arm_tag};
pub use samples::{Counts, Pool};
pub use scenarios::{Created, Scenario, ScenarioSettings, TrainingMode};
pub use steps::Commit;
pub use store::{Store, WriteStats};
pub use trajectory::Unusable;
pub use transfer::{Exported, Imported};
