//! Threads that share the work of one step: a fork and a join in about a microsecond.
//! The scheduler's thread calls `run`; workers look for work for a moment before they sleep, and the caller never
//! waits for one that has not begun: where another process holds a core, the caller does the work alone.
#![expect(
    unsafe_code,
    reason = "a job is borrowed from the caller's stack while workers run it; the block says why that is sound"
)]

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::integer::Integers;

/// How long a worker looks for work before it sleeps: longer than the gaps between two parts of one step.
const LOOK_FOR: Duration = Duration::from_micros(60);

/// Memory of one thread that keeps its size between items.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// Weights of some tiles as f32.
    pub panel: Vec<f32>,
    /// Weights of some columns of a tile as 16-bit integers.
    pub pairs: Vec<i16>,
    /// Products of one tile.
    pub tile: Vec<f32>,
    /// Attention scores.
    pub scores: Vec<f32>,
}

/// `scratch` of at least `length` numbers, their values unspecified.
pub(crate) fn room<T: Copy + Default>(scratch: &mut Vec<T>, length: usize) -> &mut [T] {
    if scratch.len() < length {
        scratch.resize(length, T::default());
    }
    &mut scratch[..length]
}

type Work<'a> = &'a (dyn Fn(usize, &mut Scratch) + Sync);

/// A job as workers see it.
struct Job {
    work: *const (dyn Fn(usize, &mut Scratch) + Sync),
    items: usize,
}

#[derive(Debug)]
struct Shared {
    /// Odd while a job is open.
    epoch: AtomicUsize,
    job: AtomicPtr<Job>,
    next: AtomicUsize,
    /// Workers that may touch the job.
    active: AtomicUsize,
    failed: AtomicBool,
    stopped: AtomicBool,
    sleepers: Mutex<()>,
    wake: Condvar,
    sleeping: AtomicUsize,
}

/// The threads. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<std::thread::JoinHandle<()>>,
    own: Scratch,
    /// The vectors that a linear layer reads, as integers.
    pub integers: Integers,
}

impl Pool {
    /// `threads` in all, the caller's included; at least 1.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            epoch: AtomicUsize::new(0),
            job: AtomicPtr::new(std::ptr::null_mut()),
            next: AtomicUsize::new(0),
            active: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            sleepers: Mutex::new(()),
            wake: Condvar::new(),
            sleeping: AtomicUsize::new(0),
        });
        let start = |index: usize| {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().name(format!("reef-cpu-{index}")).spawn(move || shared.serve())
        };
        Ok(Self {
            workers: (1..threads.max(1)).map(start).collect::<Result<_, _>>()?,
            shared,
            own: Scratch::default(),
            integers: Integers::default(),
        })
    }

    /// Threads, the caller's included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `work` once for each of `0..items`, in any order, on all threads; returns when all are done.
    /// A panic of an item is passed on.
    pub fn run(&mut self, items: usize, work: Work<'_>) {
        if self.workers.is_empty() || items < 2 {
            (0..items).for_each(|item| work(item, &mut self.own));
            return;
        }
        // SAFETY: only the lifetime changes. Workers read the job between entering (`active`) and leaving, and
        // `close` below waits until none is inside and none can enter, also when an item panics here.
        let work = unsafe { std::mem::transmute::<Work<'_>, Work<'static>>(work) };
        let mut job = Job { work, items };
        let shared = Arc::clone(&self.shared);
        shared.open(&mut job);
        let closing = Closing(&shared);
        shared.drain(&job, &mut self.own);
        drop(closing);
        assert!(!shared.failed.swap(false, Ordering::Relaxed), "a worker thread panicked");
    }
}

impl Pool {
    /// Calls `work` with each row of `width` numbers of `data` and its number.
    pub fn rows<T: Send>(&mut self, data: &mut [T], width: usize, work: &(dyn Fn(usize, &mut [T]) + Sync)) {
        let rows = data.len() / width.max(1);
        let start = Start(data.as_mut_ptr());
        self.run(rows.div_ceil(ROWS), &|item, _| {
            let start = &start;
            for row in item * ROWS..rows.min((item + 1) * ROWS) {
                // SAFETY: inside of `data`, and each row belongs to one item.
                work(row, unsafe { std::slice::from_raw_parts_mut(start.0.add(row * width), width) });
            }
        });
    }
}

/// Rows of one item of `Pool::rows`.
const ROWS: usize = 8;

struct Start<T>(*mut T);

// SAFETY: only `Pool::rows` has one, and its items use disjoint rows.
unsafe impl<T: Send> Sync for Start<T> {}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        self.shared.wake_all();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

/// Closes the job when it is dropped.
struct Closing<'a>(&'a Shared);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.epoch.fetch_add(1, Ordering::SeqCst);
        let mut looks = 0u32;
        while self.0.active.load(Ordering::SeqCst) > 0 {
            looks += 1;
            // A worker that lost its core must be able to get this one.
            if looks.is_multiple_of(1024) { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
    }
}

impl Shared {
    fn open(&self, job: &mut Job) {
        self.failed.store(false, Ordering::Relaxed);
        self.next.store(0, Ordering::Relaxed);
        self.job.store(job, Ordering::Relaxed);
        self.epoch.fetch_add(1, Ordering::SeqCst);
        if self.sleeping.load(Ordering::SeqCst) > 0 {
            self.wake_all();
        }
    }

    fn wake_all(&self) {
        drop(self.sleepers.lock().unwrap_or_else(PoisonError::into_inner));
        self.wake.notify_all();
    }

    fn drain(&self, job: &Job, scratch: &mut Scratch) {
        loop {
            let item = self.next.fetch_add(1, Ordering::Relaxed);
            if item >= job.items {
                return;
            }
            // SAFETY: the caller of `drain` has entered the job, so it is alive (see `run`).
            unsafe { (*job.work)(item, scratch) }
        }
    }

    /// A worker's life.
    fn serve(&self) {
        let mut scratch = Scratch::default();
        let mut seen = 0;
        while let Some(epoch) = self.wait(seen) {
            seen = epoch;
            self.active.fetch_add(1, Ordering::SeqCst);
            if self.epoch.load(Ordering::SeqCst) == epoch {
                // SAFETY: this worker is counted in `active` and the job was open after that, so `Closing` waits.
                let job = unsafe { &*self.job.load(Ordering::Relaxed) };
                let drained = std::panic::AssertUnwindSafe(|| self.drain(job, &mut scratch));
                if std::panic::catch_unwind(drained).is_err() {
                    self.failed.store(true, Ordering::Relaxed);
                }
            }
            self.active.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// The number of an open job other than `seen`; `None`: the pool ends.
    fn wait(&self, seen: usize) -> Option<usize> {
        let began = Instant::now();
        let ready = || {
            let epoch = self.epoch.load(Ordering::SeqCst);
            (epoch % 2 == 1 && epoch != seen).then_some(epoch)
        };
        loop {
            for _ in 0..256 {
                if let Some(epoch) = ready() {
                    return Some(epoch);
                }
                std::hint::spin_loop();
            }
            if began.elapsed() > LOOK_FOR {
                break;
            }
        }
        let mut sleepers = self.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleeping.fetch_add(1, Ordering::SeqCst);
        let found = loop {
            if self.stopped.load(Ordering::SeqCst) {
                break None;
            }
            if let Some(epoch) = ready() {
                break Some(epoch);
            }
            sleepers = self.wake.wait(sleepers).unwrap_or_else(PoisonError::into_inner);
        };
        self.sleeping.fetch_sub(1, Ordering::SeqCst);
        found
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn every_item_runs_once() {
        let mut pool = Pool::new(4).expect("threads");
        for items in [0, 1, 2, 3, 64, 1000] {
            for _ in 0..200 {
                let done: Vec<AtomicU64> = (0..items).map(|_| AtomicU64::new(0)).collect();
                pool.run(items, &|item, _| {
                    done[item].fetch_add(1, Ordering::Relaxed);
                });
                assert!(done.iter().all(|count| count.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn sleeping_workers_wake_up() {
        let mut pool = Pool::new(2).expect("threads");
        std::thread::sleep(Duration::from_millis(20));
        let both = AtomicUsize::new(0);
        pool.run(2, &|_, _| {
            both.fetch_add(1, Ordering::SeqCst);
            while both.load(Ordering::SeqCst) < 2 {
                std::thread::yield_now();
            }
        });
        assert_eq!(both.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_panic_is_passed_on_and_the_pool_goes_on() {
        let mut pool = Pool::new(3).expect("threads");
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            pool.run(50, &|item, _| assert!(item != 17, "no"));
        }));
        assert!(failed.is_err());
        let sum = AtomicUsize::new(0);
        pool.run(10, &|item, _| {
            sum.fetch_add(item, Ordering::Relaxed);
        });
        assert_eq!(sum.load(Ordering::Relaxed), 45);
    }
}
