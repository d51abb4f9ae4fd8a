//! Reading releases: every byte is checked against the manifest before anybody sees it.
//! Where keys are trusted, a release without the signature of one of them is not read at all.

use gix::ObjectId;
use gix::objs::{CommitRef, Kind};
use reef_core::{Release, ReleaseId, ScenarioName, Surface, TenantId, sha256_hex};

use crate::manifest::{CONTENT_ID, FileEntry, MANIFEST_BYTES_MAX, StoredManifest};
use crate::marks::is_marked;
use crate::names::{MANIFEST, SIGNATURE, is_lfs, shown};
use crate::objects::{Damage, Files, NODE_BYTES_MAX, files, get};
use crate::problem::{Problem, ProblemKind};
use crate::repo::{ReleaseRepo, object_id, release_id};
use crate::signing::{self, Distrust, ReleasePublicKey, SIGNATURE_BYTES_MAX};
use crate::{ReleaseError, lfs};

impl ReleaseRepo {
    /// A release as it is listed.
    ///
    /// Errors: `NotFound`, `Corrupt`, `Disk`, `Git`.
    pub fn release(&self, id: &ReleaseId) -> Result<Release, ReleaseError> {
        self.opened(&self.git()?, id)?.stored.release(id)
    }

    /// The bytes of one payload file, LFS pointer resolved, SHA-256 checked.
    ///
    /// Errors: `NotFound`, `NoFile`, `Corrupt` (names the file and the LFS object), `Disk`, `Git`.
    pub fn file(&self, id: &ReleaseId, path: &str) -> Result<Vec<u8>, ReleaseError> {
        let repo = self.git()?;
        let opened = self.opened(&repo, id)?;
        let entry = opened.stored.files.iter().find(|entry| entry.path == path);
        let entry = entry.ok_or_else(|| ReleaseError::NoFile { release: opened.label(), path: shown(path) })?;
        opened.read(&repo, &opened.blobs(&repo)?, entry)
    }

    /// All payload files with their paths, sorted by path.
    ///
    /// Errors: `NotFound`, `Corrupt` (names the file and the LFS object), `Disk`, `Git`.
    pub fn files(&self, id: &ReleaseId) -> Result<Vec<(String, Vec<u8>)>, ReleaseError> {
        let repo = self.git()?;
        let opened = self.opened(&repo, id)?;
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
            let stored = self.opened(&repo, &id)?.stored;
            if !stored.is_of(tenant, scenario) {
                break;
            }
            next = stored.manifest.parent.clone();
            releases.push(stored.release(&id)?);
        }
        Ok(releases)
    }

    /// Reads commit and manifest, and the signature where keys are trusted.
    pub(crate) fn opened(&self, repo: &gix::Repository, id: &ReleaseId) -> Result<Opened, ReleaseError> {
        let opened = Opened::find(repo, id)?;
        opened.check_signature(repo, &self.trusted)?;
        Ok(opened)
    }
}

/// What a commit says before its manifest is read.
pub struct Commit {
    /// Its parents.
    pub parents: Vec<ReleaseId>,
    /// The root folder.
    tree: ObjectId,
    /// The content id of its message.
    content_id: Option<String>,
}

impl Commit {
    /// Reads a commit.
    pub fn find(repo: &gix::Repository, id: &ReleaseId) -> Result<Self, ReleaseError> {
        let damaged = |reason: String| {
            let problem = Problem::new(ProblemKind::CommitDamaged, id, format!("release {id}"), reason);
            ReleaseError::from(problem)
        };
        let bytes = get(repo, object_id(id)?, Kind::Commit, NODE_BYTES_MAX).map_err(|damage| match damage {
            Damage::Missing => ReleaseError::NotFound { release: id.clone() },
            Damage::Broken(problem) => damaged(format!("its commit: {problem}")),
            Damage::Unreadable(error) => error,
        })?;
        let commit = CommitRef::from_bytes(&bytes, repo.object_hash()).map_err(|error| damaged(error.to_string()))?;
        let message = std::str::from_utf8(commit.message).unwrap_or_default();
        Ok(Self {
            parents: commit.parents().map(release_id).collect::<Result<_, _>>()?,
            tree: commit.tree(),
            content_id: message.lines().find_map(|line| line.strip_prefix(CONTENT_ID)).map(str::to_owned),
        })
    }
}

/// A release whose commit and manifest have been read and agree.
pub struct Opened {
    /// Its id.
    pub id: ReleaseId,
    /// The manifest.
    pub stored: StoredManifest,
    /// The manifest as it is stored; what a signature covers.
    text: Vec<u8>,
    tree: ObjectId,
    signature: Option<ObjectId>,
    /// The content id of the commit's message.
    pub told_content_id: Option<String>,
}

impl Opened {
    /// Reads the commit and its manifest. No signature is checked.
    pub fn find(repo: &gix::Repository, id: &ReleaseId) -> Result<Self, ReleaseError> {
        let commit = Commit::find(repo, id)?;
        let problem =
            |kind, reason: String| ReleaseError::from(Problem::new(kind, id, format!("release {id}"), reason));
        let damaged = |damage| match damage {
            Damage::Missing => {
                problem(ProblemKind::CommitDamaged, format!("file {MANIFEST}: its git object is missing"))
            }
            Damage::Broken(reason) => problem(ProblemKind::ManifestDamaged, format!("file {MANIFEST}: {reason}")),
            Damage::Unreadable(error) => error,
        };
        let root = get(repo, commit.tree, Kind::Tree, NODE_BYTES_MAX).map_err(damaged)?;
        let (mut manifest, mut signature) = (None, None);
        for entry in gix::objs::TreeRefIter::from_bytes(&root, repo.object_hash()).filter_map(Result::ok) {
            if entry.mode.is_blob() && entry.filename == MANIFEST {
                manifest = Some(entry.oid.to_owned());
            } else if entry.mode.is_blob() && entry.filename == SIGNATURE {
                signature = Some(entry.oid.to_owned());
            }
        }
        let manifest = manifest.ok_or_else(|| {
            problem(ProblemKind::CommitDamaged, format!("the commit has no {MANIFEST}, it is not a release"))
        })?;
        let text = get(repo, manifest, Kind::Blob, MANIFEST_BYTES_MAX).map_err(damaged)?;
        let stored = StoredManifest::decode(&text)
            .map_err(|error| problem(ProblemKind::ManifestDamaged, format!("file {MANIFEST}: {error}")))?;
        if !commit.parents.iter().eq(&stored.manifest.parent) {
            let reason = format!("file {MANIFEST} names another parent than the commit");
            return Err(problem(ProblemKind::ParentDiffers, reason));
        }
        Ok(Self { id: id.clone(), stored, text, tree: commit.tree, signature, told_content_id: commit.content_id })
    }

    /// The release in an error.
    pub fn label(&self) -> String {
        self.stored.label(&self.id)
    }

    /// A problem of this release.
    pub fn problem(&self, kind: ProblemKind, reason: impl Into<String>) -> Problem {
        Problem::new(kind, &self.id, self.label(), reason.into())
    }

    /// What is wrong with a release in the chain of this surface, if it is of another.
    pub fn on_other_surface(&self, surface: Surface) -> Option<Problem> {
        let own = self.stored.manifest.surface;
        (own != surface).then(|| {
            let reason =
                format!("it is a release of {} and the chain of {} leads to it", own.as_str(), surface.as_str());
            self.problem(ProblemKind::OtherSurface, reason)
        })
    }

    /// Where keys are trusted, one of them must have signed.
    pub fn check_signature(&self, repo: &gix::Repository, trusted: &[ReleasePublicKey]) -> Result<(), ReleaseError> {
        if trusted.is_empty() {
            return Ok(());
        }
        let blob = self.signature.ok_or_else(|| {
            self.problem(ProblemKind::SignatureMissing, "it is not signed, and only signed releases are trusted here")
        })?;
        let text = get(repo, blob, Kind::Blob, SIGNATURE_BYTES_MAX)
            .map_err(|damage| self.damaged(ProblemKind::SignatureWrong, SIGNATURE, damage))?;
        signing::check(&text, &self.text, trusted).map_err(|distrust| {
            let (kind, reason) = match distrust {
                Distrust::Untrusted(reason) => (ProblemKind::SignatureUntrusted, reason),
                Distrust::Wrong(reason) => (ProblemKind::SignatureWrong, reason),
            };
            self.problem(kind, reason).into()
        })
    }

    /// Blobs of the commit by path.
    pub fn blobs(&self, repo: &gix::Repository) -> Result<Files, ReleaseError> {
        files(repo, self.tree).map_err(|damage| match damage {
            Damage::Missing => {
                self.problem(ProblemKind::CommitDamaged, "its folders: its git object is missing").into()
            }
            Damage::Broken(reason) => self.problem(ProblemKind::CommitDamaged, format!("its folders: {reason}")).into(),
            Damage::Unreadable(error) => error,
        })
    }

    /// Bytes of one blob of the commit.
    pub fn blob(
        &self,
        repo: &gix::Repository,
        blobs: &Files,
        path: &str,
        bytes_max: u64,
    ) -> Result<Vec<u8>, ReleaseError> {
        let blob = blobs
            .get(path)
            .ok_or_else(|| self.problem(ProblemKind::FileMissing, "it is not in the commit").file(path))?;
        get(repo, *blob, Kind::Blob, bytes_max).map_err(|damage| self.damaged(ProblemKind::FileDamaged, path, damage))
    }

    /// What a damaged git object of a file means.
    fn damaged(&self, kind: ProblemKind, path: &str, damage: Damage) -> ReleaseError {
        match damage {
            Damage::Missing => self.problem(ProblemKind::FileMissing, "its git object is missing").file(path).into(),
            Damage::Broken(reason) => self.problem(kind, reason).file(path).into(),
            Damage::Unreadable(error) => error,
        }
    }

    /// What a damaged LFS object means; `repository` knows which releases were pruned.
    pub fn object_damage(&self, repository: &std::path::Path, entry: &FileEntry, damage: Damage) -> ReleaseError {
        let place = lfs::object_path(repository, &entry.sha256);
        let problem = match damage {
            Damage::Missing if is_marked(repository, &self.id) => {
                let reason = format!("LFS object {} was removed by retention", entry.sha256);
                self.problem(ProblemKind::ObjectPruned, reason)
            }
            Damage::Missing => {
                self.problem(ProblemKind::ObjectMissing, format!("LFS object {} is missing", place.display()))
            }
            Damage::Broken(reason) => self.problem(ProblemKind::ObjectDamaged, reason),
            Damage::Unreadable(error) => return error,
        };
        problem.file(&entry.path).object(&entry.sha256).into()
    }

    /// Checks that git holds the pointer of the manifest.
    pub fn check_pointer(&self, repo: &gix::Repository, blobs: &Files, entry: &FileEntry) -> Result<(), ReleaseError> {
        let pointer = lfs::pointer(entry);
        if self.blob(repo, blobs, &entry.path, pointer.len() as u64)? == pointer.as_bytes() {
            return Ok(());
        }
        let reason = "its LFS pointer is not the one of the manifest";
        Err(self.problem(ProblemKind::PointerDiffers, reason).file(&entry.path).into())
    }

    /// Bytes of a file that git itself holds, checked.
    pub fn plain(&self, repo: &gix::Repository, blobs: &Files, entry: &FileEntry) -> Result<Vec<u8>, ReleaseError> {
        let bytes = self.blob(repo, blobs, &entry.path, entry.size)?;
        lfs::equal(entry, &sha256_hex(&bytes), bytes.len() as u64)
            .map_err(|damage| self.damaged(ProblemKind::FileDamaged, &entry.path, damage))?;
        Ok(bytes)
    }

    fn read(&self, repo: &gix::Repository, blobs: &Files, entry: &FileEntry) -> Result<Vec<u8>, ReleaseError> {
        if !is_lfs(&entry.path) {
            return self.plain(repo, blobs, entry);
        }
        self.check_pointer(repo, blobs, entry)?;
        let bytes = lfs::get(repo.path(), entry)
            .and_then(|bytes| lfs::equal(entry, &sha256_hex(&bytes), bytes.len() as u64).map(|()| bytes));
        bytes.map_err(|damage| self.object_damage(repo.path(), entry, damage))
    }
}
