//! Evolves the harness from failures: a model reads traces that failed and writes changes of the tree; candidate and
//! incumbent then play every task in pairs, and the candidate stays if it wins more often than it loses.
//! This file is the recipe as it is read from the host: describe, select, propose, evaluate.
#![no_std]
#![deny(missing_docs)]

mod settings;
mod step;

use reef_evolution::traces::FEEDBACK;
use reef_evolution::trials::Trials;
use reef_evolution::{Stop, attempts, stop};
use reef_recipe::prelude::*;

use settings::{Settings, keys};

/// The recipe.
#[derive(Debug, Clone, Copy)]
pub struct HarnessEvolve;

impl Recipe for HarnessEvolve {
    fn describe() -> Manifest {
        use Capability::{Experience, Harness, Metrics, Models, State};
        keys(Manifest::harness("harness-evolve", env!("CARGO_PKG_VERSION")))
            .field(FEEDBACK)
            .needs_score()
            .asks(&[Experience, Models, Harness, State, Metrics])
    }

    fn select(ctx: &Context, pool: &Pool) -> Result<Selection> {
        let settings = Settings::read()?;
        let (usable, mut retired) = Needs::fresh(ctx.max_staleness).scored().sift(pool)?;
        let (mut failed, scores) = (Vec::new(), usable.scores()?);
        for (&sample, score) in usable.handles().iter().zip(scores) {
            if score <= settings.max_score {
                failed.push(sample);
            } else {
                let reason = format!("its score {score} is above max_score {}: nothing failed", settings.max_score);
                retired.push(Retirement::new(sample, reason));
            }
        }
        Ok(Pool::from(failed).first(settings.batch_size).retire(retired))
    }

    fn propose(_: &Context, batch: &Batch) -> Result<Proposal> {
        match step::propose(batch, &Settings::read()?) {
            Ok(changes) => Ok(changes.into()),
            Err(stop) => stop.settle(),
        }
    }

    fn evaluate(ctx: &Context, candidate: Candidate) -> Result<Verdict> {
        let settings = Settings::read()?;
        let tasks = match stop::tasks() {
            Ok(tasks) => tasks,
            Err(Stop::Reason(reason)) => return Ok(Verdict::hold(format!("not compared: {reason}"))),
            Err(Stop::Failure(failure)) => return Err(failure),
        };
        let trials = Trials::run(&candidate.into(), &tasks, settings.repeats, ctx.seed)?;
        let (wins, losses) = trials.wins_and_losses();
        let verdict = trials.verdict(wins > losses + settings.margin, settings.significance)?;
        attempts::compared(&trials)?;
        attempts::judged(&verdict)?;
        Ok(verdict)
    }
}

reef_recipe::export!(HarnessEvolve);
