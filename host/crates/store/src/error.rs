//! Errors of the store, split by what the caller can do about them, and how the databases' codes become them.
//! Inside the crate a `Fault` travels; `Store` and the writer turn it into a `StoreError` that names the file.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use reef_core::{RecordId, ReleaseId, ScenarioName};
use sqlx::postgres::PgDatabaseError;
use sqlx::sqlite::SqliteError;

/// Why the store refused or failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Create it first.
    #[error("scenario '{0}' does not exist; create it first")]
    UnknownScenario(ScenarioName),
    /// The report names a record that this scenario does not have.
    #[error("record {0} is no record of this scenario that can be referred to here; use a receipt of this scenario")]
    UnknownReference(RecordId),
    /// The record stood here once.
    #[error("record {0} was erased or dropped and does not come back; use a new id, or a receipt of another record")]
    Gone(RecordId),
    /// No such release in this scenario.
    #[error("release {0} is not a release of this scenario; list its releases")]
    UnknownRelease(ReleaseId),
    /// What is stored says otherwise; repeating the call does not help.
    #[error("{0}")]
    Conflict(String),
    /// Another release became the head; start again from it.
    #[error(
        "the head of scenario '{scenario}' is {}, not {}: another release was made meanwhile; start again from the new head",
        shown(.actual), shown(.expected)
    )]
    HeadMoved {
        /// The scenario.
        scenario: ScenarioName,
        /// What the caller built upon.
        expected: Option<ReleaseId>,
        /// What is the head.
        actual: Option<ReleaseId>,
    },
    /// The input breaks a rule of the store.
    #[error("{0}")]
    Invalid(String),
    /// No room; nothing of this write was stored.
    #[error("the disk that holds {} is full; nothing of this write was stored: free space there and repeat the request", .path.display())]
    Full {
        /// The database.
        path: PathBuf,
    },
    /// The file or its folder refuses writes.
    #[error("{} cannot be written to; give this user write permission on the file, its -wal and -shm files and its folder, or choose another data folder", .path.display())]
    ReadOnly {
        /// The database.
        path: PathBuf,
    },
    /// The file is damaged or no database.
    #[error("{} is damaged or no Reef database ({reason}); put a backup in its place, or move it away to start empty", .path.display())]
    Corrupt {
        /// The database.
        path: PathBuf,
        /// What was found.
        reason: String,
    },
    /// A newer Reef wrote the file.
    #[error("{} was written by another version of Reef ({reason}); run that version, or choose another data folder", .path.display())]
    Version {
        /// The database.
        path: PathBuf,
        /// What was found.
        reason: String,
    },
    /// The system failed; the same call may succeed later.
    #[error("{} cannot be used now ({reason}); check that its folder exists, that its disk works and that no other program holds it, then repeat the request", .path.display())]
    Unavailable {
        /// The database.
        path: PathBuf,
        /// The system's words.
        reason: String,
    },
    /// Another process is the store's only writer.
    #[error("{} is in use by {holder}; stop that process first, or choose another database", .path.display())]
    InUse {
        /// The database.
        path: PathBuf,
        /// Who has the lease.
        holder: String,
    },
    /// `close` was called.
    #[error("the store is closed because the server is stopping")]
    Closed,
}

fn shown(release: &Option<ReleaseId>) -> &str {
    release.as_ref().map_or("none", ReleaseId::as_str)
}

/// What went wrong inside a query or a write, before the file is named.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The database or sqlx failed.
    Sql(sqlx::Error),
    /// A stored value cannot be read back.
    Damaged(String),
    /// The store says no; the database is fine.
    Refused(StoreError),
}

impl From<sqlx::Error> for Fault {
    fn from(error: sqlx::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Refused(error)
    }
}

/// A fault for a stored value that cannot be read back.
pub(crate) fn damaged(what: &str, error: impl std::fmt::Display) -> Fault {
    Fault::Damaged(format!("{what}: {error}"))
}

/// A refusal of what the caller says.
pub(crate) fn invalid(sentence: impl Into<String>) -> Fault {
    Fault::Refused(StoreError::Invalid(sentence.into()))
}

/// A refusal because of what is stored.
pub(crate) fn conflict(sentence: impl Into<String>) -> Fault {
    Fault::Refused(StoreError::Conflict(sentence.into()))
}

impl Fault {
    /// Names the file.
    pub(crate) fn told(self, path: &Path) -> StoreError {
        let path = path.to_owned();
        match self {
            Self::Refused(error) => error,
            Self::Damaged(reason) => StoreError::Corrupt { path, reason },
            Self::Sql(sqlx::Error::PoolClosed) => StoreError::Closed,
            Self::Sql(error) => match code(&error) {
                Some(Code::Postgres(code)) => told_postgres(&code, &error, path),
                Some(Code::Sqlite(code)) => told_sqlite(Some(code), &error, path),
                None => told_sqlite(None, &error, path),
            },
        }
    }

    /// Does only the statement fail, with the transaction around it still sound?
    pub(crate) fn spares_transaction(&self) -> bool {
        match self {
            Self::Refused(_) | Self::Damaged(_) => true,
            Self::Sql(sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_)) => true,
            Self::Sql(error) => match code(error) {
                Some(Code::Sqlite(code)) => matches!(code, SQLITE_TOOBIG | SQLITE_CONSTRAINT),
                Some(Code::Postgres(code)) => code.starts_with(PG_DATA_EXCEPTION) || code.starts_with(PG_CONSTRAINT),
                None => false,
            },
        }
    }

    /// Does a row that this one names not exist?
    pub(crate) fn is_foreign_key_violation(&self) -> bool {
        matches!(self, Self::Sql(sqlx::Error::Database(error)) if error.is_foreign_key_violation())
    }

    /// Did a unique key exist already?
    pub(crate) fn is_unique_violation(&self) -> bool {
        matches!(self, Self::Sql(sqlx::Error::Database(error)) if error.is_unique_violation())
    }
}

// https://www.sqlite.org/rescode.html
const SQLITE_READONLY: i32 = 8;
const SQLITE_CORRUPT: i32 = 11;
const SQLITE_FULL: i32 = 13;
const SQLITE_CANTOPEN: i32 = 14;
const SQLITE_TOOBIG: i32 = 18;
const SQLITE_CONSTRAINT: i32 = 19;
const SQLITE_NOTADB: i32 = 26;

// https://www.postgresql.org/docs/current/errcodes-appendix.html
const PG_DATA_EXCEPTION: &str = "22";
const PG_CONSTRAINT: &str = "23";
const PG_DISK_FULL: &str = "53100";
const PG_CORRUPTED: [&str; 2] = ["XX001", "XX002"];

/// What the database says.
enum Code {
    /// The low byte of SQLite's extended code.
    Sqlite(i32),
    /// Five characters.
    Postgres(String),
}

fn code(error: &sqlx::Error) -> Option<Code> {
    let error = error.as_database_error()?;
    if let Some(error) = error.try_downcast_ref::<PgDatabaseError>() {
        return Some(Code::Postgres(error.code().to_owned()));
    }
    error.try_downcast_ref::<SqliteError>()?;
    error.code()?.parse::<i32>().ok().map(|code| Code::Sqlite(code & 0xff))
}

fn reason(error: &sqlx::Error) -> String {
    error.as_database_error().map_or_else(|| error.to_string(), |e| e.message().to_owned())
}

fn told_sqlite(code: Option<i32>, error: &sqlx::Error, path: PathBuf) -> StoreError {
    let reason = reason(error);
    match (code, error) {
        (Some(SQLITE_READONLY), _) => StoreError::ReadOnly { path },
        (Some(SQLITE_FULL), _) => StoreError::Full { path },
        (Some(SQLITE_CORRUPT | SQLITE_NOTADB), _) => StoreError::Corrupt { path, reason },
        (None, sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_)) => StoreError::Corrupt { path, reason },
        _ => StoreError::Unavailable { path, reason },
    }
}

fn told_postgres(code: &str, error: &sqlx::Error, path: PathBuf) -> StoreError {
    let reason = reason(error);
    match code {
        PG_DISK_FULL => StoreError::Full { path },
        code if PG_CORRUPTED.contains(&code) => StoreError::Corrupt { path, reason },
        // Such as a NUL character in a text, which Postgres does not store.
        code if code.starts_with(PG_DATA_EXCEPTION) => {
            StoreError::Invalid(format!("the database cannot store a value of this write: {reason}"))
        }
        _ => StoreError::Unavailable { path, reason },
    }
}

/// Refuses a file that this user may not write, before SQLite leaves companions beside it that nobody may write.
pub(crate) fn require_writable(path: &Path) -> Result<(), StoreError> {
    match std::fs::OpenOptions::new().append(true).open(path) {
        Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) => {
            Err(StoreError::ReadOnly { path: path.to_owned() })
        }
        // SQLite creates the file or says what else is wrong.
        _ => Ok(()),
    }
}

/// Why the first connection failed: a file that cannot be made in a folder that exists is a matter of permissions.
pub(crate) fn told_opening(error: sqlx::Error, path: &Path) -> StoreError {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if matches!(code(&error), Some(Code::Sqlite(SQLITE_CANTOPEN))) && folder.is_dir() && !path.is_dir() {
        return StoreError::ReadOnly { path: path.to_owned() };
    }
    Fault::Sql(error).told(path)
}

/// Why the migrations did not run.
pub(crate) fn told_migration(error: sqlx::migrate::MigrateError, path: &Path) -> StoreError {
    use sqlx::migrate::MigrateError as M;
    match error {
        M::Execute(error) | M::ExecuteMigration(error, _) => Fault::Sql(error).told(path),
        other => StoreError::Version { path: path.to_owned(), reason: other.to_string() },
    }
}
