//! Postgres as a home: what a URL may say, the lease and the tables, in order.
//! The lease is an advisory lock of the writer's session on the schema: the server frees it when the session ends,
//! however that happens, and every write goes through that session, so that no other process can write meanwhile.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::LazyLock;
use std::time::Duration;

use sqlx::migrate::Migrator;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{ConnectOptions, PgConnection};

use crate::error::{Fault, StoreError, invalid};
use crate::store::migration;

/// Attempts to take the lease; a server needs a moment to notice that the last holder's session ended.
const LEASE_ATTEMPTS: u32 = 20;
/// Between two attempts.
const LEASE_PAUSE: Duration = Duration::from_millis(100);
/// Characters of the name that a session shows; Postgres cuts there.
const SESSION_NAME_CHARS_MAX: usize = 63;

/// The lock's number: one store per schema.
const LEASE_KEY: &str = "hashtextextended('reef store in ' || current_schema(), 0)";

pub(crate) static MIGRATIONS: LazyLock<Migrator> = LazyLock::new(|| {
    // In order; a file that is not named here is not applied.
    Migrator::with_migrations(vec![
        migration(1, "log", include_str!("../migrations/postgres/0001_log.sql")),
        migration(2, "rollouts", include_str!("../migrations/postgres/0002_rollouts.sql")),
        migration(3, "harness", include_str!("../migrations/postgres/0003_harness.sql")),
        migration(4, "surfaces", include_str!("../migrations/postgres/0004_surfaces.sql")),
        migration(5, "refused proposals", include_str!("../migrations/postgres/0005_refused.sql")),
    ])
});

/// Reads a URL.
pub(crate) fn options(url: &str) -> Result<PgConnectOptions, Fault> {
    // The message of a parse error may repeat the password.
    let options = PgConnectOptions::from_str(url)
        .map_err(|_| invalid("the store's URL is not valid; write postgres://user:password@host:5432/database"))?;
    match options.get_ssl_mode() {
        PgSslMode::Disable | PgSslMode::Allow | PgSslMode::Prefer => {}
        other => {
            return Err(invalid(format!(
                "the store's URL asks for TLS (sslmode {other:?}), which this build does not speak to Postgres; \
                 use a Unix socket, a private network or a TLS proxy on this machine, with sslmode=disable"
            )));
        }
    }
    Ok(options.ssl_mode(PgSslMode::Disable).application_name(&session_name()).disable_statement_logging())
}

/// Who holds the lease, as another process will read it.
fn session_name() -> String {
    let host = std::fs::read_to_string("/etc/hostname").unwrap_or_default();
    let name = format!("reef process {} on {}", std::process::id(), host.trim());
    name.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').take(SESSION_NAME_CHARS_MAX).collect()
}

/// The server and the database, without user and password.
pub(crate) fn place(options: &PgConnectOptions) -> PathBuf {
    let host = options.get_socket().map_or(options.get_host().to_owned(), |socket| socket.display().to_string());
    format!("postgres://{host}:{}/{}", options.get_port(), options.get_database().unwrap_or_default()).into()
}

/// Connects the writer: takes the lease and sees to it that a commit is on disk when it returns.
pub(crate) async fn connect(options: &PgConnectOptions, place: &Path) -> Result<PgConnection, Fault> {
    let mut conn = options.connect().await?;
    sqlx::query("SET synchronous_commit = on").execute(&mut conn).await?;
    let (fsync,): (String,) = sqlx::query_as("SELECT current_setting('fsync')").fetch_one(&mut conn).await?;
    if fsync != "on" {
        return Err(invalid(format!(
            "{} runs with fsync = {fsync}, so that what it acknowledges can be lost; set fsync = on",
            place.display()
        )));
    }
    let take = format!("SELECT pg_try_advisory_lock({LEASE_KEY})");
    for attempt in 1..=LEASE_ATTEMPTS {
        let (taken,): (bool,) = sqlx::query_as(sqlx::AssertSqlSafe(take.clone())).fetch_one(&mut conn).await?;
        if taken {
            return Ok(conn);
        }
        if attempt < LEASE_ATTEMPTS {
            tokio::time::sleep(LEASE_PAUSE).await;
        }
    }
    Err(StoreError::InUse { path: place.to_owned(), holder: holder(&mut conn).await? }.into())
}

/// The session that has the lease.
async fn holder(conn: &mut PgConnection) -> Result<String, Fault> {
    let sql = format!(
        "SELECT a.application_name, a.pid, COALESCE(host(a.client_addr), 'the server''s machine') \
         FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid \
         WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND a.datname = current_database() \
           AND ((l.classid::bigint << 32) | l.objid::bigint) = {LEASE_KEY} LIMIT 1"
    );
    let found: Option<(String, i32, String)> = sqlx::query_as(sqlx::AssertSqlSafe(sql)).fetch_optional(conn).await?;
    Ok(found.map_or("a session that ended just now".to_owned(), |(name, pid, address)| {
        format!("{name} (session {pid} from {address})")
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_that_asks_for_tls_is_refused_with_the_remedy() {
        for mode in ["require", "verify-ca", "verify-full"] {
            let refused = options(&format!("postgres://u:secret@db/reef?sslmode={mode}")).expect_err(mode);
            let told = refused.told(Path::new("")).to_string();
            assert!(told.contains("sslmode=disable") && !told.contains("secret"), "{told}");
        }
        assert!(options("postgres://db/reef").is_ok());
    }

    #[test]
    fn a_place_and_a_refusal_show_no_password() {
        let read = options("postgres://u:secret@db:6000/reef").expect("valid");
        assert_eq!(place(&read), Path::new("postgres://db:6000/reef"));
        let told = options("postgres://u:secret@db:port/reef").expect_err("no port").told(Path::new("")).to_string();
        assert!(!told.contains("secret"), "{told}");
    }
}
