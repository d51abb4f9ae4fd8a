//! Exchanges the recipe of a running scenario: load → smoke → shadow on recorded selections → migrate → swap.
//! The HTTP side asks for an upload or a rollback, the learner for a fallback when a new recipe is quarantined.
//! Calls that run keep the recipe that they began with; code and state change in one transaction between two steps,
//! and whatever is refused before it leaves the scenario as it was.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reef_core::{Step, Surface, TenantId};
use reef_sandbox::{Blame, Call, Choice, Fault, Recipe, Selection};
use reef_store::{RecipeState, RecipeUse, RecordedStep, Store, StoreError, UseReason};
use serde::Serialize;
use serde_json::{Map, Value};

use super::guest_reads::GuestReads;
use super::learn_scenario::{chosen, state_of};
use super::run_step::{context, context_outside, guest_state};
use super::surface;
use crate::clock::now_ms;
use crate::recipes::{RecipeError, Recipes};
use crate::scenarios::{InUse, Scenario};

/// Recorded selections that a new recipe is tried on.
const SHADOW_STEPS_MAX: u32 = 8;
/// Uploads that are tried at the same time, one of a tenant; each holds a component of up to 64 MiB.
const UPLOADS_MAX: usize = 4;
/// How long an exchange waits for the step that runs.
const STEP_WAIT: Duration = Duration::from_secs(120);

/// What an exchange needs of the host.
#[derive(Debug, Clone)]
pub struct Exchange {
    /// Loads components.
    pub recipes: Recipes,
    /// The truth.
    pub store: Store,
    /// What recipes may read.
    pub reads: GuestReads,
    /// Who is uploading.
    pub uploads: Uploads,
    /// The operator's values for the keys of the recipe that evolves a surface; none where nothing does.
    pub recipe_config: BTreeMap<Surface, Arc<Map<String, Value>>>,
}

/// The tenants whose uploads are being tried.
#[derive(Debug, Clone, Default)]
pub struct Uploads(Arc<Mutex<HashSet<TenantId>>>);

impl Uploads {
    fn begin(&self, tenant: &TenantId) -> Result<Upload, ExchangeError> {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if running.len() >= UPLOADS_MAX || !running.insert(tenant.clone()) {
            return Err(ExchangeError::Uploading);
        }
        Ok(Upload { uploads: self.clone(), tenant: tenant.clone() })
    }
}

/// An upload until it is dropped.
struct Upload {
    uploads: Uploads,
    tenant: TenantId,
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.uploads.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.tenant);
    }
}

/// One recorded selection under both recipes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Shadowed {
    /// The step that the selection formed.
    pub step: u32,
    /// What the new recipe says to the same pool.
    pub decision: String,
    /// The same samples in the same order as the recipe that formed the step?
    pub same: bool,
}

/// A recipe that came into use.
#[derive(Debug, Clone, Serialize)]
pub struct Exchanged {
    /// What is in use now.
    #[serde(flatten)]
    pub now: RecipeUse,
    /// Label of the recipe before.
    pub before: Option<String>,
    /// Was the state rewritten by the new recipe's `migrate`?
    pub migrated: bool,
    /// The new recipe on recorded selections, newest first.
    pub shadow: Vec<Shadowed>,
}

/// Why nothing was exchanged.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The component is refused, or not to be had.
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    /// The scenario's configuration does not fit it.
    #[error(
        "the configuration of the scenario does not fit the recipe: {0}; change recipe_config, or harness_config, first"
    )]
    Config(String),
    /// The state of one would be the other's.
    #[error("a recipe of the name '{0}' evolves another surface of this scenario; name this one otherwise")]
    SameName(String),
    /// It failed where it was tried.
    #[error("the recipe failed {place}: {fault}; the recipe in use stays")]
    Failed {
        /// Where.
        place: String,
        /// How.
        fault: Fault,
    },
    /// It could not be tried, and that is not its fault.
    #[error("the recipe could not be tried {place}: {fault}; the recipe in use stays, try again later")]
    NotTried {
        /// Where.
        place: String,
        /// Why.
        fault: Fault,
    },
    /// Other uploads are tried first.
    #[error(
        "another recipe of this tenant, or {UPLOADS_MAX} of others, are being tried; try again when that has ended"
    )]
    Uploading,
    /// There is nothing to go back to.
    #[error("this scenario has used no other recipe on this surface; upload one with PUT …/recipe")]
    NothingBefore,
    /// A step did not end in time.
    #[error("a step still runs after {} s; try again when it has ended, see GET …/steps", STEP_WAIT.as_secs())]
    Busy,
    /// The store refused.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Exchange {
    /// Puts a new component into use.
    pub async fn upload(&self, scenario: &Scenario, bytes: Vec<u8>) -> Result<Exchanged, ExchangeError> {
        let _upload = self.uploads.begin(&scenario.key.0)?;
        let recipe = self.recipes.load(bytes.clone()).await?;
        let surface = surface::of(&recipe);
        self.check_name(scenario, &recipe)?;
        let config = self.config(scenario, surface);
        recipe.manifest().check_config(&config).map_err(ExchangeError::Config)?;
        self.smoke(scenario, &recipe).await?;
        let shadow = self.shadow(scenario, &recipe).await?;
        self.recipes.keep(bytes, &recipe).await?;
        let _between_steps = self.between_steps(scenario).await?;
        self.settle(scenario, surface).await?;
        self.check_name(scenario, &recipe)?;
        let before = scenario.side(surface).recipe();
        if let Some(same) = before.as_ref().filter(|before| before.recipe.digest() == recipe.digest()) {
            let (label, now) = (same.recipe.label(), self.unchanged(scenario, same).await?);
            return Ok(Exchanged { now, before: Some(label), migrated: false, shadow });
        }
        let (state, migrated) = self.carried_over(scenario, before.as_ref(), &recipe).await?;
        let now = self.swap(scenario, &recipe, (UseReason::Upload, String::new()), state).await?;
        Ok(Exchanged { now, before: before.map(|before| before.recipe.label()), migrated, shadow })
    }

    /// State belongs to a recipe by its name, and two surfaces may not share one.
    fn check_name(&self, scenario: &Scenario, recipe: &Recipe) -> Result<(), ExchangeError> {
        let (surface, name) = (surface::of(recipe), &recipe.manifest().name);
        let taken = scenario.recipes().any(|(other, now)| other != surface && now.recipe.manifest().name == *name);
        if taken { Err(ExchangeError::SameName(name.clone())) } else { Ok(()) }
    }

    /// The use that goes on: the same component again is no second use to go back from.
    async fn unchanged(&self, scenario: &Scenario, now: &InUse) -> Result<RecipeUse, ExchangeError> {
        let (tenant, name) = &scenario.key;
        let manifest = now.recipe.manifest();
        let surface = surface::of(&now.recipe);
        let last = self.store.recipe_use(tenant, name, surface).await?;
        let last = last.filter(|last| last.digest == now.recipe.digest());
        Ok(last.unwrap_or_else(|| RecipeUse {
            position: now.position,
            surface,
            digest: now.recipe.digest().to_owned(),
            name: manifest.name.clone(),
            version: manifest.version.clone(),
            reason: UseReason::Start,
            note: String::new(),
            at_ms: now_ms(),
        }))
    }

    /// Goes back to the recipe before, with its state as it was when it was replaced.
    pub async fn rollback(&self, scenario: &Scenario, surface: Surface) -> Result<Exchanged, ExchangeError> {
        let _between_steps = self.between_steps(scenario).await?;
        self.settle(scenario, surface).await?;
        self.back((scenario, surface), UseReason::Rollback, String::new()).await
    }

    /// The same for the learner, which is between two steps already.
    pub async fn fall_back(
        &self,
        scenario: &Scenario,
        surface: Surface,
        fault: &Fault,
    ) -> Result<Exchanged, ExchangeError> {
        let note = format!("its successor was quarantined: {fault}");
        self.back((scenario, surface), UseReason::Fallback, note).await
    }

    /// Waits until no step of the scenario runs, and keeps new ones from beginning.
    async fn between_steps<'a>(
        &self,
        scenario: &'a Scenario,
    ) -> Result<tokio::sync::MutexGuard<'a, ()>, ExchangeError> {
        tokio::time::timeout(STEP_WAIT, scenario.learning.lock()).await.map_err(|_| ExchangeError::Busy)
    }

    pub(super) fn in_use(&self, recipe: Recipe, position: u32) -> InUse {
        let config = self.recipe_config.get(&surface::of(&recipe)).cloned().unwrap_or_default();
        InUse { recipe, position, config }
    }

    /// The values for the keys of the recipe that evolves a surface.
    pub fn config(&self, scenario: &Scenario, surface: Surface) -> Map<String, Value> {
        let operator = self.recipe_config.get(&surface).cloned().unwrap_or_default();
        scenario.recipe_config(surface, &operator)
    }

    /// A selection from an empty pool: the cheapest call that runs the recipe's own code.
    async fn smoke(&self, scenario: &Scenario, recipe: &Recipe) -> Result<(), ExchangeError> {
        let call = Call { config: self.config(scenario, surface::of(recipe)), ..Call::new(context_outside(scenario)) };
        let call = self.reads.give(&scenario.key, call);
        let tried = recipe.select_samples(call).await.result;
        tried.map(drop).map_err(|fault| told_fault("on an empty pool".to_owned(), fault))
    }

    /// The recipe on the pools of the last steps. Its decisions may differ; it may not fail.
    async fn shadow(&self, scenario: &Scenario, recipe: &Recipe) -> Result<Vec<Shadowed>, ExchangeError> {
        let (tenant, name) = &scenario.key;
        let mut rows = Vec::new();
        for step in self.store.steps(tenant, name, SHADOW_STEPS_MAX).await? {
            let Some(recorded) = self.store.step_record(tenant, name, step.step).await? else { continue };
            let pool = surface::recorded_pool(&self.store, &scenario.key, recipe, (&step, &recorded.inputs)).await?;
            // A step of another surface says nothing of this recipe.
            let Some(samples) = pool.map(Arc::new) else { continue };
            let context = context(scenario, &step);
            let state = self.state_for(recipe, &step, &recorded, scenario).await?;
            let call = Call {
                batch: (0..u32::try_from(samples.len()).unwrap_or(0)).collect(),
                samples: Arc::clone(&samples),
                config: self.config(scenario, surface::of(recipe)),
                state,
                unusable: recorded.inputs.unassembled,
                ..Call::new(context)
            };
            let call = self.reads.give(&scenario.key, call);
            let selection = match recipe.select_samples(call).await.result {
                Ok(selection) => selection,
                Err(fault) => return Err(told_fault(format!("on the pool of step {}", step.step), fault)),
            };
            let batch: Vec<_> = chosen(selection.clone())
                .unwrap_or_default()
                .iter()
                .filter_map(|handle| samples.get(*handle as usize))
                .map(|pooled| pooled.sample.report.clone())
                .collect();
            rows.push(Shadowed { step: step.step, decision: told(&selection), same: batch == step.batch });
        }
        Ok(rows)
    }

    /// The state that a recorded selection read, as this recipe would have found it.
    async fn state_for(
        &self,
        recipe: &Recipe,
        step: &Step,
        recorded: &RecordedStep,
        scenario: &Scenario,
    ) -> Result<RecipeState, ExchangeError> {
        let state = guest_state(state_of(&recorded.inputs));
        let own = step.recipe.split_once('@').is_some_and(|(name, _)| name == recipe.manifest().name);
        match version(&step.recipe).filter(|_| own) {
            None => Ok(RecipeState::new()),
            Some(before) if step.recipe != recipe.label() && recipe.exports().migration => {
                self.migrate(scenario, recipe, before, state).await
            }
            Some(_) => Ok(state),
        }
    }

    /// The state that the new recipe starts with; none = as it is.
    async fn carried_over(
        &self,
        scenario: &Scenario,
        before: Option<&InUse>,
        next: &Recipe,
    ) -> Result<(Option<RecipeState>, bool), ExchangeError> {
        let Some(before) = before else { return Ok((None, false)) };
        let same_name = before.recipe.manifest().name == next.manifest().name;
        if !same_name || before.recipe.digest() == next.digest() {
            return Ok((None, false));
        }
        self.migrated(scenario, next, &before.recipe.manifest().version).await
    }

    /// The state of the recipe's name after its own `migrate`; none when it has no such export.
    pub(super) async fn migrated(
        &self,
        scenario: &Scenario,
        next: &Recipe,
        version: &str,
    ) -> Result<(Option<RecipeState>, bool), ExchangeError> {
        if !next.exports().migration {
            return Ok((None, false));
        }
        let (tenant, name) = &scenario.key;
        let state = guest_state(self.store.recipe_state(tenant, name, &next.manifest().name).await?);
        Ok((Some(self.migrate(scenario, next, version, state).await?), true))
    }

    async fn migrate(
        &self,
        scenario: &Scenario,
        next: &Recipe,
        version: &str,
        state: RecipeState,
    ) -> Result<RecipeState, ExchangeError> {
        let config = self.config(scenario, surface::of(next));
        let call = Call { state, config, ..Call::new(context_outside(scenario)) };
        let migrated = next.migrate(call, version).await.result;
        migrated.map_err(|fault| told_fault(format!("to migrate the state of {version}"), fault))
    }

    async fn back(
        &self,
        (scenario, surface): (&Scenario, Surface),
        reason: UseReason,
        note: String,
    ) -> Result<Exchanged, ExchangeError> {
        let (tenant, name) = &scenario.key;
        let mut uses = self.store.recipe_uses(tenant, name, u32::MAX).await?;
        uses.retain(|row| row.surface == surface);
        let default = self.recipes.default_on(surface).map(Recipe::digest);
        let (position, digest) = before(&uses, default).ok_or(ExchangeError::NothingBefore)?;
        let recipe = self.recipes.by_digest(&digest).await?;
        let state = self.store.replaced_state(tenant, name, position).await?;
        let state = state.filter(|(owner, _)| *owner == recipe.manifest().name).map(|(_, state)| state);
        let leaving = scenario.side(surface).recipe().map(|leaving| leaving.recipe.label());
        let now = self.swap(scenario, &recipe, (reason, note), state).await?;
        Ok(Exchanged { now, before: leaving, migrated: false, shadow: Vec::new() })
    }

    pub(super) async fn swap(
        &self,
        scenario: &Scenario,
        recipe: &Recipe,
        (reason, note): (UseReason, String),
        state: Option<RecipeState>,
    ) -> Result<RecipeUse, ExchangeError> {
        let (tenant, name) = &scenario.key;
        let (manifest, surface) = (recipe.manifest(), surface::of(recipe));
        let mut next = RecipeUse {
            position: 0,
            surface,
            digest: recipe.digest().to_owned(),
            name: manifest.name.clone(),
            version: manifest.version.clone(),
            reason,
            note,
            at_ms: now_ms(),
        };
        let replaced = scenario
            .side(surface)
            .recipe()
            .map_or_else(|| manifest.name.clone(), |now| now.recipe.manifest().name.clone());
        next.position = self.store.exchange_recipe(tenant, name, next.clone(), (&replaced, state)).await?;
        scenario.side(surface).use_recipe(self.in_use(recipe.clone(), next.position));
        self.learn_on_those(scenario).await?;
        metrics::counter!("reef_recipe_exchanges_total").increment(1);
        tracing::info!(scenario = %name, recipe = %recipe.label(), ?reason, "recipe.exchanged");
        scenario.tell_changed();
        Ok(next)
    }
}

fn told_fault(place: String, fault: Fault) -> ExchangeError {
    if fault.blame() == Blame::Host {
        ExchangeError::NotTried { place, fault }
    } else {
        ExchangeError::Failed { place, fault }
    }
}

/// The use to go back to: the position of the use that replaced it, and its digest. Going back twice goes back
/// two uses, because a use that was itself a way back stands for the one that it returned to.
fn before(uses: &[RecipeUse], default: Option<&str>) -> Option<(u32, String)> {
    let mut oldest_first: Vec<&RecipeUse> = uses.iter().collect();
    oldest_first.sort_by_key(|row| row.position);
    // What is in use, on top of what it replaced: (digest, position of the use that replaced it).
    let mut stack: Vec<(String, Option<u32>)> = default.map(|digest| (digest.to_owned(), None)).into_iter().collect();
    for row in oldest_first {
        match row.reason {
            UseReason::Start | UseReason::Upload => {
                if let Some((_, replaced_by)) = stack.last_mut() {
                    *replaced_by = Some(row.position);
                }
                stack.push((row.digest.clone(), None));
            }
            UseReason::Rollback | UseReason::Fallback => drop(stack.pop()),
        }
    }
    stack.pop()?;
    let (digest, replaced_by) = stack.pop()?;
    Some((replaced_by?, digest))
}

/// The version in `name@version#sha256:…`.
pub(super) fn version(label: &str) -> Option<&str> {
    label.split_once('@')?.1.split_once('#').map(|(version, _)| version)
}

fn told(selection: &Selection) -> String {
    match &selection.choice {
        Choice::Wait(reason) => format!("wait: {reason}"),
        Choice::Train(handles) => format!("train on {} samples", handles.len()),
        Choice::TrainGroups(groups) => format!("train on {} groups", groups.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_upload_of_a_tenant_and_few_of_all_are_tried() {
        let uploads = Uploads::default();
        let tenant = |n: usize| TenantId::parse(format!("t{n}")).expect("a name");
        let running: Vec<_> = (0..UPLOADS_MAX).map(|n| uploads.begin(&tenant(n))).collect();
        assert!(running.iter().all(Result::is_ok));
        assert!(matches!(uploads.begin(&tenant(UPLOADS_MAX)), Err(ExchangeError::Uploading)), "all places are taken");
        drop(running);
        let first = uploads.begin(&tenant(0));
        assert!(matches!(uploads.begin(&tenant(0)), Err(ExchangeError::Uploading)), "one of a tenant");
        drop(first);
        assert!(uploads.begin(&tenant(0)).is_ok());
    }

    fn row(position: u32, digest: &str, reason: UseReason) -> RecipeUse {
        RecipeUse {
            position,
            surface: Surface::Weights,
            digest: digest.to_owned(),
            name: "r".to_owned(),
            version: "1.0.0".to_owned(),
            reason,
            note: String::new(),
            at_ms: 0,
        }
    }

    #[test]
    fn going_back_twice_goes_back_two_uses_and_never_forward() {
        use UseReason::{Fallback, Rollback, Upload};
        let mut uses = vec![row(1, "b", Upload), row(2, "c", Upload)];
        assert_eq!(before(&uses, Some("a")), Some((2, "b".to_owned())));
        uses.push(row(3, "b", Rollback));
        assert_eq!(before(&uses, Some("a")), Some((1, "a".to_owned())));
        uses.push(row(4, "a", Fallback));
        assert_eq!(before(&uses, Some("a")), None);
        uses.push(row(5, "d", Upload));
        assert_eq!(before(&uses, Some("a")), Some((5, "a".to_owned())));
    }

    #[test]
    fn the_version_stands_between_at_and_hash() {
        assert_eq!(version("sao@0.1.0-rc.1#sha256:00"), Some("0.1.0-rc.1"));
        assert_eq!(version("sao"), None);
    }

    #[test]
    fn without_a_recipe_of_the_server_the_first_upload_has_nothing_before_it() {
        assert_eq!(before(&[row(1, "b", UseReason::Upload)], None), None);
        assert_eq!(before(&[], Some("a")), None);
    }
}
