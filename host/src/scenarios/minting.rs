//! How releases come into a chain beside the learner's steps: the base of a new scenario, copies of earlier or held
//! releases, and the return to the last whole release where the head's bytes are damaged. History is never rewritten.

use reef_core::{
    DecidedBy, Release, ReleaseDecision, ReleaseId, ReleaseManifest, ReleaseOrigin, ReleaseVerdict, Surface, TenantId,
};
use reef_release::{ReleaseError, ReleaseFile};
use reef_store::{ReleaseStatus, ScenarioSettings};

use super::rollouts::Ending;
use super::{Scenario, ScenarioError, ScenarioKey, Scenarios, Served, blocking};
use crate::clock::now_ms;
use crate::weights::WeightsError;

/// The decision that a release serves.
pub fn promoted(by: DecidedBy, reason: String) -> ReleaseDecision {
    ReleaseDecision { verdict: ReleaseVerdict::Promoted, by, reason }
}

impl Scenarios {
    /// A scenario starts from the base model and from nothing else, unless its creation names a release.
    pub(super) async fn mint_base(&self, key: &ScenarioKey) -> Result<Release, ScenarioError> {
        let manifest = ReleaseManifest {
            tenant: key.0.clone(),
            scenario: key.1.clone(),
            surface: Surface::Weights,
            sequence: 0,
            parent: None,
            origin: ReleaseOrigin::Base,
            base_model: self.base_model.clone(),
            recipe: None,
            seed: None,
            records: None,
            metrics: Default::default(),
            evaluation: None,
            decision: Some(promoted(DecidedBy::Host, "every scenario starts from its base".to_owned())),
            created_at_ms: now_ms(),
        };
        let release = self.write(manifest, Vec::new()).await?;
        self.store.append_release(&key.0, &key.1, &release, None).await?;
        Ok(release)
    }

    /// A release of weights that a new scenario of the tenant may begin with: one that is served or retained, of the
    /// model that answers here. What another tenant has looks absent.
    pub async fn beginning(&self, tenant: &TenantId, id: &ReleaseId) -> Result<Release, ScenarioError> {
        let unknown = || ScenarioError::UnknownRelease(id.clone());
        let (repo, of) = (self.repo.clone(), id.clone());
        let found = match blocking(move || repo.release(&of)).await {
            Err(ScenarioError::Release(ReleaseError::NotFound { .. })) => return Err(unknown()),
            found => found?.manifest,
        };
        if found.tenant != *tenant || found.surface != Surface::Weights || found.base_model != self.base_model {
            return Err(unknown());
        }
        let listed = self.store.release(tenant, &found.scenario, id).await?.ok_or_else(unknown)?;
        match listed.status {
            ReleaseStatus::Served | ReleaseStatus::Retained => Ok(listed.release),
            _ => Err(unknown()),
        }
    }

    /// Creates a scenario whose first release is a copy of this one.
    pub(super) async fn mint_fork(
        &self,
        key: &ScenarioKey,
        settings: &ScenarioSettings,
        from: &Release,
    ) -> Result<(), ScenarioError> {
        let (repo, of, name) = (self.repo.clone(), from.release_id.clone(), key.1.clone());
        let first = blocking(move || repo.fork(&of, &name, now_ms())).await?;
        Ok(self.store.create_fork(&key.0, &key.1, settings, &first).await?)
    }

    /// Refuses unless the scenario began as a copy of that release, if one is named.
    pub(super) async fn check_begin(&self, scenario: &Scenario, from: Option<&Release>) -> Result<(), ScenarioError> {
        let Some(from) = from else { return Ok(()) };
        let first = self.store.first_release(&scenario.key.0, &scenario.key.1).await?;
        if first.and_then(|first| first.release.manifest.parent).as_ref() == Some(&from.release_id) {
            return Ok(());
        }
        Err(ScenarioError::OtherBase { scenario: scenario.key.1.clone(), release: from.release_id.clone() })
    }

    /// Writes a release without moving any head.
    pub async fn write(&self, manifest: ReleaseManifest, files: Vec<ReleaseFile>) -> Result<Release, ScenarioError> {
        let repo = self.repo.clone();
        blocking(move || repo.write(&manifest, &files)).await
    }

    /// Mints a release with the files of an earlier or held one and serves it. A rollout that runs ends with that, and
    /// goes on where nothing could be minted.
    pub async fn mint_copy(
        &self,
        scenario: &Scenario,
        of: &ReleaseId,
        why: (ReleaseOrigin, ReleaseDecision),
    ) -> Result<Release, ScenarioError> {
        let _minting = scenario.minting.lock().await;
        let ends = self.ending(scenario, "the head was moved").await?;
        self.mint_under_lock(scenario, of, why, ends).await
    }

    /// The same for the host's own rollback: nothing happens where the head has moved from this one, or is pinned.
    pub async fn mint_copy_over(
        &self,
        scenario: &Scenario,
        (head, of): (&ReleaseId, &ReleaseId),
        why: (ReleaseOrigin, ReleaseDecision),
    ) -> Result<Option<Release>, ScenarioError> {
        let _minting = scenario.minting.lock().await;
        if scenario.served().release.release_id != *head || scenario.is_pinned() {
            return Ok(None);
        }
        let ends = self.ending(scenario, "the head was moved").await?;
        self.mint_under_lock(scenario, of, why, ends).await.map(Some)
    }

    pub(super) async fn mint_under_lock(
        &self,
        scenario: &Scenario,
        of: &ReleaseId,
        (origin, decision): (ReleaseOrigin, ReleaseDecision),
        ends: Option<Ending>,
    ) -> Result<Release, ScenarioError> {
        let (tenant, name) = &scenario.key;
        let source = self.store.release(tenant, name, of).await?;
        // A harness has no weights: it would be served as the base model.
        let source = source.filter(|source| source.release.manifest.surface == Surface::Weights);
        let source = source.ok_or_else(|| ScenarioError::UnknownRelease(of.clone()))?;
        let head = scenario.served().release.clone();
        let files = self.files(of).await?.into_iter().map(|(path, bytes)| ReleaseFile { path, bytes }).collect();
        let manifest = ReleaseManifest {
            sequence: head.manifest.sequence + 1,
            parent: Some(head.release_id.clone()),
            origin,
            decision: Some(decision),
            created_at_ms: now_ms(),
            ..source.release.manifest
        };
        let weights = self.weights.load(of).await?;
        let release = self.write(manifest, files).await?;
        let ended = ends.as_ref().map(|ending| (ending.number, ending.end.clone()));
        let appended = self.store.append_release_ending((tenant, name), &release, Some(&head.release_id), ended).await;
        self.told(scenario, appended).await?;
        self.weights.keep(release.release_id.clone(), weights.clone());
        scenario.serve(Served::new(release.clone(), weights, None));
        if let Some(ending) = ends {
            scenario.end_rollout(&ending);
        }
        // The database has the head already; a branch that lags is aligned at the next start.
        if let Err(error) = self.align_ref(&scenario.key, &release.release_id).await {
            tracing::warn!(%error, release.id = %release.release_id, "release.align_ref");
        }
        scenario.wake();
        Ok(release)
    }

    /// The way around a head whose bytes are damaged: the last release before it that is whole.
    pub(super) async fn detour(
        &self,
        key: &ScenarioKey,
        head: &ReleaseId,
        damage: WeightsError,
    ) -> Result<Detour, ScenarioError> {
        if !is_damage(&damage) {
            return Err(damage.into());
        }
        let listed = self.store.releases_of(&key.0, &key.1, Surface::Weights).await?;
        let served = |status| matches!(status, ReleaseStatus::Served | ReleaseStatus::Retained);
        let before: Vec<ReleaseId> = (listed.into_iter().filter(|listed| served(listed.status)))
            .map(|listed| listed.release.release_id)
            .skip_while(|id| id != head)
            .skip(1)
            .collect();
        let (repo, of, broken) = (self.repo.clone(), key.clone(), head.clone());
        match blocking(move || repo.last_good((&of.0, &of.1), &broken, &before)).await? {
            Some(to) => Ok(Detour { to, damage }),
            None => Err(damage.into()),
        }
    }

    /// Goes back to the whole release, durably.
    pub(super) async fn take(&self, scenario: &Scenario, Detour { to, damage }: Detour) -> Result<(), ScenarioError> {
        tracing::error!(scenario = %scenario.key.1, release.id = %to, %damage, "scenario.detour");
        let reason = format!("the head cannot be served ({damage}); this is the last release before it that is whole");
        let decision = promoted(DecidedBy::Host, reason.clone());
        self.mint_under_lock(scenario, &to, (ReleaseOrigin::Rollback { to: to.clone() }, decision), None).await?;
        scenario.side(Surface::Weights).set_status(|status| status.regression = Some(reason));
        Ok(())
    }
}

/// A whole release, and why it is gone back to.
#[derive(Debug)]
pub(super) struct Detour {
    /// The release.
    pub to: ReleaseId,
    damage: WeightsError,
}

/// Is it the stored bytes that are at fault?
fn is_damage(error: &WeightsError) -> bool {
    match error {
        WeightsError::Release(error) => {
            matches!(error, ReleaseError::Corrupt(_) | ReleaseError::NotFound { .. } | ReleaseError::NoFile { .. })
        }
        WeightsError::Adapter { .. } | WeightsError::Interrupted(_) => false,
    }
}
