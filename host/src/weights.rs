//! From a release to weights in memory.
//! The scenario registry and pinned requests ask here; it reads the release repository and the engine.
//! A release without an adapter is the base; anything that cannot be loaded is an error, never the base.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use reef_core::ReleaseId;
use reef_engine::{Engine, EngineError, Weights};
use reef_release::{ReleaseError, ReleaseRepo};
use rustix::process::setpriority_process;
use tokio::sync::{mpsc, oneshot};

/// File whose presence makes a release carry an adapter.
pub const ADAPTER_FILE: &str = "adapter_model.safetensors";

/// Releases that wait to be read; more wait to wait.
const LOADING_MAX: usize = 16;
/// How far the thread that reads them steps back, from 0 to 19.
const LOADING_NICENESS: i32 = 10;

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
    /// The loading thread was interrupted.
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
    loader: Loader,
}

impl std::fmt::Debug for WeightsCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WeightsCache").field("retained_max", &self.retained_max).finish_non_exhaustive()
    }
}

impl WeightsCache {
    /// `retained_max`: adapters kept beside those that scenarios serve.
    pub fn new(repo: ReleaseRepo, engine: Engine, retained_max: usize) -> std::io::Result<Self> {
        let loader = Loader::start()?;
        Ok(Self { repo, engine, recent: Arc::default(), retained_max: retained_max.max(1), loader })
    }

    /// The weights of a release, from memory or from the repository.
    pub async fn load(&self, release: &ReleaseId) -> Result<Weights, WeightsError> {
        if let Some(found) = self.recall(release) {
            return Ok(found);
        }
        let (cache, id) = (self.clone(), release.clone());
        let load = move || {
            // Another request may have brought it while this one waited for its turn.
            if let Some(found) = cache.recall(&id) {
                return Ok(found);
            }
            let loaded = read(&cache.repo, &cache.engine, &id)?;
            cache.keep(id, loaded.clone());
            Ok(loaded)
        };
        self.loader.run(load).await.ok_or_else(|| WeightsError::Interrupted(release.clone()))?
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

type Work = Box<dyn FnOnce() + Send>;

/// A thread for work that takes a core for a moment: it steps back behind those that serve, and takes one thing after
/// the other. Being always the same, it also takes its memory always from the same place and gives it back there.
#[derive(Debug, Clone)]
pub struct Loader {
    work: mpsc::Sender<Work>,
}

impl Loader {
    /// Starts the thread; it ends with the last handle.
    pub fn start() -> std::io::Result<Self> {
        let (work, mut queue) = mpsc::channel::<Work>(LOADING_MAX);
        std::thread::Builder::new().name("reef-weights".to_owned()).spawn(move || {
            // On Linux the priority is the calling thread's own. Without it, the work only disturbs more.
            let _ = setpriority_process(None, LOADING_NICENESS);
            while let Some(work) = queue.blocking_recv() {
                // A panic in one must not end the others; whoever waits hears that it was interrupted.
                if std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err() {
                    tracing::error!("weights.panic");
                }
            }
        })?;
        Ok(Self { work })
    }

    /// What `work` gives; none: it was interrupted.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (sender, done) = oneshot::channel();
        let unless_gone = move || {
            // Whoever asked may have gone while others had their turn.
            if !sender.is_closed() {
                drop(sender.send(work()));
            }
        };
        self.work.send(Box::new(unless_gone)).await.ok()?;
        done.await.ok()
    }
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
