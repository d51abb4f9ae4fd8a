//! The import `harness`: each function translates its arguments, asks the call's state, and translates the answer.

use super::bindings::reef::recipe::harness as wit;
use super::bindings::reef::recipe::types::{Entry, EntryKind, EntryName, Mutation};
use crate::call_state::CallState;
use crate::{EpisodeStatus, HarnessChange, HarnessEntry, HarnessEpisode, HarnessError, HarnessKind, HarnessTree};

fn kind(raw: EntryKind) -> HarnessKind {
    match raw {
        EntryKind::Config => HarnessKind::Config,
        EntryKind::Rules => HarnessKind::Rules,
        EntryKind::AgentCommand => HarnessKind::AgentCommand,
        EntryKind::Skill => HarnessKind::Skill,
        EntryKind::CodeExtension => HarnessKind::CodeExtension,
        EntryKind::Tool => HarnessKind::Tool,
        EntryKind::Hook => HarnessKind::Hook,
        EntryKind::Subagent => HarnessKind::Subagent,
        EntryKind::Mcp => HarnessKind::Mcp,
        EntryKind::Prompt => HarnessKind::Prompt,
    }
}

fn wit_kind(kind: HarnessKind) -> EntryKind {
    match kind {
        HarnessKind::Config => EntryKind::Config,
        HarnessKind::Rules => EntryKind::Rules,
        HarnessKind::AgentCommand => EntryKind::AgentCommand,
        HarnessKind::Skill => EntryKind::Skill,
        HarnessKind::CodeExtension => EntryKind::CodeExtension,
        HarnessKind::Tool => EntryKind::Tool,
        HarnessKind::Hook => EntryKind::Hook,
        HarnessKind::Subagent => EntryKind::Subagent,
        HarnessKind::Mcp => EntryKind::Mcp,
        HarnessKind::Prompt => EntryKind::Prompt,
    }
}

/// A change as a guest writes it.
pub(super) fn change(raw: Mutation) -> HarnessChange {
    match raw {
        Mutation::Put(Entry { id, kind: own, config }) => {
            HarnessChange::Put(HarnessEntry { kind: kind(own), id, config })
        }
        Mutation::Remove(EntryName { kind: own, id }) => HarnessChange::Remove(kind(own), id),
    }
}

fn tree(raw: wit::Tree) -> HarnessTree {
    match raw {
        wit::Tree::Incumbent => HarnessTree::Incumbent,
        wit::Tree::Candidate(candidate) => HarnessTree::Candidate(candidate),
        wit::Tree::Changed(changes) => HarnessTree::Changed(changes.into_iter().map(change).collect()),
    }
}

fn entry(entry: HarnessEntry) -> Entry {
    Entry { id: entry.id, kind: wit_kind(entry.kind), config: entry.config }
}

fn episode(episode: HarnessEpisode) -> wit::Episode {
    wit::Episode {
        status: match episode.status {
            EpisodeStatus::Scored => wit::EpisodeStatus::Scored,
            EpisodeStatus::AgentFailed => wit::EpisodeStatus::AgentFailed,
            EpisodeStatus::VerifierFailed => wit::EpisodeStatus::VerifierFailed,
            EpisodeStatus::InfrastructureFailed => wit::EpisodeStatus::InfrastructureFailed,
        },
        score: episode.score,
        trace: episode.trace,
        seconds: episode.seconds,
    }
}

impl From<HarnessError> for wit::HarnessError {
    fn from(error: HarnessError) -> Self {
        match error {
            HarnessError::UnknownEntry { kind, id } => Self::UnknownEntry(EntryName { kind: wit_kind(kind), id }),
            HarnessError::UnknownTask(name) => Self::UnknownTask(name),
            HarnessError::Refused(told) => Self::Refused(told),
            HarnessError::Budget(told) => Self::Budget(told),
            HarnessError::Cancelled => Self::Cancelled,
            HarnessError::Other(told) => Self::Other(told),
        }
    }
}

impl wit::Host for CallState {
    async fn entries(&mut self) -> Result<Vec<Entry>, wit::HarnessError> {
        let answer = self.harness_entries().await;
        self.hand(answer).map(|entries| entries.into_iter().map(entry).collect())
    }

    async fn check(&mut self, changes: Vec<Mutation>) -> Result<(), wit::HarnessError> {
        let answer = self.harness_check(changes.into_iter().map(change).collect()).await;
        self.hand(answer)
    }

    async fn tasks(&mut self) -> Result<Vec<String>, wit::HarnessError> {
        let answer = self.harness_tasks().await;
        self.hand(answer)
    }

    async fn run_episode(&mut self, on: wit::Tree, task: String, seed: u32) -> Result<wit::Episode, wit::HarnessError> {
        let answer = CallState::run_episode(self, tree(on), task, seed).await;
        self.hand(answer).map(episode)
    }
}
