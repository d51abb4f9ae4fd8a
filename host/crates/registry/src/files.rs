//! Files that are what they seem: plain, of bounded size, no links, replaced in one step. Keys, the lock file and the
//! shelf use them. Nothing here knows what is in a file.

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use crate::RegistryError;
use crate::error::disk;

/// Start of the names of files that are being written.
pub(crate) const TEMPORARY_PREFIX: &str = ".tmp-";

/// An open file that is neither a link nor a device and has one name only.
#[derive(Debug)]
pub(crate) struct PlainFile {
    path: PathBuf,
    file: File,
    metadata: Metadata,
}

impl PlainFile {
    /// Opens an existing plain file. The open file is what is looked at, never its name: the name may lead elsewhere
    /// by then.
    pub(crate) fn open(path: &Path) -> Result<Self, RegistryError> {
        // Without `NONBLOCK` a pipe in its place would be waited for.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match open(path, flags, Mode::empty()) {
            Err(Errno::LOOP) => return Err(not_plain(path)),
            opened => File::from(opened.map_err(|error| disk("read", path)(error.into()))?),
        };
        let metadata = file.metadata().map_err(disk("read", path))?;
        if !metadata.is_file() {
            return Err(not_plain(path));
        }
        if metadata.nlink() > 1 {
            return Err(damaged(path, "the file has a second name (a hard link); put a copy in its place"));
        }
        Ok(Self { path: path.to_path_buf(), file, metadata })
    }

    /// Opens a plain file, or `None` when there is nothing of that name.
    pub(crate) fn open_if_there(path: &Path) -> Result<Option<Self>, RegistryError> {
        match Self::open(path) {
            Err(RegistryError::Disk { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        }
    }

    pub(crate) fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Reads everything, at most `bytes_max` bytes.
    pub(crate) fn read(self, bytes_max: u64) -> Result<Vec<u8>, RegistryError> {
        let mut bytes = Vec::with_capacity(usize::try_from(self.metadata.len().min(bytes_max)).unwrap_or_default());
        (&self.file).take(bytes_max.saturating_add(1)).read_to_end(&mut bytes).map_err(disk("read", &self.path))?;
        if bytes.len() as u64 > bytes_max {
            let what = self.path.display().to_string();
            let found = format!("{} bytes", self.metadata.len().max(bytes.len() as u64));
            return Err(RegistryError::TooLarge { what, found, bytes_max });
        }
        Ok(bytes)
    }

    /// Reads everything as text.
    pub(crate) fn read_text(self, bytes_max: u64) -> Result<String, RegistryError> {
        let path = self.path.clone();
        String::from_utf8(self.read(bytes_max)?).map_err(|_| damaged(&path, "it is not text; use the right file"))
    }
}

fn not_plain(path: &Path) -> RegistryError {
    damaged(path, "it is a link or no plain file; put a plain file in its place")
}

/// Puts a file with these bytes and mode in place in one step; a reader sees the old one or the new one.
pub(crate) fn replace(path: &Path, bytes: &[u8], mode: u32) -> Result<(), RegistryError> {
    let folder = parent(path);
    let mut temporary = tempfile::Builder::new()
        .prefix(TEMPORARY_PREFIX)
        .permissions(fs::Permissions::from_mode(mode))
        .tempfile_in(folder)
        .map_err(disk("create a file in", folder))?;
    temporary.write_all(bytes).map_err(disk("write", path))?;
    temporary.as_file().sync_all().map_err(disk("flush", path))?;
    temporary.persist(path).map_err(|error| disk("put in place", path)(error.error))?;
    sync_folder(path)
}

/// Makes the name of `path` survive a power cut.
pub(crate) fn sync_folder(path: &Path) -> Result<(), RegistryError> {
    let folder = parent(path);
    File::open(folder).and_then(|opened| opened.sync_all()).map_err(disk("flush", folder))
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

pub(crate) fn damaged(path: &Path, problem: &str) -> RegistryError {
    RegistryError::Local { path: path.to_path_buf(), problem: problem.to_owned() }
}
