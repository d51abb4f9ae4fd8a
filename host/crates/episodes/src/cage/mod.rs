//! The cage: a place for programs that somebody else wrote. With bubblewrap a program sees the system's programs, one
//! working folder and nothing else: no network, no processes but its own, no variable of the server. Without it a program
//! is only bounded and ended, which an operator must ask for.

pub mod bridge;
mod child;
mod folders;
mod processes;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::process::Command;

pub use child::{Bounds, Done};

use crate::episode::{HOME_INSIDE, TASK_INSIDE, WORK_INSIDE};
use crate::error::EpisodeError;

/// The program that isolates.
const BUBBLEWRAP: &str = "bwrap";
/// Where programs are looked for inside.
pub const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";
/// Time to find out whether it works here.
const TRIAL_MAX: Duration = Duration::from_secs(10);
/// Bytes of the folder for temporary files inside.
const TEMPORARY_BYTES: u64 = 256 << 20;
/// Without bubblewrap nothing ends a program when this process is killed. Its standard input is a pipe that only this
/// process holds: when that closes, a watcher ends the program's group.
const LEASH: &str = "exec 3<&0 </dev/null; { read -r _ <&3; kill -KILL 0; } >/dev/null 2>&1 & exec 3<&-;";
/// Parts of the system that are there to read, where they exist.
const SYSTEM: [&str; 11] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ssl",
    "/etc/ca-certificates",
];

/// What an operator asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// Nothing runs without bubblewrap.
    #[default]
    Required,
    /// Bubblewrap where it works, else as with `none`.
    Preferred,
    /// Programs run as the server's user, with its network and files; time, memory and output are bounded.
    None,
}

/// How programs run here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cage {
    bubblewrap: Option<PathBuf>,
    /// Why there is no isolation.
    reason: Option<String>,
}

/// A program and what it sees.
#[derive(Debug, Clone, Default)]
pub struct Inside {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Its variables, beside the few that everything needs.
    pub environment: BTreeMap<String, String>,
    /// The folder that it works in, here.
    pub work: PathBuf,
    /// A folder that it may change, seen at `HOME_INSIDE`.
    pub home: Option<PathBuf>,
    /// A folder that it may read, seen at `TASK_INSIDE`.
    pub task: Option<PathBuf>,
    /// Files and folders that it may read, seen where they are.
    pub programs: Vec<PathBuf>,
}

impl Inside {
    /// Works in this folder and sees nothing else.
    pub fn of(work: &Path) -> Self {
        Self { work: work.to_owned(), ..Self::default() }
    }
}

impl Cage {
    /// Finds out what works here. Isolation is tried and not believed.
    pub async fn detect(wanted: Isolation) -> Result<Self, EpisodeError> {
        if wanted == Isolation::None {
            return Ok(Self::open("the operator asks for none"));
        }
        match trial().await {
            Ok(bubblewrap) => Ok(Self { bubblewrap: Some(bubblewrap), reason: None }),
            Err(reason) if wanted == Isolation::Preferred => Ok(Self::open(&reason)),
            Err(reason) => Err(EpisodeError::NoCage(reason)),
        }
    }

    /// No isolation.
    pub fn open(reason: &str) -> Self {
        Self { bubblewrap: None, reason: Some(reason.to_owned()) }
    }

    /// Are programs isolated?
    pub fn isolates(&self) -> bool {
        self.bubblewrap.is_some()
    }

    /// One line for people.
    pub fn told(&self) -> String {
        match &self.reason {
            None => "isolated by bubblewrap: no network, no files but its own".to_owned(),
            Some(reason) => format!("not isolated ({reason}): programs run as this user"),
        }
    }

    /// Where the program sees a folder.
    pub fn seen<'a>(&self, outside: &'a Path, inside: &'a str) -> &'a Path {
        if self.isolates() { Path::new(inside) } else { outside }
    }

    /// Runs a program to its end; everything that it started ends with it.
    pub async fn run(&self, inside: &Inside, bounds: Bounds) -> std::io::Result<Done> {
        let folders = std::iter::once(&inside.work).chain(&inside.home).cloned().collect();
        child::run(self.command(inside, &bounds), bounds, folders).await
    }

    fn command(&self, inside: &Inside, bounds: &Bounds) -> Command {
        let mut command = match &self.bubblewrap {
            Some(bubblewrap) => self.isolated(bubblewrap, inside),
            None => Command::new("sh"),
        };
        let file_blocks = bounds.file_bytes / 512;
        let memory_kib = bounds.memory_bytes / 1024;
        // The shell sets the limits of one process; those of all together are watched.
        let limits = format!("ulimit -c 0; ulimit -f {file_blocks}; ulimit -d {memory_kib}; exec \"$@\"");
        let script = if self.isolates() { limits } else { format!("{LEASH} {limits}") };
        if self.isolates() {
            command.arg("sh");
        } else {
            command.current_dir(&inside.work);
        }
        command.arg("-c").arg(script).arg("sh").args(&inside.argv);
        // Variables hold the episode's pass: on a command line everybody on this machine could read it.
        command.env_clear().env("PATH", PATH).env("HOME", self.seen(&inside.work, WORK_INSIDE));
        command
            .env("LANG", "C.UTF-8")
            .env("TERM", "dumb")
            .envs(inside.environment.iter().filter(|(name, _)| !loads(name)));
        command.stdin(if self.isolates() { Stdio::null() } else { Stdio::piped() });
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).kill_on_drop(true);
        command
    }

    fn isolated(&self, bubblewrap: &Path, inside: &Inside) -> Command {
        let mut command = Command::new(bubblewrap);
        command.args(["--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]);
        command.args(["--proc", "/proc", "--dev", "/dev"]);
        command.args(["--size", &TEMPORARY_BYTES.to_string(), "--tmpfs", "/tmp"]);
        for folder in SYSTEM {
            command.args(["--ro-bind-try", folder, folder]);
        }
        for place in &inside.programs {
            command.arg("--ro-bind").arg(place).arg(place);
        }
        command.arg("--bind").arg(&inside.work).arg(WORK_INSIDE);
        if let Some(home) = &inside.home {
            command.arg("--bind").arg(home).arg(HOME_INSIDE);
        }
        if let Some(task) = &inside.task {
            command.arg("--ro-bind").arg(task).arg(TASK_INSIDE);
        }
        for (name, value) in inside.environment.iter().filter(|(name, _)| loads(name)) {
            command.args(["--setenv", name, value]);
        }
        command.args(["--chdir", WORK_INSIDE, "--"]);
        command
    }
}

/// Does the variable tell the loader what to load? It is for the program inside, not for bubblewrap itself.
fn loads(name: &str) -> bool {
    name.starts_with("LD_")
}

/// What this program needs inside to start itself: its own file, and the folders of the libraries that it runs with.
pub(crate) fn needed_by(program: &Path) -> Vec<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let files = maps.lines().filter_map(|line| line.find('/').and_then(|at| line.get(at..)));
    let libraries = files.filter(|path| path.contains(".so")).map(Path::new);
    let mut needed: Vec<PathBuf> = Vec::new();
    for path in std::iter::once(program).chain(libraries.filter_map(Path::parent)) {
        // What the system has is there already.
        let there = SYSTEM.iter().any(|system| path.starts_with(system));
        if !there && path.exists() && !needed.iter().any(|known| known == path) {
            needed.push(path.to_owned());
        }
    }
    needed
}

/// The program, if it isolates here.
async fn trial() -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(BUBBLEWRAP)).find(|path| path.is_file());
    let Some(bubblewrap) = found else { return Err(format!("'{BUBBLEWRAP}' is not on the PATH")) };
    let scratch = tempfile::tempdir().map_err(|error| format!("no temporary folder: {error}"))?;
    let cage = Cage { bubblewrap: Some(bubblewrap.clone()), reason: None };
    let inside = Inside { argv: vec!["true".to_owned()], ..Inside::of(scratch.path()) };
    let bounds = Bounds { time: TRIAL_MAX, ..Bounds::default() };
    let done = cage.run(&inside, bounds).await.map_err(|error| format!("{}: {error}", bubblewrap.display()))?;
    if done.code == Some(0) {
        return Ok(bubblewrap);
    }
    let told = done.errors.trim().lines().next_back().unwrap_or("it ended without a word").to_owned();
    Err(format!("{} does not work here: {told}", bubblewrap.display()))
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
