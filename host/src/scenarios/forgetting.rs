//! A scenario taken out of service for good: out of the database first, which is the commit point, then out of what this
//! process serves, then out of git. A crash in between leaves branches that nothing names; creating the scenario anew
//! moves them, and forgetting it again removes them.

use std::time::Duration;

use reef_release::PruneReport;

use super::{Scenario, ScenarioError, Scenarios, blocking};

/// How long to wait for the learner to come to the end of what it is doing.
const LEARNER_WAIT: Duration = Duration::from_secs(5);

impl Scenarios {
    /// Forgets the scenario; what its releases took on the disk is told. Refused while a step of it runs.
    pub async fn forget(&self, scenario: &Scenario) -> Result<PruneReport, ScenarioError> {
        let (tenant, name) = scenario.key.clone();
        // Nobody creates it anew, learns or mints a release while it goes.
        let _creating = self.creating.lock().await;
        let learning = tokio::time::timeout(LEARNER_WAIT, scenario.learning.lock()).await;
        let _learning = learning.map_err(|_| ScenarioError::Learning(name.clone()))?;
        let _minting = scenario.minting.lock().await;
        let left = self.store.forget_scenario(&tenant, &name).await?;
        scenario.retire();
        self.open.write().await.remove(&scenario.key);
        let repo = self.repo.clone();
        let pruned = blocking(move || repo.forget(&tenant, &name)).await?;
        left.map_or(Ok(pruned), |error| Err(error.into()))
    }
}
