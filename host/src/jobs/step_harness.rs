//! The `harness` capability of one step: the tree that clients install, the candidate, and episodes that try either.
//! Recipe and gate ask the same one, so that a budget counts for both and nothing is played twice. What a recipe may
//! change is decided by the crate `reef-harness`, against the operator's policy and what the scenario is tested on.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reef_core::ScenarioName;
use reef_episodes::{Status, Task};
use reef_harness::{
    Adapter, Adapters, Change, Corpus, EntryKind, EntryName, Mutation, Policy, Refusal, Rules, Tree, admit,
};
use reef_sandbox::{
    Cancel, EpisodeStatus, Harness, HarnessChange, HarnessEntry, HarnessEpisode, HarnessError, HarnessKind, HarnessTree,
};
use serde_json::Value;
use tokio::runtime::Handle;

use super::propose_harness::{takes_all, trial};
use crate::episodes::Bench;

/// The handle of the one candidate of a step.
pub const CANDIDATE: u32 = 0;

/// What the episodes of a step took.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Spent {
    /// Played.
    pub episodes: u32,
    /// Answered from earlier results.
    pub reused: u32,
    /// That the machine failed.
    pub broken: u32,
    /// Wall time.
    pub seconds: f64,
}

/// The harness of one step. Clones share everything.
#[derive(Debug, Clone)]
pub struct StepHarness {
    shared: Arc<Shared>,
    runtime: Handle,
}

#[derive(Debug)]
struct Shared {
    /// Or why nothing can be played.
    bench: Result<Bench, String>,
    incumbent: Tree,
    candidate: Mutex<Option<Tree>>,
    corpus: Corpus,
    adapters: Arc<Adapters>,
    scenario: ScenarioName,
    episodes_max: u32,
    time_max: Duration,
    spent: Mutex<Spent>,
    ahead: Mutex<Ahead>,
    cancel: Cancel,
}

/// What is played before it is asked for: once a step has asked for both sides of a pair, the incumbent plays beside the
/// candidate.
#[derive(Debug, Default)]
struct Ahead {
    in_pairs: bool,
    /// The last that the candidate was asked for.
    last: Option<(String, u32)>,
    /// Played by the incumbent and not asked for yet.
    waiting: HashSet<(String, u32)>,
}

/// What a step's harness is made of.
#[derive(Debug)]
pub struct Made {
    /// Plays, or says why not.
    pub bench: Result<Bench, String>,
    /// The tree that clients install.
    pub incumbent: Tree,
    /// What the scenario is tested on.
    pub corpus: Corpus,
    /// The agent programs of this build.
    pub adapters: Arc<Adapters>,
    /// Its name.
    pub scenario: ScenarioName,
    /// Episodes of the step, and their seconds together.
    pub limits: (u32, u64),
    /// Ends a running episode.
    pub cancel: Cancel,
}

impl StepHarness {
    /// The current runtime drives the episodes; every call blocks its own thread only.
    pub fn new(made: Made) -> Self {
        let Made { bench, incumbent, corpus, adapters, scenario, limits: (episodes_max, seconds), cancel } = made;
        let time_max = Duration::from_secs(seconds);
        let (candidate, spent, ahead) = (Mutex::default(), Mutex::default(), Mutex::default());
        let shared = Shared {
            bench,
            incumbent,
            candidate,
            corpus,
            adapters,
            scenario,
            episodes_max,
            time_max,
            spent,
            ahead,
            cancel,
        };
        Self { shared: Arc::new(shared), runtime: Handle::current() }
    }

    /// The tree after these changes, if it is admitted.
    pub fn admitted(&self, changes: &[HarnessChange]) -> Result<Tree, String> {
        let mutations = changes.iter().map(mutation).collect::<Result<Vec<_>, _>>()?;
        let policy = Policy::default();
        let adapters: Vec<&Adapter> = self.shared.adapters.iter().filter(|own| takes_all(own, &policy)).collect();
        let binding = match &self.shared.bench {
            Ok(bench) => bench.binding(),
            Err(_) => trial(self.shared.scenario.clone()),
        };
        let rules = Rules { policy: &policy, adapters: &adapters, binding: &binding, corpus: &self.shared.corpus };
        let told = |refusals: Vec<Refusal>| refusals.iter().map(Refusal::to_string).collect::<Vec<_>>().join("; ");
        admit(&self.shared.incumbent, &mutations, &rules).map(|applied| applied.tree).map_err(told)
    }

    /// What is evaluated from now on.
    pub fn set_candidate(&self, tree: Tree) {
        *self.shared.candidate.lock().unwrap_or_else(PoisonError::into_inner) = Some(tree);
    }

    /// What was used so far.
    pub fn spent(&self) -> Spent {
        *self.shared.spent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tasks with everything to play them.
    pub fn bench(&self) -> Option<&Bench> {
        self.shared.bench.as_ref().ok()
    }

    fn tree(&self, on: HarnessTree) -> Result<Tree, HarnessError> {
        match on {
            HarnessTree::Incumbent => Ok(self.shared.incumbent.clone()),
            HarnessTree::Candidate(CANDIDATE) => {
                let candidate = self.shared.candidate.lock().unwrap_or_else(PoisonError::into_inner).clone();
                candidate.ok_or_else(|| HarnessError::Refused("there is no candidate in this call".to_owned()))
            }
            HarnessTree::Candidate(other) => Err(HarnessError::Refused(format!("there is no candidate {other}"))),
            HarnessTree::Changed(changes) if changes.is_empty() => Ok(self.shared.incumbent.clone()),
            HarnessTree::Changed(changes) => self.admitted(&changes).map_err(HarnessError::Refused),
        }
    }

    /// Learns from what is asked whether episodes come in pairs. True: the incumbent has played this one ahead.
    fn asked(&self, on: &HarnessTree, pair: &(String, u32)) -> bool {
        let mut ahead = self.shared.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        match on {
            HarnessTree::Candidate(_) => ahead.last = Some(pair.clone()),
            HarnessTree::Incumbent => ahead.in_pairs |= ahead.last.as_ref() == Some(pair),
            HarnessTree::Changed(_) => {}
        }
        *on == HarnessTree::Incumbent && ahead.waiting.remove(pair)
    }

    /// The incumbent, if it is to play the same beside the candidate.
    fn partner(&self, bench: &Bench, task: &Task, seed: u32) -> Option<&Tree> {
        let incumbent = &self.shared.incumbent;
        let mut ahead = self.shared.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        if !ahead.in_pairs || bench.known(incumbent, task, seed).is_some() || self.take().is_err() {
            return None;
        }
        ahead.waiting.insert((task.name.clone(), seed));
        Some(incumbent)
    }

    /// Takes an episode from the budget.
    fn take(&self) -> Result<(), HarnessError> {
        let mut spent = self.shared.spent.lock().unwrap_or_else(PoisonError::into_inner);
        if spent.episodes >= self.shared.episodes_max {
            let most = self.shared.episodes_max;
            return Err(HarnessError::Budget(format!(
                "a step plays at most {most} episodes (harness.episodes.per_step_max)"
            )));
        }
        if spent.seconds >= self.shared.time_max.as_secs_f64() {
            let most = self.shared.time_max.as_secs();
            return Err(HarnessError::Budget(format!(
                "the episodes of a step take at most {most} s (harness.episodes.seconds_per_step_max)"
            )));
        }
        spent.episodes += 1;
        Ok(())
    }
}

impl Harness for StepHarness {
    fn entries(&mut self) -> Result<Vec<HarnessEntry>, HarnessError> {
        let entry = |entry: &reef_harness::Entry| {
            let kind = HarnessKind::parse(entry.name().kind().as_str())?;
            Some(HarnessEntry { kind, id: entry.name().id().to_owned(), config: entry.config().to_string() })
        };
        let entries: Option<Vec<HarnessEntry>> = self.shared.incumbent.entries().map(entry).collect();
        entries.ok_or_else(|| HarnessError::Other("the tree holds a kind that recipes do not know".to_owned()))
    }

    fn check(&mut self, changes: &[HarnessChange]) -> Result<(), HarnessError> {
        self.admitted(changes).map(drop).map_err(HarnessError::Refused)
    }

    fn tasks(&mut self) -> Result<Vec<String>, HarnessError> {
        let bench = self.shared.bench.as_ref().map_err(|told| HarnessError::Other(told.clone()))?;
        Ok(bench.tasks.iter().map(|task| task.name.clone()).collect())
    }

    fn run_episode(&mut self, on: HarnessTree, task: &str, seed: u32) -> Result<HarnessEpisode, HarnessError> {
        let bench = self.shared.bench.as_ref().map_err(|told| HarnessError::Other(told.clone()))?;
        let task = bench.task(task).ok_or_else(|| HarnessError::UnknownTask(task.to_owned()))?;
        let pair = (task.name.clone(), seed);
        let asked_ahead = self.asked(&on, &pair);
        let is_candidate = matches!(on, HarnessTree::Candidate(_));
        let tree = self.tree(on)?;
        if bench.known(&tree, &task, seed).is_none() {
            self.take()?;
        }
        let partner = is_candidate.then(|| self.partner(bench, &task, seed)).flatten();
        let played = self.runtime.block_on(async {
            let both = async {
                match partner {
                    Some(partner) => tokio::join!(bench.play(&tree, &task, seed), bench.play(partner, &task, seed)).0,
                    None => bench.play(&tree, &task, seed).await,
                }
            };
            tokio::select! {
                played = both => Some(played),
                () = self.shared.cancel.cancelled() => None,
            }
        });
        let played = played.ok_or(HarnessError::Cancelled)?;
        let episode = played.episode;
        let mut spent = self.shared.spent.lock().unwrap_or_else(PoisonError::into_inner);
        if !played.reused || asked_ahead {
            spent.seconds += episode.seconds;
        } else {
            spent.reused += 1;
        }
        let status = match episode.status {
            Status::Scored => EpisodeStatus::Scored,
            Status::AgentFailed => EpisodeStatus::AgentFailed,
            Status::VerifierFailed => EpisodeStatus::VerifierFailed,
            Status::InfrastructureFailed => {
                spent.broken += 1;
                tracing::warn!(task = task.name, reason = episode.reason, "episode.infrastructure");
                EpisodeStatus::InfrastructureFailed
            }
        };
        let trace = if episode.reason.is_empty() {
            episode.trace
        } else {
            format!("{}\n[{}]", episode.trace, episode.reason).trim_start().to_owned()
        };
        Ok(HarnessEpisode { status, score: episode.score.unwrap_or(f64::NAN), trace, seconds: episode.seconds })
    }
}

/// A recipe's change as the tree takes it.
pub fn mutation(change: &HarnessChange) -> Result<Mutation, String> {
    let name = |kind: HarnessKind, id: &str| {
        let kind = kind.as_str().parse::<EntryKind>().map_err(|problem| problem.to_string())?;
        EntryName::parse(kind, id).map_err(|problem| problem.to_string())
    };
    match change {
        HarnessChange::Remove(kind, id) => Ok(Mutation::Remove(name(*kind, id)?)),
        HarnessChange::Put(entry) => {
            let name = name(entry.kind, &entry.id)?;
            match serde_json::from_str(&entry.config) {
                Ok(Value::Object(config)) => Ok(Mutation::Put(Change { name, config })),
                _ => Err(format!("{name}: its fields are not a JSON object; send one")),
            }
        }
    }
}
