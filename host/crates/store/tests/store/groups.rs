//! Group commit: many callers share a transaction, and each hears of its own result.

use reef_store::StoreError;
use tokio::task::JoinSet;

use crate::fixture::{Fixture, id, inference, name, report, tenant};

const WRITERS: u32 = 64;

#[tokio::test]
async fn many_appends_at_once_share_few_transactions() {
    let fixture = Fixture::new().await;
    let before = fixture.store.write_stats();
    let mut calls = JoinSet::new();
    for n in 0..256 {
        let store = fixture.store.clone();
        let record = inference(&format!("r-{n}"), &[1, n], &[2]);
        calls.spawn(async move { store.append_inference(&tenant(), &name(), record).await.expect("appended") });
    }
    let mut sequences = calls.join_all().await;
    sequences.sort_unstable();
    assert_eq!(sequences, (1..=256).collect::<Vec<_>>());
    let after = fixture.store.write_stats();
    assert_eq!(after.writes - before.writes, 256);
    let transactions = after.transactions - before.transactions;
    println!("256 appends in {transactions} transactions");
    assert!(transactions <= 32, "{transactions} transactions");
}

#[tokio::test]
async fn a_refused_write_leaves_its_neighbours_in_the_group_alone() {
    let fixture = Fixture::new().await;
    fixture.graded(0).await;
    let mut calls = JoinSet::new();
    for n in 1..=WRITERS {
        let store = fixture.store.clone();
        let mut graded = report(&format!("g-{n}"), &["r-0"]);
        if n % 2 == 0 {
            graded.amends = Some(id("never"));
        }
        calls.spawn(async move { (n, store.append_report(&tenant(), &name(), graded).await) });
    }
    for (n, result) in calls.join_all().await {
        let refused = result == Err(StoreError::UnknownReference(id("never")));
        assert_eq!(refused, n % 2 == 0, "{result:?}");
    }
    let counts = fixture.counts().await;
    assert_eq!((counts.reports, counts.pending), (1 + i64::from(WRITERS) / 2, 1 + i64::from(WRITERS) / 2));
}

#[tokio::test]
async fn a_caller_that_goes_away_changes_nothing() {
    let fixture = Fixture::new().await;
    for n in 0..WRITERS {
        let (store, record) = (fixture.store.clone(), inference(&format!("r-{n}"), &[1, n], &[2]));
        let call = tokio::spawn(async move { store.append_inference(&tenant(), &name(), record).await });
        tokio::task::yield_now().await;
        call.abort();
        drop(call.await);
    }
    let last = fixture.answer(inference("r-last", &[1], &[2])).await;
    assert_eq!(fixture.counts().await.inferences, last, "each write happened wholly or not at all");
}

#[tokio::test]
async fn closing_finishes_what_was_accepted_and_refuses_the_rest() {
    let mut fixture = Fixture::new().await;
    let mut calls = JoinSet::new();
    for n in 0..WRITERS {
        let (store, record) = (fixture.store.clone(), inference(&format!("r-{n}"), &[1, n], &[2]));
        calls.spawn(async move { store.append_inference(&tenant(), &name(), record).await });
    }
    tokio::task::yield_now().await;
    fixture.store.close().await;
    let results = calls.join_all().await;
    assert!(results.iter().all(|result| result.is_ok() || *result == Err(StoreError::Closed)), "{results:?}");
    let accepted = results.iter().filter(|result| result.is_ok()).count();
    assert_eq!(fixture.store.counts(&tenant(), &name()).await, Err(StoreError::Closed));
    fixture.store.close().await;
    fixture.reopen().await;
    assert_eq!(fixture.counts().await.inferences, accepted as i64);
}
