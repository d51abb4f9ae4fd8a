//! Git LFS in its standard layout: pointers in git, objects in `lfs/objects/aa/bb/<sha256>`.
//! An object is complete or absent, and equal bytes are stored once.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crate::ReleaseError;
use crate::disk::{TEMPORARY_PREFIX, create_folders, hash, sync};
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
    let mut temporary = temporary(repository)?;
    temporary.write_all(bytes).and_then(|()| temporary.as_file().sync_all()).map_err(disk("write", path))?;
    temporary.persist(path).map_err(|error| disk("write", path)(error.error))?;
    Ok(())
}

fn temporary(repository: &Path) -> Result<tempfile::NamedTempFile, ReleaseError> {
    let folder = repository.join("lfs/tmp");
    // Opened here and not by `tempfile`, whose files nobody but their owner may read.
    tempfile::Builder::new()
        .prefix(TEMPORARY_PREFIX)
        .make_in(&folder, |name| File::options().write(true).create_new(true).open(name))
        .map_err(disk("create a file in", &folder))
}

/// Reads an object of the size that the pointer gives. The caller checks the hash.
pub fn get(repository: &Path, file: &FileEntry) -> Result<Vec<u8>, Damage> {
    if file.size == 0 {
        return Ok(Vec::new());
    }
    let path = object_path(repository, &file.sha256);
    sized(&path, file)?;
    fs::read(&path).map_err(failed(&path))
}

/// Reads an object to its end in constant memory and checks size and SHA-256.
pub fn check(repository: &Path, file: &FileEntry) -> Result<(), Damage> {
    if file.size == 0 {
        return Ok(());
    }
    let path = object_path(repository, &file.sha256);
    sized(&path, file)?;
    let opened = File::open(&path).map_err(failed(&path))?;
    let (found, size) = hash(opened, |_| Ok(())).map_err(failed(&path))?;
    equal(file, &found, size)
}

/// Is there an object of this name and size? Its bytes are not looked at.
pub fn has(repository: &Path, file: &FileEntry) -> bool {
    file.size == 0 || fs::metadata(object_path(repository, &file.sha256)).is_ok_and(|found| found.len() == file.size)
}

/// Copies an object from the folder of another repository: complete, checked and durable, or not at all.
pub fn copy(from: &Path, to: &Path, file: &FileEntry) -> Result<(), Damage> {
    let source = object_path(from, &file.sha256);
    sized(&source, file)?;
    let opened = File::open(&source).map_err(failed(&source))?;
    let path = object_path(to, &file.sha256);
    let folder = path.parent().unwrap_or(to);
    for folder in [folder, &to.join("lfs/tmp")] {
        create_folders(folder).map_err(Damage::Unreadable)?;
    }
    let mut temporary = temporary(to).map_err(Damage::Unreadable)?;
    let (found, size) = hash(opened.take(file.size + 1), |piece| temporary.write_all(piece)).map_err(failed(&path))?;
    equal(file, &found, size)?;
    temporary.as_file().sync_all().map_err(failed(&path))?;
    temporary.persist(&path).map_err(|error| failed(&path)(error.error))?;
    sync(folder).map_err(Damage::Unreadable)
}

/// Refuses bytes that are not those of the manifest.
pub fn equal(file: &FileEntry, sha256: &str, size: u64) -> Result<(), Damage> {
    if sha256 == file.sha256 && size == file.size {
        return Ok(());
    }
    let wanted = &file.sha256;
    Err(Damage::Broken(format!("sha256 differs, the manifest says {wanted} and the bytes have {sha256}")))
}

fn sized(path: &Path, file: &FileEntry) -> Result<(), Damage> {
    let found = fs::metadata(path).map_err(failed(path))?.len();
    if found == file.size {
        return Ok(());
    }
    let (shown, size) = (path.display(), file.size);
    Err(Damage::Broken(format!("size differs, the manifest says {size} bytes and {shown} has {found}")))
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> Damage {
    move |error| match error.kind() {
        io::ErrorKind::NotFound => Damage::Missing,
        _ => Damage::Unreadable(disk("read", path)(error)),
    }
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
