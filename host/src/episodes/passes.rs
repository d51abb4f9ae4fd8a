//! Who may ask models from an episode: a pass is a token that lives as long as its episode, answers for one scenario, one
//! release of weights and one model, and counts. The unrecorded routes look it up; nothing else knows it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use reef_core::{RecordId, ReleaseId, sha256_hex};

use crate::scenarios::ScenarioKey;

/// What a pass is good for.
#[derive(Debug)]
pub struct Pass {
    /// Tenant and scenario.
    pub scenario: ScenarioKey,
    /// The weights that answer, whatever is released meanwhile.
    pub release: ReleaseId,
    /// The model that may be asked for.
    pub model: String,
    /// Requests that it is good for.
    pub calls_max: u32,
    calls: AtomicU32,
    failures: AtomicU32,
}

impl Pass {
    /// A pass that was not used.
    pub fn new(scenario: ScenarioKey, release: ReleaseId, model: String, calls_max: u32) -> Self {
        Self { scenario, release, model, calls_max, calls: AtomicU32::new(0), failures: AtomicU32::new(0) }
    }

    /// Takes one request; false: it is used up.
    pub fn take(&self) -> bool {
        self.calls.fetch_add(1, Ordering::Relaxed) < self.calls_max
    }

    /// Notes that a request failed by no fault of the agent's.
    pub fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Requests that failed so.
    pub fn failures(&self) -> u32 {
        self.failures.load(Ordering::Relaxed)
    }
}

/// The passes of all episodes that run.
#[derive(Debug, Clone, Default)]
pub struct Passes(Arc<Mutex<HashMap<String, Arc<Pass>>>>);

/// A pass in use; dropped, it opens nothing any more.
#[derive(Debug)]
pub struct Lease {
    passes: Passes,
    digest: String,
    /// The secret.
    pub token: String,
    /// What it is good for.
    pub pass: Arc<Pass>,
}

impl Passes {
    /// Makes a token for an episode.
    pub fn issue(&self, pass: Pass) -> Lease {
        // Two of them, so that more than half of the characters are chance.
        let token = format!("episode-{}{}", RecordId::fresh(), RecordId::fresh());
        let (digest, pass) = (sha256_hex(token.as_bytes()), Arc::new(pass));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(digest.clone(), Arc::clone(&pass));
        Lease { passes: self.clone(), digest, token, pass }
    }

    /// The pass of a token. It is found by digest: how near a guess is shows in no time.
    pub fn find(&self, token: &str) -> Option<Arc<Pass>> {
        let digest = sha256_hex(token.as_bytes());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&digest).cloned()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.passes.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.digest);
    }
}

#[cfg(test)]
mod tests {
    use reef_core::{ScenarioName, TenantId};

    use super::*;

    #[test]
    fn a_pass_opens_while_its_episode_runs_and_as_often_as_it_may() {
        let key = (TenantId::parse("acme").expect("a name"), ScenarioName::parse("agent").expect("a name"));
        let passes = Passes::default();
        let release = ReleaseId::parse("a".repeat(40)).expect("an id");
        let lease = passes.issue(Pass::new(key, release, "m".to_owned(), 2));
        let other = passes.issue(Pass::new(lease.pass.scenario.clone(), lease.pass.release.clone(), "n".to_owned(), 2));
        assert_ne!(lease.token, other.token);
        let found = passes.find(&lease.token).expect("found");
        assert_eq!((found.model.as_str(), [found.take(), found.take(), found.take()]), ("m", [true, true, false]));
        let token = lease.token.clone();
        drop(lease);
        assert!(passes.find(&token).is_none() && passes.find(&other.token).is_some() && passes.find("").is_none());
    }
}
