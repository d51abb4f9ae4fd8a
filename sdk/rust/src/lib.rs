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
mod config;
mod evaluation;
mod failure;
pub mod host;
#[cfg(target_arch = "wasm32")]
mod imports;
mod json;
pub mod log;
mod manifest;
pub mod maths;
pub mod metrics;
pub mod models;
mod recipe;
#[cfg(target_arch = "wasm32")]
mod runtime;
mod samples;
mod selection;
pub mod state;
#[cfg(not(target_arch = "wasm32"))]
pub mod testing;
mod training;

pub use bindings::reef::recipe::models::{Message, Sampling};
pub use bindings::reef::recipe::training::{
    Bounds, CriticOptimizer, Objective, Optimizer, Policy, PolicyGradient, Reduction, Weight,
};
pub use bindings::reef::recipe::types::{
    Choice, ConfigKey, Context, Decision, Failure, Group, Manifest, Measurement, Proposal, ReportField, Retirement,
    Sample, Selection, Surface, ValueKind, Verdict,
};
pub use config::{Field, Key, Value};
pub use evaluation::Paired;
pub use manifest::Capability;
pub use recipe::{Recipe, Result};
pub use samples::{Batch, PerToken, Pool, Samples};
pub use training::{Candidate, Measurements, Trainer};

/// What a recipe needs in scope; with it, a recipe is `#![no_std]` without noticing.
pub mod prelude {
    pub use crate::{
        Batch, Bounds, Candidate, Capability, Context, CriticOptimizer, Failure, Field, Key, Manifest, Optimizer,
        Paired, PerToken, Policy, PolicyGradient, Pool, Proposal, Recipe, Reduction, Result, Sample, Samples,
        Selection, Trainer, Verdict, Weight, log, maths, metrics, models, state,
    };
    pub use alloc::borrow::ToOwned;
    pub use alloc::string::{String, ToString};
    pub use alloc::vec::Vec;
    pub use alloc::{format, vec};
}
