//! Supervised fine-tuning: learns to give the demonstrated answer to a recorded request, by maximum likelihood.
//! This file is the recipe as it is read from the host: describe, select, propose, evaluate.
#![no_std]
#![deny(missing_docs)]

pub mod answer;
mod settings;
mod step;

use reef_recipe::prelude::*;

use settings::{Settings, keys};

/// The recipe.
#[derive(Debug, Clone, Copy)]
pub struct Sft;

impl Recipe for Sft {
    fn describe() -> Manifest {
        use Capability::{Experience, Metrics, Tokens, Training};
        keys(Manifest::weights("sft", env!("CARGO_PKG_VERSION")))
            .field(teacher::DEMONSTRATION)
            .asks(&[Experience, Training, Tokens, Metrics])
            .judged_on_held_out()
    }

    fn select(ctx: &Context, pool: &Pool) -> Result<Selection> {
        let (usable, retired) = Needs::fresh(ctx.max_staleness).one_record().sift(pool)?;
        let (batch_size, tokens_max) = (settings::BATCH_SIZE.get()?, settings::ANSWER_TOKENS_MAX.get()?);
        let closing = answer::closing()?;
        let selection = usable.first_checked(batch_size, |sample| step::objection(sample, &closing, tokens_max))?;
        Ok(selection.retire(retired))
    }

    fn propose(_: &Context, batch: &Batch) -> Result<Proposal> {
        step::propose(batch, &Settings::read()?)
    }

    fn evaluate(_: &Context, _: Candidate) -> Result<Verdict> {
        Verdict::on_held_out()
    }
}

reef_recipe::export!(Sft);
