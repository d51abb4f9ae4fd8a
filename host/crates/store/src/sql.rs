//! Two databases behind one statement type: SQLite and Postgres. Every other file writes its SQL once, with `$n`
//! parameters, in words that both understand; the Postgres migrations add the few functions of SQLite that it uses.
//! Values travel as 64-bit integers, floats, texts and bytes; nothing here knows a table.

use std::fmt::Write;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Arguments, AssertSqlSafe, Database, Encode, PgConnection, Postgres, Sqlite, SqliteConnection, Type};

use crate::error::Fault;

/// Rows of one multi-row statement; a power of two, so that few texts are prepared.
const ROWS_MAX: usize = 128;

/// A connection to write or to read.
#[derive(Debug)]
pub(crate) enum Connection {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
    SqliteReader(PoolConnection<Sqlite>),
    PostgresReader(PoolConnection<Postgres>),
}

/// The same without regard to who owns it.
enum Driver<'c> {
    Sqlite(&'c mut SqliteConnection),
    Postgres(&'c mut PgConnection),
}

impl Connection {
    fn driver(&mut self) -> Driver<'_> {
        match self {
            Self::Sqlite(conn) => Driver::Sqlite(conn),
            Self::SqliteReader(conn) => Driver::Sqlite(conn),
            Self::Postgres(conn) => Driver::Postgres(conn),
            Self::PostgresReader(conn) => Driver::Postgres(conn),
        }
    }

    pub(crate) fn is_postgres(&self) -> bool {
        matches!(self, Self::Postgres(_) | Self::PostgresReader(_))
    }

    /// Ends a transaction. In Postgres as a text, for whoever watches the wire: a prepared statement would go by a number.
    pub(crate) async fn commit(&mut self) -> Result<(), Fault> {
        match self.driver() {
            Driver::Sqlite(conn) => sqlx::query("COMMIT").execute(conn).await.map(|_| ())?,
            Driver::Postgres(conn) => sqlx::raw_sql("COMMIT").execute(conn).await.map(|_| ())?,
        }
        Ok(())
    }

    /// Closes a writing connection; an open transaction is rolled back.
    pub(crate) async fn close(self) -> Result<(), sqlx::Error> {
        use sqlx::Connection as _;
        match self {
            Self::Sqlite(conn) => conn.close().await,
            Self::Postgres(conn) => conn.close().await,
            Self::SqliteReader(_) | Self::PostgresReader(_) => Ok(()),
        }
    }
}

/// A parameter.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Int(Option<i64>),
    Real(Option<f64>),
    Text(Option<String>),
    Bytes(Option<Vec<u8>>),
}

macro_rules! from {
    ($($source:ty, $value:ident => $made:expr;)*) => {
        $(impl From<$source> for Value {
            fn from($value: $source) -> Self {
                $made
            }
        })*
    };
}

from! {
    i64, v => Self::Int(Some(v));
    i32, v => Self::Int(Some(v.into()));
    u32, v => Self::Int(Some(v.into()));
    bool, v => Self::Int(Some(v.into()));
    Option<i64>, v => Self::Int(v);
    Option<u32>, v => Self::Int(v.map(i64::from));
    Option<f64>, v => Self::Real(v);
    &str, v => Self::Text(Some(v.to_owned()));
    String, v => Self::Text(Some(v));
    &String, v => Self::Text(Some(v.clone()));
    Option<String>, v => Self::Text(v);
    Option<&str>, v => Self::Text(v.map(str::to_owned));
    &[u8], v => Self::Bytes(Some(v.to_vec()));
    Vec<u8>, v => Self::Bytes(Some(v));
    Option<Vec<u8>>, v => Self::Bytes(v);
}

fn arguments<DB: Database>(values: Vec<Value>) -> Result<DB::Arguments, Fault>
where
    Option<i64>: Encode<'static, DB> + Type<DB>,
    Option<f64>: Encode<'static, DB> + Type<DB>,
    Option<String>: Encode<'static, DB> + Type<DB>,
    Option<Vec<u8>>: Encode<'static, DB> + Type<DB>,
{
    let mut arguments = DB::Arguments::default();
    arguments.reserve(values.len(), 0);
    for value in values {
        match value {
            Value::Int(value) => arguments.add(value),
            Value::Real(value) => arguments.add(value),
            Value::Text(value) => arguments.add(value),
            Value::Bytes(value) => arguments.add(value),
        }
        .map_err(|error| Fault::Sql(sqlx::Error::Encode(error)))?;
    }
    Ok(arguments)
}

/// A row that either database can return.
pub(crate) trait Row:
    for<'r> sqlx::FromRow<'r, SqliteRow> + for<'r> sqlx::FromRow<'r, PgRow> + Send + Unpin
{
}

impl<T> Row for T where T: for<'r> sqlx::FromRow<'r, SqliteRow> + for<'r> sqlx::FromRow<'r, PgRow> + Send + Unpin {}

/// A statement and its parameters.
#[derive(Debug)]
pub(crate) struct Statement {
    sql: &'static str,
    values: Vec<Value>,
}

/// A statement with `$1`, `$2`, … for parameters.
pub(crate) fn query(sql: &'static str) -> Statement {
    Statement { sql, values: Vec::new() }
}

impl Statement {
    /// Sets the next parameter.
    pub(crate) fn bind(mut self, value: impl Into<Value>) -> Self {
        self.values.push(value.into());
        self
    }

    /// Runs it; returns how many rows it changed.
    pub(crate) async fn execute(self, conn: &mut Connection) -> Result<u64, Fault> {
        match conn.driver() {
            Driver::Sqlite(conn) => {
                let arguments: SqliteArguments = arguments::<Sqlite>(self.values)?;
                Ok(sqlx::query_with(self.sql, arguments).execute(conn).await?.rows_affected())
            }
            Driver::Postgres(conn) => {
                let arguments: PgArguments = arguments::<Postgres>(self.values)?;
                Ok(sqlx::query_with(self.sql, arguments).execute(conn).await?.rows_affected())
            }
        }
    }

    /// All rows.
    pub(crate) async fn fetch_all<T: Row>(self, conn: &mut Connection) -> Result<Vec<T>, Fault> {
        match conn.driver() {
            Driver::Sqlite(conn) => {
                Ok(sqlx::query_as_with(self.sql, arguments::<Sqlite>(self.values)?).fetch_all(conn).await?)
            }
            Driver::Postgres(conn) => {
                Ok(sqlx::query_as_with(self.sql, arguments::<Postgres>(self.values)?).fetch_all(conn).await?)
            }
        }
    }

    /// The first row, if there is one.
    pub(crate) async fn fetch_optional<T: Row>(self, conn: &mut Connection) -> Result<Option<T>, Fault> {
        match conn.driver() {
            Driver::Sqlite(conn) => {
                Ok(sqlx::query_as_with(self.sql, arguments::<Sqlite>(self.values)?).fetch_optional(conn).await?)
            }
            Driver::Postgres(conn) => {
                Ok(sqlx::query_as_with(self.sql, arguments::<Postgres>(self.values)?).fetch_optional(conn).await?)
            }
        }
    }

    /// The only column of the first row, if there is one.
    pub(crate) async fn scalar_optional<T>(self, conn: &mut Connection) -> Result<Option<T>, Fault>
    where
        (T,): Row,
    {
        Ok(self.fetch_optional::<(T,)>(conn).await?.map(|(value,)| value))
    }

    /// The only column of the first row, which is always there.
    pub(crate) async fn scalar<T>(self, conn: &mut Connection) -> Result<T, Fault>
    where
        (T,): Row,
    {
        self.scalar_optional(conn).await?.ok_or(Fault::Sql(sqlx::Error::RowNotFound))
    }

    /// The only column of all rows.
    pub(crate) async fn scalars<T>(self, conn: &mut Connection) -> Result<Vec<T>, Fault>
    where
        (T,): Row,
    {
        Ok(self.fetch_all::<(T,)>(conn).await?.into_iter().map(|(value,)| value).collect())
    }
}

/// Inserts many rows with few statements. `into`: `table (column, …)`; every row has a value for every column; `then`:
/// what follows the rows, such as what to do with rows that exist.
pub(crate) async fn insert_rows(
    conn: &mut Connection,
    into: &str,
    rows: Vec<Vec<Value>>,
    then: &str,
) -> Result<(), Fault> {
    let mut rows = rows.into_iter();
    while rows.len() > 0 {
        // The largest power of two that is left.
        let count = 1 << rows.len().min(ROWS_MAX).ilog2();
        let values: Vec<Value> = rows.by_ref().take(count).flatten().collect();
        let text = values_text(into, count, values.len() / count, conn.is_postgres());
        let sql = AssertSqlSafe(format!("{text} {then}"));
        match conn.driver() {
            Driver::Sqlite(conn) => {
                sqlx::query_with(sql, arguments::<Sqlite>(values)?).execute(conn).await?;
            }
            Driver::Postgres(conn) => {
                sqlx::query_with(sql, arguments::<Postgres>(values)?).execute(conn).await?;
            }
        }
    }
    Ok(())
}

/// SQLite searches the names of all parameters for each numbered one, so it gets `?`.
fn values_text(into: &str, rows: usize, columns: usize, numbered: bool) -> String {
    let mut sql = format!("INSERT INTO {into} VALUES ");
    for row in 0..rows {
        sql.push_str(if row == 0 { "(" } else { ", (" });
        for column in 0..columns {
            sql.push_str(if column == 0 { "" } else { "," });
            if numbered {
                // Writing to a String cannot fail.
                let _ = write!(sql, "${}", row * columns + column + 1);
            } else {
                sql.push('?');
            }
        }
        sql.push(')');
    }
    sql
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_rows_are_one_statement_with_as_many_parameters() {
        assert_eq!(values_text("t (a, b)", 2, 2, true), "INSERT INTO t (a, b) VALUES ($1,$2), ($3,$4)");
        assert_eq!(values_text("t (a)", 3, 1, false), "INSERT INTO t (a) VALUES (?), (?), (?)");
    }
}
