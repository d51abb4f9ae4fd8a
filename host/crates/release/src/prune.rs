//! Retention: LFS objects and refused candidates that nobody needs go, in two phases.
//! Marking says durably that objects of a release may be absent; sweeping, a grace period later, removes the objects that
//! no other release names. A crash between any two steps leaves a repository that reads and verifies, and the next run
//! goes on. Which releases are needed the caller decides; heads, and the newest release of every remote, always are.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use gix::refs::Target;
use reef_core::{ContentId, ReleaseId, ScenarioName, TenantId};
use serde::Serialize;

use crate::ReleaseError;
use crate::disk::age;
use crate::error::disk;
use crate::lfs;
use crate::manifest::FileEntry;
use crate::marks::{mark, marked_for, unmark};
use crate::names::{HEADS, QUARANTINE, REMOTES, RETAINED, is_lfs, retaining};
use crate::read::Opened;
use crate::refs::{list, remove};
use crate::repo::{ReleaseRepo, object_id, release_id};
use crate::sweep_lock::exclude;

/// What to keep.
pub struct PruneOptions<'a> {
    /// Is the release needed: pinned, held, within the staleness window? Asked for every release of the scenario.
    pub keep: &'a dyn Fn(&ReleaseId) -> bool,
    /// How long a release stays whole after it was found to be unneeded.
    pub grace: Duration,
    /// Only tell what would be done.
    pub dry_run: bool,
    /// Called before each file is removed.
    pub on_removal: Option<&'a mut dyn FnMut(&Path)>,
}

impl std::fmt::Debug for PruneOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { grace, dry_run, .. } = self;
        f.debug_struct("PruneOptions").field("grace", grace).field("dry_run", dry_run).finish_non_exhaustive()
    }
}

/// What was done, or would be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct PruneReport {
    /// Releases that were found to be unneeded now; their objects go after the grace period.
    pub marked: Vec<ReleaseId>,
    /// Releases that lost objects.
    pub pruned: Vec<ReleaseId>,
    /// Candidates that are no longer in the repository.
    pub candidates: Vec<ReleaseId>,
    /// LFS objects that were removed.
    pub objects: u64,
    /// Their bytes.
    pub bytes_freed: u64,
    /// Bytes that go when the grace period of what is marked has passed.
    pub bytes_waiting: u64,
    /// Nothing was changed.
    pub dry_run: bool,
}

impl ReleaseRepo {
    /// Removes what no kept release of the scenario needs. Releases of other scenarios are all kept.
    ///
    /// Errors: `Corrupt` and `NotFound` for a release that does not read, whose objects cannot be known: nothing is
    /// removed then; `Disk`, `Git`, `Locked`.
    pub fn prune(
        &self,
        (tenant, scenario): (&TenantId, &ScenarioName),
        mut options: PruneOptions<'_>,
    ) -> Result<PruneReport, ReleaseError> {
        let repo = self.git()?;
        // Nobody writes from here on: what is named by no reference now is named by nobody.
        let _alone = exclude(self.path())?;
        let now = SystemTime::now();
        let inventory = Inventory::read(&repo)?;
        let mut report = PruneReport { dry_run: options.dry_run, ..PruneReport::default() };
        let mut doomed = BTreeSet::new();
        let mut waiting = BTreeSet::new();
        for (id, held) in &inventory.releases {
            let needed =
                held.of != (tenant.clone(), scenario.clone()) || inventory.tips.contains(id) || (options.keep)(id);
            let marked = marked_for(self.path(), id, now);
            if needed {
                if marked.is_some() && !options.dry_run && held.objects.iter().all(|entry| lfs::has(self.path(), entry))
                {
                    unmark(self.path(), id)?;
                }
                continue;
            }
            if marked.is_none() {
                report.marked.push(id.clone());
                if !options.dry_run {
                    mark(self.path(), id, now)?;
                }
            }
            let past_grace = marked.unwrap_or_default() >= options.grace;
            if past_grace {
                doomed.insert(id)
            } else {
                waiting.insert(id)
            };
        }
        self.remove_candidates(&repo, &inventory, &doomed, &mut report)?;
        self.sweep(&inventory, (&doomed, &waiting), &mut options, &mut report)?;
        for id in report.candidates.iter().filter(|_| !options.dry_run) {
            unmark(self.path(), id)?;
        }
        Ok(report)
    }

    /// Lets go of doomed releases that no other release descends from. Git's own garbage collection takes the rest.
    fn remove_candidates(
        &self,
        repo: &gix::Repository,
        inventory: &Inventory,
        doomed: &BTreeSet<&ReleaseId>,
        report: &mut PruneReport,
    ) -> Result<(), ReleaseError> {
        let kept = inventory.releases.keys().filter(|id| !doomed.contains(id) || inventory.tips.contains(*id));
        let reachable = inventory.ancestry(kept);
        for id in doomed.iter().filter(|id| !reachable.contains(**id)) {
            report.candidates.push((*id).clone());
            if !report.dry_run {
                let _turn = self.turn();
                remove(repo, &retaining(id), Target::Object(object_id(id)?))?;
            }
        }
        Ok(())
    }

    fn sweep(
        &self,
        inventory: &Inventory,
        (doomed, waiting): (&BTreeSet<&ReleaseId>, &BTreeSet<&ReleaseId>),
        options: &mut PruneOptions<'_>,
        report: &mut PruneReport,
    ) -> Result<(), ReleaseError> {
        let named = |chosen: &dyn Fn(&ReleaseId) -> bool| -> BTreeSet<&str> {
            let chosen = inventory.releases.iter().filter(|(id, _)| chosen(id));
            chosen.flat_map(|(_, held)| held.objects.iter().map(|entry| entry.sha256.as_str())).collect()
        };
        let needed = named(&|id| !doomed.contains(id) && !waiting.contains(id));
        let waits = named(&|id| waiting.contains(id));
        let mut removed = BTreeSet::new();
        for (path, name, bytes) in objects(self.path())? {
            if needed.contains(name.as_str()) {
                continue;
            }
            if waits.contains(name.as_str()) {
                report.bytes_waiting += bytes;
                continue;
            }
            // An object that no release names may be one that another program is about to name.
            if age(&path).is_none_or(|age| age < options.grace) {
                continue;
            }
            if let Some(tell) = options.on_removal.as_mut() {
                tell(&path);
            }
            if !options.dry_run {
                fs::remove_file(&path).map_err(disk("remove", &path))?;
            }
            report.objects += 1;
            report.bytes_freed += bytes;
            removed.insert(name);
        }
        let lost = |id: &&&ReleaseId| {
            let held = inventory.releases.get(**id);
            held.is_some_and(|held| held.objects.iter().any(|entry| removed.contains(&entry.sha256)))
        };
        report.pruned = doomed.iter().filter(lost).map(|id| (*id).clone()).collect();
        Ok(())
    }
}

/// What a release needs.
struct Held {
    of: (TenantId, ScenarioName),
    parent: Option<ReleaseId>,
    objects: Vec<FileEntry>,
}

/// Every release that a reference leads to.
struct Inventory {
    releases: BTreeMap<ReleaseId, Held>,
    /// Heads, and the newest releases of remotes.
    tips: BTreeSet<ReleaseId>,
}

impl Inventory {
    fn read(repo: &gix::Repository) -> Result<Self, ReleaseError> {
        let mut found = Self { releases: BTreeMap::new(), tips: BTreeSet::new() };
        for prefix in [HEADS, REMOTES, QUARANTINE, RETAINED] {
            for (_, commit) in list(repo, prefix)? {
                let id = release_id(commit)?;
                if prefix != RETAINED {
                    found.tips.insert(id.clone());
                }
                found.follow(repo, id)?;
            }
        }
        Ok(found)
    }

    fn follow(&mut self, repo: &gix::Repository, id: ReleaseId) -> Result<(), ReleaseError> {
        let mut next = Some(id);
        while let Some(id) = next.filter(|id| !self.releases.contains_key(id)) {
            let stored = Opened::find(repo, &id)?.stored;
            next = stored.manifest.parent.clone();
            let held = Held {
                of: (stored.manifest.tenant, stored.manifest.scenario),
                parent: stored.manifest.parent,
                objects: stored.files.into_iter().filter(|entry| is_lfs(&entry.path)).collect(),
            };
            self.releases.insert(id, held);
        }
        Ok(())
    }

    /// The releases that these descend from, and these.
    fn ancestry<'a>(&'a self, of: impl Iterator<Item = &'a ReleaseId>) -> BTreeSet<&'a ReleaseId> {
        let mut reached = BTreeSet::new();
        for id in of {
            let mut next = Some(id);
            while let Some(id) = next.filter(|id| !reached.contains(id)) {
                reached.insert(id);
                next = self.releases.get(id).and_then(|held| held.parent.as_ref());
            }
        }
        reached
    }
}

/// Every LFS object: where, name, bytes. Anything else in the folder is left alone.
fn objects(repository: &Path) -> Result<Vec<(PathBuf, String, u64)>, ReleaseError> {
    let root = repository.join("lfs/objects");
    let mut found = Vec::new();
    for first in entries(&root)? {
        for second in entries(&first)? {
            for path in entries(&second)? {
                let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                let metadata = fs::symlink_metadata(&path).map_err(disk("read", &path))?;
                let is_object = ContentId::parse(name.as_str()).is_ok() && lfs::object_path(repository, &name) == path;
                if metadata.is_file() && is_object {
                    found.push((path, name, metadata.len()));
                }
            }
        }
    }
    Ok(found)
}

/// What a folder holds; nothing for a file.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, ReleaseError> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let listed =
        fs::read_dir(folder).and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect());
    listed.map_err(disk("list", folder))
}
