//! How a running trainer is stopped and how it makes room for serving.
//! Whoever owns the step holds a clone; the trainer asks it between two micro-batches. Training never blocks
//! serving for longer than one micro-batch, and serving never starves training for longer than a named wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::error::EngineError;

/// Share of wall time that training takes while requests are served, unless set otherwise.
pub const TRAIN_SHARE_DEFAULT: f64 = 0.5;

/// The longest pause after one micro-batch, so that endless traffic slows training and never stops it.
const PAUSE_MS_MAX: u64 = 2_000;

/// How often a pause looks for the end of traffic or a cancellation.
const PAUSE_SLICE_MS: u64 = 2;

/// A handle on a running trainer. Clones act on the same trainer.
#[derive(Debug, Clone)]
pub struct TrainControl {
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    cancelled: AtomicBool,
    /// Bits of an f64 in (0, 1].
    share: AtomicU64,
}

impl Default for TrainControl {
    fn default() -> Self {
        Self {
            state: Arc::new(State {
                cancelled: AtomicBool::new(false),
                share: AtomicU64::new(TRAIN_SHARE_DEFAULT.to_bits()),
            }),
        }
    }
}

impl TrainControl {
    /// Ends the running call with `EngineError::Cancelled` at the next micro-batch, and every later call.
    pub fn cancel(&self) {
        self.state.cancelled.store(true, Ordering::Relaxed);
    }

    /// Sets the share of wall time, in (0, 1], that training takes while requests are served; 1 = never pause.
    pub fn set_share(&self, share: f64) -> Result<(), EngineError> {
        if !(share > 0.0 && share <= 1.0) {
            return Err(EngineError::Invalid(format!("training share {share}: it must be above 0 and at most 1")));
        }
        self.state.share.store(share.to_bits(), Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn check(&self) -> Result<(), EngineError> {
        if self.state.cancelled.load(Ordering::Relaxed) { Err(EngineError::Cancelled) } else { Ok(()) }
    }

    /// Pauses after `busy` of work for as long as requests are `active` and the share asks.
    pub(super) fn make_room(&self, busy: Duration, active: impl Fn() -> usize) -> Result<(), EngineError> {
        let share = f64::from_bits(self.state.share.load(Ordering::Relaxed));
        let pause = busy.mul_f64((1.0 / share - 1.0).min(PAUSE_MS_MAX as f64)).min(Duration::from_millis(PAUSE_MS_MAX));
        let begin = Instant::now();
        while active() > 0 {
            self.check()?;
            let left = pause.saturating_sub(begin.elapsed());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(Duration::from_millis(PAUSE_SLICE_MS)));
        }
        self.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY: Duration = Duration::from_millis(20);

    fn pause(control: &TrainControl, active: usize) -> Duration {
        let begin = Instant::now();
        control.make_room(BUSY, || active).expect("not cancelled");
        begin.elapsed()
    }

    #[test]
    fn half_the_time_is_left_to_active_requests_and_none_to_an_idle_server() {
        let control = TrainControl::default();
        assert!(pause(&control, 1) >= BUSY);
        assert!(pause(&control, 0) < BUSY);
        control.set_share(1.0).expect("valid");
        assert!(pause(&control, 1) < BUSY);
    }

    #[test]
    fn a_cancelled_trainer_stays_cancelled() {
        let control = TrainControl::default();
        control.clone().cancel();
        assert!(matches!(control.make_room(BUSY, || 0), Err(EngineError::Cancelled)));
        assert!(matches!(control.check(), Err(EngineError::Cancelled)));
    }

    #[test]
    fn a_share_outside_its_range_is_refused() {
        for share in [0.0, -1.0, 1.5, f64::NAN] {
            assert!(TrainControl::default().set_share(share).is_err());
        }
    }
}
