//! Keeps sweeping and writing apart: an object that a writer counts on must not be removed before a reference names it.
//! Writers share the lock, a sweep has it alone; the system frees it when its process dies.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::ReleaseError;
use crate::error::disk;

/// How long to wait; a sweep of thousands of releases takes seconds.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(10);
const FILE: &str = "lfs/sweep.lock";

/// Held while objects are written and not yet named by a reference.
pub fn share(repository: &Path) -> Result<File, ReleaseError> {
    take(repository, File::try_lock_shared)
}

/// Held while objects are removed.
pub fn exclude(repository: &Path) -> Result<File, ReleaseError> {
    take(repository, File::try_lock)
}

fn take(repository: &Path, attempt: fn(&File) -> Result<(), TryLockError>) -> Result<File, ReleaseError> {
    let path = repository.join(FILE);
    let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(disk("open", &path))?;
    let begun = Instant::now();
    loop {
        match attempt(&file) {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if begun.elapsed() < WAIT_MAX => std::thread::sleep(PAUSE),
            Err(TryLockError::WouldBlock) => {
                return Err(ReleaseError::Locked {
                    what: FILE.to_owned(),
                    waited_s: WAIT_MAX.as_secs(),
                    remedy: " when the other process has ended its work on the repository".to_owned(),
                });
            }
            Err(TryLockError::Error(error)) => return Err(disk("lock", &path)(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_share_the_lock_and_a_sweep_has_it_alone() {
        let folder = tempfile::tempdir().expect("folder");
        std::fs::create_dir(folder.path().join("lfs")).expect("folder");
        let (first, second) = (share(folder.path()).expect("first"), share(folder.path()).expect("second"));
        let third = File::open(folder.path().join(FILE)).expect("opened");
        assert!(matches!(third.try_lock(), Err(TryLockError::WouldBlock)));
        drop((first, second));
        let alone = exclude(folder.path()).expect("alone");
        assert!(matches!(third.try_lock_shared(), Err(TryLockError::WouldBlock)));
        drop(alone);
        third.try_lock_shared().expect("free again");
    }
}
