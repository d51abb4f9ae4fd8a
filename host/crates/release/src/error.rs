//! What can go wrong with releases, each with its remedy.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use reef_core::{ReleaseId, ScenarioName, TenantId};

use crate::Problem;

/// Split by what the caller can do: retry (`Locked`, `HeadMoved`), repair the machine (`Folder`, `Disk`, `Git`),
/// correct its input (`Path`, `Manifest`, `TooLarge`, `NotFound`, `NoFile`, `OtherScenario`), or restore (`Corrupt`).
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    /// The folder is not a release repository.
    #[error(
        "release repository {}: {problem}; name a folder that is absent, empty, or a bare git repository of releases",
        path.display()
    )]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What it is instead.
        problem: String,
    },
    /// The file system refused.
    #[error("release repository: cannot {doing} {}: {cause}; {}", path.display(), disk_remedy(cause))]
    Disk {
        /// Verb.
        doing: &'static str,
        /// File or folder.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The object or reference database refused for another reason than the disk.
    #[error(
        "release repository: cannot {doing}: {cause}; run `git fsck` in it and restore what is damaged from a backup"
    )]
    Git {
        /// Verb and object.
        doing: &'static str,
        /// What the database said.
        cause: String,
    },
    /// Another process holds a lock.
    #[error("release repository: {what} stayed locked for {waited_s} s; try again{remedy}")]
    Locked {
        /// What is locked.
        what: String,
        /// Seconds.
        waited_s: u64,
        /// What more to do, beginning with its comma.
        remedy: String,
    },
    /// A file has a path that a release cannot hold.
    #[error("release file '{shown}': {rule}; rename the file")]
    Path {
        /// The path, escaped and shortened.
        shown: String,
        /// The rule that it breaks.
        rule: String,
    },
    /// The manifest cannot be stored.
    #[error("release manifest: {problem}; correct it and write again")]
    Manifest {
        /// Field and reason.
        problem: String,
    },
    /// More than a release holds.
    #[error("{what} has {found}, a release holds at most {max}; make the update smaller")]
    TooLarge {
        /// What was counted or measured.
        what: String,
        /// How much.
        found: u64,
        /// Limit in the same unit.
        max: u64,
    },
    /// No such release.
    #[error("release {release} is not in the repository; list the releases of the scenario for the ones that are")]
    NotFound {
        /// The id that was asked for.
        release: ReleaseId,
    },
    /// The release has no such file.
    #[error("{release}: there is no file {path}; list its files for the ones that it has")]
    NoFile {
        /// `release r7 of acme/spell (…)`.
        release: String,
        /// The path, escaped and shortened.
        path: String,
    },
    /// Stored bytes are not what was written, or nobody trusted signed them.
    #[error("{0}")]
    Corrupt(Box<Problem>),
    /// Somebody else advanced the head.
    #[error(
        "scenario {tenant}/{scenario}: the head is {}, expected {}; read the head and continue from there",
        shown_head(found),
        shown_head(expected)
    )]
    HeadMoved {
        /// Owner.
        tenant: TenantId,
        /// Scenario.
        scenario: ScenarioName,
        /// What the caller took for the head.
        expected: Option<ReleaseId>,
        /// The head.
        found: Option<ReleaseId>,
    },
    /// A release can only be the head of the scenario that its manifest names.
    #[error(
        "{release} cannot be the head of {tenant}/{scenario}; write a release of that scenario with the same files"
    )]
    OtherScenario {
        /// `release r7 of acme/spell (…)`.
        release: String,
        /// Owner of the asked scenario.
        tenant: TenantId,
        /// The asked scenario.
        scenario: ScenarioName,
    },
}

impl From<Problem> for ReleaseError {
    fn from(problem: Problem) -> Self {
        Self::Corrupt(Box::new(problem))
    }
}

fn shown_head(head: &Option<ReleaseId>) -> &str {
    head.as_ref().map_or("no release", ReleaseId::as_str)
}

fn disk_remedy(cause: &io::Error) -> &'static str {
    match cause.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free space on that disk",
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            "make it readable and writable for the user that runs reef"
        }
        _ => "check the path and the disk",
    }
}

/// Binds a verb and a path to an `io::Error`.
pub fn disk(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ReleaseError {
    move |cause| ReleaseError::Disk { doing, path: path.to_owned(), cause }
}

/// Turns an error of gix into one of ours; a disk error keeps its kind, so that its remedy fits.
pub fn git(doing: &'static str, repository: &Path) -> impl FnOnce(gix::Error) -> ReleaseError {
    move |error| match error.downcast_any_ref::<io::Error>() {
        Some(cause) => ReleaseError::Disk {
            doing,
            path: repository.to_owned(),
            cause: io::Error::new(cause.kind(), chain(&error)),
        },
        None => ReleaseError::Git { doing, cause: chain(&error) },
    }
}

/// All messages of a gix error, outermost first, each once.
pub fn chain(error: &gix::Error) -> String {
    let mut text = String::new();
    for message in error.iter_errors().map(ToString::to_string) {
        if !text.contains(&message) {
            text = if text.is_empty() { message } else { format!("{text}: {message}") };
        }
    }
    text
}
