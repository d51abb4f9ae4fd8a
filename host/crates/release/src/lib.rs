//! Releases as commits of a bare git repository with Git LFS objects in the standard layout.
//! The binary's jobs and handlers call it from blocking threads; it calls gix and the file system.
//! A release that was written is complete, durable and never edited; only the head of a scenario moves, by
//! compare-and-swap. It decides nothing about which release serves: the database is the truth for heads.
#![deny(missing_docs)]

mod disk;
mod error;
mod folder;
mod lfs;
mod manifest;
mod names;
mod objects;
mod read;
mod refs;
mod repo;

pub use error::ReleaseError;
pub use manifest::content_id;
pub use repo::ReleaseRepo;

/// One payload file of a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleaseFile {
    /// Relative path, `/` between names; `*.safetensors` is stored as a Git LFS object.
    pub path: String,
    /// Content.
    pub bytes: Vec<u8>,
}
