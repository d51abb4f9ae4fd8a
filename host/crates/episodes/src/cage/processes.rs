//! The processes of one program, found in `/proc`: its descendants, and those that carry its mark in their environment,
//! because they left the family. Bubblewrap ends its processes by itself; this is for what runs without it, and counts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use rustix::process::{Pid, Signal, kill_process};

/// The variable that marks a program and what it starts.
pub const MARK: &str = "REEF_EPISODE_MARK";
/// Rounds of ending processes that start others meanwhile.
const ROUNDS_MAX: u32 = 20;

/// What the processes of a program take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Taken {
    /// How many there are.
    pub processes: usize,
    /// Their resident memory.
    pub memory_bytes: u64,
}

/// Counts the process and all that came from it.
pub fn of(root: i32, mark: &str) -> Taken {
    let mut taken = Taken::default();
    for id in family(root, mark) {
        taken.processes += 1;
        taken.memory_bytes = taken.memory_bytes.saturating_add(resident_bytes(id));
    }
    taken
}

/// Ends every process with the mark.
pub fn kill_all(mark: &str) {
    for _ in 0..ROUNDS_MAX {
        let marked: Vec<i32> = processes().into_keys().filter(|id| *id != own() && is_marked(*id, mark)).collect();
        if marked.is_empty() {
            return;
        }
        for id in marked.into_iter().filter_map(Pid::from_raw) {
            // It may have ended by itself.
            let _ = kill_process(id, Signal::KILL);
        }
    }
}

fn own() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// Every process with its parent.
fn processes() -> BTreeMap<i32, i32> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if let Some(parent) = parent(id) {
            found.insert(id, parent);
        }
    }
    found
}

/// The parent, of a process that has not ended: the second field after the name, which stands in brackets.
fn parent(id: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(parent)
}

fn family(root: i32, mark: &str) -> BTreeSet<i32> {
    let all = processes();
    let mut family: BTreeSet<i32> =
        all.keys().copied().filter(|id| *id == root || (*id != own() && is_marked(*id, mark))).collect();
    loop {
        let more: Vec<i32> = all
            .iter()
            .filter(|(id, parent)| family.contains(parent) && !family.contains(id))
            .map(|(id, _)| *id)
            .collect();
        if more.is_empty() {
            return family;
        }
        family.extend(more);
    }
}

fn is_marked(id: i32, mark: &str) -> bool {
    let wanted = format!("{MARK}={mark}");
    let environment = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
}

fn resident_bytes(id: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.trim().split(' ').next()?.parse::<u64>().ok()).unwrap_or(0);
    kib.saturating_mul(1024)
}
