//! A program with bounds on its time, memory, processes and output. When it ends, or is made to, everything that it
//! started ends too, also when nobody waits for it any more.

use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;
use tokio::time::{Instant, interval, sleep_until, timeout};

use super::folders::folder_bytes;
use super::processes::{MARK, kill_all, of};
use crate::bounded::Kept;

/// Looks between two walks through the folders.
const LOOKS_PER_WALK: u32 = 5;
/// How often memory and processes are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Time for the last output of a program that was ended.
const LAST_OUTPUT_MAX: Duration = Duration::from_secs(2);

/// What a program may take, with all that it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Wall time.
    pub time: Duration,
    /// Bytes of memory of all its processes.
    pub memory_bytes: u64,
    /// Processes.
    pub processes: usize,
    /// Bytes of output that are kept; more is left out and counted.
    pub output_bytes: usize,
    /// Bytes of one file that it writes.
    pub file_bytes: u64,
    /// Bytes of all files in the folders that it may change.
    pub folder_bytes: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            time: Duration::from_secs(60),
            memory_bytes: 1 << 30,
            processes: 256,
            output_bytes: 64 << 10,
            file_bytes: 256 << 20,
            folder_bytes: 1 << 30,
        }
    }
}

/// A program that is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// Its exit code; none after a signal.
    pub code: Option<i32>,
    /// Which bound ended it.
    pub cut: Option<String>,
    /// Its standard output.
    pub output: String,
    /// Its standard error.
    pub errors: String,
}

/// Ends a program and what it started, when dropped at the latest.
struct Reaper {
    group: Option<Pid>,
    mark: String,
}

impl Reaper {
    fn end(&self) {
        if let Some(group) = self.group {
            // Absent when all of it has ended.
            let _ = kill_process_group(group, Signal::KILL);
        }
        kill_all(&self.mark);
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.end();
    }
}

/// Runs the program to its end; `folders`: what it may change.
pub async fn run(mut command: Command, bounds: Bounds, folders: Vec<PathBuf>) -> std::io::Result<Done> {
    let mark = uuid::Uuid::now_v7().to_string();
    command.env(MARK, &mark);
    let mut child = command.spawn()?;
    let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    let reaper = Reaper { group, mark: mark.clone() };
    // Held until the end: the program ends with this process.
    let _leash = child.stdin.take();
    let (output, errors) = (child.stdout.take(), child.stderr.take());
    let reading =
        tokio::spawn(async move { tokio::join!(read(output, bounds.output_bytes), read(errors, bounds.output_bytes)) });
    let deadline = Instant::now() + bounds.time;
    let mut look = interval(LOOK_EVERY);
    look.tick().await;
    let (mut code, mut cut, mut looks) = (None, None, 0_u32);
    while cut.is_none() {
        tokio::select! {
            biased;
            status = child.wait() => {
                code = status?.code();
                break;
            }
            () = sleep_until(deadline) => cut = Some(format!("it ran longer than {} s", bounds.time.as_secs_f64())),
            _ = look.tick() => {
                cut = over(group, &mark, &bounds).await;
                looks += 1;
                if cut.is_none() && looks.is_multiple_of(LOOKS_PER_WALK) {
                    cut = full(folders.clone(), bounds.folder_bytes).await;
                }
            }
        }
    }
    reaper.end();
    if cut.is_some() {
        // It is dead; this only takes it away.
        let _ = timeout(LAST_OUTPUT_MAX, child.wait()).await;
    }
    let (output, errors) = match timeout(LAST_OUTPUT_MAX, reading).await {
        Ok(Ok(both)) => both,
        _ => (String::new(), "its output did not end with it".to_owned()),
    };
    Ok(Done { code, cut, output, errors })
}

/// Which bound is crossed, if one is.
async fn over(group: Option<Pid>, mark: &str, bounds: &Bounds) -> Option<String> {
    let (root, mark) = (group?.as_raw_nonzero().get(), mark.to_owned());
    let found = tokio::task::spawn_blocking(move || of(root, &mark)).await.ok()?;
    if found.processes > bounds.processes {
        return Some(format!("it had more than {} processes", bounds.processes));
    }
    let over = found.memory_bytes > bounds.memory_bytes;
    over.then(|| format!("it took more than {} MiB of memory", bounds.memory_bytes >> 20))
}

/// Are the folders too full?
async fn full(folders: Vec<PathBuf>, bytes_max: u64) -> Option<String> {
    let taken = tokio::task::spawn_blocking(move || folder_bytes(folders, bytes_max)).await.ok()?;
    match taken {
        Ok(bytes) if bytes <= bytes_max => None,
        Ok(_) => Some(format!("its folder grew over {} MiB", bytes_max >> 20)),
        Err(entries) => Some(format!("its folder has more than {entries} files")),
    }
}

async fn read(stream: Option<impl AsyncRead + Unpin>, bytes_max: usize) -> String {
    let mut kept = Kept::new(bytes_max);
    if let Some(mut stream) = stream {
        let mut piece = vec![0_u8; 16 << 10];
        while let Ok(count) = stream.read(&mut piece).await {
            match piece.get(..count) {
                Some(bytes) if !bytes.is_empty() => kept.push(bytes),
                _ => break,
            }
        }
    }
    kept.text()
}
