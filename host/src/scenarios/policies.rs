//! The routing policy of a scenario: a chain of its own, whose head is kept in memory because every request asks it. Its
//! first release, which has no rules, is minted when somebody first proposes one; until then there is no policy, and a
//! head that cannot be read leaves requests to the models that they name, with an alarm.

use std::sync::{Arc, PoisonError};

use reef_core::{DecidedBy, Release, ReleaseId, ReleaseOrigin, RoutingPolicy, Surface};
use reef_release::ReleaseFile;

use super::{Scenario, ScenarioError, Scenarios, promoted};

/// The file of such a release.
const POLICY_FILE: &str = "policy.json";

/// The policy that is applied now.
#[derive(Debug, Clone, PartialEq)]
pub struct LivePolicy {
    /// Its release.
    pub release: ReleaseId,
    /// Its rules.
    pub policy: RoutingPolicy,
}

impl Scenario {
    /// The policy that is applied to requests; none where there is none.
    pub fn policy(&self) -> Option<Arc<LivePolicy>> {
        self.policy.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The files of the release of a policy.
pub fn policy_files(policy: &RoutingPolicy) -> Vec<ReleaseFile> {
    let text = format!("{:#}\n", serde_json::json!(policy));
    vec![ReleaseFile { path: POLICY_FILE.to_owned(), bytes: text.into_bytes() }]
}

impl Scenarios {
    /// The head of the policy's chain; its first call in a scenario mints it, durably: no rules.
    pub async fn policy_head(&self, scenario: &Scenario) -> Result<Release, ScenarioError> {
        let (tenant, name) = &scenario.key;
        if let Some(head) = self.store.head_on(tenant, name, Surface::Router).await? {
            return Ok(head);
        }
        let minting = scenario.minting.lock().await;
        // Another first call may have been faster.
        if let Some(head) = self.store.head_on(tenant, name, Surface::Router).await? {
            return Ok(head);
        }
        let decision = promoted(DecidedBy::Host, "every policy starts without rules".to_owned());
        let manifest = self.manifest_on(Surface::Router, &scenario.key, None, (ReleaseOrigin::Base, decision));
        let release = self.write(manifest, policy_files(&RoutingPolicy::default())).await?;
        self.store.append_release(tenant, name, &release, None).await?;
        drop(minting);
        self.align(scenario, Surface::Router).await;
        self.apply_policy(scenario).await;
        Ok(release)
    }

    /// What a release of a policy holds.
    pub async fn policy_of(&self, id: &ReleaseId) -> Result<RoutingPolicy, ScenarioError> {
        let files = self.files(id).await?;
        let unreadable = |problem: String| ScenarioError::Policy { release: id.clone(), problem };
        let file = files.iter().find(|(path, _)| path == POLICY_FILE);
        let (_, bytes) = file.ok_or_else(|| unreadable(format!("it has no {POLICY_FILE}")))?;
        serde_json::from_slice(bytes).map_err(|error| unreadable(error.to_string()))
    }

    /// Brings the policy in memory to the head of the database.
    pub(super) async fn apply_policy(&self, scenario: &Scenario) {
        let read = self.read_policy(scenario).await;
        let (policy, problem) = match read {
            Ok(policy) => (policy, None),
            Err(error) => {
                tracing::error!(scenario = %scenario.key.1, %error, "policy.unreadable");
                (None, Some(format!("requests are not routed: {error}")))
            }
        };
        *scenario.policy.write().unwrap_or_else(PoisonError::into_inner) = policy.map(Arc::new);
        scenario.side(Surface::Router).set_status(|status| status.regression = problem);
    }

    async fn read_policy(&self, scenario: &Scenario) -> Result<Option<LivePolicy>, ScenarioError> {
        let (tenant, name) = &scenario.key;
        let Some(head) = self.store.head_on(tenant, name, Surface::Router).await? else { return Ok(None) };
        let policy = self.policy_of(&head.release_id).await?;
        Ok(Some(LivePolicy { release: head.release_id, policy }))
    }
}
