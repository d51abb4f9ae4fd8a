//! Where the tests of this binary keep their stores: SQLite files in temporary folders.

use std::path::{Path, PathBuf};

use reef_store::{Store, StoreError};
use sqlx::AssertSqlSafe;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};
use tempfile::TempDir;

use crate::fixture::Fixture;

/// A place for one store.
pub struct Place(TempDir);

impl Place {
    pub async fn new() -> Self {
        Self(tempfile::tempdir().expect("folder"))
    }

    /// Tells another process where it is.
    pub fn address(&self) -> String {
        self.path().display().to_string()
    }

    pub async fn open(&self) -> Result<Store, StoreError> {
        open(&self.address()).await
    }

    /// The image of the files as a power cut would leave them, in a place of its own.
    pub async fn after_crash(&self) -> Self {
        let image = Self::new().await;
        for file in ["reef.db", "reef.db-wal"] {
            std::fs::copy(self.0.path().join(file), image.0.path().join(file)).expect("copied");
        }
        image
    }

    /// Every value of every table with its `table.column`, as bytes.
    pub async fn values(&self) -> Vec<(String, Vec<u8>)> {
        let options = SqliteConnectOptions::new().filename(self.path()).read_only(true);
        let file = SqlitePool::connect_with(options).await.expect("opened");
        let sql = "SELECT t.name, c.name FROM sqlite_master AS t JOIN pragma_table_info(t.name) AS c \
                   WHERE t.type = 'table'";
        let columns: Vec<(String, String)> = sqlx::query_as(sql).fetch_all(&file).await.expect("read");
        let mut values = Vec::new();
        for (table, column) in columns {
            let sql = format!("SELECT CAST({column} AS BLOB) FROM {table} WHERE {column} IS NOT NULL");
            let rows: Vec<Vec<u8>> = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(&file).await.expect("read");
            values.extend(rows.into_iter().map(|value| (format!("{table}.{column}"), value)));
        }
        file.close().await;
        values
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("reef.db")
    }
}

/// Opens the store at such an address.
pub async fn open(address: &str) -> Result<Store, StoreError> {
    Store::open(Path::new(address)).await
}

impl Fixture {
    pub fn path(&self) -> PathBuf {
        self.place.path()
    }
}
