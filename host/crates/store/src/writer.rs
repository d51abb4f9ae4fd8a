//! The one writer: a task that owns the only writing connection and commits many callers at once.
//! Jobs that arrive while a transaction runs join it: records that follow one another are written together, every other
//! job runs in a savepoint of its own, and every caller hears of its result only after the commit, which syncs the log
//! to disk. After a transaction fails none of its jobs is acknowledged, the connection is opened anew, and it goes on.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use crate::append::{self, Outcome};
use crate::entry::Entry;
use crate::error::{Fault, StoreError};
use crate::home::Home;
use crate::sql::{self, Connection};

/// Jobs that wait for the writer; more callers wait in `send`.
pub(crate) const QUEUE_JOBS_MAX: usize = 1024;
/// KiB of rows that wait for the writer or run; more callers wait for room.
pub(crate) const QUEUE_KIB_MAX: u32 = 256 << 10;
/// Jobs of one transaction: bounds how long its first caller waits for the last.
const GROUP_JOBS_MAX: usize = 256;

/// What a job or a query does with its connection.
pub(crate) type Work<'c, T> = Pin<Box<dyn Future<Output = Result<T, Fault>> + Send + 'c>>;

/// Counters of the writer since it started.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Transactions committed; each is one sync to disk.
    pub(crate) transactions: AtomicU64,
    /// Jobs that those transactions carried.
    pub(crate) jobs: AtomicU64,
}

/// What waits for the writer.
pub(crate) enum Waiting {
    /// Most writes by far.
    Record(Box<Append>),
    /// Anything else.
    Job(Box<dyn Pending>),
    /// What cannot run inside a transaction.
    Alone(Box<dyn Pending>),
}

impl Waiting {
    fn settle(self, failed: Option<&StoreError>) {
        match self {
            Self::Record(append) => append.settle(failed),
            Self::Job(job) | Self::Alone(job) => job.settle(failed),
        }
    }

    fn as_record(&self) -> Option<&Append> {
        match self {
            Self::Record(append) => Some(append),
            Self::Job(_) | Self::Alone(_) => None,
        }
    }
}

/// A record and its caller.
pub(crate) struct Append {
    pub(crate) entry: Entry,
    pub(crate) result: Option<Outcome>,
    pub(crate) caller: oneshot::Sender<Outcome>,
    pub(crate) room: OwnedSemaphorePermit,
}

impl Append {
    fn settle(self, failed: Option<&StoreError>) {
        let result = match failed {
            Some(error) => Err(error.clone()),
            None => self.result.unwrap_or(Err(StoreError::Closed)),
        };
        drop(self.room);
        // A caller that went away changes nothing: the row is durable.
        let _ = self.caller.send(result);
    }
}

/// A job whose result type is erased, so that one queue carries all.
pub(crate) trait Pending: Send {
    /// Needs a savepoint: it may fail after its first change.
    fn many_changes(&self) -> bool;
    /// Runs and keeps the result.
    fn apply<'c>(&'c mut self, conn: &'c mut Connection) -> Pin<Box<dyn Future<Output = Option<Fault>> + Send + 'c>>;
    /// Keeps a refusal as the result.
    fn refuse(&mut self, error: StoreError);
    /// Tells the caller: the result, or why the whole transaction failed.
    fn settle(self: Box<Self>, failed: Option<&StoreError>);
}

/// A job and its caller.
pub(crate) struct Job<T, F> {
    pub(crate) work: Option<F>,
    pub(crate) many_changes: bool,
    pub(crate) result: Option<Result<T, StoreError>>,
    pub(crate) caller: oneshot::Sender<Result<T, StoreError>>,
    pub(crate) room: OwnedSemaphorePermit,
}

impl<T, F> Pending for Job<T, F>
where
    T: Send,
    F: for<'c> FnOnce(&'c mut Connection) -> Work<'c, T> + Send,
{
    fn many_changes(&self) -> bool {
        self.many_changes
    }

    fn apply<'c>(&'c mut self, conn: &'c mut Connection) -> Pin<Box<dyn Future<Output = Option<Fault>> + Send + 'c>> {
        Box::pin(async move {
            let work = self.work.take()?;
            match work(conn).await {
                Ok(value) => {
                    self.result = Some(Ok(value));
                    None
                }
                Err(fault) => Some(fault),
            }
        })
    }

    fn refuse(&mut self, error: StoreError) {
        self.result = Some(Err(error));
    }

    fn settle(self: Box<Self>, failed: Option<&StoreError>) {
        let result = match failed {
            Some(error) => Err(error.clone()),
            None => self.result.unwrap_or(Err(StoreError::Closed)),
        };
        drop(self.room);
        // A caller that went away changes nothing: the row is durable.
        let _ = self.caller.send(result);
    }
}

/// The task.
pub(crate) struct Writer {
    pub(crate) path: Arc<Path>,
    pub(crate) home: Home,
    pub(crate) connection: Option<Connection>,
    pub(crate) jobs: mpsc::Receiver<Waiting>,
    /// Arrived while a transaction ran and waits for its end.
    pub(crate) next: Option<Waiting>,
    pub(crate) counters: Arc<Counters>,
}

impl Writer {
    /// Runs until every sender is gone and the queue is empty.
    pub(crate) async fn run(mut self) {
        while let Some(first) = self.first().await {
            let mut group = vec![first];
            let done = match group.as_mut_slice() {
                [Waiting::Alone(job)] => self.run_alone(job.as_mut()).await,
                _ => self.commit(&mut group).await,
            };
            let failed = match done {
                Ok(()) => None,
                Err(fault) => Some(self.give_up(fault).await),
            };
            for job in group {
                job.settle(failed.as_ref());
            }
        }
        if let Some(connection) = self.connection.take()
            && let Err(error) = connection.close().await
        {
            tracing::warn!(path = %self.path.display(), %error, "store.close");
        }
    }

    async fn first(&mut self) -> Option<Waiting> {
        match self.next.take() {
            Some(next) => Some(next),
            None => self.jobs.recv().await,
        }
    }

    async fn connected(&mut self) -> Result<(), Fault> {
        if self.connection.is_none() {
            self.connection = Some(self.home.connect().await?);
        }
        Ok(())
    }

    async fn run_alone(&mut self, job: &mut dyn Pending) -> Result<(), Fault> {
        self.connected().await?;
        let Some(conn) = self.connection.as_mut() else { return Err(StoreError::Closed.into()) };
        match job.apply(conn).await {
            Some(fault) if fault.spares_transaction() => job.refuse(fault.told(&self.path)),
            Some(fault) => return Err(fault),
            None => {}
        }
        Ok(())
    }

    /// One transaction: the group and what arrives meanwhile.
    async fn commit(&mut self, group: &mut Vec<Waiting>) -> Result<(), Fault> {
        self.connected().await?;
        let Some(conn) = self.connection.as_mut() else { return Err(StoreError::Closed.into()) };
        sql::query(if conn.is_postgres() { "BEGIN" } else { "BEGIN IMMEDIATE" }).execute(&mut *conn).await?;
        let mut next = 0;
        join(&mut self.jobs, &mut self.next, group);
        while next < group.len() {
            let waiting = group.get_mut(next..).unwrap_or_default();
            let records = waiting.iter().take_while(|waiting| waiting.as_record().is_some()).count();
            match waiting {
                [Waiting::Job(job), ..] => run_job(job.as_mut(), conn, &self.path).await?,
                waiting => append_all(waiting.get_mut(..records).unwrap_or_default(), conn, &self.path).await?,
            }
            next += records.max(1);
            if next == group.len() {
                join(&mut self.jobs, &mut self.next, group);
            }
        }
        conn.commit().await?;
        self.counters.transactions.fetch_add(1, Ordering::Relaxed);
        self.counters.jobs.fetch_add(group.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// A connection whose transaction failed is not trusted again; closing it rolls back.
    async fn give_up(&mut self, fault: Fault) -> StoreError {
        if let Some(connection) = self.connection.take() {
            let _ = connection.close().await;
        }
        let error = fault.told(&self.path);
        tracing::error!(%error, "store.transaction");
        error
    }
}

/// Takes what has arrived and may run in this transaction.
fn join(jobs: &mut mpsc::Receiver<Waiting>, next: &mut Option<Waiting>, group: &mut Vec<Waiting>) {
    while group.len() < GROUP_JOBS_MAX && next.is_none() {
        match jobs.try_recv() {
            Ok(alone @ Waiting::Alone(_)) => *next = Some(alone),
            Ok(waiting) => group.push(waiting),
            Err(_) => return,
        }
    }
}

/// Writes records that follow one another with few statements. If one of those fails, each record is tried alone, so
/// that it fails nobody else.
async fn append_all(waiting: &mut [Waiting], conn: &mut Connection, path: &Path) -> Result<(), Fault> {
    let Err(fault) = append_together(waiting, conn).await? else { return Ok(()) };
    if let [Waiting::Record(only)] = waiting {
        only.result = Some(Err(fault.told(path)));
        return Ok(());
    }
    for one in waiting.chunks_mut(1) {
        if let Err(fault) = append_together(one, conn).await?
            && let [Waiting::Record(only)] = one
        {
            only.result = Some(Err(fault.told(path)));
        }
    }
    Ok(())
}

/// The outer error ends the transaction, the inner one leaves it as it was.
async fn append_together(waiting: &mut [Waiting], conn: &mut Connection) -> Result<Result<(), Fault>, Fault> {
    let entries: Vec<&Entry> = waiting.iter().filter_map(|w| w.as_record().map(|append| &append.entry)).collect();
    sql::query("SAVEPOINT records").execute(&mut *conn).await?;
    let appended = append::all(conn, &entries).await;
    let appended = match appended {
        Ok(outcomes) => {
            for (waiting, outcome) in waiting.iter_mut().zip(outcomes) {
                if let Waiting::Record(append) = waiting {
                    append.result = Some(outcome);
                }
            }
            Ok(())
        }
        Err(fault) if fault.spares_transaction() => {
            sql::query("ROLLBACK TO records").execute(&mut *conn).await?;
            Err(fault)
        }
        Err(fault) => return Err(fault),
    };
    sql::query("RELEASE records").execute(conn).await?;
    Ok(appended)
}

async fn run_job(job: &mut dyn Pending, conn: &mut Connection, path: &Path) -> Result<(), Fault> {
    // In Postgres any error of a statement ends the transaction but for its savepoint.
    let savepoint = job.many_changes() || conn.is_postgres();
    if savepoint {
        sql::query("SAVEPOINT job").execute(&mut *conn).await?;
    }
    if let Some(fault) = job.apply(conn).await {
        if !fault.spares_transaction() {
            return Err(fault);
        }
        if savepoint {
            sql::query("ROLLBACK TO job").execute(&mut *conn).await?;
        }
        job.refuse(fault.told(path));
    }
    if savepoint {
        sql::query("RELEASE job").execute(&mut *conn).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::error::Fault;
    use crate::sql::{self, Connection};
    use crate::{Created, ScenarioSettings, Store, StoreError};
    use reef_core::{ScenarioName, TenantId};

    async fn pragma(conn: &mut Connection, sql: &'static str) -> Result<(), Fault> {
        sql::query(sql).execute(conn).await?;
        Ok(())
    }

    struct Place {
        store: Store,
        tenant: TenantId,
        _folder: tempfile::TempDir,
    }

    impl Place {
        /// A store whose writing connection obeys `sql` until it is opened anew.
        async fn under(sql: &'static str) -> Self {
            let folder = tempfile::tempdir().expect("folder");
            let store = Store::open(&folder.path().join("reef.db")).await.expect("open");
            store.append(0, move |conn| Box::pin(pragma(conn, sql))).await.expect("pragma");
            Self { store, tenant: TenantId::parse("acme").expect("tenant"), _folder: folder }
        }

        /// Creates a scenario whose settings have so many bytes.
        async fn create(&self, name: &str, bytes: usize) -> Result<Created, StoreError> {
            let mut settings = ScenarioSettings::default();
            settings.recipe_config.insert("pad".to_owned(), "x".repeat(bytes).into());
            self.store.create_scenario(&self.tenant, &ScenarioName::parse(name).expect("name"), &settings, 1).await
        }
    }

    #[tokio::test]
    async fn a_full_disk_acknowledges_nothing_and_the_writer_goes_on() {
        let place = Place::under("PRAGMA max_page_count = 1").await;
        let (fits, big) = tokio::join!(place.create("fits", 1), place.create("big", 500_000));
        let told = big.expect_err("no room");
        assert!(matches!(told, StoreError::Full { .. }), "{told:?}");
        assert!(told.to_string().contains("reef.db is full") && told.to_string().contains("free space"), "{told}");
        assert_eq!(fits, Err(told), "nothing of a failed transaction is acknowledged");
        assert!(place.store.scenarios(&place.tenant).await.expect("list").is_empty(), "nothing of it is stored");
        place.create("after", 1).await.expect("the writer goes on");
    }

    #[tokio::test]
    async fn a_read_only_file_acknowledges_nothing_and_the_writer_goes_on() {
        let place = Place::under("PRAGMA query_only = ON").await;
        let told = place.create("refused", 1).await.expect_err("read-only");
        assert!(matches!(told, StoreError::ReadOnly { .. }), "{told:?}");
        assert!(told.to_string().contains("write permission"), "{told}");
        place.create("after", 1).await.expect("the writer goes on");
        assert_eq!(place.store.scenarios(&place.tenant).await.expect("list").len(), 1);
    }
}
