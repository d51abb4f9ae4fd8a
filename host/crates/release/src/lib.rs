//! Releases as commits of a bare git repository with Git LFS objects in the standard layout.
//! The binary's jobs, handlers and commands call it from blocking threads; it calls gix and the file system, and the
//! machine's `git` for remotes only. A release that was written is complete, durable and never edited; only the head of
//! a scenario moves, by compare-and-swap. It decides nothing about which release serves or is kept: the database is the
//! truth for heads.
#![deny(missing_docs)]

mod diff;
mod disk;
mod error;
mod folder;
mod forget;
mod fork;
mod git;
mod inspect;
mod lfs;
mod manifest;
mod marks;
mod names;
mod objects;
mod problem;
mod prune;
mod pull;
mod push;
mod read;
mod refs;
mod remote;
mod repo;
mod signing;
mod sweep_lock;
mod verify;

pub use diff::{FileChange, FileFacts, ReleaseDiff, TensorChange, Tensors};
pub use error::ReleaseError;
pub use manifest::content_id;
pub use problem::{Problem, ProblemKind};
pub use prune::{PruneOptions, PruneReport};
pub use pull::{PullOptions, PullReport};
pub use push::PushReport;
pub use remote::{Remote, RemoteError};
pub use repo::ReleaseRepo;
pub use signing::{KeyError, ReleaseKey, ReleaseKeyId, ReleasePublicKey};
pub use verify::{ExpectedRelease, ExpectedStatus, Progress, Report, VerifyOptions};

/// One payload file of a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleaseFile {
    /// Relative path, `/` between names; `*.safetensors` is stored as a Git LFS object.
    pub path: String,
    /// Content.
    pub bytes: Vec<u8>,
}
