//! The scenarios that are alive in this process: what each one serves now, and how to change it.
//! Requests take one `Served` snapshot and use it to the end; the learner and the operator exchange the
//! snapshot by pointer. The database is the truth for heads: a snapshot changes only after its commit.

mod forgetting;
mod harness;
mod minting;
mod policies;
mod refresh;
mod rollouts;
mod side;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use reef_core::{Release, ReleaseId, ScenarioName, Surface, TenantId};
use reef_engine::Weights;
use reef_release::{FileChange, ReleaseError, ReleaseRepo};
use reef_store::{ReleaseStatus, ScenarioSettings, Store, StoreError};
use tokio::sync::RwLock as AsyncRwLock;

pub use self::harness::HarnessContent;
pub use self::minting::promoted;
pub use self::policies::{LivePolicy, policy_files};
pub use self::rollouts::LiveRollout;
pub use self::side::{InUse, LearnerStatus, Side};
use crate::clock::now_ms;
use crate::weights::{WeightsCache, WeightsError};

/// Tenant and name of a scenario.
pub type ScenarioKey = (TenantId, ScenarioName);

/// What answers requests now. Immutable; exchanged as a whole.
#[derive(Debug)]
pub struct Served {
    /// The head release.
    pub release: Release,
    /// Its weights.
    pub weights: Weights,
    /// Trace of the step that made it, until the first answer has joined it.
    traceparent: Option<String>,
    answered: AtomicBool,
}

impl Served {
    /// A snapshot of a release in service.
    pub fn new(release: Release, weights: Weights, traceparent: Option<String>) -> Self {
        Self { release, weights, traceparent, answered: AtomicBool::new(false) }
    }

    /// The trace to continue, on the first call only.
    pub fn first_answer_traceparent(&self) -> Option<&str> {
        let first = !self.answered.swap(true, Ordering::Relaxed);
        self.traceparent.as_deref().filter(|_| first)
    }
}

/// One scenario in service.
#[derive(Debug)]
pub struct Scenario {
    /// Tenant and name.
    pub key: ScenarioKey,
    served: RwLock<Arc<Served>>,
    rollout: RwLock<Option<Arc<LiveRollout>>>,
    settings: RwLock<ScenarioSettings>,
    weights: Side,
    harness: Side,
    router: Side,
    policy: RwLock<Option<Arc<LivePolicy>>>,
    /// Held by a learner for a turn, so that the surfaces take turns, and by whoever exchanges a recipe between two.
    pub learning: tokio::sync::Mutex<()>,
    /// Held by whoever is about to mint a release in this scenario.
    pub minting: tokio::sync::Mutex<()>,
    /// It was forgotten: nothing is to be learned any more.
    retired: AtomicBool,
    /// Held by whoever reads the settings to change them.
    pub changing: Arc<tokio::sync::Mutex<()>>,
}

impl Scenario {
    /// The snapshot for one request.
    pub fn served(&self) -> Arc<Served> {
        Arc::clone(&self.served.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Exchanges what is served; running requests keep their snapshot.
    pub fn serve(&self, next: Served) {
        *self.served.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
    }

    /// One surface of it.
    pub fn side(&self, surface: Surface) -> &Side {
        match surface {
            Surface::Weights => &self.weights,
            Surface::Harness => &self.harness,
            Surface::Router => &self.router,
        }
    }

    /// Was it taken out of service for good?
    pub fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    /// Ends its learners.
    fn retire(&self) {
        self.retired.store(true, Ordering::Release);
        self.tell_changed();
    }

    /// The recipes in use, with the surfaces that they evolve.
    pub fn recipes(&self) -> impl Iterator<Item = (Surface, InUse)> {
        Surface::ALL.into_iter().filter_map(|surface| Some((surface, self.side(surface).recipe()?)))
    }

    /// The surface that stands for the scenario where one figure is shown: the first that has a recipe.
    pub fn leading(&self) -> Surface {
        self.recipes().next().map_or(Surface::Weights, |(surface, _)| surface)
    }

    /// Tells the learners that there may be something to learn.
    pub fn wake(&self) {
        Surface::ALL.into_iter().for_each(|surface| self.side(surface).wake.notify_one());
    }

    /// Tells them that whatever failed may work now.
    pub fn tell_changed(&self) {
        Surface::ALL.into_iter().for_each(|surface| self.side(surface).changed.notify_one());
        self.wake();
    }

    /// The settings now.
    pub fn settings(&self) -> ScenarioSettings {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The scenario's values for the keys of the recipe of a surface, over the operator's.
    pub fn recipe_config(
        &self,
        surface: Surface,
        operator: &serde_json::Map<String, serde_json::Value>,
    ) -> serde_json::Map<String, serde_json::Value> {
        let mut config = operator.clone();
        let beside_weights = self.side(Surface::Weights).recipe().is_some();
        config.extend(self.settings().recipe_values(surface, beside_weights).clone());
        config
    }
}

/// Why a scenario cannot be opened or changed.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// No such scenario of this tenant.
    #[error("scenario '{0}' does not exist; create it with POST /reef/scenarios or list them with GET /reef/scenarios")]
    Unknown(ScenarioName),
    /// No such release in this scenario.
    #[error("release {0} is not a release of this scenario; list them with GET /reef/scenarios/{{scenario}}/releases")]
    UnknownRelease(ReleaseId),
    /// It began with something else than is asked for.
    #[error("scenario '{scenario}' exists and did not begin with release {release}; name a new scenario")]
    OtherBase {
        /// The scenario.
        scenario: ScenarioName,
        /// What was asked for.
        release: ReleaseId,
    },
    /// Its releases are here and the database does not know it.
    #[error(
        "the release repository has a chain of scenario '{scenario}', at {head}, of which this database knows nothing; restore the database that belongs to it (store.postgres_env, reef.db in the data folder), or move releases.git away to begin anew"
    )]
    Orphan {
        /// The scenario.
        scenario: ScenarioName,
        /// Where its branch is.
        head: ReleaseId,
    },
    /// A step of it runs.
    #[error("a step of scenario '{0}' is running; try again when it has ended, as GET /reef/status tells")]
    Learning(ScenarioName),
    /// The tenant has as many as it may.
    #[error("this tenant has {0} scenarios, the most that are allowed; raise scenarios.per_tenant_max")]
    TooMany(usize),
    /// The store refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The repository refused.
    #[error(transparent)]
    Release(#[from] ReleaseError),
    /// The weights cannot be loaded.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The recipe of the scenario is not to be had.
    #[error("{0}")]
    Recipe(String),
    /// The held-out tasks do not render.
    #[error("the held-out tasks do not render: {0}")]
    HeldOut(String),
    /// The stored harness of a release does not read.
    #[error("the harness of release {release} cannot be read: {problem}; roll back to another release")]
    Harness {
        /// The release.
        release: ReleaseId,
        /// What is wrong.
        problem: String,
    },
    /// The stored policy of a release does not read.
    #[error("the routing policy of release {release} cannot be read: {problem}; roll back to another release")]
    Policy {
        /// The release.
        release: ReleaseId,
        /// What is wrong.
        problem: String,
    },
    /// A blocking task died.
    #[error("the work on the release repository was interrupted")]
    Interrupted,
}

/// Runs a change to its end even if the client that asked for it goes away: a change that is cut off between
/// the database and the memory would leave the two apart.
pub async fn to_the_end<T: Send + 'static>(
    change: impl Future<Output = Result<T, ScenarioError>> + Send + 'static,
) -> Result<T, ScenarioError> {
    tokio::spawn(change).await.map_err(|_| ScenarioError::Interrupted)?
}

/// Git works on the disk and must not hold up a thread that serves.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ReleaseError> + Send + 'static,
) -> Result<T, ScenarioError> {
    Ok(tokio::task::spawn_blocking(work).await.map_err(|_| ScenarioError::Interrupted)??)
}

/// All scenarios, opened on first use.
#[derive(Debug)]
pub struct Scenarios {
    store: Store,
    repo: ReleaseRepo,
    weights: WeightsCache,
    base_model: String,
    defaults: ScenarioSettings,
    per_tenant_max: usize,
    /// The async lock makes a creation happen once; readers of other scenarios do not wait for git.
    open: AsyncRwLock<HashMap<ScenarioKey, Arc<Scenario>>>,
    creating: tokio::sync::Mutex<()>,
    opened: tokio::sync::mpsc::Sender<Arc<Scenario>>,
}

impl Scenarios {
    /// `base_model`: SHA-256 of the model file; `defaults`: settings of a scenario that sets none, and how many a
    /// tenant may have; `opened` hears of every scenario that comes alive.
    pub fn new(
        stores: (Store, ReleaseRepo),
        weights: WeightsCache,
        base_model: String,
        (defaults, per_tenant_max): (ScenarioSettings, usize),
        opened: tokio::sync::mpsc::Sender<Arc<Scenario>>,
    ) -> Self {
        let (store, repo) = stores;
        Self {
            store,
            repo,
            weights,
            base_model,
            defaults,
            per_tenant_max,
            open: AsyncRwLock::default(),
            creating: tokio::sync::Mutex::default(),
            opened,
        }
    }

    /// Settings of a scenario that sets none.
    pub fn defaults(&self) -> &ScenarioSettings {
        &self.defaults
    }

    /// Weights of any release.
    pub fn weights(&self) -> &WeightsCache {
        &self.weights
    }

    /// Opens every scenario of the database; called once at start.
    pub async fn open_all(&self) -> Result<usize, ScenarioError> {
        self.finish_forgetting().await;
        let all = self.store.all_scenarios().await?;
        let mut opened = 0;
        for row in all {
            // One damaged scenario must not keep the others from serving; a request for it tells the cause again.
            match self.open_existing((row.tenant, row.name.clone()), row.settings).await {
                Ok(_) => opened += 1,
                Err(error) => tracing::error!(scenario = %row.name, %error, "scenario.open"),
            }
        }
        Ok(opened)
    }

    /// A scenario that exists.
    pub async fn get(&self, tenant: &TenantId, name: &ScenarioName) -> Result<Arc<Scenario>, ScenarioError> {
        let key = (tenant.clone(), name.clone());
        let found = self.open.read().await.get(&key).cloned();
        found.ok_or_else(|| ScenarioError::Unknown(name.clone()))
    }

    /// The scenarios of all tenants.
    pub async fn all(&self) -> Vec<Arc<Scenario>> {
        self.open.read().await.values().cloned().collect()
    }

    /// The scenarios of a tenant, by name.
    pub async fn list(&self, tenant: &TenantId) -> Vec<Arc<Scenario>> {
        let mut found: Vec<_> = self.open.read().await.values().filter(|s| s.key.0 == *tenant).cloned().collect();
        found.sort_by(|a, b| a.key.cmp(&b.key));
        found
    }

    /// Creates a scenario, which begins with the base or as a copy of the release, or returns the existing one with
    /// `false`.
    pub async fn create(
        &self,
        key: ScenarioKey,
        settings: Option<ScenarioSettings>,
        from: Option<&Release>,
    ) -> Result<(Arc<Scenario>, bool), ScenarioError> {
        if let Ok(existing) = self.get(&key.0, &key.1).await {
            return self.check_begin(&existing, from).await.map(|()| (existing, false));
        }
        // One creation at a time keeps two first requests from minting two base releases.
        let _creating = self.creating.lock().await;
        if let Ok(existing) = self.get(&key.0, &key.1).await {
            return self.check_begin(&existing, from).await.map(|()| (existing, false));
        }
        if self.open.read().await.keys().filter(|(tenant, _)| *tenant == key.0).count() >= self.per_tenant_max {
            return Err(ScenarioError::TooMany(self.per_tenant_max));
        }
        let settings = settings.unwrap_or_else(|| self.defaults.clone());
        match from {
            Some(from) => self.mint_fork(&key, &settings, from).await?,
            None => drop(self.store.create_scenario(&key.0, &key.1, &settings, now_ms()).await?),
        }
        // A creation that was cut off earlier has left settings of its own.
        let stored = self.store.scenario(&key.0, &key.1).await?.map_or(settings, |row| row.settings);
        let scenario = self.open_existing(key, stored).await?;
        Ok((scenario, true))
    }

    async fn open_existing(
        &self,
        key: ScenarioKey,
        settings: ScenarioSettings,
    ) -> Result<Arc<Scenario>, ScenarioError> {
        let head = match self.store.head(&key.0, &key.1).await? {
            Some(head) => head,
            None => {
                self.check_no_orphan(&key).await?;
                self.mint_base(&key).await?
            }
        };
        let (weights, detour) = match self.weights.load(&head.release_id).await {
            Ok(weights) => {
                self.align_ref(&key, &head.release_id).await?;
                (weights, None)
            }
            Err(damage) => {
                let detour = self.detour(&key, &head.release_id, damage).await?;
                (self.weights.load(&detour.to).await?, Some(detour))
            }
        };
        let scenario = Arc::new(Scenario {
            key: key.clone(),
            served: RwLock::new(Arc::new(Served::new(head, weights, None))),
            rollout: RwLock::default(),
            settings: RwLock::new(settings),
            weights: Side::default(),
            harness: Side::default(),
            router: Side::default(),
            policy: RwLock::default(),
            learning: tokio::sync::Mutex::default(),
            minting: tokio::sync::Mutex::default(),
            retired: AtomicBool::new(false),
            changing: Arc::default(),
        });
        if let Some(detour) = detour {
            self.take(&scenario, detour).await?;
        }
        self.resume_rollout(&scenario).await?;
        self.align(&scenario, Surface::Harness).await;
        self.align(&scenario, Surface::Router).await;
        self.apply_policy(&scenario).await;
        self.open.write().await.insert(key, Arc::clone(&scenario));
        // A full queue only means that learners start later; the receiver takes all of them.
        let _ = self.opened.send(Arc::clone(&scenario)).await;
        Ok(scenario)
    }

    /// Payload files of a release, as path and bytes.
    pub async fn files(&self, id: &ReleaseId) -> Result<Vec<(String, Vec<u8>)>, ScenarioError> {
        let (repo, id) = (self.repo.clone(), id.clone());
        blocking(move || repo.files(&id)).await
    }

    /// The files that differ between two releases.
    pub async fn changed_files(&self, before: &ReleaseId, after: &ReleaseId) -> Result<Vec<FileChange>, ScenarioError> {
        let (repo, before, after) = (self.repo.clone(), before.clone(), after.clone());
        blocking(move || repo.changed_files(&before, &after).map(|diff| diff.files)).await
    }

    /// Brings the git branch to the head of the database, which is the truth.
    pub async fn align_ref(&self, key: &ScenarioKey, head: &ReleaseId) -> Result<(), ScenarioError> {
        let (repo, key, head) = (self.repo.clone(), key.clone(), head.clone());
        blocking(move || {
            let now = repo.head(&key.0, &key.1)?;
            if now.as_ref() == Some(&head) { Ok(()) } else { repo.advance(&key.0, &key.1, now.as_ref(), &head) }
        })
        .await
    }

    /// Replaces the settings, durably.
    pub async fn update(&self, scenario: &Scenario, settings: ScenarioSettings) -> Result<(), ScenarioError> {
        self.store.update_scenario(&scenario.key.0, &scenario.key.1, &settings).await?;
        *scenario.settings.write().unwrap_or_else(PoisonError::into_inner) = settings;
        scenario.tell_changed();
        Ok(())
    }

    /// Weights and identity for a request that pins a retained release. A scenario that began as a copy of `id` answers
    /// with that copy: clients go on to send what they created it with.
    pub async fn pinned(&self, scenario: &Scenario, id: &ReleaseId) -> Result<Served, ScenarioError> {
        let listed = match self.store.release(&scenario.key.0, &scenario.key.1, id).await? {
            Some(listed) => Some(listed),
            None => self
                .store
                .first_release(&scenario.key.0, &scenario.key.1)
                .await?
                .filter(|first| first.release.manifest.parent.as_ref() == Some(id)),
        };
        let retained = listed.filter(|listed| {
            // A harness has no weights: it would be served as the base model.
            listed.release.manifest.surface == Surface::Weights
                && matches!(listed.status, ReleaseStatus::Served | ReleaseStatus::Retained)
        });
        let release = retained.ok_or_else(|| ScenarioError::UnknownRelease(id.clone()))?.release;
        let weights = self.weights.load(&release.release_id).await?;
        Ok(Served::new(release, weights, None))
    }
}
