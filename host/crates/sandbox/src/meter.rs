//! Time of one call, split into guest time and host time. Guest time is the processor time of the thread while it
//! polls the call's future: waiting for training, for models, for a thread or for a core is not on the guest's bill.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// `started_ns` of a stopwatch that does not run.
const IDLE: u64 = u64::MAX;

/// Adds up stretches of time; one writer, any number of readers.
#[derive(Debug)]
struct Stopwatch {
    total_ns: AtomicU64,
    started_ns: AtomicU64,
}

impl Stopwatch {
    const fn new() -> Self {
        Self { total_ns: AtomicU64::new(0), started_ns: AtomicU64::new(IDLE) }
    }

    fn start(&self, now_ns: u64) {
        self.started_ns.store(now_ns, Ordering::Relaxed);
    }

    fn stop(&self, now_ns: u64) {
        let started = self.started_ns.swap(IDLE, Ordering::Relaxed);
        self.total_ns.fetch_add(now_ns.saturating_sub(started), Ordering::Relaxed);
    }

    /// Asks `now_ns` only while it runs.
    fn read(&self, now_ns: impl FnOnce() -> u64) -> Duration {
        let running = match self.started_ns.load(Ordering::Relaxed) {
            IDLE => 0,
            started => now_ns().saturating_sub(started),
        };
        Duration::from_nanos(self.total_ns.load(Ordering::Relaxed).saturating_add(running))
    }
}

/// Processor time of the calling thread.
pub(crate) fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(IDLE - 1)
}

/// Shared by the call's future, its host calls and its epoch callback.
#[derive(Debug)]
pub(crate) struct Meter {
    origin: Instant,
    polled: Stopwatch,
    host: Stopwatch,
}

impl Meter {
    pub(crate) fn new() -> Self {
        Self { origin: Instant::now(), polled: Stopwatch::new(), host: Stopwatch::new() }
    }

    fn now_ns(&self) -> u64 {
        nanos(self.origin.elapsed())
    }

    /// Time since the call began.
    pub(crate) fn elapsed(&self) -> Duration {
        self.origin.elapsed()
    }

    /// Guest time until now; while the guest runs, only its own thread may ask.
    pub(crate) fn guest(&self) -> Duration {
        self.polled.read(|| nanos(thread_time()))
    }

    /// Books work on the guest's behalf: polls of its call, and the end of its instance.
    pub(crate) fn booked<R>(&self, work: impl FnOnce() -> R) -> R {
        self.polled.start(nanos(thread_time()));
        let done = work();
        self.polled.stop(nanos(thread_time()));
        done
    }

    /// Time in training and model calls until now.
    pub(crate) fn host(&self) -> Duration {
        self.host.read(|| self.now_ns())
    }

    /// Books time as host time until the returned value is dropped.
    pub(crate) fn host_time(&self) -> HostTime<'_> {
        self.host.start(self.now_ns());
        HostTime(self)
    }
}

/// A running host call.
pub(crate) struct HostTime<'a>(&'a Meter);

impl Drop for HostTime<'_> {
    fn drop(&mut self) {
        self.0.host.stop(self.0.now_ns());
    }
}

/// Books the polls of `inner` as guest time.
pub(crate) struct Metered<'a, T> {
    pub(crate) meter: Arc<Meter>,
    pub(crate) inner: Pin<Box<dyn Future<Output = T> + Send + 'a>>,
}

impl<T> Future for Metered<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Self { meter, inner } = &mut *self;
        meter.booked(|| inner.as_mut().poll(context))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waiting_is_not_guest_time() {
        let meter = Arc::new(Meter::new());
        let work = async {
            let started = thread_time();
            while thread_time() < started + Duration::from_millis(20) {}
            let _booked = meter.host_time();
            tokio::time::sleep(Duration::from_millis(200)).await;
        };
        Metered { meter: Arc::clone(&meter), inner: Box::pin(work) }.await;
        assert!(
            meter.guest() >= Duration::from_millis(20) && meter.guest() < Duration::from_millis(150),
            "{:?}",
            meter.guest()
        );
        assert!(meter.host() >= Duration::from_millis(200) && meter.elapsed() >= Duration::from_millis(220));
    }
}
