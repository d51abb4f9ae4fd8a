//! Calls of a recipe outside a server: what a replay and a backtest share.
//! Both open a data folder to read, beside a server or without one, and change nothing in it. The calls are made as the
//! learner makes them; what they propose is kept in memory and forgotten.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use reef_core::{ReleaseId, ScenarioName, TenantId};
use reef_engine::train::{CRITIC_FILE, Transport};
use reef_engine::{Engine, EngineError, LoraConfig};
use reef_release::ReleaseRepo;
use reef_sandbox::{Call, Compiler, Grants, Outcome, Proposal, Recipe, Sandbox, SandboxConfig};
use reef_store::{Scenario, Store};

use super::invariants::Invariants;
use super::named_policies::{self, NamedPolicies};
use super::run_step::CRITIC_STATE;
use super::trainer_thread::{Abort, Files, Start, StepTraining, TrainerThread};
use super::training_section::workers;
use crate::config::Config;
use crate::error::StartError;
use crate::host::engine_config;
use crate::store_place::StoreSection;

/// A data folder, opened to read.
#[derive(Debug, Clone)]
pub struct Folder {
    /// Where it is.
    pub path: PathBuf,
    /// Its database.
    pub store: Store,
    /// Its releases.
    pub repo: ReleaseRepo,
}

impl Folder {
    /// Opens the folder of a server, whether or not one runs on it.
    pub async fn open(path: &Path, place: &StoreSection) -> Result<Self, StartError> {
        let store = place.open_read_only(path).await?;
        let git = path.join("releases.git");
        let repo = blocking(move || ReleaseRepo::open_to_read(&git)).await??;
        Ok(Self { path: path.to_owned(), store, repo })
    }

    /// A scenario that is there.
    pub async fn scenario(&self, tenant: &TenantId, name: &ScenarioName) -> Result<Scenario, StartError> {
        let shown = self.path.display();
        self.store.scenario(tenant, name).await?.ok_or_else(|| {
            StartError::Config(format!(
                "tenant '{tenant}' has no scenario '{name}' in {shown}; check the scenario's name, --tenant and --data"
            ))
        })
    }

    /// The policies that the configuration's bindings name.
    pub async fn policies(&self, config: &Config) -> Result<Arc<NamedPolicies>, StartError> {
        named_policies::load(&config.bindings, |release| async move { self.files(&release).await }).await
    }

    /// Files of a release.
    pub async fn files(&self, release: &ReleaseId) -> Result<Files, StartError> {
        let (repo, release) = (self.repo.clone(), release.clone());
        Ok(blocking(move || repo.files(&release)).await??)
    }
}

/// Runs what blocks on a thread of its own.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, StartError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| StartError::Other(format!("a task died: {error}")))
}

/// A sandbox with these limits; `compile_in_process` as in the configuration.
pub fn sandbox(limits: SandboxConfig, compile_in_process: bool) -> Result<Sandbox, StartError> {
    let compiler = if compile_in_process { Compiler::InProcess } else { Compiler::this_program() };
    Sandbox::with_compiler(limits, compiler).map_err(|error| StartError::Recipe(error.to_string()))
}

/// Loads a component with every capability: what it may do was decided when it ran, and here it can do nothing.
pub async fn load(sandbox: &Sandbox, bytes: Vec<u8>) -> Result<Recipe, StartError> {
    sandbox.load(bytes, &Grants::all()).await.map_err(|error| StartError::Recipe(error.to_string()))
}

/// Loads the model, which must be the one with this SHA-256.
pub async fn engine(config: &Config, sha256: &str) -> Result<Engine, StartError> {
    let settings = engine_config(config);
    let engine = blocking(move || Engine::load(settings)).await??;
    let found = &engine.info().sha256;
    if found != sha256 {
        let shown = config.model.display();
        return Err(StartError::Model(EngineError::Invalid(format!(
            "{shown} has the SHA-256 {found} and the scenario learned on {sha256}; name that file with --model"
        ))));
    }
    Ok(engine)
}

/// Makes proposals with the real trainer.
#[derive(Debug, Clone)]
pub struct Proposer {
    engine: Engine,
    lora: LoraConfig,
    trainer: TrainerThread,
    named: Arc<NamedPolicies>,
}

/// What a proposal left.
#[derive(Debug)]
pub struct Proposed {
    /// The call.
    pub outcome: Outcome<Proposal>,
    /// Checkpoints by candidate handle.
    pub checkpoints: Vec<Files>,
    /// What the trainer said.
    pub invariants: Invariants,
}

impl Proposed {
    /// The scenario's critic after the step, if it was trained.
    pub fn critic(&self) -> Option<Vec<u8>> {
        let files = self.checkpoints.last()?;
        files.iter().find(|(path, _)| path == CRITIC_FILE).map(|(_, bytes)| bytes.clone())
    }
}

impl Proposer {
    /// `lora`: shape of a fresh adapter; `named`: see `Folder::policies`; `ranks`: processes that train together.
    pub fn new(engine: Engine, lora: LoraConfig, named: Arc<NamedPolicies>, ranks: usize) -> Result<Self, StartError> {
        let trainer = TrainerThread::start(workers(ranks, Transport::Tcp)?)
            .map_err(|error| StartError::Other(format!("the trainer thread cannot start: {error}")))?;
        Ok(Self { engine, lora, trainer, named })
    }

    /// Calls `propose-update` with a trainer on the files of a release; `call` comes without one, with the whole state.
    pub async fn propose(&self, recipe: &Recipe, mut call: Call, (release, mut files): (ReleaseId, Files)) -> Proposed {
        // The critic learns in steps that release nothing too, so the scenario's own is newer than the release's.
        if let Some(critic) = call.state.get(CRITIC_STATE) {
            files.retain(|(path, _)| path != CRITIC_FILE);
            files.push((CRITIC_FILE.to_owned(), critic.clone()));
        }
        call.state = super::run_step::guest_state(call.state);
        let abort = Abort::default();
        call.cancel = abort.guest();
        let start = Start {
            engine: self.engine.clone(),
            lora: self.lora,
            files: Arc::new(files),
            share: 1.0,
            held_out: Arc::default(),
            named: Arc::clone(&self.named),
            release,
        };
        let invariants = Invariants::default();
        let checkpoints: Arc<Mutex<Vec<Files>>> = Arc::default();
        let samples = Arc::clone(&call.samples);
        let left = (Arc::clone(&checkpoints), invariants.clone());
        let training = StepTraining::new(self.trainer.clone(), start, samples, abort, left);
        call.training = Some(Box::new(training));
        let outcome = recipe.propose_update(call).await;
        let checkpoints = std::mem::take(&mut *checkpoints.lock().unwrap_or_else(PoisonError::into_inner));
        Proposed { outcome, checkpoints, invariants }
    }
}
