//! A pool of skills that grows with use (SkillClaw, arXiv 2604.08377): a model summarises and grades recorded sessions,
//! decides skill by skill what to improve, describe better or create, and merges what several groups want. Nothing is
//! ever removed. This file is the recipe as it is read from the host: describe, select, propose; the operator's gate
//! evaluates.
#![no_std]
#![deny(missing_docs)]

extern crate alloc;

pub mod decide;
pub mod judge;
pub mod sessions;
mod settings;
mod step;

use reef_evolution::traces::FEEDBACK;
use reef_recipe::prelude::*;

use settings::{Settings, keys};

/// Samples that one selection looks at: the session of each is one of the 1,000 calls that the host answers.
const WINDOW: usize = 800;

/// Exchanges of a step, each of which is five such calls; a step whose sessions are longer has fewer of them.
const EXCHANGES_MAX: usize = 180;

/// The recipe.
#[derive(Debug, Clone, Copy)]
pub struct SkillClaw;

impl Recipe for SkillClaw {
    fn describe() -> Manifest {
        use Capability::{Experience, Harness, Metrics, Models};
        keys(Manifest::harness("skillclaw", env!("CARGO_PKG_VERSION")))
            .field(FEEDBACK)
            .asks(&[Experience, Models, Harness, Metrics])
    }

    fn select(ctx: &Context, pool: &Pool) -> Result<Selection> {
        let wanted = Settings::read()?.batch_size as usize;
        let (usable, retired) = Needs::fresh(ctx.max_staleness).sift(pool)?;
        let seen = usable.handles().get(..WINDOW).unwrap_or(usable.handles());
        let sessions = sessions::by_session(seen)?;
        if sessions.len() < wanted {
            let told = format!("{} of {wanted} sessions", sessions.len());
            return Ok(Selection::wait(told).retire(retired));
        }
        let mut batch = Vec::new();
        for session in sessions.iter().take(wanted) {
            if batch.len() + session.len() > EXCHANGES_MAX && !batch.is_empty() {
                break;
            }
            batch.extend(session.iter().take(EXCHANGES_MAX).copied());
        }
        Ok(Selection::train(batch).retire(retired))
    }

    fn propose(_: &Context, batch: &Batch) -> Result<Proposal> {
        match step::propose(batch, &Settings::read()?) {
            Ok(changes) => Ok(changes.into()),
            Err(stop) => stop.settle(),
        }
    }
}

reef_recipe::export!(SkillClaw);
