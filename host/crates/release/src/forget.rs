//! The chains of a scenario taken out of the repository: its branches, then whatever no other scenario's release needs.
//! A release that another scenario began with stays.

use std::time::Duration;

use gix::refs::Target;
use reef_core::{ScenarioName, Surface, TenantId};

use crate::ReleaseError;
use crate::names::branch;
use crate::prune::{PruneOptions, PruneReport};
use crate::refs::remove;
use crate::repo::{ReleaseRepo, object_id};

impl ReleaseRepo {
    /// Forgets every release of the scenario. Again, or of a scenario that has none, is no error.
    ///
    /// Errors: as of `prune`; the branches are gone then, and the next call goes on.
    pub fn forget(&self, tenant: &TenantId, scenario: &ScenarioName) -> Result<PruneReport, ReleaseError> {
        for surface in [Surface::Weights, Surface::Harness, Surface::Router] {
            let chain = (tenant, scenario, surface);
            let _turn = self.turn();
            if let Some(head) = self.head_of(chain)? {
                // Another process that moved it meanwhile serves a scenario that this one has forgotten: it loses.
                remove(&self.git()?, &branch(chain), Target::Object(object_id(&head)?))?;
            }
        }
        let options = PruneOptions { keep: &|_| false, grace: Duration::ZERO, dry_run: false, on_removal: None };
        self.prune((tenant, scenario), options)
    }
}
