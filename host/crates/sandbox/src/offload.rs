//! Blocking host work of a call, run on the sandbox's blocking threads. The worker moves in and comes back,
//! also when the work panics; only a call that was cancelled and outlived its grace loses it.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use crate::Cancel;
use crate::lanes::blocking;
use crate::meter::Meter;

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    /// The call came without this worker.
    Absent,
    /// The host's code panicked.
    Panicked,
    /// The call was cancelled and the work did not end in time.
    Cancelled,
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
    let mut worker = slot.take().ok_or(Lost::Absent)?;
    let booked = terms.meter.host_time();
    let span = tracing::Span::current();
    let mut task = std::pin::pin!(blocking(move || {
        let answer = span.in_scope(|| std::panic::catch_unwind(AssertUnwindSafe(|| work(&mut worker))));
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
    use super::*;

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
