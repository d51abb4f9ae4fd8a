//! Group commit and durability: what is acknowledged is on disk, and readers never block writers.

use std::path::Path;

use reef_store::{Store, StoreError};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};
use tokio::task::JoinSet;

use crate::fixture::{Fixture, id, inference, name, report, tenant};

const WRITERS: u32 = 64;

/// Another program's view of the file.
async fn outsider(path: &Path) -> SqlitePool {
    SqlitePool::connect_with(SqliteConnectOptions::new().filename(path).create_if_missing(false)).await.expect("opened")
}

async fn is_there(outsider: &SqlitePool, receipt: &str) -> bool {
    let found: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM records WHERE id = ?")
        .bind(receipt)
        .fetch_one(outsider)
        .await
        .expect("read");
    found == 1
}

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

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_call_that_returned_can_be_seen_by_another_program_at_once() {
    let fixture = Fixture::new().await;
    let outsider = outsider(&fixture.path()).await;
    let mut calls = JoinSet::new();
    for n in 0..WRITERS {
        let (store, outsider) = (fixture.store.clone(), outsider.clone());
        calls.spawn(async move {
            let (receipt, grade) = (format!("r-{n}"), format!("g-{n}"));
            store.append_inference(&tenant(), &name(), inference(&receipt, &[1, n], &[2])).await.expect("appended");
            assert!(is_there(&outsider, &receipt).await);
            store.append_report(&tenant(), &name(), report(&grade, &[&receipt])).await.expect("graded");
            assert!(is_there(&outsider, &grade).await);
        });
    }
    calls.join_all().await;
}

#[tokio::test]
async fn what_was_acknowledged_is_in_the_files_though_the_store_was_never_closed() {
    let fixture = Fixture::new().await;
    for n in 0..40 {
        fixture.graded(n).await;
    }
    // The image that a power cut would leave behind.
    let image = tempfile::tempdir().expect("folder");
    for file in ["reef.db", "reef.db-wal"] {
        std::fs::copy(fixture.path().with_file_name(file), image.path().join(file)).expect("copied");
    }
    let copy = Store::open(&image.path().join("reef.db")).await.expect("opened");
    assert_eq!(copy.counts(&tenant(), &name()).await, Ok(fixture.counts().await));
    for n in 0..40 {
        let found = copy.record(&tenant(), &name(), &id(&format!("r-{n}"))).await.expect("read");
        assert!(found.is_some(), "record r-{n}");
    }
    drop(fixture.store);
    copy.close().await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_writers_a_long_reader_and_a_backup_never_lock_each_other_out() {
    let fixture = Fixture::new().await;
    fixture.graded(0).await;
    let second = Store::open(&fixture.path()).await.expect("a second handle on the same file");
    let outsider = outsider(&fixture.path()).await;
    let mut long = outsider.begin().await.expect("begun");
    let count = "SELECT COUNT(*) FROM records";
    let before: i64 = sqlx::query_scalar(count).fetch_one(&mut *long).await.expect("read");
    let mut calls: JoinSet<Result<(), StoreError>> = JoinSet::new();
    for n in 1..=WRITERS {
        let store = if n % 8 == 0 { second.clone() } else { fixture.store.clone() };
        calls.spawn(async move {
            for round in 0..8 {
                let (receipt, grade) = (format!("r-{n}-{round}"), format!("g-{n}-{round}"));
                store.append_inference(&tenant(), &name(), inference(&receipt, &[1; 256], &[n, round])).await?;
                store.append_report(&tenant(), &name(), report(&grade, &[&receipt])).await?;
                store.pool(&tenant(), &name(), 16).await?;
            }
            Ok(())
        });
    }
    let copy = fixture.path().with_file_name("backup.db");
    sqlx::query("VACUUM INTO ?").bind(copy.to_str()).execute(&outsider).await.expect("a backup while writing");
    for result in calls.join_all().await {
        assert_eq!(result, Ok(()));
    }
    let still: i64 = sqlx::query_scalar(count).fetch_one(&mut *long).await.expect("read");
    assert_eq!(still, before, "the long reader kept its moment");
    drop(long);
    assert_eq!(fixture.counts().await.reports, 1 + 8 * i64::from(WRITERS));
    let backup = Store::open(&copy).await.expect("the backup is a database");
    assert!(backup.record(&tenant(), &name(), &id("r-0")).await.expect("read").is_some());
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
