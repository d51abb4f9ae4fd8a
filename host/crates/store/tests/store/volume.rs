//! How fast durable records are written; a measurement to run by hand:
//! `cargo test -p reef-store -- --ignored --nocapture measures`.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::fixture::{Fixture, inference, name, tenant};

const WRITERS: usize = 64;
const RECORDS: usize = 8_192;
/// Prompt and output of a record whose token columns and body have 2 KB together.
const PROMPT: usize = 288;
const OUTPUT: usize = 64;

fn record(n: usize) -> reef_core::Inference {
    // Noise, so that nothing is compressed away.
    let noise = |seed: usize, length: usize| {
        (0..length).map(|at| ((seed * 7_919 + at) as u32).wrapping_mul(2_654_435_761)).collect::<Vec<_>>()
    };
    inference(&format!("r-{n}"), &noise(n, PROMPT), &noise(n + 1, OUTPUT))
}

/// Appends all records, `in_flight` at once per task; returns the wall time and each call's latency.
async fn append_all(fixture: &Fixture, in_flight: usize) -> (Duration, Vec<Duration>) {
    let began = Instant::now();
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let store = fixture.store.clone();
        writers.spawn(async move {
            let mut taken = Vec::new();
            let mine: Vec<usize> = (writer..RECORDS).step_by(WRITERS).collect();
            for batch in mine.chunks(in_flight) {
                let mut calls = JoinSet::new();
                for n in batch.iter().copied() {
                    let store = store.clone();
                    calls.spawn(async move {
                        let began = Instant::now();
                        store.append_inference(&tenant(), &name(), record(n)).await.expect("appended");
                        began.elapsed()
                    });
                }
                taken.extend(calls.join_all().await);
            }
            taken
        });
    }
    let taken = writers.join_all().await.concat();
    (began.elapsed(), taken)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement, not a test"]
async fn measures_durable_records_per_second() {
    for in_flight in [1, 16] {
        let fixture = Fixture::new().await;
        let (wall, mut taken) = append_all(&fixture, in_flight).await;
        taken.sort_unstable();
        let stats = fixture.store.write_stats();
        println!(
            "{RECORDS} records of 2 KB by {WRITERS} tasks, {in_flight} in flight each: {:.0} records/s, p50 {:.1} ms, p99 {:.1} ms, {:.1} records per transaction",
            RECORDS as f64 / wall.as_secs_f64(),
            taken[taken.len() / 2].as_secs_f64() * 1e3,
            taken[taken.len() * 99 / 100].as_secs_f64() * 1e3,
            stats.writes as f64 / stats.transactions as f64,
        );
    }
}
