//! One release looked at from end to end: every file, pointer and object, in constant memory for what LFS holds.
//! Verification, pull and the search for an intact release use it; it stops at nothing and changes nothing.

use reef_core::{ReleaseId, ScenarioName, TenantId};

use crate::manifest::FileEntry;
use crate::names::{ATTRIBUTES, ATTRIBUTES_TEXT, MANIFEST, SIGNATURE, is_lfs, shown};
use crate::objects::Files;
use crate::problem::{Problem, ProblemKind};
use crate::read::Opened;
use crate::repo::ReleaseRepo;
use crate::signing::ReleasePublicKey;
use crate::{ReleaseError, lfs};

impl ReleaseRepo {
    /// Checks one release: signature, every file against its hash, no file too many or too few.
    ///
    /// Errors: `NotFound`, `Corrupt` (the first problem; names the release, the file and the object), `Disk`, `Git`.
    pub fn check(&self, id: &ReleaseId) -> Result<(), ReleaseError> {
        let repo = self.git()?;
        let opened = Opened::find(&repo, id)?;
        let mut first = None;
        opened.inspect(&repo, &self.trusted, &mut |problem| {
            first.get_or_insert(problem);
        });
        first.map_or(Ok(()), |problem| Err(problem.into()))
    }

    /// The newest release before `broken` that is whole and can be served, or `None`.
    ///
    /// `known` are the releases before it that the database knows, newest first: where git has lost the commit of
    /// `broken`, its own chain leads nowhere. Releases whose objects retention removed do not count as whole.
    ///
    /// Errors: `Disk`, `Git` of the repository as a whole; what is wrong with single releases only passes them over.
    pub fn last_good(
        &self,
        (tenant, scenario): (&TenantId, &ScenarioName),
        broken: &ReleaseId,
        known: &[ReleaseId],
    ) -> Result<Option<ReleaseId>, ReleaseError> {
        let repo = self.git()?;
        let mut last = broken.clone();
        while let Some(id) = parent(&repo, &last) {
            match Opened::find(&repo, &id) {
                // A fork: what lies before it belongs to somebody else.
                Ok(found) if !found.stored.is_of(tenant, scenario) => return Ok(None),
                Ok(_) if self.check(&id).is_ok() => return Ok(Some(id)),
                _ => last = id,
            }
        }
        // The chain ended, at its root or at a hole: whatever the database knows beyond the last one is tried.
        let beyond = known.iter().position(|id| *id == last).map_or(0, |position| position + 1);
        Ok(known.iter().skip(beyond).find(|id| *id != broken && self.check(id).is_ok()).cloned())
    }
}

/// The parent that the commit names, whatever else is wrong with the release.
fn parent(repo: &gix::Repository, id: &ReleaseId) -> Option<ReleaseId> {
    crate::read::Commit::find(repo, id).ok()?.parents.into_iter().next()
}

impl Opened {
    /// Tells every problem of this release; returns the bytes that were read.
    pub fn inspect(&self, repo: &gix::Repository, trusted: &[ReleasePublicKey], tell: &mut dyn FnMut(Problem)) -> u64 {
        let mut told = |checked: Result<(), ReleaseError>| match checked {
            Ok(()) => {}
            Err(ReleaseError::Corrupt(problem)) => tell(*problem),
            Err(error) => tell(self.problem(ProblemKind::Unreadable, error.to_string())),
        };
        told(self.check_signature(repo, trusted));
        told(self.check_content_id());
        let blobs = match self.blobs(repo) {
            Ok(blobs) => blobs,
            Err(error) => {
                told(Err(error));
                return 0;
            }
        };
        for entry in &self.stored.files {
            told(self.check_entry(repo, &blobs, entry));
        }
        told(self.check_attributes(repo, &blobs));
        let own = [MANIFEST, ATTRIBUTES, SIGNATURE];
        for path in blobs.keys().filter(|path| !own.contains(&path.as_str()) && !self.lists(path)) {
            let shown = shown(path);
            told(Err(self.problem(ProblemKind::FileUnlisted, "it is not in the manifest").file(&shown).into()));
        }
        self.stored.files.iter().map(|entry| entry.size).sum()
    }

    fn check_content_id(&self) -> Result<(), ReleaseError> {
        let is = self.stored.content_id()?;
        match &self.told_content_id {
            Some(told) if told == is.as_str() => Ok(()),
            Some(told) => {
                let told: String = told.chars().take(64).flat_map(char::escape_default).collect();
                let reason = format!("its commit names the content id {told} and its files have {is}");
                Err(self.problem(ProblemKind::ContentIdDiffers, reason).into())
            }
            None => Err(self.problem(ProblemKind::ContentIdDiffers, "its commit names no content id").into()),
        }
    }

    fn check_entry(&self, repo: &gix::Repository, blobs: &Files, entry: &FileEntry) -> Result<(), ReleaseError> {
        if !is_lfs(&entry.path) {
            return self.plain(repo, blobs, entry).map(drop);
        }
        self.check_pointer(repo, blobs, entry)?;
        lfs::check(repo.path(), entry).map_err(|damage| self.object_damage(repo.path(), entry, damage))
    }

    fn check_attributes(&self, repo: &gix::Repository, blobs: &Files) -> Result<(), ReleaseError> {
        if self.blob(repo, blobs, ATTRIBUTES, ATTRIBUTES_TEXT.len() as u64)? == ATTRIBUTES_TEXT {
            return Ok(());
        }
        Err(self.problem(ProblemKind::FileDamaged, "it is not the one that Reef writes").file(ATTRIBUTES).into())
    }

    fn lists(&self, path: &str) -> bool {
        self.stored.files.binary_search_by(|entry| entry.path.as_str().cmp(path)).is_ok()
    }
}
