//! OpenClaw-RL (arXiv 2603.10165): learns from live sessions without any report. What a person or a tool says next
//! tells how good an answer was; a judge model votes on it and writes hints, and the frozen base model that reads the
//! hint is the teacher.
//! This file is the recipe as it is read from the host: describe, ingest, select, propose, evaluate.
#![no_std]
#![deny(missing_docs)]

pub mod judge;
mod live;
pub mod loss;
mod select;
pub mod sessions;
mod settings;
mod step;
pub mod teacher;

use reef_recipe::prelude::*;
use reef_recipe::{Exchange, Judgement, Live};

use settings::{Settings, keys};

/// The recipe.
#[derive(Debug, Clone, Copy)]
pub struct OpenclawRl;

impl Recipe for OpenclawRl {
    fn describe() -> Manifest {
        use Capability::{Experience, Metrics, Models, State, Tokens, Training};
        keys(Manifest::weights("openclaw-rl", env!("CARGO_PKG_VERSION")))
            .asks(&[Experience, Training, Models, Tokens, State, Metrics])
            .top_k(loss::ALTERNATIVES)
    }

    fn select(ctx: &Context, pool: &Pool) -> Result<Selection> {
        select::select(ctx, pool)
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

impl Live for OpenclawRl {
    fn ingest(_: &Context, exchanges: &[Exchange]) -> Result<Vec<Judgement>> {
        live::ingest(exchanges)
    }
}

reef_recipe::export!(OpenclawRl);
reef_recipe::export_live!(OpenclawRl);
