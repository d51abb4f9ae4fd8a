//! The recipes of a server: those it was started with, at most one a surface, and those that scenarios were given since.
//! The learner and the exchange of recipes ask here; components are kept by digest and loaded once,
//! however many scenarios use them. A recipe that is in use stays loaded; others go when room is needed.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use reef_core::Surface;
use reef_sandbox::{Grants, Manifest, Recipe, Sandbox, SandboxError};
use reef_store::Store;

use crate::error::StartError;
use crate::jobs::surface;
use crate::recipe_files;
use crate::scenarios::Scenario;

/// Recipes that stay loaded although no scenario uses them.
const IDLE_MAX: usize = 16;

/// Why a recipe cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    /// The sandbox refuses it.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// It cannot be kept, or what was kept is gone or damaged.
    #[error(transparent)]
    Files(#[from] StartError),
    /// The work on its file broke down.
    #[error("the work on the component's file was interrupted")]
    Interrupted,
}

/// Loads recipes and remembers them.
#[derive(Debug, Clone)]
pub struct Recipes(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    sandbox: Sandbox,
    grants: Grants,
    store: Store,
    data: PathBuf,
    defaults: Vec<Recipe>,
    loaded: Mutex<HashMap<String, Recipe>>,
}

impl Recipes {
    /// `kept`: where components are kept; `defaults`: the recipes of scenarios that were given none, one a surface.
    pub fn new(sandbox: Sandbox, grants: Grants, kept: (Store, PathBuf), defaults: Vec<Recipe>) -> Self {
        let (store, data) = kept;
        Self(Arc::new(Inner { sandbox, grants, store, data, defaults, loaded: Mutex::default() }))
    }

    /// The recipe that evolves a surface in scenarios that were given none.
    pub fn default_on(&self, surface: Surface) -> Option<&Recipe> {
        self.0.defaults.iter().find(|recipe| surface::of(recipe) == surface)
    }

    /// Checks and loads a component that may be new here; nothing of it stays.
    pub async fn load(&self, bytes: Vec<u8>) -> Result<Recipe, RecipeError> {
        Ok(self.0.sandbox.load(bytes, &self.0.grants).await?)
    }

    /// Keeps a component that was loaded and is about to be used.
    pub async fn keep(&self, bytes: Vec<u8>, recipe: &Recipe) -> Result<(), RecipeError> {
        recipe_files::keep_bytes(&self.0.store, &self.0.data, bytes, recipe).await?;
        self.remember(recipe);
        Ok(())
    }

    /// The recipe of this digest, from memory or from its file.
    pub async fn by_digest(&self, digest: &str) -> Result<Recipe, RecipeError> {
        if let Some(default) = self.0.defaults.iter().find(|recipe| recipe.digest() == digest) {
            return Ok(default.clone());
        }
        if let Some(found) = self.0.loaded.lock().unwrap_or_else(PoisonError::into_inner).get(digest).cloned() {
            return Ok(found);
        }
        let (data, wanted) = (self.0.data.clone(), digest.to_owned());
        let read = tokio::task::spawn_blocking(move || recipe_files::read(&data, &wanted)).await;
        let bytes = read.map_err(|_| RecipeError::Interrupted)??;
        let recipe = self.0.sandbox.load(bytes, &self.0.grants).await?;
        self.remember(&recipe);
        Ok(recipe)
    }

    fn remember(&self, recipe: &Recipe) {
        let mut loaded = self.0.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.insert(recipe.digest().to_owned(), recipe.clone());
        if loaded.values().filter(|recipe| recipe.is_idle()).count() > IDLE_MAX {
            let kept = recipe.digest();
            loaded.retain(|digest, recipe| digest == kept || !recipe.is_idle());
        }
    }
}

/// The manifests of the server's recipes by the surface that they evolve. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Manifests(Arc<BTreeMap<Surface, Arc<Manifest>>>);

impl Manifests {
    /// Those of these recipes.
    pub fn new(recipes: &[Recipe]) -> Self {
        let of = |recipe: &Recipe| (surface::of(recipe), Arc::new(recipe.manifest().clone()));
        Self(Arc::new(recipes.iter().map(of).collect()))
    }

    /// Those that count in a scenario: its own recipes, and the server's where it has none; without a scenario, the
    /// server's.
    pub fn of(&self, scenario: Option<&Scenario>) -> BTreeMap<Surface, Arc<Manifest>> {
        let mut manifests = BTreeMap::clone(&self.0);
        let own = scenario.into_iter().flat_map(Scenario::recipes);
        manifests.extend(own.map(|(surface, now)| (surface, Arc::new(now.recipe.manifest().clone()))));
        manifests
    }

    /// The most alternatives of a token that one of them asks for.
    pub fn top_k(&self, scenario: &Scenario) -> u32 {
        let of = |surface| match scenario.side(surface).recipe() {
            Some(now) => now.recipe.manifest().top_k,
            None => self.0.get(&surface).map_or(0, |manifest| manifest.top_k),
        };
        Surface::ALL.into_iter().map(of).max().unwrap_or(0)
    }
}
