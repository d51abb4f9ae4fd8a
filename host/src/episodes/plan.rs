//! From a tree, an agent program and a task to an episode that can be played. The server does it with a pass of its own
//! for each episode, `reef harness run` with the person's token.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use reef_episodes::{Cage, Gateway, HomeFile, Judge, Launch, PATH, Plan, Runner, Task};
use reef_harness::{Adapter, Binding, Client, Tree, render};

use super::model::Line;

/// The adapter of the agent that is part of this program.
pub const NATIVE: &str = "native";
/// Folder of the native agent's files in a home.
const NATIVE_FOLDER: &str = "native";

/// What is the same for many episodes.
#[derive(Clone)]
pub struct Making {
    /// The agent program's data.
    pub adapter: Arc<Adapter>,
    /// The agent program; the native agent needs none.
    pub program: Option<PathBuf>,
    /// This program.
    pub reef: PathBuf,
    /// Where programs run.
    pub cage: Cage,
    /// Asks component verifiers.
    pub judge: Judge,
    /// The native agent's way to its model.
    pub line: Line,
    /// Host and port of the server.
    pub gateway: Gateway,
}

/// What belongs to one episode.
pub struct Own<'a> {
    /// The tree that is tried.
    pub tree: &'a Tree,
    /// What its files point at.
    pub binding: Binding,
    /// The task.
    pub task: Arc<Task>,
    /// Seed for the model.
    pub seed: u32,
    /// Opens the unrecorded routes.
    pub token: String,
    /// Names the run.
    pub session: String,
    /// Requests of the episode that failed by no fault of the agent's.
    pub failures: Arc<dyn Fn() -> u32 + Send + Sync>,
}

impl std::fmt::Debug for Own<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Own").field("task", &self.task.name).field("seed", &self.seed).finish_non_exhaustive()
    }
}

impl Making {
    /// The episode; the error says why there is none.
    pub fn plan(&self, own: Own<'_>) -> Result<Plan, String> {
        let Own { tree, binding, task, seed, token, session, failures } = own;
        let rendering = render(tree, &self.adapter, &binding).map_err(|error| error.to_string())?;
        let file = |file: &reef_harness::RenderedFile| HomeFile {
            path: file.path.clone(),
            mode: file.mode,
            text: file.text.clone(),
        };
        let home = Arc::new(rendering.files().iter().map(file).collect());
        let runner = if self.adapter.name == NATIVE {
            let ask = self.line.to(format!("{}/v1/chat/completions", binding.url), token).ask();
            Runner::Native { ask, folder: NATIVE_FOLDER.to_owned() }
        } else {
            let program = self.program.clone().ok_or_else(|| {
                format!(
                    "'{}' is not on the PATH; install it, or name it in harness.episodes.program",
                    self.adapter.binary
                )
            })?;
            let (adapter, shown) = (Arc::clone(&self.adapter), program.display().to_string());
            // What a program is started with often lies beside it, as Node.js does beside a package's commands.
            let beside = program.parent().unwrap_or(&program).display().to_string();
            let launch = move |home: &Path, prompt: &str| {
                let home = home.display().to_string();
                let client = Client { home: &home, token: &token, session: &session, prompt };
                let mut started = rendering.headless(&adapter, client);
                started.environment.insert("PATH".to_owned(), format!("{beside}:{PATH}"));
                let argv = std::iter::once(shown.clone()).chain(started.arguments).collect();
                Launch { argv, environment: started.environment }
            };
            Runner::Program {
                launch: Arc::new(launch),
                gateway: self.gateway.clone(),
                reef: self.reef.clone(),
                programs: readable(&program),
                failures,
            }
        };
        let (cage, judge) = (self.cage.clone(), Arc::clone(&self.judge));
        Ok(Plan { task, home, runner, cage, judge, seed })
    }
}

impl std::fmt::Debug for Making {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Making").field("adapter", &self.adapter.name).field("cage", &self.cage).finish_non_exhaustive()
    }
}

/// Folders that a program needs to read beside the system's: where it lies, and the packages around it.
fn readable(program: &Path) -> Vec<PathBuf> {
    let real = std::fs::canonicalize(program).unwrap_or_else(|_| program.to_owned());
    let mut folders = Vec::new();
    for path in [program, real.as_path()] {
        let packages = path.ancestors().filter(|folder| folder.ends_with("node_modules")).last();
        let folder = packages.or_else(|| path.parent()).unwrap_or(path).to_owned();
        // What the system has is there already.
        if !folder.starts_with("/usr") && !folder.starts_with("/bin") && !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    folders
}

/// A program on the PATH.
pub fn on_path(binary: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(binary)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_s_program_brings_its_packages_and_the_system_s_brings_nothing() {
        assert_eq!(readable(Path::new("/p/node_modules/.bin/pi")), [PathBuf::from("/p/node_modules")]);
        assert_eq!(readable(Path::new("/opt/x/bin/agent")), [PathBuf::from("/opt/x/bin")]);
        assert!(readable(Path::new("/usr/bin/env")).is_empty());
        assert!(on_path("sh").is_some() && on_path("no-such-program").is_none());
    }
}
