//! Reflective prompt evolution (GEPA, arXiv 2507.19457): a model reads tries of the agent and writes one of its texts
//! anew; what does better joins an archive, and parents are drawn from its Pareto front over validation tasks.
//! This file is the recipe as it is read from the host: describe, select, propose, evaluate.
#![no_std]
#![deny(missing_docs)]

extern crate alloc;

pub mod archive;
pub mod chance;
pub mod pareto;
pub mod reflect;
mod settings;
mod step;

use reef_evolution::traces::FEEDBACK;
use reef_evolution::trials::sign_test;
use reef_recipe::prelude::*;

use archive::Archive;
use settings::{Settings, TASK, keys};

/// The recipe.
#[derive(Debug, Clone, Copy)]
pub struct Gepa;

impl Recipe for Gepa {
    fn describe() -> Manifest {
        use Capability::{Experience, Harness, Metrics, Models, State};
        keys(Manifest::harness("gepa", env!("CARGO_PKG_VERSION")))
            .field(TASK)
            .field(FEEDBACK)
            .needs_score()
            .asks(&[Experience, Models, Harness, State, Metrics])
    }

    fn select(ctx: &Context, pool: &Pool) -> Result<Selection> {
        let settings = Settings::read()?;
        let (usable, mut retired) = Needs::fresh(ctx.max_staleness).one_record().scored().sift(pool)?;
        let (mut batch, scores) = (Vec::new(), usable.scores()?);
        for (&sample, score) in usable.handles().iter().zip(scores) {
            if (0.0..=1.0).contains(&score) {
                batch.push(sample);
            } else {
                retired.push(Retirement::new(sample, format!("its score {score} is not in [0, 1], as episodes' are")));
            }
        }
        let used = Archive::read(settings.seed)?.search.metric_calls;
        let selection = match settings.metric_calls_max {
            Some(most) if used >= most => Selection::wait(format!("the search has used its {most} metric calls")),
            _ => Pool::from(batch).first(settings.minibatch_size),
        };
        Ok(selection.retire(retired))
    }

    fn propose(_: &Context, batch: &Batch) -> Result<Proposal> {
        step::propose(batch, &Settings::read()?)
    }

    fn evaluate(_: &Context, _: Candidate) -> Result<Verdict> {
        let archive = Archive::read(Settings::read()?.seed)?;
        let compared = archive.search.proposed.and_then(|(child, served)| archive.compared(child, served));
        let Some(pair) = compared else {
            return Ok(Verdict::reject("the archive holds no scores of this candidate"));
        };
        let (new, old, p) = (pair.candidate_mean(), pair.served_mean(), sign_test(pair.wins(), pair.losses()));
        let told = format!("validation {old:.4} → {new:.4}; sign test p = {p:.3}");
        let verdict = if new > old { Verdict::promote(told) } else { Verdict::reject(told) };
        Ok(verdict
            .measure("validation_candidate", new)
            .measure("validation_served", old)
            .measure("wins", pair.wins() as f64)
            .measure("losses", pair.losses() as f64)
            .measure("sign_test_p", p))
    }
}

reef_recipe::export!(Gepa);
