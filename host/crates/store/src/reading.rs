//! Reading a database that may belong to a server which runs, without leaving a trace in its folder.
//! While a write-ahead log lies beside the file, SQLite shares it with the server as any reader does. Without one no
//! server is there, and the file is read as it is: a reader with locks would leave files of its own behind.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use sqlx::ConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use tokio::sync::Semaphore;

use crate::error::{Fault, StoreError, told_opening};
use crate::home::Home;
use crate::sql::{self, Connection};
use crate::store::Inner;
use crate::{Store, postgres, sqlite, writer};

impl Store {
    /// Opens the database at `path` to read only; it must be there and of this version. Writes are refused.
    /// While no server uses the file, reading fails as soon as one starts: repeat the command then.
    pub async fn open_read_only(path: &Path) -> Result<Self, StoreError> {
        let unshared = !in_use(path);
        let options = SqliteConnectOptions::new()
            .filename(path)
            .read_only(true)
            .immutable(unshared)
            .busy_timeout(sqlite::BUSY_TIMEOUT)
            .disable_statement_logging();
        let connection = options.connect().await.map_err(|e| told_opening(e, path))?;
        Self::reading(Home::Sqlite(options), Connection::Sqlite(connection), unshared).await
    }

    /// The same in Postgres, beside the server that writes there.
    pub async fn connect_read_only(url: &str) -> Result<Self, StoreError> {
        let options = postgres::options(url).map_err(|fault| fault.told(Path::new("the store")))?;
        let place = postgres::place(&options);
        let connection = options.connect().await.map_err(|e| Fault::Sql(e).told(&place))?;
        Self::reading(Home::Postgres(options), Connection::Postgres(connection), false).await
    }

    async fn reading(home: Home, mut connection: Connection, unshared: bool) -> Result<Self, StoreError> {
        let place = home.place();
        let checked = require_version(&mut connection).await.map_err(|fault| fault.told(&place));
        checked.map_err(|error| name(error, &place))?;
        drop(connection);
        let inner = Inner {
            path: Arc::from(place),
            readers: home.readers(),
            unshared,
            read_only: true,
            jobs: Mutex::new(None),
            room: Arc::new(Semaphore::new(writer::QUEUE_KIB_MAX as usize)),
            counters: Arc::default(),
            writer: Mutex::new(None),
            folding: Mutex::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }
}

/// SQLSTATE of a table that does not exist.
const PG_UNDEFINED_TABLE: &str = "42P01";

/// Does a program hold the file open to write, or has one left its log behind?
pub(crate) fn in_use(path: &Path) -> bool {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    PathBuf::from(log).exists()
}

/// Every migration of this program has run, and no other.
async fn require_version(conn: &mut Connection) -> Result<(), Fault> {
    let migrations = if conn.is_postgres() { &postgres::MIGRATIONS } else { &sqlite::MIGRATIONS };
    let sql = "SELECT version FROM _sqlx_migrations WHERE success ORDER BY version";
    let found: Vec<i64> = match sql::query(sql).scalars(conn).await {
        Ok(found) => found,
        Err(Fault::Sql(sqlx::Error::Database(error)))
            if error.message().contains("no such table") || error.code().as_deref() == Some(PG_UNDEFINED_TABLE) =>
        {
            Vec::new()
        }
        Err(fault) => return Err(fault),
    };
    let known: Vec<i64> = migrations.iter().map(|migration| migration.version).collect();
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
