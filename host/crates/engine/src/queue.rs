//! Requests that wait, one line per tenant.
//! Handles push from any thread, the scheduler's thread takes one of each tenant in turn: a tenant that sends many
//! waits for itself and not for others. Each line is bounded. A large job for which there is no room yet lets some
//! smaller ones of others pass, then they wait for it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::error::EngineError;
use crate::scheduler::Job;

/// Jobs of other tenants that may pass one for which there is no room yet.
const PASSING_MAX: u32 = 16;

/// May a job run now?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fit {
    Fits,
    /// There is no room for it yet.
    NotYet,
    /// Its tenant has what it may have.
    NotThisTenant,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Queue {
    state: Mutex<State>,
    arrived: Condvar,
    /// Jobs of one tenant.
    max: usize,
}

#[derive(Debug, Default)]
struct State {
    lines: BTreeMap<String, VecDeque<Job>>,
    /// Tenants whose line is not empty; the first is next.
    turns: VecDeque<String>,
    /// Jobs that passed the one whose turn it is.
    passed: u32,
    closed: bool,
}

impl Queue {
    pub fn new(max: usize) -> Self {
        Self { state: Mutex::default(), arrived: Condvar::new(), max: max.max(1) }
    }

    /// Jobs of one tenant that may wait.
    pub fn max(&self) -> usize {
        self.max
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a job to its tenant's line, or says that this is full. Jobs of a full line that nobody waits for any
    /// more make room; how many did.
    pub fn push(&self, job: Job) -> Result<usize, EngineError> {
        let mut state = self.lock();
        if state.closed {
            return Err(EngineError::Stopped);
        }
        let tenant = job.request.tenant.clone();
        let line = state.lines.entry(tenant.clone()).or_default();
        let before = line.len();
        if before >= self.max {
            line.retain(|job| !job.events.is_closed());
        }
        let dropped = before - line.len();
        if line.len() >= self.max {
            return Err(EngineError::Overloaded { queued: line.len() });
        }
        line.push_back(job);
        // A line that was full has its turn already.
        if before == 0 {
            state.turns.push_back(tenant);
        }
        drop(state);
        self.arrived.notify_one();
        Ok(dropped)
    }

    /// The next job, if there is one that `fits`. Jobs that nobody waits for any more are dropped on the way and
    /// counted.
    pub fn take(&self, fits: impl Fn(&Job) -> Fit) -> (Option<Job>, usize) {
        let mut state = self.lock();
        let (mut dropped, mut turn) = (0, 0);
        // Is there a job before this turn for which there is no room yet?
        let mut passes = false;
        while let Some(tenant) = state.turns.get(turn).cloned() {
            let line = state.lines.entry(tenant.clone()).or_default();
            let before = line.len();
            while line.front().is_some_and(|job| job.events.is_closed()) {
                line.pop_front();
            }
            dropped += before - line.len();
            let Some(job) = line.front() else {
                state.turns.remove(turn);
                state.lines.remove(&tenant);
                continue;
            };
            match fits(job) {
                Fit::Fits => {
                    let job = line.pop_front();
                    let more = !line.is_empty();
                    state.turns.remove(turn);
                    if more {
                        state.turns.push_back(tenant);
                    } else {
                        state.lines.remove(&tenant);
                    }
                    state.passed = if passes { state.passed + 1 } else { 0 };
                    return (job, dropped);
                }
                Fit::NotYet if state.passed >= PASSING_MAX => break,
                Fit::NotYet => passes = true,
                Fit::NotThisTenant => {}
            }
            turn += 1;
        }
        (None, dropped)
    }

    /// Waits until there is a job; false: there will be none any more.
    pub fn wait(&self) -> bool {
        let mut state = self.lock();
        while state.turns.is_empty() && !state.closed {
            state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        !state.turns.is_empty()
    }

    /// No job is accepted any more; those that wait still run.
    pub fn close(&self) {
        self.lock().closed = true;
        self.arrived.notify_all();
    }
}
