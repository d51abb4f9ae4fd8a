//! Folds SQLite's write-ahead log into the file beside the writer, so that hardly a commit waits for it.
//! `store.rs` starts it with the writer and ends it before the last connection closes. While writes go on, a fold never
//! reaches the end of the log; where the log has grown long, the writer folds the few pages that are left between two
//! transactions, and the log begins anew.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use sqlx::ConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use crate::error::Fault;
use crate::sql::{self, Connection};
use crate::store::{Inner, Store};

/// Time between two looks at the log.
const EVERY: Duration = Duration::from_millis(250);
/// Pages of a log that is begun anew: 16 MiB.
const LOG_PAGES: i64 = 4096;

/// The task.
#[derive(Debug)]
pub(crate) struct Folding {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Folding {
    /// Starts it; it ends by itself when the store is gone.
    pub fn start(options: SqliteConnectOptions, inner: &Arc<Inner>) -> Self {
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(run(options, Arc::downgrade(inner), stopped));
        Self { stop, task }
    }

    /// Returns when its connection is closed.
    pub async fn end(self) {
        // A task that has ended hears nothing more.
        let _ = self.stop.send(());
        if let Err(error) = self.task.await {
            tracing::error!(%error, "store.fold");
        }
    }
}

async fn run(options: SqliteConnectOptions, inner: Weak<Inner>, mut stopped: oneshot::Receiver<()>) {
    let (mut connection, mut seen) = (None, 0);
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = &mut stopped => break,
            _ = tick.tick() => {}
        }
        let Some(store) = inner.upgrade().map(|inner| Store { inner }) else { break };
        let written = store.inner.counters.transactions.load(Ordering::Relaxed);
        if written == seen {
            continue;
        }
        seen = written;
        if let Err(fault) = fold(&options, &mut connection, (&store, LOG_PAGES)).await {
            // The writer folds a log that nobody else does, if later and for longer.
            tracing::debug!(error = %fault.told(&store.inner.path), "store.fold");
            connection = None;
        }
    }
    if let Some(connection) = connection
        && let Err(error) = connection.close().await
    {
        tracing::debug!(%error, "store.fold.close");
    }
}

/// Folds what is there, and lets the writer fold the rest of a log of so many pages.
async fn fold(
    options: &SqliteConnectOptions,
    connection: &mut Option<Connection>,
    (store, pages_max): (&Store, i64),
) -> Result<(), Fault> {
    let conn = match connection {
        Some(conn) => conn,
        None => connection.insert(Connection::Sqlite(options.connect().await?)),
    };
    if passive(conn).await? >= pages_max {
        store.alone(|conn| Box::pin(passive(conn))).await?;
    }
    Ok(())
}

/// Folds as much as no other connection still needs, and waits for none; pages of the log.
async fn passive(conn: &mut Connection) -> Result<i64, Fault> {
    let (_busy, pages, _folded): (i64, i64, i64) =
        sql::query("PRAGMA wal_checkpoint(PASSIVE)").fetch_optional(conn).await?.unwrap_or_default();
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use reef_core::{ScenarioName, TenantId};

    use super::*;
    use crate::{ScenarioSettings, sqlite};

    /// Pages that the log gets from 32 scenarios with large settings.
    async fn write(store: &Store, round: usize) {
        let tenant = TenantId::parse("acme").expect("tenant");
        let mut settings = ScenarioSettings::default();
        settings.recipe_config.insert("pad".to_owned(), "x".repeat(100_000).into());
        for index in 0..32 {
            let name = ScenarioName::parse(format!("s{round}-{index}")).expect("name");
            store.create_scenario(&tenant, &name, &settings, 1).await.expect("created");
        }
    }

    #[tokio::test]
    async fn a_folded_log_begins_anew_and_loses_nothing() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("reef.db");
        let store = Store::open(&path).await.expect("open");
        // One fold at a time: this one is called here.
        let task = store.inner.folding.lock().expect("no panic").take().expect("started");
        task.end().await;
        let log = || std::fs::metadata(path.with_extension("db-wal")).expect("the log").len();
        write(&store, 0).await;
        let once = log();
        assert!(once > 3_000_000, "{once}");
        let mut connection = None;
        for round in 1..6 {
            fold(&sqlite::options(&path), &mut connection, (&store, 1)).await.expect("folded");
            write(&store, round).await;
            assert!(log() < once + once / 2, "{} after {once}: the log goes on growing", log());
        }
        connection.expect("connected").close().await.expect("closed");
        store.close().await;
        let store = Store::open(&path).await.expect("open");
        assert_eq!(store.scenarios(&TenantId::parse("acme").expect("tenant")).await.expect("list").len(), 6 * 32);
        store.close().await;
    }

    #[tokio::test]
    async fn a_closed_store_leaves_no_log_behind() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("reef.db");
        let store = Store::open(&path).await.expect("open");
        write(&store, 0).await;
        // The task has its connection by then.
        tokio::time::sleep(2 * EVERY).await;
        store.close().await;
        assert!(!path.with_extension("db-wal").exists());
    }
}
