//! Forks: a new scenario begins with the content of one named release, and of no other.
//! What other scenarios release before, meanwhile or afterwards never changes what it began with.

use reef_core::{
    DecidedBy, Release, ReleaseDecision, ReleaseId, ReleaseManifest, ReleaseOrigin, ReleaseVerdict, ScenarioName,
};

use crate::repo::ReleaseRepo;
use crate::{ReleaseError, ReleaseFile};

impl ReleaseRepo {
    /// Writes the first release of `scenario`, a copy of `base`, without making it the head. The tenant is that of
    /// `base`. Equal files are not stored twice.
    ///
    /// Errors: `NotFound`, `Corrupt` for the base; `Disk`, `Git`, `Locked`.
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
        self.write(&manifest, &files)
    }
}
