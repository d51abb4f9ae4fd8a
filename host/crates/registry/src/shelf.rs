//! The shelf: every recipe that was ever loaded, as `<sha256>.wasm` in one private folder, for replay and fallback.
//! The host puts and gets by digest and needs no registry for it. What `get` gives has the digest that was asked for;
//! files appear in one step, links are never followed, and count and size are bounded. Nothing is evicted unasked.
//! Calls block on the disk.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::disk;
use crate::files::{PlainFile, TEMPORARY_PREFIX, damaged, replace, sync_folder};
use crate::{Digest, RegistryError};

/// Ending of every file.
const ENDING: &str = ".wasm";
/// Age from which an unfinished file belongs to a process that died; writing one takes seconds.
const LEFTOVER_AGE: Duration = Duration::from_secs(60 * 60);

/// Limits of a shelf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShelfLimits {
    /// Bytes of one recipe.
    pub file_bytes_max: u64,
    /// Bytes of all recipes together.
    pub total_bytes_max: u64,
    /// Number of recipes.
    pub files_max: usize,
}

impl Default for ShelfLimits {
    /// 64 MiB each, 4 GiB together, 4,096 recipes.
    fn default() -> Self {
        Self { file_bytes_max: 64 << 20, total_bytes_max: 4 << 30, files_max: 4096 }
    }
}

/// One recipe on the shelf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shelved {
    /// Its digest, as its file name says; `get` verifies it.
    pub digest: Digest,
    /// Bytes.
    pub size: u64,
}

/// A folder of recipes by digest.
#[derive(Debug, Clone)]
pub struct Shelf {
    folder: PathBuf,
    limits: ShelfLimits,
}

impl Shelf {
    /// Opens the folder, or makes it (mode 0700); one that is a link or that others may write to is refused.
    pub fn new(folder: &Path) -> Result<Self, RegistryError> {
        Self::with_limits(folder, ShelfLimits::default())
    }

    /// Like [`Shelf::new`], with other limits.
    pub fn with_limits(folder: &Path, limits: ShelfLimits) -> Result<Self, RegistryError> {
        match DirBuilder::new().recursive(true).mode(0o700).create(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(disk("create", folder)(error)),
            _ => {}
        }
        let found = fs::symlink_metadata(folder).map_err(disk("read", folder))?;
        if !found.is_dir() {
            return Err(damaged(folder, "it is a link or no folder; name a folder of its own for recipes"));
        }
        if found.mode() & 0o022 != 0 {
            let remedy = format!("others may write to it; run `chmod 700 {}`", folder.display());
            return Err(damaged(folder, &remedy));
        }
        // Read access of others is taken away rather than refused: older folders were made with the usual mask.
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).map_err(disk("protect", folder))?;
        let shelf = Self { folder: folder.to_path_buf(), limits };
        shelf.remove_leftovers()?;
        Ok(shelf)
    }

    /// A shelf that is read only: nothing is made, and nothing that is there is changed.
    pub fn to_read(folder: &Path) -> Self {
        Self { folder: folder.to_path_buf(), limits: ShelfLimits::default() }
    }

    /// Keeps the bytes; keeping the same ones again costs one verification. A damaged copy is replaced.
    pub fn put(&self, bytes: &[u8]) -> Result<Digest, RegistryError> {
        let (digest, size) = (Digest::of(bytes), bytes.len() as u64);
        if size > self.limits.file_bytes_max {
            let what = format!("recipe {digest}");
            return Err(too_large(what, size, self.limits.file_bytes_max));
        }
        match self.get(&digest) {
            Ok(Some(_)) => return Ok(digest),
            Ok(None) | Err(RegistryError::Local { .. } | RegistryError::TooLarge { .. }) => {}
            Err(other) => return Err(other),
        }
        self.check_room(&digest, size)?;
        replace(&self.path(&digest), bytes, 0o600)?;
        Ok(digest)
    }

    /// The bytes of a recipe, verified; `None` when it is not here.
    pub fn get(&self, digest: &Digest) -> Result<Option<Vec<u8>>, RegistryError> {
        let path = self.path(digest);
        let Some(file) = PlainFile::open_if_there(&path)? else { return Ok(None) };
        let bytes = file.read(self.limits.file_bytes_max)?;
        let found = Digest::of(&bytes);
        if found != *digest {
            let problem = format!(
                "the file is damaged, its bytes have {found}; remove it and get the recipe again from where it came"
            );
            return Err(damaged(&path, &problem));
        }
        Ok(Some(bytes))
    }

    /// Every recipe here, by digest; files of other names are passed over.
    pub fn list(&self) -> Result<Vec<Shelved>, RegistryError> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(disk("list", &self.folder))? {
            let entry = entry.map_err(disk("list", &self.folder))?;
            let name = entry.file_name();
            let digest = name.to_str().and_then(|name| name.strip_suffix(ENDING)).and_then(Digest::from_hex);
            // A file may go away between listing and looking.
            if let (Some(digest), Ok(metadata)) = (digest, entry.metadata()) {
                found.push(Shelved { digest, size: metadata.len() });
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    /// Removes a recipe; says whether it was here.
    pub fn remove(&self, digest: &Digest) -> Result<bool, RegistryError> {
        let path = self.path(digest);
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(disk("remove", &path)(error)),
            Ok(()) => sync_folder(&path).map(|()| true),
        }
    }

    /// Removes every recipe that is not in `keep`; gives what was removed.
    pub fn retain(&self, keep: &BTreeSet<Digest>) -> Result<Vec<Shelved>, RegistryError> {
        let mut removed = Vec::new();
        for shelved in self.list()?.into_iter().filter(|shelved| !keep.contains(&shelved.digest)) {
            if self.remove(&shelved.digest)? {
                removed.push(shelved);
            }
        }
        Ok(removed)
    }

    /// Where a recipe lies, or would.
    pub fn path(&self, digest: &Digest) -> PathBuf {
        self.folder.join(format!("{}{ENDING}", digest.hex()))
    }

    fn check_room(&self, digest: &Digest, size: u64) -> Result<(), RegistryError> {
        let others: Vec<_> = self.list()?.into_iter().filter(|shelved| shelved.digest != *digest).collect();
        let total = others.iter().fold(size, |total, shelved| total.saturating_add(shelved.size));
        let ShelfLimits { files_max, total_bytes_max, .. } = self.limits;
        if others.len() < files_max && total <= total_bytes_max {
            return Ok(());
        }
        let problem = format!(
            "the shelf is full: with this recipe it would hold {} recipes and {total} bytes, at most {files_max} and \
             {total_bytes_max} are allowed; remove files of recipes that are replayed no more, or raise the limit",
            others.len() + 1
        );
        Err(damaged(&self.folder, &problem))
    }

    fn remove_leftovers(&self) -> Result<(), RegistryError> {
        for entry in fs::read_dir(&self.folder).map_err(disk("list", &self.folder))? {
            let entry = entry.map_err(disk("list", &self.folder))?;
            let ours = entry.file_name().to_string_lossy().starts_with(TEMPORARY_PREFIX);
            let age = entry.metadata().and_then(|found| found.modified()).ok().and_then(|at| at.elapsed().ok());
            if ours && age.is_some_and(|age| age > LEFTOVER_AGE) {
                match fs::remove_file(entry.path()) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(disk("remove", &entry.path())(error));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

fn too_large(what: String, found: u64, bytes_max: u64) -> RegistryError {
    RegistryError::TooLarge { what, found: format!("{found} bytes"), bytes_max }
}
