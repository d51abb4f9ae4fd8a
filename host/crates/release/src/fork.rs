//! Forks: a new scenario begins with the content of one named release, and of no other.
//! What other scenarios release before, meanwhile or afterwards never changes what it began with.

use reef_core::{
    DecidedBy, Release, ReleaseDecision, ReleaseId, ReleaseManifest, ReleaseOrigin, ReleaseVerdict, ScenarioName,
};

use crate::repo::ReleaseRepo;
use crate::{ReleaseError, ReleaseFile};

impl ReleaseRepo {
    /// Writes the first release of `scenario`, a copy of `base`, and makes it the head. The tenant is that of `base`.
    /// Equal files are not stored twice.
    ///
    /// Errors: `NotFound`, `Corrupt` for the base; `HeadMoved` if the scenario has a head; `Disk`, `Git`, `Locked`.
    pub fn fork(&self, base: &ReleaseId, scenario: &ScenarioName, created_at_ms: i64) -> Result<Release, ReleaseError> {
        let source = self.release(base)?.manifest;
        let files: Vec<ReleaseFile> =
            self.files(base)?.into_iter().map(|(path, bytes)| ReleaseFile { path, bytes }).collect();
        let manifest = ReleaseManifest {
            scenario: scenario.clone(),
            sequence: 0,
            parent: Some(base.clone()),
            origin: ReleaseOrigin::Base,
            recipe: None,
            seed: None,
            records: None,
            metrics: Default::default(),
            evaluation: None,
            decision: Some(ReleaseDecision {
                verdict: ReleaseVerdict::Promoted,
                by: DecidedBy::Host,
                reason: format!("begins as a copy of release {base}"),
            }),
            created_at_ms,
            ..source
        };
        let tenant = manifest.tenant.clone();
        if let Some(found) = self.head_of((&tenant, scenario, manifest.surface))? {
            let scenario = scenario.clone();
            return Err(ReleaseError::HeadMoved { tenant, scenario, expected: None, found: Some(found) });
        }
        let release = self.write(&manifest, &files)?;
        self.advance(&tenant, scenario, None, &release.release_id)?;
        Ok(release)
    }
}
