//! The agent's harness: its tree of prompts, rules, skills and tools, and episodes that try it.

use alloc::string::String;
use alloc::vec::Vec;

pub use crate::bindings::reef::recipe::harness::{Episode, EpisodeStatus, Tree};
use crate::host::{self, Host};
use crate::{Candidate, Entry, EntryKind, EntryName, Mutation, Result};

/// Entries of the incumbent tree, by kind and id.
pub fn entries() -> Result<Vec<Entry>> {
    host::call(Host::entries)
}

/// Would the tree admit these changes? The failure names the first that it would not.
pub fn check(changes: &[Mutation]) -> Result<()> {
    host::call(|host| Host::check_changes(host, changes))
}

/// Names of the tasks.
pub fn tasks() -> Result<Vec<String>> {
    host::call(Host::tasks)
}

/// Runs one task once; equal seeds make comparable episodes.
pub fn run_episode(on: &Tree, task: &str, seed: u32) -> Result<Episode> {
    host::call(|host| Host::run_episode(host, on, task, seed))
}

impl From<Candidate> for Tree {
    fn from(candidate: Candidate) -> Self {
        Self::Candidate(candidate.handle())
    }
}

impl Mutation {
    /// Adds an entry, or replaces the one of that name. `config`: a JSON object whose fields depend on the kind.
    pub fn put(kind: EntryKind, id: impl Into<String>, config: impl Into<String>) -> Self {
        Self::Put(Entry { id: id.into(), kind, config: config.into() })
    }

    /// Removes an entry.
    pub fn remove(kind: EntryKind, id: impl Into<String>) -> Self {
        Self::Remove(EntryName { kind, id: id.into() })
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl Episode {
    /// An episode of a test that the verifier scored.
    pub fn scored(score: f64) -> Self {
        Self { status: EpisodeStatus::Scored, score, trace: String::new(), seconds: 0.0 }
    }
}
