//! Makes erased bytes disappear from the disk. A deleted row leaves copies behind: in pages that SQLite moved cells out
//! of, in its log, and in Postgres as dead tuples. So the database is written anew, by the writer and outside of a
//! transaction. What a server archives or a disk keeps below the file system is beyond the store.

use std::time::{Duration, Instant};

use crate::Store;
use crate::error::{Fault, StoreError};
use crate::sql::{self, Connection};
use crate::sqlite::BUSY_TIMEOUT;

/// Between two looks whether a fold of the log is over.
const FOLD_PAUSE: Duration = Duration::from_millis(20);

/// In Postgres: the tables that hold what people said, or what a recipe or a proposer made of it.
const REWRITES: [&str; 16] = [
    "VACUUM (FULL) records",
    "VACUUM (FULL) record_tags",
    "VACUUM (FULL) samples",
    "VACUUM (FULL) step_inputs",
    "VACUUM (FULL) steps",
    "VACUUM (FULL) recipe_state",
    "VACUUM (FULL) recipe_uses",
    "VACUUM (FULL) quarantine",
    "VACUUM (FULL) proposals",
    "VACUUM (FULL) refused_proposals",
    "VACUUM (FULL) held_out",
    "VACUUM (FULL) releases",
    "VACUUM (FULL) retractions",
    "VACUUM (FULL) rollouts",
    "VACUUM (FULL) scenarios",
    "VACUUM (FULL) tombstones",
];

impl Store {
    /// Writes the database anew if bytes of erased records may lie in it.
    pub(crate) async fn scrub(&self) -> Result<(), StoreError> {
        self.alone(|conn| Box::pin(scrub(conn))).await
    }
}

/// Notes, in the transaction that erases, that the database must be written anew: a crash before that forgets nothing.
pub(crate) async fn mark(conn: &mut Connection) -> Result<(), Fault> {
    sql::query("INSERT INTO unscrubbed (one) VALUES (1) ON CONFLICT DO NOTHING").execute(conn).await?;
    Ok(())
}

async fn scrub(conn: &mut Connection) -> Result<(), Fault> {
    let marked: Option<i64> = sql::query("SELECT one FROM unscrubbed").scalar_optional(&mut *conn).await?;
    if marked.is_none() {
        return Ok(());
    }
    if conn.is_postgres() {
        for rewrite in REWRITES {
            sql::query(rewrite).execute(&mut *conn).await?;
        }
    } else {
        sql::query("VACUUM").execute(&mut *conn).await?;
        if !empty_log(conn).await? {
            let told = "the records are erased, but another program still reads an earlier state of the file, whose log \
                        keeps their bytes; end that program and erase again";
            return Err(StoreError::Conflict(told.to_owned()).into());
        }
    }
    sql::query("DELETE FROM unscrubbed").execute(conn).await?;
    Ok(())
}

/// Folds SQLite's whole log into the file and empties it; false = somebody reads an earlier state. SQLite waits for
/// readers, but not for a fold that runs at the same moment (`fold.rs`), which is over soon.
async fn empty_log(conn: &mut Connection) -> Result<bool, Fault> {
    let began = Instant::now();
    loop {
        // Busy, pages in the log, pages folded in.
        let row = sql::query("PRAGMA wal_checkpoint(TRUNCATE)").fetch_optional::<(i64, i64, i64)>(&mut *conn).await?;
        if row.is_some_and(|(busy, ..)| busy == 0) {
            return Ok(true);
        }
        if began.elapsed() >= BUSY_TIMEOUT {
            return Ok(false);
        }
        tokio::time::sleep(FOLD_PAUSE).await;
    }
}
