//! The folder of the repository: made whole or not at all, and opened only if it is one.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use gix::create::Kind;

use crate::ReleaseError;
use crate::disk::{remove_leftovers, sync};
use crate::error::{chain, disk, git};

/// Text of the file `description`, which git's web views show.
const DESCRIPTION: &str = "Releases of Reef: one branch per scenario\n";

/// Makes the repository if `path` is absent or empty, and checks that it can be used.
pub fn prepare(path: &Path) -> Result<(), ReleaseError> {
    match fs::read_dir(path).map(|mut entries| entries.next().is_none()) {
        Ok(true) => create(path)?,
        Ok(false) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => create(path)?,
        Err(error) if error.kind() == ErrorKind::NotADirectory => return Err(not_ours(path, "it is a file")),
        Err(error) => return Err(disk("read", path)(error)),
    }
    require(path)?;
    for folder in ["lfs/objects", "lfs/tmp"] {
        let folder = path.join(folder);
        fs::create_dir_all(&folder).map_err(disk("create", &folder))?;
    }
    remove_leftovers(&path.join("lfs/tmp"))?;
    remove_leftovers(&path.join("objects"))
}

/// Checks that `path` is a repository of releases.
pub fn require(path: &Path) -> Result<(), ReleaseError> {
    let repo = open(path).map_err(|error| not_ours(path, &format!("it is not a git repository: {}", chain(&error))))?;
    if !repo.is_bare() || repo.path() != path {
        return Err(not_ours(path, "it is a git repository with a working tree"));
    }
    Ok(())
}

/// Opens without the user's git configuration and environment: the same bytes make the same commit everywhere.
pub fn open(path: &Path) -> Result<gix::Repository, gix::Error> {
    let options = gix::open::Options::isolated().open_path_as_is(true).with(gix::sec::Trust::Full);
    options.open(path).map(|shared| shared.to_thread_local())
}

fn not_ours(path: &Path, problem: &str) -> ReleaseError {
    ReleaseError::Folder { path: path.to_owned(), problem: problem.to_owned() }
}

/// Builds the repository beside `path` and renames it there, so that a crash leaves no half of one.
fn create(path: &Path) -> Result<(), ReleaseError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(parent).map_err(disk("create", parent))?;
    let nursery =
        tempfile::Builder::new().prefix(".reef-new-").tempdir_in(parent).map_err(disk("create a folder in", parent))?;
    let made = nursery.path().join("repository");
    gix::create::into(&made, Kind::Bare, gix::create::Options::default())
        .map_err(git("create the repository", &made))?;
    fs::write(made.join("description"), DESCRIPTION).map_err(disk("write", &made))?;
    for name in ["HEAD", "config", "description", "objects", "refs", ""] {
        sync(&made.join(name))?;
    }
    match fs::rename(&made, path) {
        // Another process was faster; what it made is as good.
        Err(error) if matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists) => Ok(()),
        moved => moved.map_err(disk("create", path)),
    }?;
    sync(parent)
}

/// The absolute path of an existing or future folder.
pub fn absolute(path: &Path) -> Result<std::path::PathBuf, ReleaseError> {
    let found: io::Result<_> = std::path::absolute(path);
    found.map_err(disk("resolve", path))
}
