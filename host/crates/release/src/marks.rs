//! Marks of releases whose LFS objects may be absent here: files `lfs/pruned/<release id>` with the time of marking.
//! Retention and pull write them before the objects go, so that an absent object is never taken for damage.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use reef_core::ReleaseId;

use crate::ReleaseError;
use crate::disk::{TEMPORARY_PREFIX, create_folders, sync};
use crate::error::disk;

const FOLDER: &str = "lfs/pruned";

fn place(repository: &Path, id: &ReleaseId) -> PathBuf {
    repository.join(FOLDER).join(id.as_str())
}

/// May objects of this release be absent?
pub fn is_marked(repository: &Path, id: &ReleaseId) -> bool {
    place(repository, id).exists()
}

/// Marks a release, durably; a mark that is there keeps its time.
pub fn mark(repository: &Path, id: &ReleaseId, now: SystemTime) -> Result<(), ReleaseError> {
    let (path, folder) = (place(repository, id), repository.join(FOLDER));
    if path.exists() {
        return Ok(());
    }
    create_folders(&folder)?;
    let text = format!("{}\n", now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis());
    let mut file = tempfile::Builder::new()
        .prefix(TEMPORARY_PREFIX)
        .tempfile_in(&folder)
        .map_err(disk("create a file in", &folder))?;
    file.write_all(text.as_bytes()).and_then(|()| file.as_file().sync_all()).map_err(disk("write", &path))?;
    file.persist(&path).map_err(|error| disk("write", &path)(error.error))?;
    sync(&folder)
}

/// How long ago the release was marked; `None`: it is not. A mark that does not read counts as fresh.
pub fn marked_for(repository: &Path, id: &ReleaseId, now: SystemTime) -> Option<Duration> {
    let text = match fs::read_to_string(place(repository, id)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        read => read.unwrap_or_default(),
    };
    let marked = text.trim().parse().ok().and_then(|ms| SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(ms)));
    Some(marked.and_then(|marked| now.duration_since(marked).ok()).unwrap_or_default())
}

/// Takes a mark away: the objects are here again.
pub fn unmark(repository: &Path, id: &ReleaseId) -> Result<(), ReleaseError> {
    let path = place(repository, id);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(disk("remove", &path)(error)),
        _ => Ok(()),
    }
}
