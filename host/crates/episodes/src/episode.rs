//! One episode: a folder with the task's files, a home with the rendered harness, the agent without a person, then the
//! verifier. Nothing of an episode outlives it. Who is to blame decides the outcome: an agent that fails scores 0, a
//! verifier or a machine that fails scores nothing.

use std::collections::BTreeMap;
use std::fs;
use std::future::Future;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::agent::{Agent, Ask, Ended, Home, Settings, Stop};
use crate::bounded::shortened;
use crate::cage::bridge::{COMMAND, Outside, SOCKET};
use crate::cage::{self, Bounds, Cage, Inside};
use crate::task::Task;
use crate::verify::{OUTPUT_FILE, Tried, Verdict, verify};

/// The agent's folder, inside a cage. No program lies under such a name, so that none is hidden.
pub const WORK_INSIDE: &str = "/episode/work";
/// Its home, inside.
pub const HOME_INSIDE: &str = "/episode/home";
/// The task's own folder, inside; only the verifier sees it.
pub const TASK_INSIDE: &str = "/episode/task";
/// Bytes of a trace.
const TRACE_BYTES_MAX: usize = 4 << 10;

/// A file of a rendered home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HomeFile {
    /// Under the home.
    pub path: String,
    /// Permissions.
    pub mode: u32,
    /// Content.
    pub text: String,
}

/// How an agent program is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// The program, by its absolute path, and its arguments.
    pub argv: Vec<String>,
    /// Its variables.
    pub environment: BTreeMap<String, String>,
}

/// The way to the models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gateway {
    /// Host and port.
    pub address: String,
    /// Port that the agent program asks.
    pub port: u16,
}

/// The command line of an agent program whose home is seen there, for a task.
pub type Start = Arc<dyn Fn(&Path, &str) -> Launch + Send + Sync>;

/// Who plays.
#[derive(Clone)]
pub enum Runner {
    /// The native agent, in this process; its commands run in the cage. The folder of its home is given by name.
    Native {
        /// The way to the model.
        ask: Ask,
        /// Folder of the native agent's files within the home.
        folder: String,
    },
    /// An agent program. The function is told where home and work are seen, and the task.
    Program {
        /// Makes the command line.
        launch: Start,
        /// Where it asks its model.
        gateway: Gateway,
        /// `reef` itself, which serves the gateway's address inside a cage.
        reef: PathBuf,
        /// Folders that it needs to read.
        programs: Vec<PathBuf>,
        /// Requests of this episode that the models or the way to them failed.
        failures: Arc<dyn Fn() -> u32 + Send + Sync>,
    },
}

impl std::fmt::Debug for Runner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Native { folder, .. } => f.debug_struct("Native").field("folder", folder).finish_non_exhaustive(),
            Self::Program { gateway, .. } => {
                f.debug_struct("Program").field("gateway", gateway).finish_non_exhaustive()
            }
        }
    }
}

/// A component's word on an answer: name of the verifier, task, answer.
pub type Judge = Arc<dyn Fn(String, String, String) -> Judged + Send + Sync>;
/// The score, or why there is none.
pub type Judged = Pin<Box<dyn Future<Output = Result<f64, String>> + Send>>;

/// What an episode is made of.
#[derive(Clone)]
pub struct Plan {
    /// The task.
    pub task: Arc<Task>,
    /// The rendered home.
    pub home: Arc<Vec<HomeFile>>,
    /// Who plays.
    pub runner: Runner,
    /// Where programs run.
    pub cage: Cage,
    /// Asks components.
    pub judge: Judge,
    /// Seed for the model.
    pub seed: u32,
}

/// How an episode ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// The verifier gave a score.
    Scored,
    /// The agent failed or ran out of its limits: score 0.
    AgentFailed,
    /// The verifier failed: no score.
    VerifierFailed,
    /// The machine failed: no score.
    InfrastructureFailed,
}

/// An episode that is over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Episode {
    /// How.
    pub status: Status,
    /// In [0, 1]; none without a score.
    pub score: Option<f64>,
    /// Why it is no score, or what the agent failed of; empty for a score.
    pub reason: String,
    /// What the agent did, shortened. Text of others.
    pub trace: String,
    /// Wall time.
    pub seconds: f64,
}

impl Episode {
    /// No score, and nobody's fault but the machine's.
    pub fn broken(reason: impl Into<String>) -> Self {
        Self {
            status: Status::InfrastructureFailed,
            score: None,
            reason: reason.into(),
            trace: String::new(),
            seconds: 0.0,
        }
    }
}

/// What the agent left.
enum Played {
    Answered { answer: String, trace: String },
    Failed { reason: String, trace: String },
    Broken { reason: String, trace: String },
}

impl Plan {
    /// Plays it. The error of a machine is an outcome.
    pub async fn play(&self) -> Episode {
        let began = Instant::now();
        let mut episode = match self.attempt().await {
            Ok(episode) => episode,
            Err(error) => Episode::broken(format!("the episode cannot be set up: {error}")),
        };
        episode.seconds = began.elapsed().as_secs_f64();
        episode.trace = shortened(&episode.trace, TRACE_BYTES_MAX);
        episode
    }

    async fn attempt(&self) -> std::io::Result<Episode> {
        let scratch = tempfile::Builder::new().prefix("reef-episode-").tempdir()?;
        let (work, home) = (scratch.path().join("work"), scratch.path().join("home"));
        for folder in [&work, &home] {
            fs::create_dir(folder)?;
        }
        for (path, bytes) in &self.task.files {
            write(&work.join(path), bytes, 0o644)?;
        }
        for file in self.home.iter() {
            write(&home.join(&file.path), file.text.as_bytes(), file.mode)?;
        }
        let (answer, trace) = match self.agent(&work, &home).await {
            Played::Answered { answer, trace } => (answer, trace),
            Played::Failed { reason, trace } => {
                let (status, score) = (Status::AgentFailed, Some(0.0));
                return Ok(Episode { status, score, reason, trace, seconds: 0.0 });
            }
            Played::Broken { reason, trace } => return Ok(Episode { trace, ..Episode::broken(reason) }),
        };
        // A folder of its own: an agent program may have left anything in its home.
        let beside = scratch.path().join("beside");
        fs::create_dir(&beside)?;
        write(&beside.join(OUTPUT_FILE), answer.as_bytes(), 0o644)?;
        let tried = Tried { work: &work, beside: &beside, answer: &answer };
        let (status, score, reason) = match verify(&self.task, &tried, &self.cage, &self.judge).await {
            Verdict::Score(score) => (Status::Scored, Some(score), String::new()),
            Verdict::Failed(reason) => (Status::VerifierFailed, None, reason),
            Verdict::Broken(reason) => (Status::InfrastructureFailed, None, reason),
        };
        Ok(Episode { status, score, reason, trace, seconds: 0.0 })
    }

    async fn agent(&self, work: &Path, home: &Path) -> Played {
        match &self.runner {
            Runner::Native { ask, folder } => self.native(work, &home.join(folder), ask).await,
            Runner::Program { .. } => match self.program(work, home).await {
                Ok(played) => played,
                Err(error) => {
                    let reason = format!("the agent program cannot run: {error}");
                    Played::Broken { reason, trace: String::new() }
                }
            },
        }
    }

    async fn native(&self, work: &Path, home: &Path, ask: &Ask) -> Played {
        let broken = |reason: String| Played::Broken { reason, trace: String::new() };
        let home = match Home::read(home) {
            Ok(home) => home,
            Err(error) => return broken(error.to_string()),
        };
        let agent = match Agent::new(home, work.to_owned(), self.cage.clone(), Arc::clone(ask)) {
            Ok(agent) => agent.within(self.task.limits.of_agent()).seeded(self.seed),
            Err(error) => return broken(error.to_string()),
        };
        let Ended { stop, answer, trace, .. } = agent.run(&self.task.instruction).await;
        match stop {
            Stop::Answered => Played::Answered { answer, trace },
            Stop::Limit(reason) | Stop::Refused(reason) => Played::Failed { reason, trace },
            Stop::Unavailable(reason) => Played::Broken { reason, trace },
        }
    }

    async fn program(&self, work: &Path, home: &Path) -> std::io::Result<Played> {
        let Runner::Program { launch, gateway, reef, programs, failures } = &self.runner else {
            return Err(std::io::Error::other("it is no program"));
        };
        let seen = self.cage.seen(home, HOME_INSIDE);
        let Launch { argv, mut environment } = launch(seen, &self.task.instruction);
        environment.entry("HOME".to_owned()).or_insert_with(|| seen.display().to_string());
        let mut inside = Inside { argv, environment, home: Some(home.to_owned()), ..Inside::of(work) };
        let _way_out = if self.cage.isolates() {
            inside.programs.clone_from(programs);
            inside.programs.extend(cage::needed_by(reef));
            let socket = seen.join(SOCKET).display().to_string();
            let bridge = [reef.display().to_string(), COMMAND.to_owned(), socket, gateway.port.to_string()];
            inside.argv = bridge.into_iter().chain(inside.argv).collect();
            Some(Outside::open(&home.join(SOCKET), gateway.address.clone())?)
        } else {
            None
        };
        let limits = self.task.limits;
        let bounds = Bounds {
            time: Duration::from_secs(limits.seconds),
            memory_bytes: limits.memory_mb << 20,
            ..Bounds::default()
        };
        let done = self.cage.run(&inside, bounds).await?;
        let trace = shortened(&format!("{}\n{}", done.errors.trim(), done.output.trim()), TRACE_BYTES_MAX);
        let reason = match (done.cut, done.code) {
            (None, Some(0)) => return Ok(Played::Answered { answer: done.output, trace }),
            (Some(cut), _) => cut,
            (None, Some(code)) => format!("the agent ended with exit code {code}"),
            (None, None) => "the agent was ended by a signal".to_owned(),
        };
        let failed = failures();
        if failed > 0 {
            return Ok(Played::Broken { reason: format!("{reason}; {failed} requests to the model failed"), trace });
        }
        Ok(Played::Failed { reason, trace })
    }
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan").field("task", &self.task.name).field("seed", &self.seed).finish_non_exhaustive()
    }
}

fn write(path: &Path, bytes: &[u8], mode: u32) -> std::io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(bytes)
}

/// Settings of a native home that a server has not rendered.
impl Settings {
    /// The address of the model, with the path of the dialect that the native agent speaks.
    pub fn endpoint(&self) -> String {
        format!("{}/v1/chat/completions", self.url.trim_end_matches('/'))
    }
}

#[cfg(test)]
#[path = "episode_tests.rs"]
mod tests;
