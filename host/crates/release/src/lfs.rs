//! Git LFS in its standard layout: pointers in git, objects in `lfs/objects/aa/bb/<sha256>`.
//! An object is complete or absent, and equal bytes are stored once.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::ReleaseError;
use crate::disk::{TEMPORARY_PREFIX, create_folders, sync};
use crate::error::disk;
use crate::manifest::FileEntry;
use crate::objects::Damage;

/// The text that stands in git for a file. An empty file stands for itself.
pub fn pointer(file: &FileEntry) -> String {
    if file.size == 0 {
        return String::new();
    }
    format!("version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize {}\n", file.sha256, file.size)
}

/// Where the object of a SHA-256 lies under the repository.
pub fn object_path(repository: &Path, sha256: &str) -> PathBuf {
    let part = |from: usize| sha256.get(from..from + 2).unwrap_or_default();
    repository.join("lfs/objects").join(part(0)).join(part(2)).join(sha256)
}

/// Stores an object durably; one that is there with other bytes is damaged and replaced.
pub fn put(repository: &Path, sha256: &str, bytes: &[u8]) -> Result<(), ReleaseError> {
    let path = object_path(repository, sha256);
    let folder = path.parent().unwrap_or(repository);
    if fs::read(&path).is_ok_and(|found| found == bytes) {
        // Whoever wrote it may have died before it was durable.
        sync(&path)?;
    } else {
        create_folders(folder)?;
        write_whole(repository, &path, bytes)?;
    }
    sync(folder)
}

fn write_whole(repository: &Path, path: &Path, bytes: &[u8]) -> Result<(), ReleaseError> {
    let temporary_folder = repository.join("lfs/tmp");
    // Opened here and not by `tempfile`, whose files nobody but their owner may read.
    let mut temporary = tempfile::Builder::new()
        .prefix(TEMPORARY_PREFIX)
        .make_in(&temporary_folder, |name| File::options().write(true).create_new(true).open(name))
        .map_err(disk("create a file in", &temporary_folder))?;
    temporary.write_all(bytes).and_then(|()| temporary.as_file().sync_all()).map_err(disk("write", path))?;
    temporary.persist(path).map_err(|error| disk("write", path)(error.error))?;
    Ok(())
}

/// Reads an object of the size that the pointer gives. The caller checks the hash.
pub fn get(repository: &Path, file: &FileEntry) -> Result<Vec<u8>, Damage> {
    if file.size == 0 {
        return Ok(Vec::new());
    }
    let path = object_path(repository, &file.sha256);
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Damage::Broken(format!("LFS object {} is missing", path.display())),
        _ => Damage::Unreadable(disk("read", &path)(error)),
    };
    let found = fs::metadata(&path).map_err(failed)?.len();
    if found != file.size {
        let problem = format!("size differs, the manifest says {} bytes and {} has {found}", file.size, path.display());
        return Err(Damage::Broken(problem));
    }
    fs::read(&path).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_is_the_text_of_the_specification() {
        let file = FileEntry { path: "a".into(), sha256: "4d7a".into(), size: 12_345 };
        assert_eq!(pointer(&file), "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n");
        assert_eq!(pointer(&FileEntry { size: 0, ..file }), "");
    }
}
