//! Where the tests of this binary keep their stores: SQLite files in temporary folders.

use std::path::{Path, PathBuf};

use reef_store::{Store, StoreError};
use tempfile::TempDir;

use crate::fixture::Fixture;

/// A place for one store.
pub struct Place(TempDir);

impl Place {
    pub async fn new() -> Self {
        Self(tempfile::tempdir().expect("folder"))
    }

    /// Tells another process where it is.
    pub fn address(&self) -> String {
        self.path().display().to_string()
    }

    pub async fn open(&self) -> Result<Store, StoreError> {
        open(&self.address()).await
    }

    /// The image of the files as a power cut would leave them, in a place of its own.
    pub async fn after_crash(&self) -> Self {
        let image = Self::new().await;
        for file in ["reef.db", "reef.db-wal"] {
            std::fs::copy(self.0.path().join(file), image.0.path().join(file)).expect("copied");
        }
        image
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("reef.db")
    }
}

/// Opens the store at such an address.
pub async fn open(address: &str) -> Result<Store, StoreError> {
    Store::open(Path::new(address)).await
}

impl Fixture {
    pub fn path(&self) -> PathBuf {
        self.place.path()
    }
}
