//! The harness of a scenario: a chain of its own beside that of the weights, of which nothing is kept in memory. Its first
//! release, the empty tree, is minted when somebody first asks; later ones are proposals that a person accepted, and
//! returns to earlier ones. History is never rewritten, and a damaged harness never keeps the model from serving.

use reef_core::{
    DecidedBy, Release, ReleaseDecision, ReleaseId, ReleaseManifest, ReleaseOrigin, ReleaseVerdict, Surface,
};
use reef_harness::{Requirement, Tree};
use reef_release::ReleaseFile;
use reef_store::{HarnessProposal, ListedRelease};

use super::{Scenario, ScenarioError, ScenarioKey, Scenarios, blocking, promoted};
use crate::clock::now_ms;

/// Beside the files of the tree: what a client must have.
const REQUIRES_FILE: &str = "requires.json";

/// What a harness release holds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HarnessContent {
    /// The entries.
    pub tree: Tree,
    /// What a client must have for them.
    pub requires: Vec<Requirement>,
}

impl HarnessContent {
    /// The files of its release: the tree's, and the requirements where there are any.
    pub fn to_files(&self) -> Vec<ReleaseFile> {
        let files = self.tree.to_files().into_iter().map(|file| ReleaseFile { path: file.path, bytes: file.bytes });
        let mut files: Vec<ReleaseFile> = files.collect();
        if !self.requires.is_empty() {
            let text = format!("{:#}\n", serde_json::json!(self.requires));
            files.push(ReleaseFile { path: REQUIRES_FILE.to_owned(), bytes: text.into_bytes() });
        }
        files
    }

    /// Reads such files; the error says which is wrong.
    pub fn from_files(files: &[(String, Vec<u8>)]) -> Result<Self, String> {
        let requires = match files.iter().find(|(path, _)| path == REQUIRES_FILE) {
            Some((path, bytes)) => serde_json::from_slice(bytes).map_err(|error| format!("{path}: {error}"))?,
            None => Vec::new(),
        };
        let tree = files.iter().filter(|(path, _)| path != REQUIRES_FILE);
        let tree = Tree::from_files(tree.map(|(path, bytes)| (path.as_str(), bytes.as_slice())));
        Ok(Self { tree: tree.map_err(|error| error.to_string())?, requires })
    }
}

impl Scenarios {
    /// The harness that clients install. The first call in a scenario makes it, durably: the empty tree.
    pub async fn harness(&self, scenario: &Scenario) -> Result<Release, ScenarioError> {
        let (tenant, name) = &scenario.key;
        if let Some(head) = self.store.harness_head(tenant, name).await? {
            return Ok(head);
        }
        let _minting = scenario.minting.lock().await;
        // Another first call may have been faster.
        if let Some(head) = self.store.harness_head(tenant, name).await? {
            return Ok(head);
        }
        let decision = promoted(DecidedBy::Host, "every harness starts from the empty tree".to_owned());
        let manifest = self.manifest_on(Surface::Harness, &scenario.key, None, (ReleaseOrigin::Base, decision));
        let release = self.write(manifest, HarnessContent::default().to_files()).await?;
        self.store.append_release(tenant, name, &release, None).await?;
        self.align(scenario, Surface::Harness).await;
        Ok(release)
    }

    /// A harness release of this scenario, and where it stands.
    pub async fn harness_release(&self, scenario: &Scenario, id: &ReleaseId) -> Result<ListedRelease, ScenarioError> {
        let listed = self.store.release(&scenario.key.0, &scenario.key.1, id).await?;
        let harness = listed.filter(|listed| listed.release.manifest.surface == Surface::Harness);
        harness.ok_or_else(|| ScenarioError::UnknownRelease(id.clone()))
    }

    /// What a harness release holds.
    pub async fn harness_content(&self, id: &ReleaseId) -> Result<HarnessContent, ScenarioError> {
        let files = self.files(id).await?;
        HarnessContent::from_files(&files).map_err(|problem| ScenarioError::Harness { release: id.clone(), problem })
    }

    /// Makes the release of an admitted change of a head, which waits for a person. The head must still be the one that it
    /// changes. The same proposal again is returned as it is.
    pub async fn hold_change(
        &self,
        scenario: &Scenario,
        (parent, files): (&Release, Vec<ReleaseFile>),
        proposal: impl FnOnce(ReleaseId) -> HarnessProposal + Send,
        (origin, reason): (ReleaseOrigin, String),
    ) -> Result<HarnessProposal, ScenarioError> {
        let _minting = scenario.minting.lock().await;
        let (tenant, name) = &scenario.key;
        let decision = ReleaseDecision { verdict: ReleaseVerdict::Held, by: DecidedBy::Host, reason };
        let surface = parent.manifest.surface;
        let manifest = self.manifest_on(surface, &scenario.key, Some(parent), (origin, decision));
        let release = self.write(manifest, files).await?;
        let proposal = proposal(release.release_id.clone());
        Ok(self.store.hold_proposal(tenant, name, &release, &proposal).await?)
    }

    /// Mints a release with the files of an earlier or waiting one and makes it the head of its surface, which is not
    /// that of the weights: the harness that clients install, or the policy that is applied.
    pub async fn mint_copy_beside(
        &self,
        scenario: &Scenario,
        of: &ReleaseId,
        why: (ReleaseOrigin, ReleaseDecision),
    ) -> Result<Release, ScenarioError> {
        let minting = scenario.minting.lock().await;
        let (tenant, name) = &scenario.key;
        let unknown = || ScenarioError::UnknownRelease(of.clone());
        let source = self.store.release(tenant, name, of).await?.ok_or_else(unknown)?;
        let surface = source.release.manifest.surface;
        let head = self.store.head_on(tenant, name, surface).await?.ok_or_else(unknown)?;
        let files = self.files(of).await?.into_iter().map(|(path, bytes)| ReleaseFile { path, bytes }).collect();
        // The same content was measured: with which weights, and on what, goes on to be said.
        let evaluation = source.release.manifest.evaluation;
        let manifest = ReleaseManifest { evaluation, ..self.manifest_on(surface, &scenario.key, Some(&head), why) };
        let release = self.write(manifest, files).await?;
        self.store.append_release(tenant, name, &release, Some(&head.release_id)).await?;
        drop(minting);
        self.align(scenario, surface).await;
        if surface == Surface::Router {
            self.apply_policy(scenario).await;
        }
        Ok(release)
    }

    /// Brings the branch of a surface beside the weights to the head of the database. The database is right whatever
    /// becomes of this: a branch that lags is aligned at the next change or start.
    pub async fn align(&self, scenario: &Scenario, surface: Surface) {
        if let Err(error) = self.align_ref_beside(&scenario.key, surface).await {
            tracing::warn!(scenario = %scenario.key.1, ?surface, %error, "release.align");
        }
    }

    async fn align_ref_beside(&self, (tenant, name): &ScenarioKey, surface: Surface) -> Result<(), ScenarioError> {
        let Some(head) = self.store.head_on(tenant, name, surface).await? else { return Ok(()) };
        let (repo, tenant, name) = (self.repo.clone(), tenant.clone(), name.clone());
        blocking(move || {
            let now = match surface {
                Surface::Router => repo.router_head(&tenant, &name)?,
                Surface::Harness => repo.harness_head(&tenant, &name)?,
                Surface::Weights => repo.head(&tenant, &name)?,
            };
            let there = now.as_ref() == Some(&head.release_id);
            if there { Ok(()) } else { repo.advance(&tenant, &name, now.as_ref(), &head.release_id) }
        })
        .await
    }

    pub(super) fn manifest_on(
        &self,
        surface: Surface,
        (tenant, scenario): &ScenarioKey,
        parent: Option<&Release>,
        (origin, decision): (ReleaseOrigin, ReleaseDecision),
    ) -> ReleaseManifest {
        ReleaseManifest {
            tenant: tenant.clone(),
            scenario: scenario.clone(),
            surface,
            sequence: parent.map_or(0, |parent| parent.manifest.sequence + 1),
            parent: parent.map(|parent| parent.release_id.clone()),
            origin,
            base_model: self.base_model.clone(),
            recipe: None,
            seed: None,
            records: None,
            metrics: Default::default(),
            evaluation: None,
            decision: Some(decision),
            created_at_ms: now_ms(),
        }
    }
}

#[cfg(test)]
mod tests {
    use reef_harness::{RequirementKind, read_mutations};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_harness_survives_its_files() {
        let mutations =
            json!([{ "op": "create", "kind": "rules", "id": "style", "config": { "text": "Be brief.\n" } }]);
        let mutations = read_mutations(&mutations).expect("mutations");
        let tree = Tree::default().apply(&mutations).expect("applied").tree;
        let requires = vec![Requirement::new(RequirementKind::Env, "KEY", "for the search").expect("valid")];
        for content in [HarnessContent::default(), HarnessContent { tree, requires }] {
            let files: Vec<(String, Vec<u8>)> =
                content.to_files().into_iter().map(|file| (file.path, file.bytes)).collect();
            assert_eq!(HarnessContent::from_files(&files), Ok(content));
        }
        let stray = vec![("requires.json".to_owned(), b"{".to_vec())];
        assert!(HarnessContent::from_files(&stray).expect_err("damaged").starts_with("requires.json: "));
    }
}
