//! Capability `harness`: the tree that an agent reads, and episodes that try it. The binary implements the trait; these
//! are the host functions in front of it. A guest names a candidate by its handle and never sees a task's answer: of an
//! episode it gets the outcome and the last lines of what the agent did.

use serde::Serialize;

use crate::call_state::{CallState, denied_becomes, terms};
use crate::offload::{Lost, NO_THREAD, offload};
use crate::text::clean;
use crate::traffic::Bytes;
use crate::{Capability, FaultKind};

/// Changes of one list.
pub(crate) const CHANGES_MAX: usize = 256;
/// Bytes of an entry's fields as JSON.
const CONFIG_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of an entry's id.
const ID_BYTES_MAX: usize = 128;
/// Bytes of a task's name.
const TASK_BYTES_MAX: usize = 128;
/// Characters of a name that an error repeats.
const NAME_CHARS_SHOWN: usize = 64;

/// The kind of an entry of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HarnessKind {
    /// Settings of an agent program.
    Config,
    /// Rules.
    Rules,
    /// A command that a person gives by name.
    AgentCommand,
    /// A skill.
    Skill,
    /// Code for an agent program.
    CodeExtension,
    /// A tool.
    Tool,
    /// A command that runs at an event.
    Hook,
    /// An agent that the agent may start.
    Subagent,
    /// A server of tools.
    Mcp,
    /// An addition to the system prompt.
    Prompt,
}

impl HarnessKind {
    /// Its name, as in the files of a tree.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Config => "config",
            Self::Rules => "rules",
            Self::AgentCommand => "agent_command",
            Self::Skill => "skill",
            Self::CodeExtension => "code_extension",
            Self::Tool => "tool",
            Self::Hook => "hook",
            Self::Subagent => "subagent",
            Self::Mcp => "mcp",
            Self::Prompt => "prompt",
        }
    }

    /// The kind of this name.
    pub fn parse(name: &str) -> Option<Self> {
        use HarnessKind::{AgentCommand, CodeExtension, Config, Hook, Mcp, Prompt, Rules, Skill, Subagent, Tool};
        let all = [Config, Rules, AgentCommand, Skill, CodeExtension, Tool, Hook, Subagent, Mcp, Prompt];
        all.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// One entry of a tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HarnessEntry {
    /// Its kind.
    pub kind: HarnessKind,
    /// Its id, unique within the kind.
    pub id: String,
    /// Its fields as JSON; what they mean is not checked here.
    pub config: String,
}

/// One change of a tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum HarnessChange {
    /// Adds the entry, or replaces the one of that name.
    Put(HarnessEntry),
    /// Removes the entry of this kind and id.
    Remove(HarnessKind, String),
}

/// Which tree an episode runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HarnessTree {
    /// What clients install now.
    Incumbent,
    /// The candidate under evaluation.
    Candidate(u32),
    /// The incumbent with these changes.
    Changed(Vec<HarnessChange>),
}

/// How an episode ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EpisodeStatus {
    /// The verifier gave a score.
    Scored,
    /// The agent failed: score 0.
    AgentFailed,
    /// The verifier failed: no score.
    VerifierFailed,
    /// The machine failed: no score.
    InfrastructureFailed,
}

/// One try of one task.
#[derive(Debug, Clone, PartialEq)]
pub struct HarnessEpisode {
    /// How it ended.
    pub status: EpisodeStatus,
    /// In [0, 1]; NaN without a score.
    pub score: f64,
    /// Last lines of what the agent did.
    pub trace: String,
    /// Wall time.
    pub seconds: f64,
}

/// Why the harness is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HarnessError {
    /// No such entry.
    #[error("the tree has no entry {}/{id}", kind.as_str())]
    UnknownEntry {
        /// Its kind.
        kind: HarnessKind,
        /// Its id.
        id: String,
    },
    /// No such task.
    #[error("there is no task '{0}'")]
    UnknownTask(String),
    /// The tree does not admit a change.
    #[error("{0}")]
    Refused(String),
    /// More episodes or time than the step may use.
    #[error("{0}")]
    Budget(String),
    /// The step was cancelled.
    #[error("the step was cancelled")]
    Cancelled,
    /// Anything else.
    #[error("{0}")]
    Other(String),
}
denied_becomes!(HarnessError);

/// The harness behind one call. Every method may block.
pub trait Harness: Send {
    /// Entries of the incumbent, by kind and id.
    fn entries(&mut self) -> Result<Vec<HarnessEntry>, HarnessError>;
    /// Would the incumbent admit these changes?
    fn check(&mut self, changes: &[HarnessChange]) -> Result<(), HarnessError>;
    /// Names of the tasks.
    fn tasks(&mut self) -> Result<Vec<String>, HarnessError>;
    /// Plays one task once.
    fn run_episode(&mut self, on: HarnessTree, task: &str, seed: u32) -> Result<HarnessEpisode, HarnessError>;
}

/// The harness of a call.
#[derive(Default)]
pub(crate) struct HarnessHost {
    pub(crate) worker: Option<Box<dyn Harness>>,
}

impl Bytes for HarnessKind {
    const EACH: Option<u64> = Some(1);
    fn bytes(&self) -> u64 {
        1
    }
}

impl Bytes for HarnessEntry {
    fn bytes(&self) -> u64 {
        (self.kind, &self.id, &self.config).bytes()
    }
}

impl Bytes for HarnessChange {
    fn bytes(&self) -> u64 {
        match self {
            Self::Put(entry) => entry.bytes(),
            Self::Remove(kind, id) => (*kind, id).bytes(),
        }
    }
}

impl Bytes for HarnessTree {
    fn bytes(&self) -> u64 {
        match self {
            Self::Incumbent => 1,
            Self::Candidate(candidate) => candidate.bytes(),
            Self::Changed(changes) => changes.bytes(),
        }
    }
}

impl Bytes for HarnessEpisode {
    fn bytes(&self) -> u64 {
        (self.score, &self.trace, self.seconds).bytes().saturating_add(1)
    }
}

impl CallState {
    async fn ask_harness<R: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut dyn Harness) -> Result<R, HarnessError> + Send + 'static,
    ) -> Result<R, HarnessError> {
        let answer = offload(&mut self.harness.worker, terms!(self), move |worker| work(worker.as_mut())).await;
        match answer {
            Ok(answer) => answer,
            Err(Lost::Cancelled) => Err(HarnessError::Cancelled),
            Err(Lost::Absent) => Err(HarnessError::Other("the harness is not available in this call".to_owned())),
            Err(Lost::NoThread) => Err(HarnessError::Other(NO_THREAD.to_owned())),
            Err(Lost::Panicked) => Err(self.harness_bug("the harness panicked")),
        }
    }

    fn harness_bug(&mut self, told: &str) -> HarnessError {
        self.cut(FaultKind::HostBug, told);
        HarnessError::Other(told.to_owned())
    }

    pub(crate) async fn harness_entries(&mut self) -> Result<Vec<HarnessEntry>, HarnessError> {
        self.admit(Capability::Harness, &())?;
        self.ask_harness(|worker| worker.entries()).await
    }

    pub(crate) async fn harness_check(&mut self, changes: Vec<HarnessChange>) -> Result<(), HarnessError> {
        self.admit(Capability::Harness, &changes)?;
        check_changes(&changes).map_err(HarnessError::Refused)?;
        self.ask_harness(move |worker| worker.check(&changes)).await
    }

    pub(crate) async fn harness_tasks(&mut self) -> Result<Vec<String>, HarnessError> {
        self.admit(Capability::Harness, &())?;
        self.ask_harness(|worker| worker.tasks()).await
    }

    pub(crate) async fn run_episode(
        &mut self,
        on: HarnessTree,
        task: String,
        seed: u32,
    ) -> Result<HarnessEpisode, HarnessError> {
        self.admit(Capability::Harness, &(&on, &task, seed))?;
        // With no changes it is the incumbent under another name.
        if let HarnessTree::Changed(changes) = &on
            && !changes.is_empty()
        {
            check_changes(changes).map_err(HarnessError::Refused)?;
        }
        if task.len() > TASK_BYTES_MAX {
            return Err(HarnessError::UnknownTask(clean(&task, NAME_CHARS_SHOWN)));
        }
        let episode = self.ask_harness(move |worker| worker.run_episode(on, &task, seed)).await?;
        let scored = matches!(episode.status, EpisodeStatus::Scored | EpisodeStatus::AgentFailed);
        if scored == (0.0..=1.0).contains(&episode.score) {
            return Ok(episode);
        }
        Err(self.harness_bug(&format!("an episode ended {:?} with the score {}", episode.status, episode.score)))
    }
}

/// Counts and sizes. Whether a tree takes the changes is the host's business.
pub(crate) fn check_changes(changes: &[HarnessChange]) -> Result<(), String> {
    if changes.is_empty() || changes.len() > CHANGES_MAX {
        return Err(format!("{} changes are not 1 to {CHANGES_MAX}; propose a change, or skip", changes.len()));
    }
    for (at, change) in changes.iter().enumerate() {
        let (id, config) = match change {
            HarnessChange::Put(entry) => (&entry.id, entry.config.len()),
            HarnessChange::Remove(_, id) => (id, 0),
        };
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        if id.is_empty() || id.len() > ID_BYTES_MAX || !id.as_bytes().iter().copied().all(plain) {
            let shown = clean(id, NAME_CHARS_SHOWN);
            return Err(format!("change {at}: '{shown}' is not 1 to {ID_BYTES_MAX} letters, digits, '.', '_' and '-'"));
        }
        if config > CONFIG_BYTES_MAX {
            return Err(format!("change {at}: {config} bytes and at most {CONFIG_BYTES_MAX} are allowed"));
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "harness_tests.rs"]
mod tests;
