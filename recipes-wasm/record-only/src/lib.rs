//! Records and never learns: traffic and reports stay in the pool, for a recipe that is loaded later, a backtest or
//! an export. It asks for no capability, consumes nothing and proposes nothing.
#![no_std]
#![deny(missing_docs)]

use reef_recipe::prelude::*;

/// The recipe.
#[derive(Debug, Clone, Copy)]
pub struct RecordOnly;

impl Recipe for RecordOnly {
    fn describe() -> Manifest {
        Manifest::weights("record-only", env!("CARGO_PKG_VERSION"))
    }

    fn select(_: &Context, pool: &Pool) -> Result<Selection> {
        Ok(Selection::wait(format!("record-only never trains; {} samples are kept", pool.len())))
    }

    fn propose(_: &Context, _: &Batch) -> Result<Proposal> {
        Err(Failure::other("record-only never selects a batch, so there is nothing to propose"))
    }

    fn evaluate(_: &Context, _: Candidate) -> Result<Verdict> {
        Ok(Verdict::reject("record-only never proposes, so this candidate is not its own"))
    }
}

reef_recipe::export!(RecordOnly);
