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
        migration(9, "statistics", include_str!("../migrations/sqlite/0009_statistics.sql")),
    ])
});

/// Makes a file that is missing as one that nobody but this user reads, whatever the folder allows: it holds
/// conversations. SQLite gives its companions the same mode, and says what is wrong where none can be made.
pub(crate) fn make_private(path: &Path) {
    use std::os::unix::fs::OpenOptionsExt;
    drop(std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path));
}

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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use sqlx::SqliteConnection;

    use super::*;
    use crate::sql::{self, Connection};

    async fn founded(folder: &Path) -> Connection {
        let options = options(&folder.join("reef.db")).create_if_missing(true);
        let mut conn: SqliteConnection = options.connect().await.expect("connected");
        MIGRATIONS.run_direct(None, &mut conn, false).await.expect("migrated");
        // Figures are read when a connection opens.
        sqlx::Connection::close(conn).await.expect("closed");
        Connection::Sqlite(options.connect().await.expect("connected"))
    }

    #[tokio::test]
    async fn nobody_else_reads_a_new_database() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("folder");
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).expect("open to all");
        let store = crate::Store::open(&folder.path().join("reef.db")).await.expect("opened");
        for entry in std::fs::read_dir(folder.path()).expect("a folder") {
            let entry = entry.expect("an entry");
            let mode = entry.metadata().expect("there").permissions().mode();
            assert_eq!(mode & 0o077, 0, "{:?}", entry.path());
        }
        store.close().await;
    }

    #[tokio::test]
    async fn the_planner_has_figures_of_every_index_of_a_large_table() {
        let folder = tempfile::tempdir().expect("folder");
        let mut conn = founded(folder.path()).await;
        let known: Vec<String> =
            sql::query("SELECT tbl || ' ' || idx FROM sqlite_stat1").scalars(&mut conn).await.expect("read");
        let sql = "SELECT t.name || ' ' || CASE WHEN i.origin = 'pk' AND w.wr = 1 THEN t.name ELSE i.name END \
                   FROM sqlite_schema AS t JOIN pragma_index_list(t.name) AS i JOIN pragma_table_list(t.name) AS w \
                   WHERE t.type = 'table' AND i.name <> 'records_to_fill' AND t.name IN ( \
                     'samples', 'sample_records', 'records', 'record_tags', 'tombstones')";
        let there: Vec<String> = sql::query(sql).scalars(&mut conn).await.expect("read");
        assert!(there.len() > 10, "{there:?}");
        assert_eq!(known.into_iter().collect::<BTreeSet<_>>(), there.into_iter().collect());
    }

    #[tokio::test]
    async fn no_frequent_statement_walks_a_scenario_for_each_row_of_another() {
        let folder = tempfile::tempdir().expect("folder");
        let mut conn = founded(folder.path()).await;
        let statements = [
            crate::steps::TWICE,
            crate::retention::OLDER,
            crate::retention::OLDEST,
            crate::erase::HELD,
            crate::rollouts::SCORES,
        ];
        for statement in statements {
            let explained = format!("EXPLAIN QUERY PLAN {statement}");
            let rows = match &mut conn {
                Connection::Sqlite(conn) => {
                    sqlx::query_as::<_, (i64, i64, i64, String)>(sqlx::AssertSqlSafe(explained))
                        .fetch_all(conn)
                        .await
                        .expect("explained")
                }
                _ => panic!("SQLite"),
            };
            let walks =
                rows.iter().filter(|row| row.3.ends_with("(tenant=? AND scenario=?)") || row.3.starts_with("SCAN r"));
            let walks: Vec<_> = walks.map(|row| row.3.as_str()).collect();
            assert!(walks.is_empty(), "{statement}\n{rows:#?}");
        }
    }
}
