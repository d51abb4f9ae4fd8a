//! Reading a database that may belong to a server which runs, without leaving a trace in its folder.
//! While a write-ahead log lies beside the file, SQLite shares it with the server as any reader does. Without one no
//! server is there, and the file is read as it is: a reader with locks would leave files of its own behind.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{ConnectOptions, SqliteConnection};
use tokio::sync::Semaphore;

use crate::error::{Fault, StoreError, told_opening};
use crate::store::{BUSY_TIMEOUT, Inner, MIGRATIONS, READER_WAIT, READERS_MAX};
use crate::{Store, writer};

impl Store {
    /// Opens the database at `path` to read only; it must be there and of this version. Writes are refused.
    /// While no server uses the file, reading fails as soon as one starts: repeat the command then.
    pub async fn open_read_only(path: &Path) -> Result<Self, StoreError> {
        let unshared = !in_use(path);
        let options = SqliteConnectOptions::new()
            .filename(path)
            .read_only(true)
            .immutable(unshared)
            .busy_timeout(BUSY_TIMEOUT)
            .disable_statement_logging();
        let mut connection = options.connect().await.map_err(|e| told_opening(e, path))?;
        require_version(&mut connection).await.map_err(|fault| fault.told(path)).map_err(|error| name(error, path))?;
        drop(connection);
        let readers = SqlitePoolOptions::new()
            .max_connections(READERS_MAX)
            .acquire_timeout(READER_WAIT)
            .test_before_acquire(false)
            .connect_lazy_with(options);
        let inner = Inner {
            path: Arc::from(path),
            readers,
            unshared,
            read_only: true,
            jobs: Mutex::new(None),
            room: Arc::new(Semaphore::new(writer::QUEUE_KIB_MAX as usize)),
            counters: Arc::default(),
            writer: Mutex::new(None),
        };
        Ok(Self { inner: Arc::new(inner) })
    }
}

/// Does a program hold the file open to write, or has one left its log behind?
pub(crate) fn in_use(path: &Path) -> bool {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    PathBuf::from(log).exists()
}

/// Every migration of this program has run, and no other.
async fn require_version(conn: &mut SqliteConnection) -> Result<(), Fault> {
    let sql = "SELECT version FROM _sqlx_migrations WHERE success ORDER BY version";
    let found: Vec<i64> = match sqlx::query_scalar(sql).fetch_all(conn).await {
        Ok(found) => found,
        Err(sqlx::Error::Database(error)) if error.message().contains("no such table") => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    let known: Vec<i64> = MIGRATIONS.iter().map(|migration| migration.version).collect();
    if found == known {
        return Ok(());
    }
    let shown = |versions: &[i64]| versions.last().map_or("none".to_owned(), i64::to_string);
    let reason = format!(
        "its tables are of version {} and this program reads version {}; a start of 'reef serve' on it brings older ones up to date",
        shown(&found),
        shown(&known)
    );
    Err(Fault::Refused(StoreError::Version { path: PathBuf::new(), reason }))
}

/// Names the file in a refusal that did not know it.
fn name(error: StoreError, path: &Path) -> StoreError {
    match error {
        StoreError::Version { reason, .. } => StoreError::Version { path: path.to_owned(), reason },
        other => other,
    }
}
