//! The running server: build the parts, spawn the work, serve, drain.
//! `reef serve`, `reef demo` and the tests start it; it knows every crate and no business rule. What was
//! acknowledged is durable before the process ends.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, TryLockError};
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use reef_core::Surface;
use reef_engine::{Engine, EngineConfig};
use reef_harness::Adapters;
use reef_intake::Redactor;
use reef_release::ReleaseRepo;
use reef_sandbox::{Compiler, Grants, Recipe, Sandbox, Verifiers};
use reef_store::{Environment, ScenarioSettings, Store};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::auth::{self, Auth};
use crate::component_file;
use crate::config::Config;
use crate::episodes::{Passes, Shop};
use crate::error::StartError;
use crate::http::body::BodyLimit;
use crate::http::harness::Harnesses;
use crate::http::inference::{Ending, Serving, Sessions};
use crate::http::replay::Replays;
use crate::http::report::Feedback;
use crate::http::scenarios::Management;
use crate::http::status::Operations;
use crate::http::{Parts, connections, router};
use crate::jobs::bound_models::BoundModels;
use crate::jobs::decide_canaries::decide_canaries;
use crate::jobs::environment::environment;
use crate::jobs::exchange_recipe::{Exchange, Uploads};
use crate::jobs::guest_reads::GuestReads;
use crate::jobs::keep_within::keep_within;
use crate::jobs::learn_scenario::learn_scenario;
use crate::jobs::named_policies::recorded;
use crate::jobs::run_step::{Workshop, record_call};
use crate::jobs::surface;
use crate::jobs::trainer_thread::TrainerThread;
use crate::jobs::training_section::workers;
use crate::provider::Providers;
use crate::receipts::Receipts;
use crate::recipe_files;
use crate::recipes::{Manifests, Recipes};
use crate::release_keys::OpenError;
use crate::scenarios::{Scenario, Scenarios};
use crate::verifiers;
use crate::weights::WeightsCache;

/// Scenarios that may come alive before the learners' task has taken the first.
const OPENED_QUEUE_MAX: usize = 1024;
/// Pause before a learner that panicked starts again.
const LEARNER_PAUSE: Duration = Duration::from_secs(10);
/// Time the records of exchanges that were cut off have to become durable.
const RECORDS_MAX: Duration = Duration::from_secs(20);
/// Time a step that is cut off has to come to the end of a pass through the model.
const STEP_MAX: Duration = Duration::from_secs(20);
/// Time the last words of those exchanges have to reach their clients.
const LAST_WORDS_MAX: Duration = Duration::from_secs(1);

/// A server in service.
#[derive(Debug)]
pub struct Running {
    /// Where it listens.
    pub address: SocketAddr,
    stop: oneshot::Sender<()>,
    served: JoinHandle<()>,
    learners: JoinHandle<()>,
    trainer: Option<TrainerThread>,
    drain_max: Duration,
    ending: watch::Sender<bool>,
    store: Store,
    receipts: Receipts,
    /// Locked for as long as the server runs.
    _data: File,
}

impl Running {
    /// Stops accepting, lets running requests end, cuts off those that take too long, closes the store.
    pub async fn shutdown(mut self) {
        // A receiver that is gone means that the server has ended already.
        let _ = self.stop.send(());
        let drained = tokio::time::timeout(self.drain_max, &mut self.served).await.is_ok();
        self.ending.send_replace(true);
        // Exchanges whose client has left still write their record, as do those that are cut off now.
        if !self.receipts.wait_all(RECORDS_MAX).await {
            tracing::warn!("records were still being produced when the server stopped");
        }
        if !drained {
            tracing::warn!("requests still ran when the server stopped; their records say what they had said");
            // A client that does not listen to the end does not hold up the rest.
            let _ = tokio::time::timeout(LAST_WORDS_MAX, &mut self.served).await;
        }
        // A step that is cut off here stays reserved and is re-formed at the next start: its learner goes first, and
        // does not hear that the trainer was stopped.
        self.learners.abort();
        let _ = (&mut self.learners).await;
        if let Some(trainer) = self.trainer.take()
            && !tokio::task::spawn_blocking(move || trainer.stop(STEP_MAX)).await.unwrap_or(true)
        {
            tracing::warn!("a step was still in a pass through the model when the server stopped");
        }
        self.store.close().await;
    }
}

/// Everything that can be wrong is found here, before the first request.
pub async fn start(config: Config) -> Result<Running, StartError> {
    config.check().map_err(StartError::Config)?;
    let auth = Arc::new(Auth::from_config(&config.auth, &config.scenarios.default)?);
    if auth.is_open() && !config.listen.ip().is_loopback() {
        return Err(StartError::Config(format!(
            "listen is {} but no token is configured; add auth.tokens or listen on a loopback address",
            config.listen
        )));
    }
    let listener = TcpListener::bind(config.listen)
        .await
        .map_err(|reason| StartError::Address { address: config.listen, reason })?;
    let address = listener.local_addr().map_err(|reason| StartError::Address { address: config.listen, reason })?;
    if auth.is_open() {
        tracing::warn!(%address, "no token is configured: every local program may use this server");
    }
    let built = build(&config, auth, address).await?;
    let (stop, stopped) = oneshot::channel();
    let trainer = built.workshop.as_ref().map(|workshop| workshop.trainer.clone());
    let learners = tokio::spawn(run_learners(built.workshop, built.opened, config.training.pool_max));
    built.scenarios.open_all().await?;
    let deciding = tokio::spawn(decide_canaries(Arc::clone(&built.scenarios)));
    let keeping = tokio::spawn(keep_within(config.retention.clone(), built.store.clone(), built.scenarios));
    let (store, receipts, data) = (built.store, built.parts.serving.receipts.clone(), built.data);
    let (limits, learning) = (config.http.clone(), learners.abort_handle());
    let served = tokio::spawn(async move {
        let stopped = async move { drop(stopped.await) };
        connections::serve(listener, router(built.parts), &limits, stopped).await;
        learning.abort();
        keeping.abort();
        deciding.abort();
    });
    tracing::info!(%address, "serving");
    let drain_max = Duration::from_secs(config.http.drain_seconds_max);
    let ending = built.ending;
    Ok(Running { address, stop, served, learners, trainer, drain_max, ending, store, receipts, _data: data })
}

struct Built {
    parts: Parts,
    workshop: Option<Workshop>,
    opened: mpsc::Receiver<Arc<Scenario>>,
    scenarios: Arc<Scenarios>,
    store: Store,
    ending: watch::Sender<bool>,
    data: File,
}

/// Two servers on one folder would each believe that they alone decide what is served.
pub fn lock_data(folder: &Path) -> Result<File, StartError> {
    let shown = folder.display();
    let refuse = |reason: String| StartError::Data(format!("{shown} {reason}; choose another folder with --data"));
    // What people said to their agents is nobody else's to read.
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(|error| refuse(format!("cannot be made: {error}")))?;
    let file = File::create(folder.join("reef.lock")).map_err(|error| refuse(format!("cannot be written: {error}")))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(refuse("is used by another server that runs".to_owned())),
        Err(TryLockError::Error(error)) => Err(refuse(format!("cannot be locked: {error}"))),
    }
}

async fn build(config: &Config, auth: Arc<Auth>, address: SocketAddr) -> Result<Built, StartError> {
    let (providers, redactor) = (Providers::from_config(&config.providers)?, redactor(config)?);
    let (data, prometheus) = (lock_data(&config.data)?, prometheus()?);
    let store = config.store.open(&config.data).await?;
    let repo = releases(config).await?;
    // The model takes longest: what is wrong with the recipe or the verifiers is told before it is read.
    let sandbox = sandbox(config)?;
    sandbox.on_call(Arc::new(record_call));
    let recipes = own_recipes(&sandbox, &store, config).await?;
    let verifiers = verifiers::load(&sandbox, Some(&config.data), config).await?;
    let engine = engine(config).await?;
    let (opened_sender, opened) = mpsc::channel(OPENED_QUEUE_MAX);
    let scenarios = scenarios(config, (store.clone(), repo), &engine, opened_sender)?;
    let passes = Passes::default();
    let shop = shop(config, &engine, &verifiers, (address, passes.clone()))?;
    let exchange = exchange(config, (&sandbox, &store, &engine), (&recipes, verifiers));
    let workshop = workshop(config, (&scenarios, &providers), &shop, (recipes.first(), &exchange), &engine)?;
    let (receipts, (ending, ended)) = (Receipts::default(), watch::channel(false));
    let manifests = Manifests::new(&recipes);
    let parts = Parts {
        auth,
        body_limit: BodyLimit::new(config.http.body_bytes_max),
        serving: Serving {
            engine: engine.clone(),
            store: store.clone(),
            scenarios: Arc::clone(&scenarios),
            receipts: receipts.clone(),
            implicit_creation: config.scenarios.allow_implicit_scenario_creation,
            providers: providers.clone(),
            ending: Ending(ended),
            redactor: Arc::clone(&redactor),
            sessions: Sessions::default(),
            passes,
            manifests: manifests.clone(),
        },
        feedback: Feedback {
            store: store.clone(),
            scenarios: Arc::clone(&scenarios),
            receipts,
            receipt_wait: Duration::from_secs(config.http.receipt_wait_seconds_max),
            manifests: manifests.clone(),
            redactor: Arc::clone(&redactor),
        },
        management: Management {
            store: store.clone(),
            scenarios: Arc::clone(&scenarios),
            engine: engine.clone(),
            manifests: manifests.clone(),
            exchange: workshop.is_some().then_some(exchange),
            replays: Replays::of(config),
        },
        harnesses: Harnesses {
            store: store.clone(),
            scenarios: Arc::clone(&scenarios),
            shop,
            engine: engine.clone(),
            redactor,
            manifests,
        },
        operations: Operations {
            store: store.clone(),
            scenarios: Arc::clone(&scenarios),
            engine,
            prometheus,
            recipes: recipes.iter().map(|recipe| (surface::of(recipe), recipe.label())).collect(),
            sandbox,
            providers,
        },
    };
    Ok(Built { parts, workshop, opened, scenarios, store, ending, data })
}

/// What changes the recipes of scenarios, and what recipes read.
fn exchange(
    config: &Config,
    (sandbox, store, engine): (&Sandbox, &Store, &Engine),
    (recipes, verifiers): (&[Recipe], Verifiers),
) -> Exchange {
    let grants = config.recipes.grants.clone().unwrap_or_else(Grants::all);
    Exchange {
        recipes: Recipes::new(sandbox.clone(), grants, (store.clone(), config.data.clone()), recipes.to_vec()),
        uploads: Uploads::default(),
        reads: GuestReads { engine: Some(engine.clone()), store: store.clone(), verifiers },
        store: store.clone(),
        recipe_config: operator_values(config, recipes),
    }
}

/// `recipes.config` is for the recipe that `recipe` names, `harness.config` for any other of the harness.
fn operator_values(config: &Config, recipes: &[Recipe]) -> BTreeMap<Surface, Arc<serde_json::Map<String, Value>>> {
    let first = Arc::new(config.recipes.config.clone().into_iter().collect());
    let main_evolves_harness = config.recipe.is_some() && recipes.first().is_some_and(surface::is_harness);
    let harness = match main_evolves_harness {
        true => Arc::clone(&first),
        false => Arc::new(config.harness.config.clone().into_iter().collect()),
    };
    BTreeMap::from([(Surface::Weights, first), (Surface::Harness, harness)])
}

/// The scenarios; `opened` hears of each that comes alive.
fn scenarios(
    config: &Config,
    (store, repo): (Store, ReleaseRepo),
    engine: &Engine,
    opened: mpsc::Sender<Arc<Scenario>>,
) -> Result<Arc<Scenarios>, StartError> {
    let weights = WeightsCache::new(repo.clone(), engine.clone(), config.engine.adapters_retained_max)
        .map_err(|error| StartError::Other(format!("the thread that reads weights cannot start: {error}")))?;
    let defaults = (defaults(config), config.scenarios.per_tenant_max);
    Ok(Arc::new(Scenarios::new((store, repo), weights, engine.info().sha256.clone(), defaults, opened)))
}

/// Where episodes are played, with the agent programs that this build knows.
fn shop(
    config: &Config,
    engine: &Engine,
    verifiers: &Verifiers,
    place: (SocketAddr, Passes),
) -> Result<Shop, StartError> {
    let adapters = Adapters::embedded().map_err(|error| StartError::Other(error.to_string()))?;
    Shop::new(config.harness.clone(), (Arc::new(adapters), engine.clone()), Arc::clone(verifiers), place)
}

async fn releases(config: &Config) -> Result<ReleaseRepo, StartError> {
    let (path, section) = (config.data.join("releases.git"), config.releases.clone());
    blocking(move || section.open(&path)).await?.map_err(|error| match error {
        OpenError::Key(error) => StartError::Config(format!("releases: {error}")),
        OpenError::Repo(error) => error.into(),
    })
}

async fn engine(config: &Config) -> Result<Engine, StartError> {
    let config = engine_config(config);
    Ok(blocking(move || Engine::load(config)).await??)
}

fn redactor(config: &Config) -> Result<Arc<Redactor>, StartError> {
    Redactor::new(&config.redaction).map(Arc::new).map_err(|error| StartError::Config(error.to_string()))
}

/// The recipes that the server is started with, loaded and kept: that of `recipe`, then that of `harness.recipe`.
async fn own_recipes(sandbox: &Sandbox, store: &Store, config: &Config) -> Result<Vec<Recipe>, StartError> {
    let mut recipes: Vec<Recipe> = Vec::new();
    for path in config.recipe.iter().chain(&config.harness.recipe) {
        let (recipe, bytes) = component_file::load(sandbox, path, config).await?;
        recipe_files::keep_bytes(store, &config.data, bytes, &recipe).await?;
        recipes.push(recipe);
    }
    let refuse = |told: &str| Err(StartError::Config(told.to_owned()));
    if config.harness.recipe.is_some() && !recipes.last().is_some_and(surface::is_harness) {
        return refuse("harness.recipe names a recipe that evolves weights; name it in 'recipe'");
    }
    if let [main, beside] = recipes.as_slice() {
        if surface::is_harness(main) {
            return refuse("'recipe' and harness.recipe both name one that evolves harnesses; leave one of them out");
        }
        if main.manifest().name == beside.manifest().name {
            return refuse("'recipe' and harness.recipe bear the same name, and would share their state; rename one");
        }
    }
    Ok(recipes)
}

/// The engine's part of the configuration.
pub fn engine_config(config: &Config) -> EngineConfig {
    EngineConfig {
        model: config.model.clone(),
        threads: threads(config.engine.threads),
        batch_max: config.engine.batch_max,
        context_max: config.engine.context_max,
        queue_max: config.engine.queue_max,
        tenants: auth::tenants(&config.auth),
        lora: config.engine.lora,
        training: config.training.compute(),
        weights: config.engine.weights,
        cache_bytes_max: config.engine.cache_mb_max.saturating_mul(1 << 20),
    }
}

/// 0 = all cores.
pub fn threads(configured: usize) -> usize {
    if configured > 0 { configured } else { std::thread::available_parallelism().map_or(1, usize::from) }
}

fn defaults(config: &Config) -> ScenarioSettings {
    ScenarioSettings {
        training_mode: config.scenarios.training_mode,
        max_staleness: config.scenarios.max_staleness,
        recipe_config: serde_json::Map::new(),
        harness_config: serde_json::Map::new(),
        gate: Some(config.scenarios.gate),
    }
}

/// The sandbox of a server: compiles apart, and keeps what it compiled in the data folder unless told otherwise.
fn sandbox(config: &Config) -> Result<Sandbox, StartError> {
    let mut limits = config.sandbox.clone();
    limits.cache_dir.get_or_insert_with(|| config.data.join("compiled"));
    let compiler = if config.recipes.compile_in_process { Compiler::InProcess } else { Compiler::this_program() };
    Sandbox::with_compiler(limits, compiler).map_err(|error| StartError::Recipe(error.to_string()))
}

fn workshop(
    config: &Config,
    (scenarios, providers): (&Arc<Scenarios>, &Providers),
    shop: &Shop,
    (recipe, exchange): (Option<&Recipe>, &Exchange),
    engine: &Engine,
) -> Result<Option<Workshop>, StartError> {
    let bound = BoundModels::new(config, providers)?;
    let Some(recipe) = recipe else { return Ok(None) };
    for (surface, values) in &exchange.recipe_config {
        let Some(recipe) = exchange.recipes.default_on(*surface) else { continue };
        let key = if config.harness.recipe.is_some() && surface::is_harness(recipe) { "harness" } else { "recipes" };
        let checked = recipe.manifest().check_config(values);
        checked.map_err(|problem| StartError::Config(format!("{key}.config: {problem}")))?;
    }
    let (training, verifiers) = (&config.training, &exchange.reads.verifiers);
    let environment = Environment {
        policies: recorded(&config.bindings),
        workers: training.workers as u64,
        ..environment(engine, config.engine.lora, training.share, &config.sandbox, verifiers)
    };
    Ok(Some(Workshop {
        store: exchange.store.clone(),
        scenarios: Arc::clone(scenarios),
        engine: engine.clone(),
        recipe: recipe.clone(),
        exchange: exchange.clone(),
        trainer: TrainerThread::start(workers(training.workers, training.reduce)?)
            .map_err(|error| StartError::Other(format!("the trainer thread cannot start: {error}")))?,
        lora: config.engine.lora,
        share: config.training.share,
        recheck_every: training.recheck_every,
        recheck_rollback: training.recheck_rollback,
        step_max: Duration::from_secs(config.training.step_seconds_max),
        turn: Arc::new(Semaphore::new(1)),
        environment,
        bound,
        bindings: config.bindings.clone(),
        shop: shop.clone(),
    }))
}

async fn run_learners(workshop: Option<Workshop>, mut opened: mpsc::Receiver<Arc<Scenario>>, pool_max: u32) {
    let mut learners = JoinSet::new();
    while let Some(scenario) = opened.recv().await {
        if let Some(workshop) = &workshop {
            for surface in surface::EVOLVED {
                learners.spawn(keep_learning(workshop.clone(), (Arc::clone(&scenario), surface), pool_max));
            }
        }
    }
}

/// A learner that panics is told about and started again; the other scenarios and serving go on meanwhile.
async fn keep_learning(workshop: Workshop, (scenario, surface): (Arc<Scenario>, Surface), pool_max: u32) {
    while !scenario.is_retired() {
        let learner = learn_scenario(workshop.clone(), (Arc::clone(&scenario), surface), pool_max);
        if AssertUnwindSafe(learner).catch_unwind().await.is_err() {
            tracing::error!(scenario = %scenario.key.1, "learner.panic");
            scenario.side(surface).set_status(|status| {
                status.running = false;
                status.last_error = Some("the learner failed unexpectedly; the server's log has the cause".to_owned());
            });
        }
        tokio::time::sleep(LEARNER_PAUSE).await;
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, StartError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| StartError::Other(format!("a start-up task died: {error}")))
}

/// One recorder per process; several servers in one process share it, also when they start at the same time.
fn prometheus() -> Result<PrometheusHandle, StartError> {
    static HANDLE: Mutex<Option<PrometheusHandle>> = Mutex::new(None);
    let mut installed = HANDLE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(handle) = installed.as_ref() {
        return Ok(handle.clone());
    }
    let handle = PrometheusBuilder::new()
        .install_recorder()
        .map_err(|error| StartError::Other(format!("the metrics recorder cannot be installed: {error}")))?;
    Ok(installed.insert(handle).clone())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_data_folder_is_made_for_its_user_only_and_held_by_one_server() {
        let parent = tempfile::tempdir().expect("a folder");
        let folder = parent.path().join("a/data");
        let held = lock_data(&folder).expect("made and locked");
        let mode = std::fs::metadata(&folder).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        assert!(lock_data(&folder).expect_err("held").to_string().contains("another server"));
        drop(held);
        lock_data(&folder).expect("free again");
    }
}
