//! One step of the search: a parent, a minibatch, a reflection, a child that must do better on the minibatch, its
//! validation, and the proposal if it is better than what serves. Whatever was learned is kept, also when the step
//! ends early; so a search that stops at its budget goes on when the budget grows.

use alloc::collections::BTreeMap;

use reef_evolution::calls::Calls;
use reef_evolution::stop::{admitted, incumbent, tasks};
use reef_evolution::traces::trace;
use reef_evolution::{Stop, trials, untrusted};
use reef_recipe::harness::{self, Tree};
use reef_recipe::prelude::*;
use reef_recipe::{Entry, Mutation};

use crate::archive::{Archive, Rollout, TRACE_CHARS_MAX, texts};
use crate::reflect::{Example, instruction, material, new_text};
use crate::settings::{Settings, TASK};

/// Episodes of one step; the host answers 1,000 calls of a capability.
const STEP_EPISODES_MAX: u32 = 900;

/// Learns from the batch: mutations, or a skip with its reason.
pub(crate) fn propose(batch: &Batch, settings: &Settings) -> Result<Proposal> {
    let mut archive = Archive::read(settings.seed)?;
    let begun = archive.search.metric_calls;
    let outcome = match incumbent() {
        Ok(entries) => Step { archive: &mut archive, entries, settings, begun }.advance(batch),
        Err(stop) => return stop.settle(),
    };
    metrics::gauge("candidates", archive.candidates.len() as f64);
    metrics::gauge("pareto_candidates", archive.survivors().len() as f64);
    metrics::gauge("metric_calls", f64::from(archive.search.metric_calls));
    match outcome {
        Ok(changes) => {
            archive.write()?;
            Ok(changes.into())
        }
        Err(Stop::Reason(reason)) => {
            archive.write()?;
            Ok(Proposal::skip(reason))
        }
        Err(Stop::Failure(failure)) => Err(failure),
    }
}

/// Which scores an episode belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Split {
    Train,
    Validation,
}

struct Step<'a> {
    archive: &'a mut Archive,
    entries: Vec<Entry>,
    settings: &'a Settings,
    /// Metric calls before the step.
    begun: u32,
}

impl Step<'_> {
    fn advance(&mut self, batch: &Batch) -> Result<Vec<Mutation>, Stop> {
        self.archive.search.split(&tasks()?);
        if self.archive.search.validation.is_empty() {
            return Err(Stop::Reason(
                "the harness has one task; a search needs one to learn on and one to validate on".into(),
            ));
        }
        let current = texts(&self.entries, &self.settings.kinds);
        if current.is_empty() {
            let kinds = self.settings.kinds.names();
            return Err(Stop::Reason(format!("the tree has no entry of the kinds {kinds} to work on")));
        }
        let served = self.archive.holding(current);
        if !self.archive.fits(served)? {
            self.archive.candidates.remove(&served);
            return Err(Stop::Reason("the texts of the tree are too long to be kept; list fewer kinds".to_owned()));
        }
        let traffic = self.traffic(served, batch)?;
        self.validate(served)?;
        let parent = self.archive.draw().unwrap_or(served);
        let named = if parent == served { traffic.tasks } else { Vec::new() };
        let minibatch = self.minibatch(named);
        let before = self.rollouts(parent, &minibatch)?;
        if let Some(perfect) = self.settings.perfect.filter(|_| !before.is_empty())
            && before.values().all(|rollout| rollout.score >= perfect)
        {
            return Err(Stop::Reason(format!("candidate {parent} is perfect on its minibatch")));
        }
        let mut examples: Vec<Example> = before.values().map(example).collect();
        if parent == served {
            examples.extend(traffic.read);
        }
        let child = self.reflect(parent, &examples)?;
        let after = self.rollouts(child, &minibatch);
        let better = after.and_then(|after| improved(&before, &after));
        if let Err(stop) = better {
            // Only what did better on the minibatch is worth its place.
            self.archive.candidates.remove(&child);
            return Err(stop);
        }
        self.archive.shrink(self.settings.archive_max, &[served, child]);
        self.validate(child)?;
        self.decide(child, served)
    }

    /// The mutations, if the child is better than what serves.
    fn decide(&mut self, child: u32, served: u32) -> Result<Vec<Mutation>, Stop> {
        let Some(pair) = self.archive.compared(child, served) else {
            return Err(Stop::Reason("no validation task gave a score to both".to_owned()));
        };
        let (new, old) = (pair.candidate_mean(), pair.served_mean());
        metrics::gauge("validation_candidate", new);
        metrics::gauge("validation_served", old);
        if new <= old {
            let told = format!("candidate {child} joins the archive; validation {new:.4}, what serves has {old:.4}");
            return Err(Stop::Reason(told));
        }
        self.archive.search.proposed = Some((child, served));
        Ok(self.changes(child))
    }

    fn changes(&self, id: u32) -> Vec<Mutation> {
        let candidate = self.archive.candidates.get(&id);
        candidate.map(|candidate| candidate.changes(&self.entries, &self.settings.kinds)).unwrap_or_default()
    }

    /// Scores of what serves that came with the traffic, and what else can be read of it.
    fn traffic(&mut self, served: u32, batch: &Batch) -> Result<Traffic, Stop> {
        let mut found = Traffic::default();
        for (&sample, score) in batch.handles().iter().zip(batch.scores()?) {
            let trace = trace(sample, TRACE_CHARS_MAX)?;
            match TASK.of(sample)? {
                Some(task) if self.archive.search.validation.contains(&task) => {
                    log::info!("an answer to the validation task {task} is not learned from");
                }
                Some(task) if self.archive.search.train.contains(&task) => {
                    if let Some(candidate) = self.archive.candidates.get_mut(&served) {
                        candidate.keep(&task, Rollout { score, trace });
                        found.tasks.push(task);
                    }
                }
                _ => found.read.push(Example { trace, score }),
            }
        }
        Ok(found)
    }

    /// The training tasks of this step: those that the traffic tried, then those whose turn it is.
    fn minibatch(&mut self, named: Vec<String>) -> Vec<String> {
        let size = self.settings.minibatch_size as usize;
        let search = &mut self.archive.search;
        let walked =
            if named.len() >= size { Vec::new() } else { search.epoch.next(&search.train, size, &mut search.chance) };
        let mut minibatch = Vec::new();
        for task in named.into_iter().chain(walked) {
            if minibatch.len() < size && !minibatch.contains(&task) {
                minibatch.push(task);
            }
        }
        minibatch
    }

    /// Rollouts of a candidate on training tasks: those that are known, and episodes for the others.
    fn rollouts(&mut self, id: u32, minibatch: &[String]) -> Result<BTreeMap<String, Rollout>, Stop> {
        let mut found = BTreeMap::new();
        for task in minibatch {
            self.try_task(id, task, Split::Train)?;
            let candidate = self.archive.candidates.get(&id);
            if let Some(rollout) = candidate.and_then(|candidate| candidate.train.get(task)) {
                found.insert(task.clone(), rollout.clone());
            }
        }
        Ok(found)
    }

    /// Scores a candidate on every validation task that it has no score on.
    fn validate(&mut self, id: u32) -> Result<(), Stop> {
        self.archive.search.validation.clone().iter().try_for_each(|task| self.try_task(id, task, Split::Validation))
    }

    /// Runs an episode unless the split has its score already.
    fn try_task(&mut self, id: u32, task: &str, split: Split) -> Result<(), Stop> {
        let Some(candidate) = self.archive.candidates.get(&id) else { return Ok(()) };
        let known = match split {
            Split::Train => candidate.train.contains_key(task),
            Split::Validation => candidate.validation.contains_key(task),
        };
        if known {
            return Ok(());
        }
        self.spend()?;
        let episode = harness::run_episode(&Tree::Changed(self.changes(id)), task, self.settings.seed)?;
        let Some((score, candidate)) = trials::score(&episode).zip(self.archive.candidates.get_mut(&id)) else {
            log::warn!("{task} gave no score: {:?}", episode.status);
            return Ok(());
        };
        match split {
            Split::Train => {
                let trace = untrusted::shortened(&episode.trace, TRACE_CHARS_MAX);
                candidate.keep(task, Rollout { score, trace });
            }
            Split::Validation => drop(candidate.validation.insert(task.to_owned(), score)),
        }
        Ok(())
    }

    /// Counts an episode against the budget.
    fn spend(&mut self) -> Result<(), Stop> {
        let used = self.archive.search.metric_calls;
        if let Some(most) = self.settings.metric_calls_max.filter(|&most| used >= most) {
            return Err(Stop::Reason(format!("the search has used its {most} metric calls")));
        }
        if used - self.begun >= STEP_EPISODES_MAX {
            return Err(Stop::Reason(format!("the step has used its {STEP_EPISODES_MAX} episodes")));
        }
        self.archive.search.metric_calls += 1;
        Ok(())
    }

    /// Lets the model write the next component of the parent anew; the child's id.
    fn reflect(&mut self, parent: u32, examples: &[Example]) -> Result<u32, Stop> {
        let Some(candidate) = self.archive.candidates.get_mut(&parent) else {
            return Err(Stop::Failure(Failure::other(format!("candidate {parent} is not in the archive"))));
        };
        // The tree may have lost entries since; only those that it has can change.
        let here = texts(&self.entries, &self.settings.kinds);
        let components: Vec<&String> = here.keys().filter(|name| candidate.texts.contains_key(*name)).collect();
        let Some(component) = components.get(candidate.cursor % components.len().max(1)).map(|name| (*name).clone())
        else {
            return Err(Stop::Reason(format!("candidate {parent} shares no entry with the tree that serves")));
        };
        candidate.cursor += 1;
        let (cursor, mut child) = (candidate.cursor, candidate.texts.clone());
        let text = child.get(&component).cloned().unwrap_or_default();
        let material = material(&component, &text, examples);
        let answer =
            Calls::on(self.settings.reflection.clone())?.ask(&instruction(), &material, self.settings.temperature)?;
        let new = new_text(&answer, self.settings.text_chars_max)?;
        child.insert(component.clone(), new);
        if let Some(known) = self.archive.candidates.values().find(|candidate| candidate.texts == child) {
            return Err(Stop::Reason(format!("the new text of {component} makes candidate {} again", known.id)));
        }
        let id = self.archive.add(Some(parent), child, cursor);
        let changes = self.changes(id);
        let refused = if changes.is_empty() {
            Err(Stop::Reason(format!("the new text of {component} changes nothing of what serves")))
        } else if !self.archive.fits(id)? {
            Err(Stop::Reason(format!("with the new text of {component} the texts are too long to be kept")))
        } else {
            admitted(&changes)
        };
        if let Err(stop) = refused {
            self.archive.candidates.remove(&id);
            return Err(stop);
        }
        Ok(id)
    }
}

/// What the batch says.
#[derive(Default)]
struct Traffic {
    /// Training tasks that it tried.
    tasks: Vec<String>,
    /// Answers that tried no task.
    read: Vec<Example>,
}

fn example(rollout: &Rollout) -> Example {
    Example { trace: rollout.trace.clone(), score: rollout.score }
}

/// Did the child do strictly better than its parent on the tasks that both have scores of?
fn improved(before: &BTreeMap<String, Rollout>, after: &BTreeMap<String, Rollout>) -> Result<(), Stop> {
    let both: Vec<(f64, f64)> =
        before.iter().filter_map(|(task, old)| Some((old.score, after.get(task)?.score))).collect();
    if both.is_empty() {
        return Err(Stop::Reason("no task of the minibatch gave a score to both".to_owned()));
    }
    let (old, new) = both.iter().fold((0.0, 0.0), |(old, new), pair| (old + pair.0, new + pair.1));
    if new > old {
        return Ok(());
    }
    Err(Stop::Reason(format!("the child scores {new} on the minibatch, its parent {old}")))
}
