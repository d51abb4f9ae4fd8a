//! The floor: every episode of every health task must score at least `floor_score`. The incumbent is not run, for a
//! person has asked for the change; an episode without a score is a miss.

use reef_evolution::json::Value;
use reef_evolution::{Stop, memory, stop, trials};
use reef_recipe::harness::{Tree, run_episode};
use reef_recipe::prelude::*;

use crate::settings::Settings;
use crate::step::REQUIRES;

/// Episodes of one judgement; the host answers 1,000 calls of a capability.
const EPISODES_MAX: u32 = 900;

/// Promotes what passes; holds it where a person wants to look, or must grant something first.
pub(crate) fn judge(ctx: &Context, candidate: Candidate, settings: &Settings) -> Result<Verdict> {
    let tasks = match stop::tasks().and_then(|tasks| health(tasks, settings)) {
        Ok(tasks) => tasks,
        Err(Stop::Reason(reason)) => return Ok(Verdict::hold(format!("not tried: {reason}"))),
        Err(Stop::Failure(failure)) => return Err(failure),
    };
    let tree = Tree::from(candidate);
    let (mut lowest, mut misses, mut episodes) = (f64::INFINITY, Vec::new(), 0);
    for task in &tasks {
        for repeat in 0..settings.repeats {
            if episodes == EPISODES_MAX {
                break;
            }
            episodes += 1;
            let episode = run_episode(&tree, task, ctx.seed.wrapping_add(repeat))?;
            let score = trials::score(&episode);
            lowest = lowest.min(score.unwrap_or(0.0));
            if score.is_none_or(|score| score < settings.floor_score) && !misses.contains(task) {
                misses.push(task.clone());
            }
        }
    }
    let needed = needed()?;
    let told = if needed.is_empty() { String::new() } else { format!("; it requires {}", needed.join(", ")) };
    let verdict = if !misses.is_empty() {
        let (floor, misses) = (settings.floor_score, misses.join(", "));
        Verdict::reject(format!("health tasks below {floor}: {misses}"))
    } else if !needed.is_empty() || settings.review {
        Verdict::hold(format!("healthy, and waits for a person{told}"))
    } else {
        Verdict::promote("every health task passed")
    };
    Ok(verdict
        .measure("health_lowest", lowest)
        .measure("health_episodes", f64::from(episodes))
        .measure("requires", needed.len() as f64))
}

/// The health tasks that the operator names; all tasks if none.
fn health(tasks: Vec<String>, settings: &Settings) -> Result<Vec<String>, Stop> {
    if settings.health_tasks.is_empty() {
        return Ok(tasks);
    }
    match settings.health_tasks.iter().find(|name| !tasks.contains(name)) {
        Some(missing) => Err(Stop::Reason(format!("the harness has no task '{missing}', which health_tasks names"))),
        None => Ok(settings.health_tasks.clone()),
    }
}

/// What the proposal named; it was told to the state by the proposal of the same step.
fn needed() -> Result<Vec<String>> {
    let text = |item: &Value| item.as_str().map(str::to_owned);
    Ok(memory::list(REQUIRES)?.iter().filter_map(text).collect())
}
