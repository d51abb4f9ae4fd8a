//! A scenario taken out of service for good: the repository notes it, the database forgets it, which is the commit point,
//! then this process and git do. What a crash has cut off is finished at the next start.

use std::time::Duration;

use reef_release::PruneReport;

use super::{Scenario, ScenarioError, ScenarioKey, Scenarios, blocking};

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
        let (repo, key) = (self.repo.clone(), scenario.key.clone());
        blocking(move || repo.begin_forgetting(&key.0, &key.1)).await?;
        let left = self.store.forget_scenario(&tenant, &name).await?;
        scenario.retire();
        self.open.write().await.remove(&scenario.key);
        let repo = self.repo.clone();
        let pruned = blocking(move || repo.forget(&tenant, &name)).await?;
        left.map_or(Ok(pruned), |error| Err(error.into()))
    }

    /// Takes out of git what the database has forgotten; called once at start.
    pub(super) async fn finish_forgetting(&self) {
        let repo = self.repo.clone();
        let begun = match blocking(move || repo.forgetting()).await {
            Ok(begun) => begun,
            Err(error) => return tracing::error!(%error, "scenario.forget"),
        };
        for key in begun {
            if let Err(error) = self.finish_one(&key).await {
                tracing::error!(scenario = %key.1, %error, "scenario.forget");
            }
        }
    }

    async fn finish_one(&self, key: &ScenarioKey) -> Result<(), ScenarioError> {
        let is_there = self.store.scenario(&key.0, &key.1).await?.is_some();
        let (repo, (tenant, name)) = (self.repo.clone(), key.clone());
        blocking(
            move || {
                if is_there { repo.stop_forgetting(&tenant, &name) } else { repo.forget(&tenant, &name).map(drop) }
            },
        )
        .await
    }

    /// Refuses to begin a scenario whose releases are in the repository: the database is not the one that knows them, and
    /// the base would serve in place of what was learned.
    pub(super) async fn check_no_orphan(&self, key: &ScenarioKey) -> Result<(), ScenarioError> {
        let (repo, of) = (self.repo.clone(), key.clone());
        match blocking(move || repo.head(&of.0, &of.1)).await? {
            Some(head) => Err(ScenarioError::Orphan { scenario: key.1.clone(), head }),
            None => Ok(()),
        }
    }
}
