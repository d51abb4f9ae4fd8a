//! Group-relative advantages under double-sided importance sampling: the control of sao (arXiv 2607.07508), with the
//! mean of a whole group as baseline instead of a critic.
//! This file is the recipe as it is read from the host: describe, select, propose, evaluate.
#![no_std]
#![deny(missing_docs)]

pub mod advantage;
mod settings;
mod step;

pub use reef_recipe::dis;
use reef_recipe::prelude::*;

use settings::{Settings, keys};

/// The recipe.
#[derive(Debug, Clone, Copy)]
pub struct SaoGrpoDis;

impl Recipe for SaoGrpoDis {
    fn describe() -> Manifest {
        use Capability::{Experience, Metrics, Training};
        keys(Manifest::weights("sao-grpo-dis", env!("CARGO_PKG_VERSION")))
            .grouped()
            .needs_score()
            .asks(&[Experience, Training, Metrics])
            .judged_on_held_out()
    }

    fn select(ctx: &Context, pool: &Pool) -> Result<Selection> {
        let grid = Settings::read()?.grid;
        let (usable, retired) = Needs::fresh(ctx.max_staleness).one_record().scored().sift(pool)?;
        Ok(grid.select(&usable)?.retire(retired))
    }

    fn propose(_: &Context, batch: &Batch) -> Result<Proposal> {
        step::propose(batch, &Settings::read()?)
    }

    fn evaluate(_: &Context, _: Candidate) -> Result<Verdict> {
        Verdict::on_held_out()
    }
}

reef_recipe::export!(SaoGrpoDis);
