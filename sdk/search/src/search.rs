//! The driver: step by step it selects parents, asks the problem for children and their values, and tells the archive.
//! Deterministic: a rollout gets a seed that depends on the seed of the search and on its place alone.

use serde::{Deserialize, Serialize};

use crate::archive::{Archive, Expansion, Node, NodeId, STATES_MAX};
use crate::error::SearchError;

/// Rollouts of one group.
const ROLLOUTS_MAX: u32 = 4_096;

/// What is searched.
pub trait Problem {
    /// Something new, built on `parent`: a construction or a program.
    ///
    /// # Errors
    /// Why there is none, e.g. a malformed answer. The rollout has failed and counts a visit.
    fn propose(&mut self, parent: &Node, rollout: &Rollout) -> Result<String, String>;

    /// The value of a construction; larger is better.
    ///
    /// # Errors
    /// Why it is not valid. The rollout has failed and counts a visit.
    fn verify(&mut self, construction: &str) -> Result<f64, String>;
}

/// Where a rollout belongs: the metadata of its report to the recipe `ttt-discover`, and its seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rollout {
    /// Step of the search, from 0.
    pub step: u32,
    /// Group of the step, from 0: rollouts from one parent.
    pub group: u32,
    /// Rollout of the group, from 0.
    pub rollout: u32,
    /// Groups of this step; fewer than asked for while the archive has too few unrelated states.
    pub groups_per_step: u32,
    /// Rollouts of every group.
    pub rollouts_per_group: u32,
    /// Depends on the seed of the search, the step, the group and the rollout only.
    pub seed: u64,
}

/// How a search goes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Parents of a step, 1 to 1,000.
    pub groups_per_step: u32,
    /// Children of a parent, 1 to 4,096.
    pub rollouts_per_group: u32,
    /// c of PUCT, at least 0; 0 always builds on what is best.
    pub exploration: f64,
    /// All randomness comes from it.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { groups_per_step: 8, rollouts_per_group: 64, exploration: 1.0, seed: 0 }
    }
}

impl Settings {
    fn check(&self) -> Result<(), SearchError> {
        let refuse = |key, value, wanted| Err(SearchError::Setting { key, value, wanted });
        if self.groups_per_step == 0 || self.groups_per_step as usize > STATES_MAX {
            return refuse("groups_per_step", self.groups_per_step.into(), "1 to 1,000");
        }
        if self.rollouts_per_group == 0 || self.rollouts_per_group > ROLLOUTS_MAX {
            return refuse("rollouts_per_group", self.rollouts_per_group.into(), "1 to 4,096");
        }
        if !(self.exploration.is_finite() && self.exploration >= 0.0) {
            return refuse("exploration", self.exploration, "a finite number of at least 0");
        }
        Ok(())
    }
}

/// What a step did.
#[derive(Debug, Clone, PartialEq)]
pub struct StepReport {
    /// Its number, from 0.
    pub step: u32,
    /// What it built on, group by group.
    pub parents: Vec<NodeId>,
    /// Best value of the archive after it.
    pub best: f64,
    /// Rollouts without a value, each with its place and the reason.
    pub failures: Vec<(Rollout, String)>,
}

/// A search: settings, archive and the number of the next step. It is saved and resumed as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Search {
    settings: Settings,
    archive: Archive,
    step: u32,
}

impl Search {
    /// Starts from seeds: constructions with their values.
    ///
    /// # Errors
    /// A setting out of range, or seeds that no archive can hold.
    pub fn new(settings: Settings, seeds: Vec<(String, f64)>) -> Result<Self, SearchError> {
        settings.check()?;
        Ok(Self { settings, archive: Archive::new(seeds)?, step: 0 })
    }

    /// Resumes what [`Search::to_json`] wrote.
    ///
    /// # Errors
    /// The text is no search, or one that could not have been written.
    pub fn from_json(text: &str) -> Result<Self, SearchError> {
        let search: Self = serde_json::from_str(text)?;
        search.settings.check()?;
        search.archive.check()?;
        Ok(search)
    }

    /// The whole search.
    ///
    /// # Errors
    /// None that the types allow.
    pub fn to_json(&self) -> Result<String, SearchError> {
        Ok(serde_json::to_string(self)?)
    }

    /// What was found so far.
    pub fn archive(&self) -> &Archive {
        &self.archive
    }

    /// Number of the next step.
    pub fn next_step(&self) -> u32 {
        self.step
    }

    /// The parents of the next step: one group each.
    pub fn parents(&self) -> Vec<NodeId> {
        self.archive.select(self.settings.groups_per_step as usize, self.settings.exploration)
    }

    /// The places of one group of the next step, which has `groups` of them.
    pub fn rollouts(&self, group: u32, groups: u32) -> impl Iterator<Item = Rollout> {
        let Settings { rollouts_per_group, seed, .. } = self.settings;
        let step = self.step;
        (0..rollouts_per_group).map(move |rollout| Rollout {
            step,
            group,
            rollout,
            groups_per_step: groups,
            rollouts_per_group,
            seed: mix(mix(mix(seed, step), group), rollout),
        })
    }

    /// One whole step of a problem that answers at once.
    ///
    /// # Errors
    /// None that a search started by `new` or `from_json` can meet.
    pub fn step(&mut self, problem: &mut impl Problem) -> Result<StepReport, SearchError> {
        let parents = self.parents();
        let groups = parents.len() as u32;
        let (mut expansions, mut failures) = (Vec::new(), Vec::new());
        for (group, &parent) in (0..).zip(&parents) {
            let node = self.archive.node(parent).ok_or(SearchError::UnknownState(parent))?;
            let mut expansion = Expansion { parent, children: Vec::new(), failures: 0 };
            for rollout in self.rollouts(group, groups) {
                match child(problem, node, &rollout) {
                    Ok(child) => expansion.children.push(child),
                    Err(reason) => {
                        expansion.failures += 1;
                        failures.push((rollout, reason));
                    }
                }
            }
            expansions.push(expansion);
        }
        let step = self.step;
        self.finish(expansions)?;
        let best = self.archive.best().map_or(f64::NEG_INFINITY, |node| node.value);
        Ok(StepReport { step, parents, best, failures })
    }

    /// Ends the step with what came of its groups; for problems that do not answer at once.
    ///
    /// # Errors
    /// A parent that is not in the archive; the step has not ended and nothing is changed.
    pub fn finish(&mut self, expansions: Vec<Expansion>) -> Result<(), SearchError> {
        self.archive.update(expansions)?;
        self.step = self.step.saturating_add(1);
        Ok(())
    }
}

fn child(problem: &mut impl Problem, parent: &Node, rollout: &Rollout) -> Result<(String, f64), String> {
    let construction = problem.propose(parent, rollout)?;
    let value = problem.verify(&construction)?;
    if value.is_finite() { Ok((construction, value)) } else { Err(format!("the verifier gives it the value {value}")) }
}

/// SplitMix64 of a seed and a number (Steele, Lea and Flood 2014).
fn mix(seed: u64, number: u32) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(u64::from(number) + 1));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
