//! Search over a population of harnesses: a model that reads every harness tried so far, its hypothesis and its score
//! writes a child of any of them; the child serves if its mean is strictly higher than the incumbent's on the same pairs.
//! This file is the recipe as it is read from the host: describe, select, propose, evaluate.
#![no_std]
#![deny(missing_docs)]

pub mod population;
mod settings;
mod step;

use reef_evolution::traces::FEEDBACK;
use reef_evolution::trials::Trials;
use reef_evolution::{Stop, stop};
use reef_recipe::Decision;
use reef_recipe::prelude::*;

use population::Population;
use settings::{Settings, keys};

/// The recipe.
#[derive(Debug, Clone, Copy)]
pub struct MetaHarness;

impl Recipe for MetaHarness {
    fn describe() -> Manifest {
        use Capability::{Experience, Harness, Metrics, Models, State};
        keys(Manifest::harness("meta-harness", env!("CARGO_PKG_VERSION")))
            .field(FEEDBACK)
            .asks(&[Experience, Models, Harness, State, Metrics])
    }

    fn select(ctx: &Context, pool: &Pool) -> Result<Selection> {
        let settings = Settings::read()?;
        let (usable, retired) = Needs::fresh(ctx.max_staleness).sift(pool)?;
        let spent = Population::read()?.spent;
        let over = |used: u32, most: Option<u32>, what: &str| {
            most.filter(|&most| used >= most).map(|most| format!("the search has used its {most} {what}"))
        };
        let ended = over(spent.candidates, settings.candidates_max, "candidates")
            .or_else(|| over(spent.episodes, settings.episodes_max, "episodes"));
        let selection = match ended {
            Some(reason) => Selection::wait(reason),
            None => usable.first(settings.batch_size),
        };
        Ok(selection.retire(retired))
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
        let mut population = Population::read()?;
        let (wanted, used) = (Trials::episodes(&tasks, settings.repeats), population.spent.episodes);
        if let Some(most) = settings.episodes_max.filter(|&most| used + wanted > most) {
            let told =
                format!("not compared: {wanted} episodes are needed and {used} of max_target_episodes {most} used");
            return Ok(Verdict::hold(told));
        }
        let trials = Trials::run(&candidate.into(), &tasks, settings.repeats, ctx.seed)?;
        let means = trials.paired().map(|pair| (pair.candidate_mean(), pair.served_mean()));
        let verdict = trials.verdict(means.is_some_and(|(new, old)| new > old), settings.significance)?;
        population.spent.episodes += wanted;
        let id = state::get::<Vec<u8>>(step::PROPOSED)?.unwrap_or_default();
        let node = population.nodes.iter_mut().find(|node| node.id.as_bytes() == id);
        let node = node.map(|node| {
            node.means = means;
            node.outcome = match verdict.decision {
                Decision::Promote => "promoted",
                Decision::Hold => "held",
                Decision::Reject => "rejected",
            }
            .to_owned();
            node.clone()
        });
        population.write(node.as_ref())?;
        Ok(verdict.measure("target_episodes", f64::from(population.spent.episodes)))
    }
}

reef_recipe::export!(MetaHarness);
