//! From a release to weights in memory.
//! The scenario registry and pinned requests ask here; it reads the release repository and the engine.
//! A release without an adapter is the base; anything that cannot be loaded is an error, never the base.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use reef_core::ReleaseId;
use reef_engine::{Engine, EngineError, Weights};
use reef_release::{ReleaseError, ReleaseRepo};
use rustix::process::setpriority_process;
use tokio::sync::{Semaphore, oneshot};

/// File whose presence makes a release carry an adapter.
pub const ADAPTER_FILE: &str = "adapter_model.safetensors";

/// Releases that are read at the same time.
const LOADING_MAX: usize = 2;
/// How far a thread that reads one steps back, from 0 to 19.
const LOADING_NICENESS: i32 = 5;

/// Why the weights of a release cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// The repository has no such release, or its bytes are damaged.
    #[error(transparent)]
    Release(#[from] ReleaseError),
    /// The adapter does not fit the model.
    #[error("release {release}: {source}")]
    Adapter {
        /// The release.
        release: ReleaseId,
        /// What the engine says.
        source: EngineError,
    },
    /// The loading thread died.
    #[error("loading release {0} was interrupted")]
    Interrupted(ReleaseId),
}

/// Loads weights and keeps the last few.
#[derive(Clone)]
pub struct WeightsCache {
    repo: ReleaseRepo,
    engine: Engine,
    recent: Arc<Mutex<VecDeque<(ReleaseId, Weights)>>>,
    retained_max: usize,
    loading: Arc<Semaphore>,
}

impl std::fmt::Debug for WeightsCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WeightsCache").field("retained_max", &self.retained_max).finish_non_exhaustive()
    }
}

impl WeightsCache {
    /// `retained_max`: adapters kept beside those that scenarios serve.
    pub fn new(repo: ReleaseRepo, engine: Engine, retained_max: usize) -> Self {
        let loading = Arc::new(Semaphore::new(LOADING_MAX));
        Self { repo, engine, recent: Arc::default(), retained_max: retained_max.max(1), loading }
    }

    /// The weights of a release, from memory or from the repository.
    pub async fn load(&self, release: &ReleaseId) -> Result<Weights, WeightsError> {
        if let Some(found) = self.recall(release) {
            return Ok(found);
        }
        let interrupted = || WeightsError::Interrupted(release.clone());
        let _place = self.loading.acquire().await.map_err(|_| interrupted())?;
        // Another request may have brought it meanwhile.
        if let Some(found) = self.recall(release) {
            return Ok(found);
        }
        let (repo, engine, id) = (self.repo.clone(), self.engine.clone(), release.clone());
        let loaded = beside_serving(move || read(&repo, &engine, &id)).await.ok_or_else(interrupted)??;
        self.keep(release.clone(), loaded.clone());
        Ok(loaded)
    }

    /// Remembers weights that are already in memory.
    pub fn keep(&self, release: ReleaseId, weights: Weights) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.retain(|(id, _)| *id != release);
        recent.push_front((release, weights));
        recent.truncate(self.retained_max);
    }

    fn recall(&self, release: &ReleaseId) -> Option<Weights> {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let position = recent.iter().position(|(id, _)| id == release)?;
        let entry = recent.remove(position)?;
        let weights = entry.1.clone();
        recent.push_front(entry);
        Some(weights)
    }
}

/// Runs work that takes a core for a moment on a thread of its own that steps back behind those that serve. None: the
/// thread could not start or died.
pub async fn beside_serving<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, done) = oneshot::channel();
    let thread = std::thread::Builder::new().name("reef-weights".to_owned());
    let started = thread.spawn(move || {
        // On Linux the priority is the calling thread's own. Without it, the work only disturbs more.
        let _ = setpriority_process(None, LOADING_NICENESS);
        // Nobody waits any more if the request has gone.
        let _ = sender.send(work());
    });
    started.ok()?;
    done.await.ok()
}

fn read(repo: &ReleaseRepo, engine: &Engine, release: &ReleaseId) -> Result<Weights, WeightsError> {
    let files = repo.files(release)?;
    if !files.iter().any(|(path, _)| path == ADAPTER_FILE) {
        return Ok(Weights::Base);
    }
    let adapter = engine
        .adapter_from_files(&files)
        .map_err(|source| WeightsError::Adapter { release: release.clone(), source })?;
    Ok(Weights::Adapter(adapter))
}
