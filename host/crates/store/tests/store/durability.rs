//! Durability of the file: what is acknowledged is on disk, and readers never block writers.

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
