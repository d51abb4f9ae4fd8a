//! The machine's `git` as a bounded child process: the one part that gix cannot do is speaking to remotes.
//! It gets no terminal, no inherited environment but the named variables, one transport, no hooks and a time limit;
//! when that passes, it ends with all processes that it started.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::remote::{Remote, RemoteError};

/// Variables that the child may see: where programs are, and who this user is to ssh, proxies and TLS.
const VARIABLES: [&str; 14] = [
    "PATH",
    "HOME",
    "USER",
    "TMPDIR",
    "SSH_AUTH_SOCK",
    "XDG_CONFIG_HOME",
    "HTTPS_PROXY",
    "https_proxy",
    "NO_PROXY",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "GIT_SSL_CAINFO",
    "GIT_EXEC_PATH",
];
/// Bytes of the output that are kept; git says little.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;
/// Characters of git's words that an error repeats.
const TOLD_CHARS_MAX: usize = 600;
/// Time between two looks at the child.
const PAUSE: Duration = Duration::from_millis(10);
/// How long the end of the output is waited for after the child has ended: a stranger may hold the pipe.
const OUTPUT_WAIT: Duration = Duration::from_secs(5);

/// How a command ended.
pub struct Finished {
    /// With code 0.
    pub success: bool,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// The git of one transfer.
pub struct Git<'a> {
    /// The local repository.
    pub repository: &'a Path,
    /// The other one; commands name it `Git::REMOTE`.
    pub remote: &'a Remote,
    /// For each command.
    pub time_max: Duration,
}

impl Git<'_> {
    /// The name of the remote in commands: an address is never an argument.
    pub const REMOTE: &'static str = "reef-remote";

    /// Runs a command; its failure is not an error here.
    pub fn attempt(&self, arguments: &[&str]) -> Result<Finished, RemoteError> {
        let mut child = self.command(arguments).spawn().map_err(|cause| RemoteError::GitMissing { cause })?;
        let (stdout, stderr) = (collect(child.stdout.take()), collect(child.stderr.take()));
        let ended = wait(&mut child, self.time_max);
        let text = |from: Receiver<Vec<u8>>| {
            String::from_utf8_lossy(&from.recv_timeout(OUTPUT_WAIT).unwrap_or_default()).into_owned()
        };
        match ended {
            Some(success) => Ok(Finished { success, stdout: text(stdout), stderr: text(stderr) }),
            None => Err(RemoteError::TimedOut { doing: doing(arguments), seconds_max: self.time_max.as_secs() }),
        }
    }

    /// Runs a command that must succeed.
    pub fn run(&self, arguments: &[&str]) -> Result<Finished, RemoteError> {
        let finished = self.attempt(arguments)?;
        if finished.success { Ok(finished) } else { Err(failed(arguments, &finished)) }
    }

    /// Refuses a machine without git-lfs.
    pub fn require_lfs(&self) -> Result<(), RemoteError> {
        if self.attempt(&["lfs", "version"])?.success { Ok(()) } else { Err(RemoteError::LfsMissing) }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut folder = OsString::from("--git-dir=");
        folder.push(self.repository);
        let mut command = Command::new("git");
        command.env_clear().current_dir(self.repository).arg(folder);
        command.envs(VARIABLES.iter().filter_map(|name| std::env::var_os(name).map(|value| (name, value))));
        command.envs([
            ("GIT_TERMINAL_PROMPT", "0"),
            ("GIT_ASKPASS", ""),
            ("GIT_SSH_COMMAND", "ssh -o BatchMode=yes"),
            ("GIT_CONFIG_NOSYSTEM", "1"),
            ("LC_ALL", "C"),
        ]);
        for setting in [
            format!("remote.{}.url={}", Self::REMOTE, self.remote.url()),
            "protocol.allow=never".to_owned(),
            format!("protocol.{}.allow=always", self.remote.scheme()),
            "core.askPass=".to_owned(),
            "core.hooksPath=/dev/null".to_owned(),
            "core.fsync=all".to_owned(),
            "transfer.fsckObjects=true".to_owned(),
            "gc.auto=0".to_owned(),
            "maintenance.auto=false".to_owned(),
            "lfs.locksverify=false".to_owned(),
        ] {
            command.arg("-c").arg(setting);
        }
        // A group of its own, so that its helpers end with it.
        command.args(arguments).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

/// A command in words: `fetch`, `lfs push`.
fn doing(arguments: &[&str]) -> String {
    let words: Vec<&str> = arguments.iter().take(2).take_while(|word| !word.starts_with('-')).copied().collect();
    words.join(" ")
}

/// The error of a command that failed.
pub fn failed(arguments: &[&str], finished: &Finished) -> RemoteError {
    let words = finished.stderr.trim();
    let words = if words.is_empty() { finished.stdout.trim() } else { words };
    let line: String = words.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let skipped = line.chars().count().saturating_sub(TOLD_CHARS_MAX);
    RemoteError::Git { doing: doing(arguments), cause: line.chars().skip(skipped).collect() }
}

/// Reads to the end on a thread of its own, so that the child never waits; keeps the beginning.
fn collect(from: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (sender, receiver) = sync_channel(1);
    thread::spawn(move || {
        let mut kept = Vec::new();
        if let Some(mut from) = from {
            // What cannot be read is as good as unsaid; the exit code decides.
            let _ = from.by_ref().take(OUTPUT_BYTES_MAX).read_to_end(&mut kept);
            let _ = std::io::copy(&mut from, &mut std::io::sink());
        }
        let _ = sender.send(kept);
    });
    receiver
}

/// Did it end well? `None`: it had to be ended.
fn wait(child: &mut Child, time_max: Duration) -> Option<bool> {
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status.success()),
            Ok(None) if begun.elapsed() < time_max => thread::sleep(PAUSE),
            _ => {
                if let Some(group) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
                    // It may have ended this very moment.
                    let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
                }
                let _ = child.wait();
                return None;
            }
        }
    }
}
