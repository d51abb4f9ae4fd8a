//! The Rust SDK for Reef recipes: a recipe implements [`Recipe`] and calls [`export!`]; the result is a
//! component that decides what to learn from, how, and whether to keep it.
//! On `wasm32` every call reaches the host that runs the recipe; natively it reaches the
//! [`testing::FakeHost`] of a test, so that a recipe is tested as plain Rust.
//! A capability that a recipe never calls does not appear among the imports of its component.
#![cfg_attr(target_arch = "wasm32", no_std)]
#![deny(missing_docs)]

extern crate alloc;

#[doc(hidden)]
pub mod bindings;
pub mod config;
pub mod dis;
pub mod distillation;
pub mod evaluation;
pub mod experience;
mod exports;
mod failure;
pub mod groups;
pub mod harness;
pub mod host;
#[cfg(target_arch = "wasm32")]
mod imports;
pub mod json;
pub mod log;
mod loss;
mod manifest;
pub mod maths;
pub mod metrics;
pub mod models;
mod needs;
mod recipe;
#[cfg(target_arch = "wasm32")]
mod runtime;
mod samples;
mod selection;
pub mod state;
pub mod teacher;
#[cfg(not(target_arch = "wasm32"))]
pub mod testing;
pub mod tokens;
mod training;
pub mod verify;

pub use bindings::reef::recipe::models::{ChatRequest, Completion, Sampling, Usage};
pub use bindings::reef::recipe::training::{
    Advantages, Bounds, CriticOptimizer, Distillation, Divergence, DivergenceKind, Importance, KlPenalty, Objective,
    Optimizer, Policy, PolicyGradient, RatioSource, Reduction, Support, Term, TopKDistillation, Weight,
};
pub use bindings::reef::recipe::types::{
    Choice, ConfigKey, Context, Decision, Entry, EntryKind, EntryName, Failure, Group, Manifest, Measurement, Message,
    Mutation, Proposal, ReportField, Retirement, Route, Sample, Selection, Surface, ValueKind, Verdict,
};
pub use bindings::reef::recipe::verify::Outcome;
pub use config::{Field, Key, Value};
pub use evaluation::Paired;
pub use exports::{Exchange, Judgement, Live, Migration, Request, Requests, StateEntry};
pub use groups::Grid;
pub use loss::Loss;
pub use manifest::Capability;
pub use needs::Needs;
pub use recipe::{Recipe, Result};
pub use samples::{Batch, PerToken, Pool, Samples};
pub use training::{Candidate, Measurements, Trainer};
pub use verify::Verifier;

#[doc(hidden)]
pub use alloc::{format as __format, string::String as __String, vec::Vec as __Vec};
#[cfg(target_arch = "wasm32")]
#[doc(hidden)]
pub use runtime::log_panics;

/// What a recipe needs in scope; with it, a recipe is `#![no_std]` without noticing.
pub mod prelude {
    pub use crate::{
        Advantages, Batch, Bounds, Candidate, Capability, Context, CriticOptimizer, Distillation, Divergence, Failure,
        Field, Grid, Importance, Key, Loss, Manifest, Message, Needs, Objective, Optimizer, Outcome, Paired, PerToken,
        Policy, PolicyGradient, Pool, Proposal, Recipe, Reduction, Result, Retirement, Sample, Samples, Sampling,
        Selection, Support, Trainer, Verdict, Verifier, Weight, experience, log, maths, metrics, models, state,
        teacher, tokens, verify,
    };
    pub use alloc::borrow::ToOwned;
    pub use alloc::string::{String, ToString};
    pub use alloc::vec::Vec;
    pub use alloc::{format, vec};
}
