//! Figures, printed and never asserted: `cargo test -p reef-store -- --ignored --nocapture speed`.

use std::time::{Duration, Instant};

use reef_core::Inference;
use serde_json::json;

use crate::fixture::{Place, graded, inference};

/// Tasks that append one record after the other.
const TASKS: usize = 64;
/// How long each figure is taken.
const MEASURED: Duration = Duration::from_secs(3);

/// About 2 KB of JSON that does not compress to nothing.
fn two_kb(name: &str) -> Inference {
    let mut state = name.bytes().fold(1u64, |hash, byte| hash.wrapping_mul(31) ^ u64::from(byte));
    let mut word = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        format!("{:08x}", state >> 32)
    };
    let text: Vec<_> = (0..200).map(|_| word()).collect();
    Inference { request: json!({ "messages": [{ "role": "user", "content": text.join(" ") }] }), ..inference(name) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints figures"]
async fn speed_of_durable_appends() {
    let place = Place::new().await;
    let until = Instant::now() + MEASURED;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..TASKS {
        let (store, t, s) = (place.store.clone(), place.t.clone(), place.s.clone());
        tasks.spawn(async move {
            let (mut done, mut waits) = (0usize, Vec::new());
            while Instant::now() < until {
                let name = format!("{n}-{done}");
                store.append_inference(&t, &s, two_kb(&format!("i-{name}"))).await.expect("append");
                let started = Instant::now();
                let report = graded(&format!("r-{name}"), &[&format!("i-{name}")], 1.0);
                store.append_report(&t, &s, report).await.expect("report");
                waits.push(started.elapsed());
                done += 1;
            }
            (done, waits)
        });
    }
    let results = tasks.join_all().await;
    let mut waits: Vec<_> = results.into_iter().flat_map(|(_, waits)| waits).collect();
    waits.sort_unstable();
    let stats = place.store.write_stats();
    let at = |share: f64| waits[((waits.len() - 1) as f64 * share) as usize];
    println!(
        "mixed: {:.0} durable records/s (2 KB records and their reports, {TASKS} tasks), {:.1} per transaction, report p50 {:?} p99 {:?}",
        2.0 * waits.len() as f64 / MEASURED.as_secs_f64(),
        stats.writes as f64 / stats.transactions as f64,
        at(0.5),
        at(0.99),
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints figures"]
async fn speed_of_durable_inference_records() {
    let place = Place::new().await;
    let until = Instant::now() + MEASURED;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..TASKS {
        let (store, t, s) = (place.store.clone(), place.t.clone(), place.s.clone());
        tasks.spawn(async move {
            let mut done = 0;
            while Instant::now() < until {
                store.append_inference(&t, &s, two_kb(&format!("i-{n}-{done}"))).await.expect("append");
                done += 1;
            }
            done
        });
    }
    let done: usize = tasks.join_all().await.into_iter().sum();
    let stats = place.store.write_stats();
    println!(
        "inference only: {:.0} durable records/s of 2 KB, {TASKS} tasks, {:.1} per transaction",
        done as f64 / MEASURED.as_secs_f64(),
        stats.writes as f64 / stats.transactions as f64,
    );
    let started = Instant::now();
    let mut single = 0;
    while started.elapsed() < Duration::from_secs(1) {
        place.infer(&format!("single-{single}")).await;
        single += 1;
    }
    println!("one task alone: {single} durable records/s");
}
