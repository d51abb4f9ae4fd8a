//! A task on disk: `instruction.md`, the files that the agent finds in its folder under `files/`, and `task.toml`, which
//! says what the agent may take and who scores it. A task is read whole and named by the SHA-256 of all of it, so that a
//! result belongs to exactly what was tried.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reef_core::sha256_hex;
use serde::Deserialize;

use crate::agent::Limits;
use crate::error::EpisodeError;

/// The definition.
const DEFINITION: &str = "task.toml";
/// What the agent is told.
const INSTRUCTION: &str = "instruction.md";
/// What the agent finds in its folder.
const FILES: &str = "files/";
/// Bytes of a task.
const BYTES_MAX: u64 = 16 << 20;
/// Files of a task.
const FILES_MAX: usize = 1_000;
/// Folders within each other.
const DEPTH_MAX: usize = 8;
/// Bytes of what the agent is told.
const INSTRUCTION_BYTES_MAX: usize = 64 << 10;
/// Tasks of one folder.
const TASKS_MAX: usize = 500;
/// Bytes of a task's name; it stands in prompts and metrics.
const NAME_BYTES_MAX: usize = 64;

/// What one try may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TaskLimits {
    /// Seconds of the agent.
    pub seconds: u64,
    /// Answers of the model.
    pub turns: u32,
    /// Tokens of the model.
    pub tokens: u64,
    /// MiB of memory of each program.
    pub memory_mb: u64,
}

impl Default for TaskLimits {
    fn default() -> Self {
        Self { seconds: 300, turns: 30, tokens: 200_000, memory_mb: 1024 }
    }
}

impl TaskLimits {
    /// As an agent takes them.
    pub fn of_agent(self) -> Limits {
        Limits {
            turns: self.turns,
            tokens: self.tokens,
            time: Duration::from_secs(self.seconds),
            memory_bytes: self.memory_mb << 20,
        }
    }
}

/// Who says how good a try was.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum VerifierSource {
    /// A program and its arguments, started in the agent's folder after the agent has ended. `{task}` is the task's
    /// folder. Exit code 0: passed, with the last line as the score if it is a number; 1: failed; else no score.
    Program(Vec<String>),
    /// A component that the server knows by this name; it reads the agent's answer.
    Component(String),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Definition {
    verifier: VerifierSource,
    /// A file in the agent's folder that a component reads instead of the answer.
    #[serde(default)]
    answer_file: Option<String>,
    #[serde(default)]
    limits: TaskLimits,
}

/// One task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Its folder's name.
    pub name: String,
    /// Its folder, for a verifier that is a program.
    pub folder: PathBuf,
    /// What the agent is told.
    pub instruction: String,
    /// What it finds, by path.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Who scores it.
    pub verifier: VerifierSource,
    /// A file in the agent's folder that a component reads instead of the answer.
    pub answer_file: Option<String>,
    /// What one try may take.
    pub limits: TaskLimits,
    /// SHA-256 of everything in the folder.
    pub digest: String,
}

/// Reads the task of a folder, or the tasks of the folders in it, by name.
pub fn read_tasks(folder: &Path) -> Result<Vec<Task>, EpisodeError> {
    if folder.join(DEFINITION).is_file() {
        return Ok(vec![Task::read(folder)?]);
    }
    let entries = fs::read_dir(folder).map_err(|error| wrong(folder, error))?;
    let mut folders = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| wrong(folder, error))?.path();
        if path.join(DEFINITION).is_file() {
            folders.push(path);
        }
        if folders.len() > TASKS_MAX {
            return Err(wrong(folder, format!("it has more than {TASKS_MAX} tasks; use fewer")));
        }
    }
    if folders.is_empty() {
        return Err(wrong(folder, format!("there is no {DEFINITION} in it or in its folders; write a task")));
    }
    folders.sort();
    folders.iter().map(|path| Task::read(path)).collect()
}

fn wrong(path: &Path, problem: impl ToString) -> EpisodeError {
    EpisodeError::Task { path: path.to_owned(), problem: problem.to_string() }
}

impl Task {
    /// Reads and checks one task.
    pub fn read(folder: &Path) -> Result<Self, EpisodeError> {
        let folder = &fs::canonicalize(folder).map_err(|error| wrong(folder, error))?;
        let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if !is_name(&name) {
            let rule = format!("a task's folder is named with 1 to {NAME_BYTES_MAX} of a-z, A-Z, 0-9, '-' and '_'");
            return Err(wrong(folder, format!("{rule}; rename it")));
        }
        let mut all = BTreeMap::new();
        walk(folder, "", &mut (0, &mut all))?;
        let text = |file: &str| -> Result<String, EpisodeError> {
            let bytes = all.get(file).ok_or_else(|| wrong(folder, format!("{file} is missing; write it")))?;
            String::from_utf8(bytes.clone()).map_err(|_| wrong(folder, format!("{file} is not UTF-8")))
        };
        let told = |problem: String| wrong(folder, format!("{DEFINITION}: {problem}"));
        let definition: Definition = toml::from_str(&text(DEFINITION)?).map_err(|error| told(error.to_string()))?;
        let instruction = text(INSTRUCTION)?;
        if instruction.trim().is_empty() || instruction.len() > INSTRUCTION_BYTES_MAX {
            return Err(wrong(folder, format!("{INSTRUCTION} has not 1 to {INSTRUCTION_BYTES_MAX} bytes")));
        }
        check(&definition).map_err(told)?;
        let listing: String = all.iter().map(|(path, bytes)| format!("{} {path}\n", sha256_hex(bytes))).collect();
        let files = all.iter().filter_map(|(path, bytes)| Some((path.strip_prefix(FILES)?.to_owned(), bytes.clone())));
        Ok(Self {
            name,
            files: files.collect(),
            instruction,
            verifier: definition.verifier,
            answer_file: definition.answer_file,
            limits: definition.limits,
            digest: sha256_hex(listing.as_bytes()),
            folder: folder.clone(),
        })
    }
}

fn check(definition: &Definition) -> Result<(), String> {
    let limits = definition.limits;
    if limits.seconds == 0 || limits.turns == 0 || limits.tokens == 0 || limits.memory_mb == 0 {
        return Err("a limit is 0; use a number of at least 1".to_owned());
    }
    match &definition.verifier {
        VerifierSource::Program(argv) if argv.is_empty() => Err("verifier.program is empty; name a program".to_owned()),
        VerifierSource::Program(_) if definition.answer_file.is_some() => {
            Err("answer_file is for a component; a program reads any file itself".to_owned())
        }
        _ => Ok(()),
    }
}

fn is_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(plain)
}

/// Every plain file under the folder, by its path. A link would make the digest a lie.
fn walk(
    folder: &Path,
    prefix: &str,
    (bytes, all): &mut (u64, &mut BTreeMap<String, Vec<u8>>),
) -> Result<(), EpisodeError> {
    if prefix.matches('/').count() > DEPTH_MAX {
        return Err(wrong(folder, format!("more than {DEPTH_MAX} folders within each other; use fewer")));
    }
    for entry in fs::read_dir(folder).map_err(|error| wrong(folder, error))? {
        let entry = entry.map_err(|error| wrong(folder, error))?;
        let path = entry.path();
        let found = fs::symlink_metadata(&path).map_err(|error| wrong(&path, error))?;
        let name = entry.file_name().into_string().map_err(|_| wrong(&path, "its name is not UTF-8; rename it"))?;
        if found.is_dir() {
            let mut inner = (*bytes, &mut **all);
            walk(&path, &format!("{prefix}{name}/"), &mut inner)?;
            *bytes = inner.0;
        } else if !found.is_file() {
            return Err(wrong(&path, "it is a link or a device; put a plain file in its place"));
        } else {
            *bytes = bytes.saturating_add(found.len());
            if *bytes > BYTES_MAX || all.len() >= FILES_MAX {
                return Err(wrong(folder, format!("a task has at most {FILES_MAX} files and {BYTES_MAX} bytes")));
            }
            all.insert(format!("{prefix}{name}"), fs::read(&path).map_err(|error| wrong(&path, error))?);
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// A task with this instruction, verifier script and files.
    pub fn task(name: &str, instruction: &str, verify: &str, files: &[(&str, &str)]) -> (tempfile::TempDir, Task) {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().join(name);
        let definition = "verifier.program = [\"sh\", \"{task}/verify.sh\"]\nlimits = { seconds = 20 }\n";
        let own = [("task.toml", definition), ("instruction.md", instruction), ("verify.sh", verify)];
        for (path, text) in own.iter().chain(files) {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(path, text).expect("written");
        }
        let task = Task::read(&root).expect("a task");
        (folder, task)
    }
}

#[cfg(test)]
mod tests {
    use super::testing::task;
    use super::*;

    #[test]
    fn a_task_is_its_folder_and_every_byte_names_it() {
        let (folder, first) = task("sum", "Add.\n", "exit 0\n", &[("files/in/a.txt", "1\n")]);
        assert_eq!((first.name.as_str(), first.instruction.as_str()), ("sum", "Add.\n"));
        assert_eq!(first.files["in/a.txt"], b"1\n");
        assert_eq!((first.limits.seconds, first.limits.turns), (20, TaskLimits::default().turns));
        fs::write(folder.path().join("sum/verify.sh"), "exit 1\n").expect("written");
        let second = &read_tasks(folder.path()).expect("tasks")[0];
        assert_ne!(second.digest, first.digest, "another verifier is another task");
        assert_eq!(read_tasks(&folder.path().join("sum")).expect("one"), std::slice::from_ref(second));
    }

    #[test]
    fn what_is_no_task_is_told_with_its_place() {
        let (folder, _) = task("sum", "Add.\n", "exit 0\n", &[]);
        let root = folder.path().join("sum");
        let told = |path: &Path| read_tasks(path).expect_err("refused").to_string();
        for (definition, words) in [
            ("", "missing field `verifier`"),
            ("verifier.program = []", "verifier.program is empty"),
            ("verifier.magic = []", "unknown variant `magic`"),
            ("verifier.component = \"x\"\nlimits = { turns = 0 }", "a limit is 0"),
            ("verifier.component = \"x\"\nlimits = { turn = 1 }", "unknown field `turn`"),
        ] {
            fs::write(root.join("task.toml"), definition).expect("written");
            assert!(told(&root).contains(words), "{definition}: {}", told(&root));
        }
        fs::write(root.join("task.toml"), "verifier.component = \"x\"").expect("written");
        std::os::unix::fs::symlink("/etc/passwd", root.join("link")).expect("linked");
        assert!(told(&root).contains("link: it is a link"), "{}", told(&root));
        let empty = tempfile::tempdir().expect("a folder");
        assert!(told(empty.path()).contains("no task.toml"));
    }
}
