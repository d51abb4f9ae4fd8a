//! What folders take on the disk, found by a walk that ends: a program that writes more than it may is ended before the
//! disk is full. Links are counted and not followed.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Files and folders of one walk.
const ENTRIES_MAX: usize = 100_000;

/// Bytes that the files under these folders take, counted until they are over `enough`; the error: there are more entries
/// than are counted.
pub fn folder_bytes(folders: Vec<PathBuf>, enough: u64) -> Result<u64, usize> {
    let (mut open, mut bytes, mut entries) = (folders, 0_u64, 0_usize);
    while let Some(folder) = open.pop() {
        // What is gone meanwhile takes nothing.
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            entries += 1;
            if entries > ENTRIES_MAX {
                return Err(ENTRIES_MAX);
            }
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() {
                open.push(entry.path());
            }
            // Blocks are of 512 bytes; a file with holes takes what it has.
            bytes = bytes.saturating_add(metadata.blocks().saturating_mul(512));
            if bytes > enough {
                return Ok(bytes);
            }
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_in_folders_is_counted_and_links_are_not_followed() {
        let (folder, other) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        fs::create_dir_all(folder.path().join("a/b")).expect("made");
        fs::write(folder.path().join("a/b/file"), vec![1; 1 << 20]).expect("written");
        fs::write(other.path().join("large"), vec![1; 4 << 20]).expect("written");
        std::os::unix::fs::symlink(other.path(), folder.path().join("link")).expect("linked");
        let bytes = folder_bytes(vec![folder.path().to_owned()], u64::MAX).expect("few files");
        assert!((1 << 20..2 << 20).contains(&bytes), "{bytes}");
        assert!(folder_bytes(vec![folder.path().to_owned()], 4096).expect("few files") > 4096);
        assert_eq!(folder_bytes(vec![folder.path().join("gone")], 0), Ok(0));
    }
}
