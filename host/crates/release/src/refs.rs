//! References: changed one at a time, by compare-and-swap, durable before they count.
//! A lock file left by a killed process is recognised by its age and removed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gix::ObjectId;
use gix::lock::acquire::Fail;
use gix::refs::file::transaction::prepare::{MustNotExist, ReferenceOutOfDate};
use gix::refs::transaction::{PreviousValue, RefEdit};
use gix::refs::{FullName, Target};

use crate::ReleaseError;
use crate::disk::{age, create_folders, sync};
use crate::error::{disk, git};

/// How long to wait for another process; it holds a lock for milliseconds.
const LOCK_WAIT: Duration = Duration::from_secs(10);
/// Age from which nobody holds a lock any more. Not more than the wait, so that one wait is enough.
const LOCK_AGE_MAX: Duration = LOCK_WAIT;

/// What became of a change.
#[derive(Debug, PartialEq, Eq)]
pub enum Swap {
    /// The reference has the new value.
    Done,
    /// It had another value than expected (`None`: it did not exist) and keeps it.
    Lost(Option<Target>),
}

/// Sets `name` to `new` if it has the value `expected` (`None`: if it does not exist).
pub fn swap(repo: &gix::Repository, name: &str, expected: Option<Target>, new: Target) -> Result<Swap, ReleaseError> {
    let path = repo.path().join(name);
    let locks = [lock_of(&path), repo.path().join("packed-refs.lock")];
    remove_stale(&locks)?;
    match attempt(repo, name, expected.clone(), new.clone()) {
        Err(ReleaseError::Locked { .. }) if remove_stale(&locks)? => attempt(repo, name, expected, new),
        outcome => outcome,
    }
}

/// Removes `name` if it has the value `expected`.
pub fn remove(repo: &gix::Repository, name: &str, expected: Target) -> Result<Swap, ReleaseError> {
    remove_stale(&[lock_of(&repo.path().join(name)), repo.path().join("packed-refs.lock")])?;
    let previous = PreviousValue::MustExistAndMatch(expected);
    edit(repo, name, RefEdit::delete(full_name(name)?, previous))
}

/// The references whose names begin with `prefix`, which ends in '/': name and object. Symbolic ones are left out.
pub fn list(repo: &gix::Repository, prefix: &str) -> Result<Vec<(String, ObjectId)>, ReleaseError> {
    let failed = || git("list the references of", repo.path());
    let platform = repo.references().map_err(failed())?;
    let mut found = Vec::new();
    for reference in platform.prefixed(prefix).map_err(failed())? {
        let reference = reference.map_err(failed())?;
        if let (Some(id), Ok(name)) = (reference.target().try_id(), std::str::from_utf8(reference.name().as_bstr())) {
            found.push((name.to_owned(), id.to_owned()));
        }
    }
    Ok(found)
}

fn full_name(name: &str) -> Result<FullName, ReleaseError> {
    FullName::try_from(name).map_err(|error| ReleaseError::Git { doing: "name a reference", cause: error.to_string() })
}

fn attempt(repo: &gix::Repository, name: &str, expected: Option<Target>, new: Target) -> Result<Swap, ReleaseError> {
    let previous = expected.map_or(PreviousValue::MustNotExist, PreviousValue::MustExistAndMatch);
    edit(repo, name, RefEdit::update(full_name(name)?, new, previous, ""))
}

fn edit(repo: &gix::Repository, name: &str, edit: RefEdit) -> Result<Swap, ReleaseError> {
    let root = repo.path();
    let wait = Fail::AfterDurationWithBackoff(LOCK_WAIT);
    let path = root.join(name);
    let folder = path.parent().unwrap_or(root);
    create_folders(folder)?;
    let prepared = match repo.refs.transaction().prepare([edit], wait, wait) {
        Ok(prepared) => prepared,
        Err(error) if error.is_conflict() || error.is_not_found() => return Ok(Swap::Lost(actual(&error))),
        Err(error) if error.is_retryable() => {
            return Err(ReleaseError::Locked {
                what: format!("reference {name}"),
                waited_s: LOCK_WAIT.as_secs(),
                remedy: format!(
                    ", and if no other process writes to the repository, remove the file {name}.lock in it"
                ),
            });
        }
        Err(error) => return Err(git("lock a reference in", root)(error)),
    };
    let lock = lock_of(&path);
    // There is no lock file when the reference has the value already.
    let changes = lock.exists();
    if changes {
        sync(&lock)?;
    }
    prepared.commit(None).map_err(git("write a reference in", root))?;
    // Removing the last reference of a folder removes the folder.
    let durable = folder.ancestors().find(|folder| folder.exists()).filter(|_| changes);
    durable.map_or(Ok(()), sync)?;
    Ok(Swap::Done)
}

fn actual(error: &gix::Error) -> Option<Target> {
    let changed = error.downcast_any_ref::<ReferenceOutOfDate>().map(|changed| changed.actual.clone());
    changed.or_else(|| error.downcast_any_ref::<MustNotExist>().map(|existing| existing.actual.clone()))
}

fn lock_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

/// Removes the locks whose owner is gone; says whether there was one.
fn remove_stale(locks: &[PathBuf]) -> Result<bool, ReleaseError> {
    let mut removed = false;
    for lock in locks.iter().filter(|lock| age(lock).is_some_and(|age| age > LOCK_AGE_MAX)) {
        match fs::remove_file(lock) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(disk("remove", lock)(error)),
            _ => removed = true,
        }
    }
    Ok(removed)
}
