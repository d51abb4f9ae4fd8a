//! Durability: what must survive a power cut before anybody relies on it.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::ReleaseError;
use crate::error::disk;

/// Age of a temporary file from which it belongs to a process that died; writing one takes seconds.
const LEFTOVER_AGE: Duration = Duration::from_secs(60 * 60);
/// Start of the names of temporary files, ours and those of gix.
pub const TEMPORARY_PREFIX: &str = ".tmp";

/// Bytes that are read at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// SHA-256 and size of what is read, whatever its length, in constant memory; `each` gets every piece.
pub fn hash(mut from: impl Read, mut each: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<(String, u64)> {
    let (mut hasher, mut size) = (Sha256::new(), 0);
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let read = match from.read(&mut chunk) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        let Some(piece) = chunk.get(..read).filter(|piece| !piece.is_empty()) else { break };
        hasher.update(piece);
        each(piece)?;
        size += piece.len() as u64;
    }
    Ok((hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect(), size))
}

/// Flushes a file or a folder to the disk.
pub fn sync(path: &Path) -> Result<(), ReleaseError> {
    File::open(path).and_then(|file| file.sync_all()).map_err(disk("flush", path))
}

/// Makes a folder and its missing parents, durable up to the first that was there.
pub fn create_folders(path: &Path) -> Result<(), ReleaseError> {
    let missing: Vec<&Path> = path.ancestors().take_while(|folder| !folder.exists()).collect();
    fs::create_dir_all(path).map_err(disk("create", path))?;
    missing.iter().filter_map(|folder| folder.parent()).try_for_each(sync)
}

/// How long ago the file was modified; `None` when it is absent or from the future.
pub fn age(path: &Path) -> Option<Duration> {
    fs::metadata(path).and_then(|found| found.modified()).ok()?.elapsed().ok()
}

/// Removes the temporary files that a killed process left in `folder`.
pub fn remove_leftovers(folder: &Path) -> Result<(), ReleaseError> {
    for entry in fs::read_dir(folder).map_err(disk("list", folder))? {
        let path = entry.map_err(disk("list", folder))?.path();
        let temporary = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(TEMPORARY_PREFIX));
        if temporary && path.is_file() && age(&path).is_some_and(|age| age > LEFTOVER_AGE) {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(disk("remove", &path)(error)),
                _ => {}
            }
        }
    }
    Ok(())
}
