//! Single-Rollout Asynchronous Optimization (arXiv 2607.07508): learns from one scored answer per prompt,
//! as they arrive, with a critic as baseline and an importance ratio that masks what drifted too far.
//! This file is the recipe as it is read from the host: describe, select, propose, evaluate.
#![no_std]
#![deny(missing_docs)]

pub mod gae;
pub mod schedule;
mod settings;
mod step;

pub use reef_recipe::dis;
use reef_recipe::prelude::*;

use settings::{Settings, keys};

/// The recipe.
#[derive(Debug, Clone, Copy)]
pub struct Sao;

impl Recipe for Sao {
    fn describe() -> Manifest {
        use Capability::{Experience, Metrics, State, Training};
        keys(Manifest::weights("sao", env!("CARGO_PKG_VERSION")))
            .needs_score()
            .asks(&[Experience, Training, State, Metrics])
            .judged_on_held_out()
    }

    fn select(ctx: &Context, pool: &Pool) -> Result<Selection> {
        let (usable, retired) = Needs::fresh(ctx.max_staleness).one_record().scored().sift(pool)?;
        Ok(usable.first(settings::BATCH_SIZE.get()?).retire(retired))
    }

    fn propose(_: &Context, batch: &Batch) -> Result<Proposal> {
        step::propose(batch, &Settings::read()?)
    }

    fn evaluate(_: &Context, _: Candidate) -> Result<Verdict> {
        Verdict::on_held_out()
    }
}

reef_recipe::export!(Sao);
