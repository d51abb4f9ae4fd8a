//! Self-distillation from successful siblings (arXiv 2601.20802): of several answers to one request, one that
//! succeeded tells the others what to do; the teacher is a moving average of the student that has read it.
//! This file is the recipe as it is read from the host: describe, select, propose, evaluate.
#![no_std]
#![deny(missing_docs)]

pub mod context;
mod settings;
mod step;

use reef_recipe::prelude::*;

use settings::{FEEDBACK, Settings, keys};

/// The recipe.
#[derive(Debug, Clone, Copy)]
pub struct Sdpo;

impl Recipe for Sdpo {
    fn describe() -> Manifest {
        use Capability::{Experience, Metrics, Tokens, Training};
        keys(Manifest::weights("sdpo", env!("CARGO_PKG_VERSION")))
            .grouped()
            .field(FEEDBACK)
            .needs_score()
            .asks(&[Experience, Training, Tokens, Metrics])
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

reef_recipe::export!(Sdpo);
