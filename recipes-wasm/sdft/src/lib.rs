//! Self-distillation from demonstrations (arXiv 2601.19897): the teacher is a moving average of the student that has
//! read a good answer; the student learns to answer its own way, but as one who knows.
//! This file is the recipe as it is read from the host: describe, select, propose, evaluate.
#![no_std]
#![deny(missing_docs)]

mod rows;
mod settings;

use reef_recipe::prelude::*;

use settings::{Settings, keys};

/// The recipe.
#[derive(Debug, Clone, Copy)]
pub struct Sdft;

impl Recipe for Sdft {
    fn describe() -> Manifest {
        use Capability::{Experience, Metrics, Tokens, Training};
        keys(Manifest::weights("sdft", env!("CARGO_PKG_VERSION")))
            .field(teacher::DEMONSTRATION)
            .asks(&[Experience, Training, Tokens, Metrics])
            .judged_on_held_out()
    }

    fn select(ctx: &Context, pool: &Pool) -> Result<Selection> {
        let settings = Settings::read()?;
        let (usable, retired) = Needs::fresh(ctx.max_staleness).one_record().sift(pool)?;
        let objection = |sample| Ok(rows::teacher_prompt(sample, &settings)?.err());
        Ok(usable.first_checked(settings.batch_size, objection)?.retire(retired))
    }

    fn propose(_: &Context, batch: &Batch) -> Result<Proposal> {
        rows::propose(batch, &Settings::read()?)
    }

    fn evaluate(_: &Context, _: Candidate) -> Result<Verdict> {
        Verdict::on_held_out()
    }
}

reef_recipe::export!(Sdft);
