//! Reading releases: every byte is checked against the manifest before anybody sees it.

use std::collections::BTreeMap;

use gix::ObjectId;
use gix::objs::{CommitRef, Kind};
use reef_core::{Release, ReleaseId, ScenarioName, TenantId, sha256_hex};

use crate::manifest::{FileEntry, MANIFEST_BYTES_MAX, StoredManifest};
use crate::names::{ATTRIBUTES, ATTRIBUTES_TEXT, MANIFEST, is_lfs, shown};
use crate::objects::{Damage, NODE_BYTES_MAX, files, get};
use crate::repo::{ReleaseRepo, object_id, release_id};
use crate::{ReleaseError, lfs};

impl ReleaseRepo {
    /// A release as it is listed.
    ///
    /// Errors: `NotFound`, `Corrupt`, `Disk`, `Git`.
    pub fn release(&self, id: &ReleaseId) -> Result<Release, ReleaseError> {
        Opened::find(&self.git()?, id)?.stored.release(id)
    }

    /// The bytes of one payload file, LFS pointer resolved, SHA-256 checked.
    ///
    /// Errors: `NotFound`, `NoFile`, `Corrupt` (names the file), `Disk`, `Git`.
    pub fn file(&self, id: &ReleaseId, path: &str) -> Result<Vec<u8>, ReleaseError> {
        let repo = self.git()?;
        let opened = Opened::find(&repo, id)?;
        let entry = opened.stored.files.iter().find(|entry| entry.path == path);
        let entry = entry.ok_or_else(|| ReleaseError::NoFile { release: opened.label(), path: shown(path) })?;
        opened.read(&repo, &opened.blobs(&repo)?, entry)
    }

    /// All payload files with their paths, sorted by path.
    ///
    /// Errors: `NotFound`, `Corrupt` (names the file), `Disk`, `Git`.
    pub fn files(&self, id: &ReleaseId) -> Result<Vec<(String, Vec<u8>)>, ReleaseError> {
        let repo = self.git()?;
        let opened = Opened::find(&repo, id)?;
        let blobs = opened.blobs(&repo)?;
        opened.stored.files.iter().map(|entry| Ok((entry.path.clone(), opened.read(&repo, &blobs, entry)?))).collect()
    }

    /// The last `limit` releases of a scenario, newest first. Ends where the chain enters another scenario.
    ///
    /// Errors: `Corrupt`, `Disk`, `Git`.
    pub fn log(&self, tenant: &TenantId, scenario: &ScenarioName, limit: usize) -> Result<Vec<Release>, ReleaseError> {
        let mut next = self.head(tenant, scenario)?;
        let repo = self.git()?;
        let mut releases: Vec<Release> = Vec::new();
        while let Some(id) = next.filter(|_| releases.len() < limit) {
            let stored = Opened::find(&repo, &id)?.stored;
            if (&stored.manifest.tenant, &stored.manifest.scenario) != (tenant, scenario) {
                break;
            }
            next = stored.manifest.parent.clone();
            releases.push(stored.release(&id)?);
        }
        Ok(releases)
    }

    /// Checks everything: each file against its hash, no file too many or too few, and every ancestor's manifest.
    ///
    /// Errors: `NotFound`, `Corrupt` (names what is wrong), `Disk`, `Git`.
    pub fn verify(&self, id: &ReleaseId) -> Result<(), ReleaseError> {
        let repo = self.git()?;
        let opened = Opened::find(&repo, id)?;
        let blobs = opened.blobs(&repo)?;
        for entry in &opened.stored.files {
            opened.read(&repo, &blobs, entry)?;
        }
        let own = [MANIFEST, ATTRIBUTES];
        let foreign = blobs.keys().find(|path| !own.contains(&path.as_str()) && !opened.lists(path));
        if let Some(path) = foreign {
            return Err(opened.corrupt(format!("file {} is not in the manifest", shown(path))));
        }
        if opened.blob(&repo, &blobs, ATTRIBUTES, ATTRIBUTES_TEXT.len() as u64)? != ATTRIBUTES_TEXT {
            return Err(opened.corrupt(format!("file {ATTRIBUTES} is not the one that Reef writes")));
        }
        let mut next = opened.stored.manifest.parent.clone();
        while let Some(ancestor) = next {
            let missing = |error: ReleaseError| match error {
                ReleaseError::NotFound { release } => opened.corrupt(format!("its ancestor {release} is missing")),
                other => other,
            };
            next = Opened::find(&repo, &ancestor).map_err(missing)?.stored.manifest.parent;
        }
        Ok(())
    }
}

/// A release whose commit and manifest have been read and agree.
pub struct Opened {
    id: ReleaseId,
    /// The manifest.
    pub stored: StoredManifest,
    tree: ObjectId,
}

impl Opened {
    /// Reads the commit and its manifest.
    pub fn find(repo: &gix::Repository, id: &ReleaseId) -> Result<Self, ReleaseError> {
        let label = format!("release {id}");
        let corrupt = |problem: String| ReleaseError::Corrupt { release: label.clone(), problem };
        let commit = get(repo, object_id(id)?, Kind::Commit, NODE_BYTES_MAX).map_err(|damage| match damage {
            Damage::Missing => ReleaseError::NotFound { release: id.clone() },
            other => damaged(&label, "its commit", other),
        })?;
        let commit = CommitRef::from_bytes(&commit, repo.object_hash()).map_err(|error| corrupt(error.to_string()))?;
        let damaged = |damage| damaged(&label, &format!("file {MANIFEST}"), damage);
        let root = get(repo, commit.tree(), Kind::Tree, NODE_BYTES_MAX).map_err(damaged)?;
        let blob = gix::objs::TreeRefIter::from_bytes(&root, repo.object_hash())
            .filter_map(Result::ok)
            .find(|entry| entry.filename == MANIFEST && entry.mode.is_blob())
            .ok_or_else(|| corrupt(format!("the commit has no {MANIFEST}, it is not a release")))?;
        let text = get(repo, blob.oid.to_owned(), Kind::Blob, MANIFEST_BYTES_MAX).map_err(damaged)?;
        let stored = StoredManifest::decode(&text).map_err(|error| corrupt(format!("file {MANIFEST}: {error}")))?;
        let parents = commit.parents().map(release_id).collect::<Result<Vec<_>, _>>()?;
        if !parents.iter().eq(&stored.manifest.parent) {
            return Err(corrupt(format!("file {MANIFEST} names another parent than the commit")));
        }
        Ok(Self { id: id.clone(), tree: commit.tree(), stored })
    }

    /// The release in an error.
    pub fn label(&self) -> String {
        self.stored.label(&self.id)
    }

    fn corrupt(&self, problem: String) -> ReleaseError {
        ReleaseError::Corrupt { release: self.label(), problem }
    }

    fn damaged_file(&self, path: &str, damage: Damage) -> ReleaseError {
        damaged(&self.label(), &format!("file {path}"), damage)
    }

    fn lists(&self, path: &str) -> bool {
        self.stored.files.binary_search_by(|entry| entry.path.as_str().cmp(path)).is_ok()
    }

    fn blobs(&self, repo: &gix::Repository) -> Result<BTreeMap<String, ObjectId>, ReleaseError> {
        files(repo, self.tree).map_err(|damage| damaged(&self.label(), "its folders", damage))
    }

    fn blob(
        &self,
        repo: &gix::Repository,
        blobs: &BTreeMap<String, ObjectId>,
        path: &str,
        bytes_max: u64,
    ) -> Result<Vec<u8>, ReleaseError> {
        let blob = blobs.get(path).ok_or_else(|| self.corrupt(format!("file {path} is not in the commit")))?;
        get(repo, *blob, Kind::Blob, bytes_max).map_err(|damage| self.damaged_file(path, damage))
    }

    fn read(
        &self,
        repo: &gix::Repository,
        blobs: &BTreeMap<String, ObjectId>,
        entry: &FileEntry,
    ) -> Result<Vec<u8>, ReleaseError> {
        let FileEntry { path, sha256, size } = entry;
        let bytes = if is_lfs(path) {
            let pointer = lfs::pointer(entry);
            if self.blob(repo, blobs, path, pointer.len() as u64)? != pointer.as_bytes() {
                return Err(self.corrupt(format!("file {path}: its LFS pointer is not the one of the manifest")));
            }
            lfs::get(repo.path(), entry).map_err(|damage| self.damaged_file(path, damage))?
        } else {
            self.blob(repo, blobs, path, *size)?
        };
        let found = sha256_hex(&bytes);
        if found != *sha256 || bytes.len() as u64 != *size {
            return Err(self.corrupt(format!(
                "file {path}: sha256 differs, the manifest says {sha256} and the bytes have {found}"
            )));
        }
        Ok(bytes)
    }
}

fn damaged(release: &str, what: &str, damage: Damage) -> ReleaseError {
    let corrupt = |problem: String| ReleaseError::Corrupt { release: release.to_owned(), problem };
    match damage {
        Damage::Missing => corrupt(format!("{what}: its git object is missing")),
        Damage::Broken(problem) => corrupt(format!("{what}: {problem}")),
        Damage::Unreadable(error) => error,
    }
}
