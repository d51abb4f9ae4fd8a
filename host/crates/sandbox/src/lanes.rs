//! The guests' threads. A call starts on the quick lane; once it has run for longer than most calls need, it goes
//! on, at its next yield, on the slow lane, whose threads the kernel sets aside whenever others have work.
//! Long calls therefore delay neither short ones nor the rest of the process, and still get every idle core.

use std::cell::OnceCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::process::setpriority_process;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};
use tokio::task::{JoinError, JoinHandle};

use crate::meter::Meter;
use crate::{SandboxConfig, SandboxError};

/// Guest time after which a call is a long one. A Python guest's usual call stays below.
const QUICK_TIME_MAX: Duration = Duration::from_millis(2);
/// Niceness of the slow lane's threads: whatever wakes up beside them runs at once, and when all cores are taken for
/// long they still get a tenth of one. At 19 it would be a seventieth, and long calls would hardly end.
const SLOW_NICE: i32 = 10;
/// Host calls that block at the same time, beyond the calls that run: those that outlived a call that was cancelled.
const BLOCKING_THREADS_EXTRA: usize = 8;

thread_local! {
    /// On a slow thread: the runtime whose threads do the host's blocking work.
    static HOST: OnceCell<Handle> = const { OnceCell::new() };
    /// On every thread of a sandbox: the seats of its blocking work.
    static SEATS: OnceCell<Arc<Semaphore>> = const { OnceCell::new() };
}

/// Which threads run a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// At the process's own priority.
    Quick,
    /// When nobody else wants the core.
    Slow,
}

/// Both lanes' threads.
pub(crate) struct Lanes {
    quick: Option<Runtime>,
    slow: Option<Runtime>,
    quick_handle: Handle,
    slow_handle: Handle,
}

impl Lanes {
    pub(crate) fn start(config: &SandboxConfig) -> Result<Self, SandboxError> {
        let blocking = (config.calls_concurrent_max as usize).saturating_add(BLOCKING_THREADS_EXTRA);
        let seats = Arc::new(Semaphore::new(blocking));
        let failed = |error| SandboxError::Start(format!("its threads do not start: {error}"));
        let quick = Builder::new_multi_thread()
            .worker_threads(config.threads)
            .max_blocking_threads(blocking)
            .thread_name("reef-sandbox")
            .on_thread_start(sit(&seats))
            .enable_time()
            .build()
            .map_err(failed)?;
        let (host, sit) = (quick.handle().clone(), sit(&seats));
        let slow = Builder::new_multi_thread()
            .worker_threads(config.threads)
            .thread_name("reef-slow")
            .enable_time()
            .on_thread_start(move || {
                sit();
                step_back(&host);
            })
            .build()
            .map_err(failed)?;
        let (quick_handle, slow_handle) = (quick.handle().clone(), slow.handle().clone());
        Ok(Self { quick: Some(quick), slow: Some(slow), quick_handle, slow_handle })
    }

    /// The quick lane, which also does the host's blocking work.
    pub(crate) fn quick(&self) -> &Handle {
        &self.quick_handle
    }

    /// Runs `work` from `lane` on; `meter` is what it books its time on. Dropping the returned future ends the work
    /// at its next yield.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        lane: Lane,
        meter: Arc<Meter>,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, JoinError> {
        let mut work: Work<T> = Box::pin(work);
        if lane == Lane::Quick {
            let stint = Stint { work: Some(work), meter };
            work = match AbortOnDrop(self.quick_handle.spawn(stint)).await? {
                Stopped::Done(value) => return Ok(value),
                Stopped::Long(work) => work,
            };
        }
        AbortOnDrop(self.slow_handle.spawn(work)).await
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        // The last owner may be a task of a runtime, where waiting for threads is not allowed.
        for runtime in [self.slow.take(), self.quick.take()].into_iter().flatten() {
            runtime.shutdown_background();
        }
    }
}

/// Tells a thread that starts where the seats are.
fn sit(seats: &Arc<Semaphore>) -> impl Fn() + Send + Sync + use<> {
    let seats = Arc::clone(seats);
    move || {
        SEATS.with(|cell| {
            cell.get_or_init(|| Arc::clone(&seats));
        });
    }
}

/// A seat for blocking work, to be kept until the work ends, however long after its call. There is none when so much
/// work outlived its calls that more would wait for a thread without bound. Outside of a sandbox nothing is counted.
pub(crate) fn seat() -> Result<Option<OwnedSemaphorePermit>, TryAcquireError> {
    SEATS.with(|cell| cell.get().map(|seats| Arc::clone(seats).try_acquire_owned()).transpose())
}

/// Lowers the priority of the calling thread, which on Linux is what "process 0" means.
fn step_back(host: &Handle) {
    HOST.with(|cell| {
        cell.get_or_init(|| host.clone());
    });
    if let Err(error) = setpriority_process(None, SLOW_NICE) {
        tracing::warn!("a thread for long recipe calls keeps its normal priority: {error}");
    }
}

/// Runs the host's blocking work at the host's priority: a thread that a slow thread starts would stay slow, and so
/// would all that it starts.
pub(crate) async fn blocking<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> Result<R, JoinError> {
    match HOST.with(|cell| cell.get().cloned()) {
        Some(host) => host.spawn(async move { tokio::task::spawn_blocking(work).await }).await?,
        None => tokio::task::spawn_blocking(work).await,
    }
}

type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// How a stint on the quick lane ended.
enum Stopped<T> {
    Done(T),
    Long(Work<T>),
}

/// Polls the work until it is done or long. Every poll is short: the epoch makes guests yield.
struct Stint<T> {
    work: Option<Work<T>>,
    meter: Arc<Meter>,
}

impl<T> Future for Stint<T> {
    type Output = Stopped<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Stopped<T>> {
        let Some(mut work) = self.work.take() else { return Poll::Pending };
        match work.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Stopped::Done(value)),
            Poll::Pending => {
                if self.meter.guest() > QUICK_TIME_MAX {
                    // Whoever polls the work next is told when it can go on.
                    return Poll::Ready(Stopped::Long(work));
                }
                self.work = Some(work);
                Poll::Pending
            }
        }
    }
}

struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Future for AbortOnDrop<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::getpriority_process;

    use super::*;
    use crate::meter::{Metered, thread_time};

    fn here() -> (String, i32) {
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        (name, getpriority_process(None).expect("priority"))
    }

    fn burn(time: Duration) {
        let started = thread_time();
        while thread_time() < started + time {}
    }

    async fn run<T: Send + 'static>(
        lanes: &Lanes,
        lane: Lane,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, JoinError> {
        let meter = Arc::new(Meter::new());
        lanes.run(lane, Arc::clone(&meter), Metered { meter, inner: Box::pin(work) }).await
    }

    #[tokio::test]
    async fn a_long_call_goes_on_on_the_slow_lane_and_a_short_one_does_not() {
        let lanes = Lanes::start(&SandboxConfig::default()).expect("threads");
        let own = getpriority_process(None).expect("priority");
        let short = run(&lanes, Lane::Quick, async {
            tokio::task::yield_now().await;
            here()
        });
        assert_eq!(short.await.expect("ends"), ("reef-sandbox".to_owned(), own));
        let long = run(&lanes, Lane::Quick, async {
            let first = here();
            burn(QUICK_TIME_MAX * 2);
            tokio::task::yield_now().await;
            tokio::time::sleep(Duration::from_millis(1)).await;
            (first, here())
        });
        let (first, then) = long.await.expect("ends");
        assert_eq!(first.0, "reef-sandbox");
        assert_eq!(then, ("reef-slow".to_owned(), SLOW_NICE));
        let known = run(&lanes, Lane::Slow, async { here() });
        assert_eq!(known.await.expect("ends").0, "reef-slow");
    }

    #[tokio::test]
    async fn blocking_work_of_a_slow_call_keeps_the_hosts_priority() {
        let lanes = Lanes::start(&SandboxConfig::default()).expect("threads");
        let own = getpriority_process(None).expect("priority");
        let work = run(&lanes, Lane::Slow, async { blocking(here).await });
        assert_eq!(work.await.expect("ends").expect("ran"), ("reef-sandbox".to_owned(), own));
    }

    #[tokio::test]
    async fn dropping_the_future_ends_the_work_on_both_lanes() {
        let lanes = Lanes::start(&SandboxConfig::default()).expect("threads");
        for lane in [Lane::Quick, Lane::Slow] {
            let (guard, ended) = tokio::sync::oneshot::channel::<()>();
            let work = run(&lanes, lane, async move {
                let _guard = guard;
                std::future::pending::<()>().await;
            });
            assert!(tokio::time::timeout(Duration::from_millis(50), work).await.is_err());
            let told = tokio::time::timeout(Duration::from_secs(30), ended).await.expect("the work is dropped");
            assert!(told.is_err());
        }
    }
}
