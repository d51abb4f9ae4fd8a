//! TTT-Discover (arXiv 2601.16175): trains a LoRA on one problem while a search solves it. A step is a whole grid of
//! scored rollouts; the advantage is entropic, so that the best rollout of a group counts most.
//! This file is the recipe as it is read from the host: describe, select, propose. The search itself is a client:
//! the crate `reef-search`.
#![no_std]
#![deny(missing_docs)]

pub mod entropic;
pub mod grid;
pub mod reference;
mod settings;
mod step;

use reef_recipe::prelude::*;

use settings::{Settings, keys};

/// The recipe.
#[derive(Debug, Clone, Copy)]
pub struct TttDiscover;

impl Recipe for TttDiscover {
    fn describe() -> Manifest {
        use Capability::{Experience, Metrics, Training};
        let manifest = keys(Manifest::weights("ttt-discover", env!("CARGO_PKG_VERSION")));
        grid::fields(manifest).needs_score().asks(&[Experience, Training, Metrics])
    }

    fn select(_: &Context, pool: &Pool) -> Result<Selection> {
        grid::select(pool)
    }

    fn propose(_: &Context, batch: &Batch) -> Result<Proposal> {
        step::propose(batch, &Settings::read()?)
    }
}

reef_recipe::export!(TttDiscover);
