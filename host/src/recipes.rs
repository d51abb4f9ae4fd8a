//! The recipes of a server: the one it was started with, and those that scenarios were given since.
//! The learner and the exchange of recipes ask here; components are kept by digest and loaded once,
//! however many scenarios use them. A recipe that is in use stays loaded; others go when room is needed.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use reef_sandbox::{Grants, Recipe, Sandbox, SandboxError};
use reef_store::Store;

use crate::error::StartError;
use crate::recipe_files;

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
    default: Option<Recipe>,
    loaded: Mutex<HashMap<String, Recipe>>,
}

impl Recipes {
    /// `kept`: where components are kept; `default`: the recipe of scenarios that were given none.
    pub fn new(sandbox: Sandbox, grants: Grants, kept: (Store, PathBuf), default: Option<Recipe>) -> Self {
        let (store, data) = kept;
        Self(Arc::new(Inner { sandbox, grants, store, data, default, loaded: Mutex::default() }))
    }

    /// The recipe of scenarios that were given none.
    pub fn default_recipe(&self) -> Option<&Recipe> {
        self.0.default.as_ref()
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
        if let Some(default) = self.0.default.as_ref().filter(|recipe| recipe.digest() == digest) {
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
