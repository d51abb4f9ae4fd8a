//! The handle that the binary clones: opens the database, sends writes to the writer, lends readers.
//! SQLite keeps everything in one file and is the default; Postgres is chosen by a URL. A returned write is on disk.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use sqlx::SqlStr;
use sqlx::migrate::{Migration, MigrationType};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::entry::Entry;
use crate::error::{Fault, StoreError};
use crate::fold::Folding;
use crate::home::{Home, Readers};
use crate::reading::in_use;
use crate::reports::Appended;
use crate::sql::{self, Connection};
use crate::writer::{Append, Counters, Job, QUEUE_JOBS_MAX, QUEUE_KIB_MAX, Waiting, Work, Writer};
use crate::{postgres, sqlite};

/// Changes no row and yet needs the right to write.
const WRITES_NOTHING: &str = "UPDATE scenarios SET head = head WHERE FALSE";

/// One file of `migrations/`.
pub(crate) fn migration(version: i64, name: &'static str, sql: &'static str) -> Migration {
    Migration::new(version, Cow::Borrowed(name), MigrationType::Simple, SqlStr::from_static(sql), false)
}

/// What the writer did since the store was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteStats {
    /// Transactions committed; each is one sync to disk.
    pub transactions: u64,
    /// Calls that those transactions carried.
    pub writes: u64,
}

/// The durable log of one server. Cheap to clone; all clones are one store.
#[derive(Clone)]
pub struct Store {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) path: Arc<Path>,
    pub(crate) readers: Readers,
    /// Nobody else had the file open when it was opened, and it is read without locks.
    pub(crate) unshared: bool,
    pub(crate) read_only: bool,
    /// Empty once closed, and in a store that only reads.
    pub(crate) jobs: Mutex<Option<mpsc::Sender<Waiting>>>,
    pub(crate) room: Arc<Semaphore>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) writer: Mutex<Option<JoinHandle<()>>>,
    /// None in Postgres, and in a store that only reads.
    pub(crate) folding: Mutex<Option<Folding>>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("path", &self.inner.path).finish_non_exhaustive()
    }
}

impl Store {
    /// Opens the database at `path`, creates it if it is missing, and brings its tables up to date.
    /// Must run inside a tokio runtime, which then carries the writer.
    pub async fn open(path: &Path) -> Result<Self, StoreError> {
        Self::at(Home::Sqlite(sqlite::options(path))).await
    }

    /// The same in Postgres: `postgres://user:password@host:5432/database`, without TLS. The tables lie in the first
    /// schema of the search path. `InUse` while another process writes there.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        let options = postgres::options(url).map_err(|fault| fault.told(Path::new("the store")))?;
        Self::at(Home::Postgres(options)).await
    }

    async fn at(home: Home) -> Result<Self, StoreError> {
        let place: Arc<Path> = Arc::from(home.place());
        let mut connection = home.found().await?;
        // A file that refuses writes is told now, not at the first answer.
        sql::query(WRITES_NOTHING).execute(&mut connection).await.map_err(|fault| fault.told(&place))?;
        let (sender, jobs) = mpsc::channel(QUEUE_JOBS_MAX);
        let counters = Arc::new(Counters::default());
        let readers = home.readers();
        let file = match &home {
            Home::Sqlite(options) => Some(options.clone()),
            Home::Postgres(_) => None,
        };
        let writer = Writer {
            path: Arc::clone(&place),
            home,
            connection: Some(connection),
            jobs,
            next: None,
            counters: Arc::clone(&counters),
        };
        let inner = Inner {
            path: place,
            readers,
            unshared: false,
            read_only: false,
            jobs: Mutex::new(Some(sender)),
            room: Arc::new(Semaphore::new(QUEUE_KIB_MAX as usize)),
            counters,
            writer: Mutex::new(Some(tokio::spawn(writer.run()))),
            folding: Mutex::default(),
        };
        let inner = Arc::new(inner);
        let folding = file.map(|options| Folding::start(options, &inner));
        *inner.folding.lock().unwrap_or_else(PoisonError::into_inner) = folding;
        Ok(Self { inner })
    }

    /// Finishes the writes that were accepted, then closes the file. Later calls return `Closed`.
    pub async fn close(&self) {
        // No further write is accepted; the writer goes on until this is dropped.
        let jobs = self.inner.jobs.lock().unwrap_or_else(PoisonError::into_inner).take();
        let folding = self.inner.folding.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(folding) = folding {
            folding.end().await;
        }
        // The last connection to close folds the log into the file; of two that close at once, neither is the last.
        self.inner.readers.close().await;
        drop(jobs);
        let writer = self.inner.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer
            && let Err(error) = writer.await
        {
            tracing::error!(%error, "store.writer");
        }
    }

    /// Counters of the writer.
    pub fn write_stats(&self) -> WriteStats {
        WriteStats {
            transactions: self.inner.counters.transactions.load(Ordering::Relaxed),
            writes: self.inner.counters.jobs.load(Ordering::Relaxed),
        }
    }

    /// A connection that can only read.
    pub(crate) async fn reader(&self) -> Result<Connection, StoreError> {
        if self.inner.unshared && in_use(&self.inner.path) {
            let reason = "a server started to use it meanwhile".to_owned();
            return Err(StoreError::Unavailable { path: self.inner.path.to_path_buf(), reason });
        }
        self.told(self.inner.readers.acquire().await)
    }

    /// Names the file in a fault.
    pub(crate) fn told<T>(&self, result: Result<T, Fault>) -> Result<T, StoreError> {
        result.map_err(|fault| fault.told(&self.inner.path))
    }

    /// Runs a write of several changes: all of them or none.
    pub(crate) async fn write<T, F>(&self, bytes: usize, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut Connection) -> Work<'c, T> + Send + 'static,
    {
        self.submit(bytes, true, work).await
    }

    /// Runs a write that can only fail before its first change; saves the savepoint.
    pub(crate) async fn append<T, F>(&self, bytes: usize, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut Connection) -> Work<'c, T> + Send + 'static,
    {
        self.submit(bytes, false, work).await
    }

    async fn submit<T, F>(&self, bytes: usize, many_changes: bool, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut Connection) -> Work<'c, T> + Send + 'static,
    {
        let room = self.room(bytes).await?;
        let (caller, result) = oneshot::channel();
        let job = Job { work: Some(work), many_changes, result: None, caller, room };
        self.send(Waiting::Job(Box::new(job))).await?;
        result.await.unwrap_or(Err(StoreError::Closed))
    }

    /// Runs work outside of a transaction, between two.
    pub(crate) async fn alone<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut Connection) -> Work<'c, T> + Send + 'static,
    {
        let room = self.room(0).await?;
        let (caller, result) = oneshot::channel();
        let job = Job { work: Some(work), many_changes: false, result: None, caller, room };
        self.send(Waiting::Alone(Box::new(job))).await?;
        result.await.unwrap_or(Err(StoreError::Closed))
    }

    /// Appends a record; durable on return.
    pub(crate) async fn submit_record(&self, entry: Entry) -> Result<Appended, StoreError> {
        let room = self.room(entry.size()).await?;
        let (caller, result) = oneshot::channel();
        self.send(Waiting::Record(Box::new(Append { entry, result: None, caller, room }))).await?;
        result.await.unwrap_or(Err(StoreError::Closed))
    }

    /// Waits until there is memory for so many bytes.
    async fn room(&self, bytes: usize) -> Result<OwnedSemaphorePermit, StoreError> {
        if self.inner.read_only {
            return Err(StoreError::ReadOnly { path: self.inner.path.to_path_buf() });
        }
        let kib = u32::try_from(bytes >> 10).unwrap_or(QUEUE_KIB_MAX).clamp(1, QUEUE_KIB_MAX);
        Arc::clone(&self.inner.room).acquire_many_owned(kib).await.map_err(|_| StoreError::Closed)
    }

    async fn send(&self, waiting: Waiting) -> Result<(), StoreError> {
        let sender = self.inner.jobs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        sender.ok_or(StoreError::Closed)?.send(waiting).await.map_err(|_| StoreError::Closed)
    }
}
