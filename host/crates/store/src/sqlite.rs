//! SQLite as a home: how the file is opened and its tables, in order.
//! WAL mode with full syncs: a reader never blocks the writer, and a returned write is on disk.

use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use sqlx::ConnectOptions;
use sqlx::migrate::Migrator;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};

use crate::store::migration;

/// How long SQLite waits for another program's lock.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes to which the write-ahead log shrinks after a long reader let it grow.
const WAL_BYTES_KEPT: &str = "67108864";

/// Pages in the log before the writer folds them into the file, 64 MiB: `fold.rs` does it before that.
const CHECKPOINT_PAGES: &str = "16384";
/// KiB of pages that the writer keeps: a large group is written to the log once, when it commits.
const CACHE_KIB: &str = "-65536";
/// KiB of pages that a reader keeps.
pub(crate) const READER_CACHE_KIB: &str = "-8192";

pub(crate) static MIGRATIONS: LazyLock<Migrator> = LazyLock::new(|| {
    // In order; a file that is not named here is not applied.
    Migrator::with_migrations(vec![
        migration(1, "log", include_str!("../migrations/sqlite/0001_log.sql")),
        migration(2, "inputs", include_str!("../migrations/sqlite/0002_inputs.sql")),
        migration(3, "recipe uses", include_str!("../migrations/sqlite/0003_recipe_uses.sql")),
        migration(4, "experience", include_str!("../migrations/sqlite/0004_experience.sql")),
        migration(5, "rollouts", include_str!("../migrations/sqlite/0005_rollouts.sql")),
        migration(6, "harness", include_str!("../migrations/sqlite/0006_harness.sql")),
        migration(7, "surfaces", include_str!("../migrations/sqlite/0007_surfaces.sql")),
        migration(8, "refused proposals", include_str!("../migrations/sqlite/0008_refused.sql")),
    ])
});

/// A file that is there: a missing one was taken away, and an empty one in its place would lose the log silently.
pub(crate) fn options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(false)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(BUSY_TIMEOUT)
        .foreign_keys(true)
        .pragma("journal_size_limit", WAL_BYTES_KEPT)
        .pragma("wal_autocheckpoint", CHECKPOINT_PAGES)
        .pragma("cache_size", CACHE_KIB)
        .disable_statement_logging()
}
