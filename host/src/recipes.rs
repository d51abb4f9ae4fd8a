//! The recipes of a server: the one it was started with, and those that scenarios were given since.
//! The learner and the exchange of recipes ask here; components come from the shelf by digest and are loaded once,
//! however many scenarios use them. A recipe that is in use stays loaded; others go when room is needed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use reef_registry::Shelf;
use reef_sandbox::{Grants, Recipe, Sandbox, SandboxError};

/// Recipes that stay loaded although no scenario uses them.
const IDLE_MAX: usize = 16;

/// Why a recipe cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    /// The sandbox refuses it.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The shelf does not hold it, or holds something else.
    #[error("{0}")]
    Shelf(String),
}

/// Loads recipes and remembers them.
#[derive(Debug, Clone)]
pub struct Recipes(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    sandbox: Sandbox,
    grants: Grants,
    shelf: Shelf,
    default: Option<Recipe>,
    loaded: Mutex<HashMap<String, Recipe>>,
}

impl Recipes {
    /// `default`: the recipe of scenarios that were given none.
    pub fn new(sandbox: Sandbox, grants: Grants, shelf: Shelf, default: Option<Recipe>) -> Self {
        Self(Arc::new(Inner { sandbox, grants, shelf, default, loaded: Mutex::default() }))
    }

    /// The recipe of scenarios that were given none.
    pub fn default_recipe(&self) -> Option<&Recipe> {
        self.0.default.as_ref()
    }

    /// The sandbox that they run in.
    pub fn sandbox(&self) -> &Sandbox {
        &self.0.sandbox
    }

    /// Checks and loads a component that is new here, and puts it on the shelf.
    pub async fn add(&self, bytes: Vec<u8>) -> Result<Recipe, RecipeError> {
        let recipe = self.0.sandbox.load(bytes.clone(), &self.0.grants).await?;
        let shelf = self.0.shelf.clone();
        let put = tokio::task::spawn_blocking(move || shelf.put(&bytes)).await;
        put.map_err(|error| RecipeError::Shelf(error.to_string()))?
            .map_err(|error| RecipeError::Shelf(error.to_string()))?;
        self.remember(&recipe);
        Ok(recipe)
    }

    /// The recipe of this digest, from memory or from the shelf.
    pub async fn by_digest(&self, digest: &str) -> Result<Recipe, RecipeError> {
        if let Some(default) = self.0.default.as_ref().filter(|recipe| recipe.digest() == digest) {
            return Ok(default.clone());
        }
        if let Some(found) = self.0.loaded.lock().unwrap_or_else(PoisonError::into_inner).get(digest).cloned() {
            return Ok(found);
        }
        let (shelf, wanted) = (self.0.shelf.clone(), digest.to_owned());
        let bytes = tokio::task::spawn_blocking(move || shelf.get(&wanted))
            .await
            .map_err(|error| RecipeError::Shelf(error.to_string()))?
            .map_err(|error| RecipeError::Shelf(error.to_string()))?;
        let recipe = self.0.sandbox.load(bytes, &self.0.grants).await?;
        self.remember(&recipe);
        Ok(recipe)
    }

    fn remember(&self, recipe: &Recipe) {
        let mut loaded = self.0.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.insert(recipe.digest().to_owned(), recipe.clone());
        if loaded.values().filter(|recipe| recipe.idle()).count() > IDLE_MAX {
            let kept = recipe.digest();
            loaded.retain(|digest, recipe| digest == kept || !recipe.idle());
        }
    }
}
