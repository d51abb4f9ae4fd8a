//! Where a store lives: the file or the server, how the writer connects to it, and the connections that read.
//! `store.rs` and `reading.rs` open one; the writer connects again through it after a failure.

use std::path::PathBuf;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions};
use sqlx::{ConnectOptions, SqliteConnection};

use crate::error::{Fault, StoreError, require_writable, told_migration, told_opening};
use crate::fill::fill;
use crate::sql::Connection;
use crate::{postgres, sqlite};

/// Connections that read at once.
const READERS_MAX: u32 = 4;
/// How long a read waits for a connection.
const READER_WAIT: Duration = Duration::from_secs(30);

/// How to reach the database.
#[derive(Debug, Clone)]
pub(crate) enum Home {
    Sqlite(SqliteConnectOptions),
    Postgres(PgConnectOptions),
}

impl Home {
    /// The name of this place in errors; without a password.
    pub(crate) fn place(&self) -> PathBuf {
        match self {
            Self::Sqlite(options) => options.get_filename().to_owned(),
            Self::Postgres(options) => postgres::place(options),
        }
    }

    /// The writer's connection; in Postgres it holds the lease.
    pub(crate) async fn connect(&self) -> Result<Connection, Fault> {
        match self {
            Self::Sqlite(options) => Ok(Connection::Sqlite(options.connect().await?)),
            Self::Postgres(options) => Ok(Connection::Postgres(postgres::connect(options, &self.place()).await?)),
        }
    }

    /// The writer's first connection: makes what is missing and brings the tables up to date.
    pub(crate) async fn found(&self) -> Result<Connection, StoreError> {
        let place = self.place();
        match self {
            Self::Sqlite(options) => {
                require_writable(&place)?;
                sqlite::make_private(&place);
                let options = options.clone().create_if_missing(true);
                let mut conn: SqliteConnection = options.connect().await.map_err(|e| told_opening(e, &place))?;
                let migrated = sqlite::MIGRATIONS.run_direct(None, &mut conn, false).await;
                migrated.map_err(|e| told_migration(e, &place))?;
                let mut conn = Connection::Sqlite(conn);
                fill(&mut conn).await.map_err(|fault| fault.told(&place))?;
                Ok(conn)
            }
            Self::Postgres(options) => {
                let mut conn = postgres::connect(options, &place).await.map_err(|fault| fault.told(&place))?;
                let migrated = postgres::MIGRATIONS.run_direct(None, &mut conn, false).await;
                migrated.map_err(|e| told_migration(e, &place))?;
                Ok(Connection::Postgres(conn))
            }
        }
    }

    /// Connections that can only read.
    pub(crate) fn readers(&self) -> Readers {
        match self {
            Self::Sqlite(options) => Readers::Sqlite(
                SqlitePoolOptions::new()
                    .max_connections(READERS_MAX)
                    .acquire_timeout(READER_WAIT)
                    .test_before_acquire(false)
                    .connect_lazy_with(
                        options.clone().pragma("query_only", "ON").pragma("cache_size", sqlite::READER_CACHE_KIB),
                    ),
            ),
            Self::Postgres(options) => Readers::Postgres(
                PgPoolOptions::new()
                    .max_connections(READERS_MAX)
                    .acquire_timeout(READER_WAIT)
                    .connect_lazy_with(options.clone().options([("default_transaction_read_only", "on")])),
            ),
        }
    }
}

/// Connections that can only read.
#[derive(Debug, Clone)]
pub(crate) enum Readers {
    Sqlite(SqlitePool),
    Postgres(PgPool),
}

impl Readers {
    pub(crate) async fn acquire(&self) -> Result<Connection, Fault> {
        match self {
            Self::Sqlite(pool) => Ok(Connection::SqliteReader(pool.acquire().await?)),
            Self::Postgres(pool) => Ok(Connection::PostgresReader(pool.acquire().await?)),
        }
    }

    pub(crate) async fn close(&self) {
        match self {
            Self::Sqlite(pool) => pool.close().await,
            Self::Postgres(pool) => pool.close().await,
        }
    }
}
