//! Requests that wait, one line per tenant.
//! Handles push from any thread, the scheduler's thread takes one of each tenant in turn: a tenant that sends many
//! waits for itself and not for others. Each line is bounded.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::error::EngineError;
use crate::scheduler::Job;

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
    closed: bool,
}

impl Queue {
    pub fn new(max: usize) -> Self {
        Self { state: Mutex::default(), arrived: Condvar::new(), max: max.max(1) }
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

    /// The next job, if there is one and it `fits`. Jobs that nobody waits for any more are dropped on the way and
    /// counted.
    pub fn take(&self, fits: impl Fn(&Job) -> bool) -> (Option<Job>, usize) {
        let mut state = self.lock();
        let mut dropped = 0;
        while let Some(tenant) = state.turns.front().cloned() {
            let line = state.lines.entry(tenant.clone()).or_default();
            match line.front() {
                Some(job) if job.events.is_closed() => {
                    line.pop_front();
                    dropped += 1;
                }
                Some(job) if !fits(job) => return (None, dropped),
                Some(_) => {
                    let job = line.pop_front();
                    let more = !line.is_empty();
                    state.turns.pop_front();
                    if more {
                        state.turns.push_back(tenant);
                    } else {
                        state.lines.remove(&tenant);
                    }
                    return (job, dropped);
                }
                None => {
                    state.turns.pop_front();
                    state.lines.remove(&tenant);
                }
            }
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
