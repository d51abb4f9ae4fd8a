//! Which recipes a scenario begins with after a start: those of its history, else the server's, one a surface. A learner
//! asks before its turn, an exchange before it changes anything; what is settled stays so until an exchange.

use reef_core::Surface;
use reef_store::{STATE_WRITER_KEY, UseReason};

use super::exchange_recipe::{Exchange, ExchangeError, version};
use super::surface;
use crate::scenarios::Scenario;

impl Exchange {
    /// Finds the recipes that the scenario uses and puts each in its place; called by a learner before a turn.
    /// What is wrong with the recipe of another surface is for its own learner to tell.
    pub async fn settle(&self, scenario: &Scenario, asking: Surface) -> Result<(), ExchangeError> {
        let settled = || surface::EVOLVED.into_iter().all(|surface| scenario.side(surface).is_settled());
        if settled() {
            return Ok(());
        }
        for surface in surface::EVOLVED {
            match self.settle_on(scenario, surface).await {
                Err(error) if surface == asking => return Err(error),
                Err(error) => tracing::warn!(scenario = %scenario.key.1, ?surface, %error, "recipe.settle"),
                Ok(()) => {}
            }
        }
        if settled() { self.learn_on_those(scenario).await } else { Ok(()) }
    }

    async fn settle_on(&self, scenario: &Scenario, surface: Surface) -> Result<(), ExchangeError> {
        let side = scenario.side(surface);
        if side.is_settled() {
            return Ok(());
        }
        let (tenant, name) = &scenario.key;
        let last = self.store.recipe_use(tenant, name, surface).await?;
        let position = last.as_ref().map_or(0, |last| last.position);
        let settled = match last {
            // A start is the server's own recipe, whichever it is now.
            Some(last) if last.reason != UseReason::Start => Some(self.recipes.by_digest(&last.digest).await?),
            _ => self.recipes.default_on(surface).cloned(),
        };
        if let Some(recipe) = settled {
            side.use_recipe(self.in_use(recipe, position));
            self.adopt(scenario, surface).await?;
        }
        side.settle();
        Ok(())
    }

    /// Reports become samples where there is a recipe; without any, those of weights, so that none is lost.
    pub(super) async fn learn_on_those(&self, scenario: &Scenario) -> Result<(), ExchangeError> {
        let mut surfaces: Vec<Surface> = scenario.recipes().map(|(surface, _)| surface).collect();
        if surfaces.is_empty() {
            surfaces.push(Surface::Weights);
        }
        Ok(self.store.learn_on(&scenario.key.0, &scenario.key.1, &surfaces).await?)
    }

    /// Carries state over that an older version left behind, when the server was started with a newer component.
    async fn adopt(&self, scenario: &Scenario, surface: Surface) -> Result<(), ExchangeError> {
        let Some(now) = scenario.side(surface).recipe() else { return Ok(()) };
        let (tenant, name) = &scenario.key;
        let state = self.store.recipe_state(tenant, name, &now.recipe.manifest().name).await?;
        let wrote = state.get(STATE_WRITER_KEY).and_then(|label| std::str::from_utf8(label).ok());
        let Some(version) = wrote.filter(|label| **label != now.recipe.label()).and_then(version) else {
            return Ok(());
        };
        let (state, _) = self.migrated(scenario, &now.recipe, version).await?;
        let note = format!("the server was started with it; version {version} wrote the state before");
        self.swap(scenario, &now.recipe, (UseReason::Start, note), state).await?;
        Ok(())
    }
}
