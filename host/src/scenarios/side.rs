//! One surface of a scenario as it learns: the recipe that evolves it, what that is doing, and the bells that its learner
//! hears. A scenario has one for each surface; most have a recipe on one of them, and where two have, they take turns.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use reef_sandbox::{Fault, Quarantine, Recipe};
use tokio::sync::Notify;

use crate::clock::now_ms;

/// What the learner of a surface is doing; shown in the status.
#[derive(Debug, Clone, Default)]
pub struct LearnerStatus {
    /// A step is running.
    pub running: bool,
    /// Why no step runs.
    pub waiting: Option<String>,
    /// The last fault; cleared by the next success.
    pub last_error: Option<String>,
    /// What a check of the head found; cleared by the next one that finds nothing.
    pub regression: Option<String>,
    /// What did not hold in the last step that trained.
    pub training: Vec<String>,
    /// Held-out tasks that measure candidates; none = releases are not measured.
    pub held_out: usize,
    /// Milliseconds since the epoch until which the recipe is quarantined.
    pub quarantined_until_ms: Option<i64>,
}

/// The recipe that evolves a surface.
#[derive(Debug, Clone)]
pub struct InUse {
    /// The recipe.
    pub recipe: Recipe,
    /// Which use of the scenario's history it is; 0 = the server's recipe, never exchanged.
    pub position: u32,
    /// The operator's values for the recipe's keys; the scenario's own go over them.
    pub config: Arc<serde_json::Map<String, serde_json::Value>>,
}

/// One surface of a scenario.
#[derive(Debug, Default)]
pub struct Side {
    recipe: RwLock<Option<InUse>>,
    /// It is known which recipe evolves it, if any.
    settled: AtomicBool,
    status: Mutex<LearnerStatus>,
    /// What the recipe is known for in requests; forgotten with the process, and when another recipe comes.
    requests: Mutex<Quarantine>,
    /// Rung when there may be something to learn.
    pub wake: Notify,
    /// Rung when the settings changed: whatever failed may work now.
    pub changed: Notify,
}

impl Side {
    /// The recipe that the next turn of the learner uses; none while there is none, or before its first turn.
    pub fn recipe(&self) -> Option<InUse> {
        self.recipe.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Exchanges the recipe; running calls keep theirs.
    pub fn use_recipe(&self, next: InUse) {
        *self.requests.lock().unwrap_or_else(PoisonError::into_inner) = Quarantine::default();
        *self.recipe.write().unwrap_or_else(PoisonError::into_inner) = Some(next);
    }

    /// Is it known which recipe evolves it?
    pub fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire)
    }

    /// It is known from now on.
    pub fn settle(&self) {
        self.settled.store(true, Ordering::Release);
    }

    /// May the recipe have a word on requests, or did it fail too often?
    pub fn hears_requests(&self) -> bool {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).blocked(now_ms()).is_none()
    }

    /// How the recipe did with a request.
    pub fn heard_request(&self, ended: Result<(), &Fault>) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        match ended {
            Ok(()) if requests.is_clean() => {}
            Ok(()) => requests.success(),
            Err(fault) => requests.record(now_ms(), fault),
        }
    }

    /// The learner's state now.
    pub fn status(&self) -> LearnerStatus {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the learner's state.
    pub fn set_status(&self, change: impl FnOnce(&mut LearnerStatus)) {
        change(&mut self.status.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
