//! What the search knows: candidates with their texts and scores, which tasks are for training and which for
//! validation, the budget, and the stream of draws. It lives in the state of the recipe, one key a candidate, so that
//! a search resumes where it was. Scores of the two splits are kept apart: none can answer for the other.

use alloc::collections::BTreeMap;

use reef_evolution::edits::{Kinds, field, label, with_field};
use reef_evolution::{json, memory};
use reef_recipe::prelude::*;
use reef_recipe::{Entry, Mutation};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::chance::{Chance, Epoch};
use crate::pareto::{fronts, means, pick, survivors};

/// Key of everything but the candidates.
const SEARCH: &str = "search";
/// What the keys of candidates begin with.
const CANDIDATE: &str = "candidate/";
/// Characters of a trace that is kept.
pub const TRACE_CHARS_MAX: usize = 1_500;
/// Rollouts on training tasks that a candidate keeps.
const ROLLOUTS_MAX: usize = 12;

/// Texts of a tree, by `kind/id`.
pub type Texts = BTreeMap<String, String>;

/// One try of a training task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rollout {
    /// In [0, 1].
    pub score: f64,
    /// What happened; untrusted, shortened.
    pub trace: String,
}

/// One candidate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// From 0, never given twice.
    pub id: u32,
    /// What it was made from; none of one that was found serving.
    pub parent: Option<u32>,
    /// Its texts.
    pub texts: Texts,
    /// Number of the component that is changed next.
    pub cursor: usize,
    /// Rollouts on training tasks.
    pub train: BTreeMap<String, Rollout>,
    /// Scores on validation tasks.
    pub validation: BTreeMap<String, f64>,
}

impl Candidate {
    /// A candidate that nothing is known of.
    pub fn new(id: u32, parent: Option<u32>, texts: Texts, cursor: usize) -> Self {
        Self { id, parent, texts, cursor, train: BTreeMap::new(), validation: BTreeMap::new() }
    }

    /// Keeps a rollout; beyond a dozen another one goes.
    pub fn keep(&mut self, task: &str, rollout: Rollout) {
        if !self.train.contains_key(task) && self.train.len() >= ROLLOUTS_MAX {
            self.train.pop_first();
        }
        self.train.insert(task.to_owned(), rollout);
    }

    /// What must change of the tree that serves to make it this candidate.
    pub fn changes(&self, entries: &[Entry], kinds: &Kinds) -> Vec<Mutation> {
        let changed = kinds.of(entries).filter_map(|entry| {
            let text = self.texts.get(&label(entry))?;
            (field(entry, "text") != *text).then(|| Mutation::Put(with_field(entry, "text", text)))
        });
        changed.collect()
    }
}

/// The texts of the tree that serves.
pub fn texts(entries: &[Entry], kinds: &Kinds) -> Texts {
    kinds.of(entries).map(|entry| (label(entry), field(entry, "text"))).collect()
}

/// What is known beside the candidates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Search {
    /// The stream of draws.
    pub chance: Chance,
    /// The walk through the training tasks.
    pub epoch: Epoch,
    /// Training tasks, sorted.
    pub train: Vec<String>,
    /// Validation tasks, sorted.
    pub validation: Vec<String>,
    /// Episodes so far.
    pub metric_calls: u32,
    /// The next candidate's id.
    next: u32,
    /// Candidate and served one of the last proposal.
    pub proposed: Option<(u32, u32)>,
}

impl Search {
    /// Gives every task its split: those known keep it, new ones alternate, so that both are half. Tasks that are
    /// gone leave.
    pub fn split(&mut self, tasks: &[String]) {
        self.train.retain(|task| tasks.contains(task));
        self.validation.retain(|task| tasks.contains(task));
        for task in tasks {
            if self.train.contains(task) || self.validation.contains(task) {
                continue;
            }
            let smaller = if self.validation.len() < self.train.len() { &mut self.validation } else { &mut self.train };
            smaller.push(task.clone());
        }
        self.train.sort();
        self.validation.sort();
    }
}

/// The candidates and the search.
#[derive(Debug, Clone, PartialEq)]
pub struct Archive {
    /// By id.
    pub candidates: BTreeMap<u32, Candidate>,
    /// The rest.
    pub search: Search,
}

impl Archive {
    /// The archive of the state, or a fresh one.
    ///
    /// # Errors
    /// The host's refusal, or `other` when the state is of another form.
    pub fn read(seed: u32) -> Result<Self> {
        let Some(search) = stored(SEARCH)? else { return Ok(Self::new(seed)) };
        let mut candidates = BTreeMap::new();
        for key in state::keys()?.into_iter().filter(|key| key.starts_with(CANDIDATE)) {
            if let Some(candidate) = stored::<Candidate>(&key)? {
                candidates.insert(candidate.id, candidate);
            }
        }
        Ok(Self { candidates, search })
    }

    fn new(seed: u32) -> Self {
        let search = Search {
            chance: Chance::new(seed),
            epoch: Epoch::default(),
            train: Vec::new(),
            validation: Vec::new(),
            metric_calls: 0,
            next: 0,
            proposed: None,
        };
        Self { candidates: BTreeMap::new(), search }
    }

    /// Writes everything; candidates that left are deleted.
    ///
    /// # Errors
    /// The host's refusal.
    pub fn write(&self) -> Result<()> {
        store(SEARCH, &self.search)?;
        for key in state::keys()?.into_iter().filter(|key| key.starts_with(CANDIDATE)) {
            if !self.candidates.values().any(|candidate| name(candidate.id) == key) {
                state::delete(&key)?;
            }
        }
        for candidate in self.candidates.values() {
            let mut kept = candidate.clone();
            // Texts that need many escapes: rollouts can be made again, texts cannot.
            while !kept.train.is_empty() && bytes(&kept)?.len() > memory::VALUE_BYTES_MAX {
                kept.train.pop_first();
            }
            store(&name(kept.id), &kept)?;
        }
        Ok(())
    }

    /// The candidate with these texts; a new one if there is none.
    pub fn holding(&mut self, texts: Texts) -> u32 {
        let known = self.candidates.values().find(|candidate| candidate.texts == texts);
        known.map(|candidate| candidate.id).unwrap_or_else(|| self.add(None, texts, 0))
    }

    /// Adds a candidate; its id.
    pub fn add(&mut self, parent: Option<u32>, texts: Texts, cursor: usize) -> u32 {
        let id = self.search.next;
        self.search.next += 1;
        self.candidates.insert(id, Candidate::new(id, parent, texts, cursor));
        id
    }

    /// Can the state hold the texts and scores of a candidate? Its rollouts make room.
    ///
    /// # Errors
    /// `other` when it cannot be written at all.
    pub fn fits(&self, id: u32) -> Result<bool> {
        let Some(candidate) = self.candidates.get(&id) else { return Ok(true) };
        let bare = Candidate { train: BTreeMap::new(), ..candidate.clone() };
        Ok(bytes(&bare)?.len() <= memory::VALUE_BYTES_MAX)
    }

    /// Lets the worst go until `most` are left; those in `keep` stay.
    pub fn shrink(&mut self, most: usize, keep: &[u32]) {
        while self.candidates.len() > most {
            let (ids, rows) = self.table();
            let weighted = self.survivors();
            let standing = |id: u32| usize::from(weighted.iter().any(|&(survivor, _)| survivor == id));
            let ranked = ids.iter().zip(means(&rows)).filter(|(id, _)| !keep.contains(id));
            let worst = ranked.min_by(|(a, x), (b, y)| standing(**a).cmp(&standing(**b)).then(x.total_cmp(y)));
            let Some(id) = worst.map(|(id, _)| *id) else { break };
            self.candidates.remove(&id);
        }
    }

    /// Ids, and their scores on the validation tasks.
    fn table(&self) -> (Vec<u32>, Vec<Vec<Option<f64>>>) {
        let row = |candidate: &Candidate| {
            self.search.validation.iter().map(|task| candidate.validation.get(task).copied()).collect()
        };
        self.candidates.values().map(|candidate| (candidate.id, row(candidate))).unzip()
    }

    /// Ids of the candidates that are worth building on, with their weights.
    pub fn survivors(&self) -> Vec<(u32, usize)> {
        let (ids, rows) = self.table();
        let weighted = survivors(&fronts(&rows), &means(&rows));
        weighted.into_iter().filter_map(|(at, weight)| Some((*ids.get(at)?, weight))).collect()
    }

    /// Draws one of the survivors by weight.
    pub fn draw(&mut self) -> Option<u32> {
        let weighted = self.survivors();
        let by_place: Vec<(usize, usize)> = weighted.iter().map(|&(_, weight)| weight).enumerate().collect();
        let sum = by_place.iter().map(|(_, weight)| weight).sum();
        let place = pick(&by_place, self.search.chance.below(sum))?;
        weighted.get(place).map(|&(id, _)| id)
    }

    /// Scores of both on the validation tasks that both have, first and second.
    pub fn compared(&self, first: u32, second: u32) -> Option<Paired> {
        let (first, second) = (self.candidates.get(&first)?, self.candidates.get(&second)?);
        let common = self.search.validation.iter();
        let common = common.filter_map(|task| Some((*first.validation.get(task)?, *second.validation.get(task)?)));
        let (first, second) = common.unzip();
        Paired::new(first, second).ok()
    }
}

fn name(id: u32) -> String {
    format!("{CANDIDATE}{id:08}")
}

fn bytes<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    json::to_vec(value).map_err(|error| Failure::other(format!("the archive cannot be written: {error}")))
}

fn store<T: Serialize>(key: &str, value: &T) -> Result<()> {
    state::set(key, &bytes(value)?)
}

fn stored<T: DeserializeOwned>(key: &str) -> Result<Option<T>> {
    let Some(bytes) = state::get::<Vec<u8>>(key)? else { return Ok(None) };
    let value = json::from_slice(&bytes);
    value.map(Some).map_err(|error| {
        Failure::other(format!("state {key}: it is not of this version: {error}; delete the state to start anew"))
    })
}
