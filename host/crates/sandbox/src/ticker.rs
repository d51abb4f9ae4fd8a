//! The clock that interrupts guests: a thread that moves the engine's epoch on, from the engine's start to its end.
//! It ticks fast while guests run and slowly while none does, but it never stops: a guest that nobody announced
//! would still be interrupted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use wasmtime::EngineWeak;

use crate::SandboxError;

/// Period of the epoch: the longest time a guest runs between two checks, bulk operations apart. Five times longer,
/// and short calls beside long ones take twice as long.
const TICK: Duration = Duration::from_millis(1);
/// Period while no guest runs: a thousand wake-ups a second for nothing would cost half a percent of a core.
const REST: Duration = Duration::from_millis(50);
/// Ticks without a guest before the clock rests; calls that follow each other find it awake.
const IDLE_TICKS: u32 = 100;

/// The thread. Dropping it ends it.
pub(crate) struct Ticker {
    beat: Arc<Beat>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Beat {
    stop: AtomicBool,
    guests: AtomicU32,
    rests: AtomicBool,
}

/// A guest that runs; the clock ticks fast for as long as this lives.
pub(crate) struct Running<'a>(&'a Beat);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.guests.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Ticker {
    pub(crate) fn start(engine: EngineWeak) -> Result<Self, SandboxError> {
        let beat = Arc::new(Beat::default());
        let shared = Arc::clone(&beat);
        let thread = Builder::new()
            .name("reef-epoch".to_owned())
            .spawn(move || shared.tick(&engine))
            .map_err(|error| SandboxError::Start(format!("its clock does not start: {error}")))?;
        Ok(Self { beat, thread: Some(thread) })
    }

    /// Announces a guest.
    pub(crate) fn running(&self) -> Running<'_> {
        self.beat.guests.fetch_add(1, Ordering::SeqCst);
        if self.beat.rests.load(Ordering::SeqCst)
            && let Some(thread) = &self.thread
        {
            thread.thread().unpark();
        }
        Running(&self.beat)
    }
}

impl Beat {
    fn tick(&self, engine: &EngineWeak) {
        let mut idle = 0u32;
        while !self.stop.load(Ordering::SeqCst) {
            idle = if self.guests.load(Ordering::SeqCst) == 0 { idle.saturating_add(1) } else { 0 };
            if idle > IDLE_TICKS {
                self.rests.store(true, Ordering::SeqCst);
                // Whoever came before the store is seen here; whoever comes after it unparks.
                if self.guests.load(Ordering::SeqCst) == 0 && !self.stop.load(Ordering::SeqCst) {
                    std::thread::park_timeout(REST);
                }
                self.rests.store(false, Ordering::SeqCst);
            } else {
                std::thread::park_timeout(TICK);
            }
            let Some(engine) = engine.upgrade() else { return };
            engine.increment_epoch();
        }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.beat.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A ticker does not panic; there is nothing to learn from its end.
            let _ = thread.join();
        }
    }
}
