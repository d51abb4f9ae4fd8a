//! The sandbox: loads recipes (WASM components) and calls them with nothing but what they were granted.
//! The binary loads a recipe once and calls it per step; this crate runs the guest on its own threads.
//! Whatever a guest does ends in a value or in a [`Fault`], and only validated values leave this crate.
//! It knows no tensors, no database and no network: training and model calls come in as traits.

#![warn(missing_docs)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod admission;
mod cache;
mod call;
mod call_state;
mod cancel;
mod capability;
mod chat;
mod compile;
mod compile_child;
mod config;
mod engine;
mod error;
mod experience;
mod fault;
mod gauges;
mod generation;
mod harness;
mod hooks;
mod lanes;
mod limits;
mod load;
mod log;
mod manifest;
mod memory;
mod meter;
mod metrics;
mod models;
mod offload;
mod output;
mod overrides;
mod quarantine;
mod raw;
mod run;
mod state;
mod text;
mod ticker;
mod tokens;
mod traffic;
mod training;
mod turns;
mod verify;
mod wasi;

pub use call::{Call, Context, Outcome, PoolSample};
pub use cancel::Cancel;
pub use capability::{Capability, Grants};
pub use compile::{COMPILE_COMMAND, Compiler};
pub use compile_child::compile_worker;
pub use engine::{CallListener, Sandbox};
pub use error::SandboxError;
pub use experience::{RecordView, Records};
pub use fault::{Blame, Fault, FaultKind};
pub use gauges::Gauges;
pub use harness::{
    EpisodeStatus, Harness, HarnessChange, HarnessEntry, HarnessEpisode, HarnessError, HarnessKind, HarnessTree,
};
pub use hooks::{Exchange, Exports, Judgement, RequestView};
pub use limits::SandboxConfig;
pub use load::Recipe;
pub use manifest::{ConfigKey, Manifest, ReportField, Surface, ValueKind};
pub use models::{ChatRequest, ChatSampling, Completion, Finish, Models, ModelsError, Usage};
pub use output::{Choice, Decision, Group, Proposal, Selection, Verdict};
pub use overrides::Override;
pub use quarantine::{Block, Quarantine, QuarantinePolicy};
pub use state::HOST_STATE_PREFIX;
pub use tokens::Tokens;
pub use training::{
    Bounds, Distillation, Divergence, DivergenceKind, Importance, KlPenalty, Objective, Optimizer, Policy,
    PolicyGradient, RatioSource, Reduction, Support, Term, TopKDistillation, Training, TrainingError, Weight,
};
pub use verify::{Verifier, Verifiers};
