//! A person says in plain words what the agent should do otherwise; a model edits the harness, a second look reviews
//! the edit, and the candidate must still pass the health tasks.
//! This file is the recipe as it is read from the host: describe, select, propose, evaluate.
#![no_std]
#![deny(missing_docs)]

mod floor;
pub mod requires;
mod settings;
mod step;

use reef_recipe::prelude::*;

use settings::{INSTRUCTION, INSTRUCTION_CHARS_MAX, Settings, keys};

/// The recipe.
#[derive(Debug, Clone, Copy)]
pub struct Reefine;

impl Recipe for Reefine {
    fn describe() -> Manifest {
        use Capability::{Experience, Harness, Metrics, Models, State};
        keys(Manifest::harness("reefine", env!("CARGO_PKG_VERSION")))
            .field(INSTRUCTION)
            .asks(&[Experience, Models, Harness, State, Metrics])
    }

    fn select(ctx: &Context, pool: &Pool) -> Result<Selection> {
        let (usable, retired) = Needs::fresh(ctx.max_staleness).sift(pool)?;
        let objection = |sample| {
            let instruction = INSTRUCTION.of(sample)?.unwrap_or_default();
            Ok(match instruction.chars().count() {
                _ if instruction.trim().is_empty() => Some("its report has no instruction".to_owned()),
                count if count > INSTRUCTION_CHARS_MAX => {
                    Some(format!("its instruction has {count} characters, at most {INSTRUCTION_CHARS_MAX}"))
                }
                _ => None,
            })
        };
        Ok(usable.first_checked(1, objection)?.retire(retired))
    }

    fn propose(_: &Context, batch: &Batch) -> Result<Proposal> {
        match step::propose(batch, &Settings::read()?) {
            Ok(changes) => Ok(changes.into()),
            Err(stop) => stop.settle(),
        }
    }

    fn evaluate(ctx: &Context, candidate: Candidate) -> Result<Verdict> {
        floor::judge(ctx, candidate, &Settings::read()?)
    }
}

reef_recipe::export!(Reefine);
