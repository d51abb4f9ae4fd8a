//! Where this server plays episodes: what is configured, the cage that works here, and results that are known already.
//! The same tree, task, seed, model and weights are played once; a machine that failed is no result and is played again.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use reef_core::{ReleaseId, sha256_hex};
use reef_engine::Engine;
use reef_episodes::{Cage, Episode, EpisodeError, Gateway, Judge, Status, Task, read_tasks};
use reef_harness::{Adapter, Adapters, Binding, Tree};
use reef_sandbox::{Context, Verifiers};
use tokio::sync::OnceCell;

use super::model::Line;
use super::passes::{Pass, Passes};
use super::plan::{Making, Own, on_path};
use super::section::HarnessSection;
use crate::error::StartError;
use crate::scenarios::ScenarioKey;

/// Results that are kept.
const RESULTS_MAX: usize = 4_096;
/// Part of the context that one answer may take.
const OUTPUT_SHARE: usize = 4;
/// Tokens of one answer.
const OUTPUT_TOKENS_MAX: usize = 8_192;
/// What an unreleased tree is called in its files.
const UNRELEASED: &str = "0";

/// Plays episodes. Clones share everything.
#[derive(Debug, Clone)]
pub struct Shop(Arc<Inner>);

struct Inner {
    section: HarnessSection,
    adapters: Arc<Adapters>,
    engine: Engine,
    verifiers: Verifiers,
    address: SocketAddr,
    passes: Passes,
    line: Line,
    cage: OnceCell<Result<Cage, EpisodeError>>,
    results: Mutex<Results>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shop").field("section", &self.section).finish_non_exhaustive()
    }
}

/// Tree, task, seed, weights.
type Key = (String, String, u32, ReleaseId);

#[derive(Debug, Default)]
struct Results {
    known: HashMap<Key, Episode>,
    order: VecDeque<Key>,
}

impl Results {
    fn keep(&mut self, key: Key, episode: Episode) {
        if self.known.insert(key.clone(), episode).is_none() {
            self.order.push_back(key);
        }
        while self.order.len() > RESULTS_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.known.remove(&oldest);
            }
        }
    }
}

/// An outcome, and whether it was known before.
#[derive(Debug, Clone, PartialEq)]
pub struct Tried {
    /// The outcome.
    pub episode: Episode,
    /// It was not played again.
    pub reused: bool,
}

/// The tasks of one scenario with everything to play them.
#[derive(Debug, Clone)]
pub struct Bench {
    shop: Shop,
    making: Making,
    model: String,
    /// Tenant and scenario.
    pub key: ScenarioKey,
    /// The weights that answer.
    pub weights: ReleaseId,
    /// The tasks, by name.
    pub tasks: Arc<Vec<Arc<Task>>>,
}

impl Shop {
    /// `address`: where this server listens.
    pub fn new(
        section: HarnessSection,
        (adapters, engine): (Arc<Adapters>, Engine),
        verifiers: Verifiers,
        (address, passes): (SocketAddr, Passes),
    ) -> Result<Self, StartError> {
        let name = &section.episodes.adapter;
        if adapters.get(name).is_none() {
            let known: Vec<&str> = adapters.iter().map(|adapter| adapter.name.as_str()).collect();
            let told = format!("harness.episodes.adapter '{name}' is not known; use one of {}", known.join(", "));
            return Err(StartError::Config(told));
        }
        let line = Line::new(String::new(), None, Vec::new())?;
        let (cage, results) = (OnceCell::new(), Mutex::default());
        let inner = Inner { section, adapters, engine, verifiers, address, passes, line, cage, results };
        Ok(Self(Arc::new(inner)))
    }

    /// What the operator set.
    pub fn section(&self) -> &HarnessSection {
        &self.0.section
    }

    /// The agent programs of this build.
    pub fn adapters(&self) -> &Arc<Adapters> {
        &self.0.adapters
    }

    /// The model that agents ask for.
    pub fn model(&self) -> String {
        self.0.section.model.clone().unwrap_or_else(|| self.0.engine.info().name.clone())
    }

    /// The tasks of a scenario; none where none are configured.
    pub async fn tasks(&self, key: &ScenarioKey) -> Result<Vec<Arc<Task>>, String> {
        let Some(folder) = self.0.section.tasks_of(&key.0, &key.1).cloned() else { return Ok(Vec::new()) };
        let read = tokio::task::spawn_blocking(move || read_tasks(&folder)).await;
        let tasks = read.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        Ok(tasks.into_iter().map(Arc::new).collect())
    }

    /// Everything to play these tasks with these weights; the error says why nothing can be played here.
    pub async fn bench(&self, key: &ScenarioKey, weights: ReleaseId, tasks: Vec<Arc<Task>>) -> Result<Bench, String> {
        let cage = self.0.cage.get_or_init(|| Cage::detect(self.0.section.episodes.isolation)).await;
        let cage = cage.clone().map_err(|error| error.to_string())?;
        let episodes = &self.0.section.episodes;
        let adapter = self.0.adapters.get(&episodes.adapter).cloned();
        let adapter: Adapter = adapter.ok_or_else(|| format!("there is no adapter '{}'", episodes.adapter))?;
        let making = Making {
            program: episodes.program.clone().or_else(|| on_path(&adapter.binary)),
            adapter: Arc::new(adapter),
            reef: std::env::current_exe().map_err(|error| format!("this program has no path: {error}"))?,
            cage,
            judge: judge(Arc::clone(&self.0.verifiers), key),
            line: self.0.line.clone(),
            gateway: Gateway { address: self.reached().to_string(), port: self.0.address.port() },
        };
        Ok(Bench { shop: self.clone(), making, model: self.model(), key: key.clone(), weights, tasks: Arc::new(tasks) })
    }

    /// The server as this machine reaches it.
    fn reached(&self) -> SocketAddr {
        let mut address = self.0.address;
        if address.ip().is_unspecified() {
            address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
        }
        address
    }
}

impl Bench {
    /// The task of this name.
    pub fn task(&self, name: &str) -> Option<Arc<Task>> {
        self.tasks.iter().find(|task| task.name == name).cloned()
    }

    /// SHA-256 of the tasks' digests.
    pub fn tasks_digest(&self) -> String {
        let digests: Vec<&str> = self.tasks.iter().map(|task| task.digest.as_str()).collect();
        sha256_hex(digests.join("\n").as_bytes())
    }

    /// One line on how programs are kept apart here.
    pub fn isolation(&self) -> String {
        self.making.cage.told()
    }

    /// A result that is known, if there is one.
    pub fn known(&self, tree: &Tree, task: &Task, seed: u32) -> Option<Episode> {
        let results = self.shop.0.results.lock().unwrap_or_else(PoisonError::into_inner);
        results.known.get(&self.key_of(tree, task, seed)).cloned()
    }

    /// Plays a task once, unless its result is known.
    pub async fn play(&self, tree: &Tree, task: &Arc<Task>, seed: u32) -> Tried {
        if let Some(episode) = self.known(tree, task, seed) {
            return Tried { episode, reused: true };
        }
        let section = &self.shop.0.section.episodes;
        let (model, weights) = (self.model.clone(), self.weights.clone());
        let lease = self.shop.0.passes.issue(Pass::new(self.key.clone(), weights, model, section.calls_max));
        let pass = Arc::clone(&lease.pass);
        let own = Own {
            tree,
            binding: self.binding(),
            task: Arc::clone(task),
            seed,
            token: lease.token.clone(),
            session: format!("episode-{}-{seed}", task.name),
            failures: Arc::new(move || pass.failures()),
        };
        let episode = match self.making.plan(own) {
            Ok(plan) => plan.play().await,
            Err(told) => Episode::broken(told),
        };
        drop(lease);
        if episode.status != Status::InfrastructureFailed {
            let mut results = self.shop.0.results.lock().unwrap_or_else(PoisonError::into_inner);
            results.keep(self.key_of(tree, task, seed), episode.clone());
        }
        Tried { episode, reused: false }
    }

    /// What the rendered files point at.
    pub fn binding(&self) -> Binding {
        let context = self.shop.0.engine.info().context_length;
        let tokens = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        Binding {
            url: format!("http://{}/reef/scenarios/{}/evaluation", self.shop.reached(), self.key.1),
            model: self.model.clone(),
            scenario: self.key.1.clone(),
            release: UNRELEASED.to_owned(),
            context_tokens: tokens(context),
            output_tokens: tokens((context / OUTPUT_SHARE).min(OUTPUT_TOKENS_MAX)),
            version: None,
        }
    }

    fn key_of(&self, tree: &Tree, task: &Task, seed: u32) -> Key {
        (
            tree_digest(tree),
            format!("{} {} {}", task.digest, self.model, self.making.adapter.name),
            seed,
            self.weights.clone(),
        )
    }
}

/// SHA-256 of a tree's files.
fn tree_digest(tree: &Tree) -> String {
    let listing: String =
        tree.to_files().iter().map(|file| format!("{} {}\n", sha256_hex(&file.bytes), file.path)).collect();
    sha256_hex(listing.as_bytes())
}

/// Asks the operator's verifiers.
fn judge(verifiers: Verifiers, (tenant, scenario): &ScenarioKey) -> Judge {
    let context = Context {
        tenant: tenant.to_string(),
        scenario: scenario.to_string(),
        step: 0,
        now_ms: 0,
        seed: 0,
        head: String::new(),
        max_staleness: 0,
    };
    Arc::new(move |name, task, answer| {
        let (verifiers, context) = (Arc::clone(&verifiers), context.clone());
        Box::pin(async move {
            match verifiers.get(&name) {
                Some(verifier) => verifier.judge(context, task, answer).await,
                None => Err(format!("there is no verifier '{name}'; add it under recipes.verifiers")),
            }
        })
    })
}
