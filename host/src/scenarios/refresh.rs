//! Keeps what a scenario serves at what the database says. The two differ only after a write whose answer was lost: a
//! connection can break between a commit and the word of it.

use reef_core::Rollout;
use reef_store::StoreError;

use super::{Scenario, ScenarioError, Scenarios, Served};

impl Scenarios {
    /// Brings head and rollout to those of the database, should they ever differ.
    pub async fn refresh(&self, scenario: &Scenario) -> Result<(), ScenarioError> {
        let _minting = scenario.minting.lock().await;
        self.refresh_under_lock(scenario).await
    }

    /// The result of a write of whoever holds the lock; one that failed may have been done all the same.
    pub(super) async fn told<T>(
        &self,
        scenario: &Scenario,
        written: Result<T, StoreError>,
    ) -> Result<T, ScenarioError> {
        if let Err(StoreError::Unavailable { .. }) = &written
            && let Err(error) = self.refresh_under_lock(scenario).await
        {
            tracing::warn!(scenario = %scenario.key.1, %error, "scenario.refresh");
        }
        Ok(written?)
    }

    async fn refresh_under_lock(&self, scenario: &Scenario) -> Result<(), ScenarioError> {
        let (tenant, name) = &scenario.key;
        let head = self.store.head(tenant, name).await?;
        if let Some(head) = head.filter(|head| head.release_id != scenario.served().release.release_id) {
            let weights = self.weights.load(&head.release_id).await?;
            scenario.serve(Served::new(head, weights, None));
        }
        let running = self.store.running_rollout(tenant, name).await?;
        let number = |rollout: &Rollout| rollout.number;
        if running.as_ref().map(number) != scenario.rollout().map(|live| number(&live.rollout)) {
            scenario.set_rollout(None);
            self.resume_rollout(scenario).await?;
        }
        Ok(())
    }
}
