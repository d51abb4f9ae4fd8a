//! What can be wrong with a stored release: one type for the error of a read and for a finding of a verification.
//! Each problem names the release, the file or object, the reason and the remedy.

use std::fmt;

use reef_core::ReleaseId;
use serde::Serialize;

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProblemKind {
    /// The commit is not in the repository.
    CommitMissing,
    /// The commit, or one of its trees, has other bytes than its name says, or is no release.
    CommitDamaged,
    /// `manifest.json` is damaged or does not describe a release.
    ManifestDamaged,
    /// Manifest and commit name different parents.
    ParentDiffers,
    /// A release does not come after its parent.
    SequenceOrder,
    /// A release stands in the chain of another scenario.
    OtherScenario,
    /// A release stands in the chain of another surface.
    OtherSurface,
    /// A listed file is not in the commit.
    FileMissing,
    /// A file has other bytes than the manifest says.
    FileDamaged,
    /// The commit holds a file that the manifest does not list.
    FileUnlisted,
    /// The Git LFS pointer is not the one of the manifest.
    PointerDiffers,
    /// A Git LFS object is absent.
    ObjectMissing,
    /// A Git LFS object has other bytes than its name says.
    ObjectDamaged,
    /// A Git LFS object was removed by retention, or never came from a remote.
    ObjectPruned,
    /// The content id that the commit or the database names is not the one of the files.
    ContentIdDiffers,
    /// Keys are trusted and nobody signed.
    SignatureMissing,
    /// The key of the signature is not trusted.
    SignatureUntrusted,
    /// The signature is not one of this manifest.
    SignatureWrong,
    /// The branch is not where the database says.
    HeadDiffers,
    /// Database and manifest disagree.
    DatabaseDiffers,
    /// The database does not know a release of the chain.
    NotInDatabase,
    /// The disk does not give the bytes; they may be whole.
    Unreadable,
}

impl ProblemKind {
    /// What to do about it.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::CommitMissing
            | Self::CommitDamaged
            | Self::ManifestDamaged
            | Self::FileMissing
            | Self::FileDamaged
            | Self::PointerDiffers => {
                "restore the repository from a backup or a clone, or roll back to another release"
            }
            Self::ObjectMissing | Self::ObjectDamaged => {
                "pull the scenario with --repair from a remote that has the object, restore it from a backup or a clone, \
                 or roll back to another release"
            }
            Self::ObjectPruned => {
                "pull the scenario from a remote that has the object, or roll back to a release that was kept"
            }
            Self::ParentDiffers
            | Self::SequenceOrder
            | Self::OtherScenario
            | Self::OtherSurface
            | Self::FileUnlisted
            | Self::ContentIdDiffers => {
                "Reef did not write this: find out who pushed it, and roll back to a release before it"
            }
            Self::SignatureMissing => {
                "if it is from before releases were signed, take the trusted keys out of the configuration, roll back \
                 to it, which writes a signed copy, and put them back"
            }
            Self::SignatureUntrusted => "if you trust the owner of that key, add its public key to the trusted keys",
            Self::SignatureWrong => "do not serve it; restore the repository from a backup or roll back",
            Self::HeadDiffers => "start the server once: it brings the branch to the head of the database",
            Self::DatabaseDiffers | Self::NotInDatabase => {
                "database and repository are not of the same time: restore both from one backup"
            }
            Self::Unreadable => "check the disk and the rights on the repository, then verify again",
        }
    }
}

/// One thing that is wrong with one release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// What is wrong.
    pub kind: ProblemKind,
    /// The release.
    pub release_id: ReleaseId,
    /// The release in words: `release r7 of acme/spell (…)`.
    pub release: String,
    /// The file, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// SHA-256 of the Git LFS object, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// Why.
    pub reason: String,
    /// What to do.
    pub remedy: &'static str,
}

impl Problem {
    /// A problem of a whole release; `label` names it in words.
    pub(crate) fn new(kind: ProblemKind, id: &ReleaseId, label: String, reason: String) -> Self {
        let remedy = kind.remedy();
        Self { kind, release_id: id.clone(), release: label, file: None, object: None, reason, remedy }
    }

    /// Names the file.
    pub(crate) fn file(mut self, path: &str) -> Self {
        self.reason = format!("file {path}: {}", self.reason);
        self.file = Some(path.to_owned());
        self
    }

    /// Names the Git LFS object.
    pub(crate) fn object(mut self, sha256: &str) -> Self {
        self.object = Some(sha256.to_owned());
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { release, reason, remedy, .. } = self;
        write!(f, "{release}: {reason}; {remedy}")
    }
}
