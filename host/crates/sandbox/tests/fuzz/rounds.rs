//! Rounds of a fuzz target: random numbers from a seed, the time, and what is left of an input that fails.
//! The input of a round lies in its file while it runs, so that it is there even when the whole process ends.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Seconds of a target when nothing else is asked for.
const SECONDS: u64 = 3;
/// After this an input that does not end is a failure.
const ROUND_TIME_MAX: Duration = Duration::from_secs(120);

/// Random numbers that follow from a seed (SplitMix64).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 when there is none.
    pub fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { (self.next() % end as u64) as usize }
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

fn failures() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("../fuzz-failures");
    fs::create_dir_all(&folder).expect("a folder for failures");
    folder
}

/// Makes inputs and checks them until the time is over. The error of a check is a sentence.
pub async fn rounds(
    target: &str,
    mut make: impl FnMut(&mut Random) -> Vec<u8>,
    check: impl AsyncFn(&[u8]) -> Result<(), String>,
) {
    let seed = number("REEF_FUZZ_SEED").unwrap_or_else(clock);
    let time = Duration::from_secs(number("REEF_FUZZ_SECONDS").unwrap_or(SECONDS));
    println!("{target}: REEF_FUZZ_SEED={seed}");
    let (started, mut random, mut count) = (Instant::now(), Random::new(seed), 0_u64);
    let kept = failures().join(format!("{target}-{}-{seed}.bin", std::process::id()));
    while started.elapsed() < time {
        let input = make(&mut random);
        fs::write(&kept, &input).expect("writable");
        count += 1;
        let told = match tokio::time::timeout(ROUND_TIME_MAX, check(&input)).await {
            Ok(Ok(())) => continue,
            Ok(Err(told)) => told,
            Err(_) => format!("no end within {ROUND_TIME_MAX:?}"),
        };
        panic!("{target}, REEF_FUZZ_SEED={seed}, round {count}: {told}; the input is {}", kept.display());
    }
    fs::remove_file(&kept).expect("removable");
    println!("{target}: {count} inputs in {:?}", started.elapsed());
    assert!(count > 0, "no input in {time:?}");
}
