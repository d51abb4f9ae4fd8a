//! Blocking host work of a call, run on the sandbox's blocking threads. The worker moves in and comes back,
//! also when the work panics; only a call that was cancelled and outlived its grace loses it.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use crate::Cancel;
use crate::lanes::{blocking, seat};
use crate::meter::Meter;

/// What a guest is told when no thread is left.
pub(crate) const NO_THREAD: &str = "the host's threads are all taken by work that does not end; try again later";

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    /// The call came without this worker.
    Absent,
    /// The host's code panicked.
    Panicked,
    /// The call was cancelled and the work did not end in time.
    Cancelled,
    /// Work that outlived its calls has all threads.
    NoThread,
}

/// How long and how a piece of work may run.
pub(crate) struct Terms<'a> {
    pub(crate) cancel: &'a Cancel,
    pub(crate) grace: Duration,
    pub(crate) meter: &'a Meter,
}

/// Runs `work` with the worker in `slot` and puts the worker back.
pub(crate) async fn offload<W, R>(
    slot: &mut Option<W>,
    terms: Terms<'_>,
    work: impl FnOnce(&mut W) -> R + Send + 'static,
) -> Result<R, Lost>
where
    W: Send + 'static,
    R: Send + 'static,
{
    if terms.cancel.is_cancelled() {
        return Err(Lost::Cancelled);
    }
    let seat = seat().map_err(|_| Lost::NoThread)?;
    let mut worker = slot.take().ok_or(Lost::Absent)?;
    let booked = terms.meter.host_time();
    let span = tracing::Span::current();
    let mut task = std::pin::pin!(blocking(move || {
        let answer = span.in_scope(|| std::panic::catch_unwind(AssertUnwindSafe(|| work(&mut worker))));
        drop(seat);
        (worker, answer)
    }));
    let ended = tokio::select! {
        ended = &mut task => Some(ended),
        () = terms.cancel.cancelled() => tokio::time::timeout(terms.grace, &mut task).await.ok(),
    };
    drop(booked);
    let (worker, answer) = ended.ok_or(Lost::Cancelled)?.map_err(|_| Lost::Panicked)?;
    *slot = Some(worker);
    answer.map_err(|_| Lost::Panicked)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::SandboxConfig;
    use crate::lanes::{Lane, Lanes};

    #[tokio::test]
    async fn work_that_would_find_no_thread_is_refused() {
        let lanes = Lanes::start(&SandboxConfig { calls_concurrent_max: 1, ..Default::default() }).expect("threads");
        let meter = Arc::new(Meter::new());
        let work = async {
            let (cancel, meter) = (Cancel::new(), Meter::new());
            let terms = || Terms { cancel: &cancel, grace: Duration::from_secs(1), meter: &meter };
            let mut slot = Some(7);
            let taken: Vec<_> = std::iter::from_fn(|| seat().ok()).take(1_000).collect();
            let refused = offload(&mut slot, terms(), |n| *n).await;
            assert_eq!((refused, slot, taken.len()), (Err(Lost::NoThread), Some(7), 9));
            drop(taken);
            // Every seat that is taken is given back.
            for _ in 0..20 {
                assert_eq!(offload(&mut slot, terms(), |n| *n).await, Ok(7));
            }
        };
        lanes.run(Lane::Quick, meter, work).await.expect("ends");
    }

    #[tokio::test]
    async fn the_worker_comes_back_after_a_panic() {
        let (cancel, meter) = (Cancel::new(), Meter::new());
        let terms = || Terms { cancel: &cancel, grace: Duration::from_secs(1), meter: &meter };
        let mut slot = Some(7);
        let lost = offload(&mut slot, terms(), |_| -> i32 { panic!("host code") }).await;
        assert_eq!((lost, slot), (Err(Lost::Panicked), Some(7)));
        assert_eq!(offload(&mut slot, terms(), |n| *n + 1).await, Ok(8));
        assert_eq!(offload(&mut None::<i32>, terms(), |n| *n).await, Err(Lost::Absent));
    }

    #[tokio::test]
    async fn cancelling_waits_for_the_grace_and_no_longer() {
        let (cancel, meter) = (Cancel::new(), Meter::new());
        let terms = |ms| Terms { cancel: &cancel, grace: Duration::from_millis(ms), meter: &meter };
        let cancel_soon = || {
            let cancel = cancel.clone();
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(10));
                cancel.cancel();
            })
        };
        let mut slot = Some(1);
        let canceller = cancel_soon();
        let answer = offload(&mut slot, terms(2_000), |n| {
            std::thread::sleep(Duration::from_millis(60));
            *n
        });
        assert_eq!((answer.await, slot), (Ok(1), Some(1)));
        canceller.join().expect("joined");
        assert_eq!(offload(&mut slot, terms(2_000), |n| *n).await, Err(Lost::Cancelled));
    }
}
