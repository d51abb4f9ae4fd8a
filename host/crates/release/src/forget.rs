//! The chains of a scenario taken out of the repository: its branches, then whatever no other scenario's release needs.
//! A release that another scenario began with stays. What is about to be forgotten is noted as a file
//! `reef/forgetting/<tenant>@<scenario>`, so that a crash in the middle is finished later.

use std::path::PathBuf;
use std::time::Duration;
use std::{fs, io};

use gix::refs::Target;
use reef_core::{ScenarioName, Surface, TenantId};

use crate::ReleaseError;
use crate::disk::{create_folders, sync};
use crate::error::disk;
use crate::names::branch;
use crate::prune::{PruneOptions, PruneReport};
use crate::refs::remove;
use crate::repo::{ReleaseRepo, object_id};

const FOLDER: &str = "reef/forgetting";

impl ReleaseRepo {
    /// Notes, durably, that a scenario is about to be forgotten.
    pub fn begin_forgetting(&self, tenant: &TenantId, scenario: &ScenarioName) -> Result<(), ReleaseError> {
        let (folder, path) = (self.path().join(FOLDER), self.note(tenant, scenario));
        create_folders(&folder)?;
        fs::write(&path, []).map_err(disk("write", &path))?;
        sync(&path)?;
        sync(&folder)
    }

    /// What was noted and neither forgotten nor taken back.
    pub fn forgetting(&self) -> Result<Vec<(TenantId, ScenarioName)>, ReleaseError> {
        let folder = self.path().join(FOLDER);
        let entries = match fs::read_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(disk("list", &folder))?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let name = entry.map_err(disk("list", &folder))?.file_name();
            let names = name.to_str().and_then(|name| name.split_once('@'));
            let Some((tenant, scenario)) = names else { continue };
            // Nobody but Reef writes here; another file is not a note.
            if let (Ok(tenant), Ok(scenario)) = (TenantId::parse(tenant), ScenarioName::parse(scenario)) {
                found.push((tenant, scenario));
            }
        }
        Ok(found)
    }

    /// Takes the note away.
    pub fn stop_forgetting(&self, tenant: &TenantId, scenario: &ScenarioName) -> Result<(), ReleaseError> {
        let path = self.note(tenant, scenario);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(disk("remove", &path)(error)),
            _ => Ok(()),
        }
    }

    fn note(&self, tenant: &TenantId, scenario: &ScenarioName) -> PathBuf {
        self.path().join(FOLDER).join(format!("{tenant}@{scenario}"))
    }

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
        let pruned = self.prune((tenant, scenario), options)?;
        self.stop_forgetting(tenant, scenario)?;
        Ok(pruned)
    }
}
