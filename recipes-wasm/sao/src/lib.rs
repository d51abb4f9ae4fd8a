//! Single-Rollout Asynchronous Optimization (arXiv 2607.07508): learns from one scored answer per prompt,
//! as they arrive, with a critic as baseline and an importance ratio that masks what drifted too far.
//! This file is the recipe as it is read from the host: describe, select, propose, evaluate.
#![no_std]
#![deny(missing_docs)]

pub mod dis;
pub mod gae;
pub mod schedule;
mod select;
mod settings;
mod step;

use reef_recipe::prelude::*;

use settings::{Settings, keys};

/// The recipe.
#[derive(Debug, Clone, Copy)]
pub struct Sao;

impl Recipe for Sao {
    fn describe() -> Manifest {
        use Capability::{Experience, Metrics, Models, State, Training};
        keys(Manifest::weights("sao", env!("CARGO_PKG_VERSION")))
            .needs_score()
            .asks(&[Experience, Training, Models, State, Metrics])
    }

    fn select(ctx: &Context, pool: &Pool) -> Result<Selection> {
        select::select(pool, ctx.max_staleness, settings::BATCH_SIZE.get()?)
    }

    fn propose(_: &Context, batch: &Batch) -> Result<Proposal> {
        step::propose(batch, &Settings::read()?)
    }

    fn evaluate(_: &Context, _: Candidate) -> Result<Verdict> {
        let tolerance = settings::KEEP_TOLERANCE.get()?;
        Ok(match Paired::held_out(settings::EVALUATE_TASKS.get()?)? {
            Some(pair) => pair.verdict(tolerance),
            None => Verdict::promote("no held-out task to compare on: left to the operator's gate"),
        })
    }
}

reef_recipe::export!(Sao);
