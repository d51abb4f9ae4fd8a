//! Where the tests of this binary keep their stores: a schema each, in one server per process.

use std::sync::atomic::{AtomicU32, Ordering};

use reef_store::{Store, StoreError};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::server::{Server, shared};

static PLACES: AtomicU32 = AtomicU32::new(0);

/// A place for one store.
pub struct Place(String);

impl Place {
    pub async fn new() -> Self {
        Self::on(shared()).await
    }

    /// A new schema of this server.
    pub async fn on(server: &Server) -> Self {
        let schema = format!("place_{}", PLACES.fetch_add(1, Ordering::Relaxed));
        server.query(&format!("CREATE SCHEMA {schema}"));
        Self(format!("{}&options[search_path]={schema}", server.url()))
    }

    /// The server ends the writer's session, as it does when a process dies.
    pub async fn after_crash(&self) -> Self {
        let schema = self.0.rsplit('=').next().expect("a schema");
        let end = format!(
            "SET search_path = {schema}; SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' \
             AND ((classid::bigint << 32) | objid::bigint) = hashtextextended('reef store in ' || current_schema(), 0)"
        );
        shared().query(&end);
        Self(self.0.clone())
    }

    /// Every value of every table with its `table.column`, as bytes.
    pub async fn values(&self) -> Vec<(String, Vec<u8>)> {
        let mut conn = PgConnection::connect(&self.0).await.expect("connected");
        let sql = "SELECT table_name::text, column_name::text, data_type::text FROM information_schema.columns \
                   WHERE table_schema = current_schema()";
        let columns: Vec<(String, String, String)> = sqlx::query_as(sql).fetch_all(&mut conn).await.expect("read");
        let mut values = Vec::new();
        for (table, column, kind) in columns {
            let value = if kind == "bytea" { column.clone() } else { format!("convert_to({column}::text, 'UTF8')") };
            let sql = format!("SELECT {value} FROM {table} WHERE {column} IS NOT NULL");
            let rows: Vec<Vec<u8>> = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(&mut conn).await.expect("read");
            values.extend(rows.into_iter().map(|value| (format!("{table}.{column}"), value)));
        }
        conn.close().await.expect("closed");
        values
    }

    /// Tells another process where it is.
    pub fn address(&self) -> String {
        self.0.clone()
    }

    pub async fn open(&self) -> Result<Store, StoreError> {
        open(&self.0).await
    }
}

/// Opens the store at such an address.
pub async fn open(address: &str) -> Result<Store, StoreError> {
    Store::connect(address).await
}
