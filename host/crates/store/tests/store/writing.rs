//! The writer: groups commits, holds back callers, never shows a lock.

use std::time::Duration;

use reef_store::Store;

use crate::fixture::{Place, graded, inference};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_appends_share_transactions() {
    let place = Place::new().await;
    let before = place.store.write_stats();
    let mut appends = tokio::task::JoinSet::new();
    for n in 0..2000 {
        let (store, t, s) = (place.store.clone(), place.t.clone(), place.s.clone());
        appends
            .spawn(async move { store.append_inference(&t, &s, inference(&format!("i-{n}"))).await.expect("append") });
    }
    let mut sequences = appends.join_all().await;
    sequences.sort_unstable();
    assert_eq!(sequences, (1..=2000).collect::<Vec<_>>());
    let after = place.store.write_stats();
    assert_eq!(after.writes - before.writes, 2000);
    assert!((after.transactions - before.transactions) * 4 < 2000, "{after:?}");
}

#[tokio::test]
async fn a_refused_write_does_not_disturb_the_others_of_its_group() {
    let place = Place::new().await;
    let good = place.store.append_inference(&place.t, &place.s, inference("i-1"));
    let bad = place.store.append_report(&place.t, &place.s, graded("r-1", &["i-404"], 1.0));
    let (good, bad, other) =
        tokio::join!(good, bad, place.store.append_inference(&place.t, &place.s, inference("i-2")));
    assert!(good.is_ok() && bad.is_err() && other.is_ok());
    let counts = place.store.counts(&place.t, &place.s).await.expect("counts");
    assert_eq!((counts.inferences, counts.reports), (2, 0));
}

#[tokio::test]
async fn a_caller_that_goes_away_does_not_stop_the_writer() {
    let place = Place::new().await;
    for n in 0..50 {
        let append = place.store.append_inference(&place.t, &place.s, inference(&format!("gone-{n}")));
        let _ = tokio::time::timeout(Duration::from_micros(n * 20), append).await;
    }
    place.infer("i-1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sixty_four_writers_long_readers_and_a_second_handle_never_see_a_lock() {
    let place = Place::new().await;
    for n in 0..500 {
        place.infer(&format!("old-{n}")).await;
    }
    let second = Store::open(&place.path()).await.expect("second handle");
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..64 {
        let store = if n % 8 == 0 { second.clone() } else { place.store.clone() };
        let (t, s) = (place.t.clone(), place.s.clone());
        tasks.spawn(async move {
            for k in 0..10 {
                let name = format!("{n}-{k}");
                store.append_inference(&t, &s, inference(&format!("i-{name}"))).await.expect("append");
                let report = graded(&format!("r-{name}"), &[&format!("i-{name}")], 1.0);
                store.append_report(&t, &s, report).await.expect("report");
            }
        });
    }
    for _ in 0..8 {
        let (store, t, s) = (place.store.clone(), place.t.clone(), place.s.clone());
        tasks.spawn(async move {
            for _ in 0..10 {
                store.records(&t, &s, 0, 1000, None).await.expect("records");
                store.pool(&t, &s, 1000).await.expect("pool");
            }
        });
    }
    tasks.join_all().await;
    let counts = place.store.counts(&place.t, &place.s).await.expect("counts");
    assert_eq!((counts.inferences, counts.reports, counts.pending), (1140, 640, 640));
}
