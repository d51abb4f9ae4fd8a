//! Readers of a file beside a server or without one.

use std::collections::BTreeMap;
use std::path::Path;

use reef_store::{Store, StoreError};

use crate::fixture::{Fixture, name, report, tenant};

fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).expect("listed").map(|entry| entry.expect("entry").path());
    entries.map(|path| (path.display().to_string(), std::fs::read(&path).expect("read"))).collect()
}

#[tokio::test]
async fn a_reader_leaves_no_trace_and_notices_a_server_that_starts() {
    let fixture = Fixture::new().await;
    fixture.graded(1).await;
    fixture.store.close().await;
    let folder = fixture.path().parent().expect("a folder").to_owned();
    let before = files(&folder);
    let reader = Store::open_read_only(&fixture.path()).await.expect("opened");
    assert_eq!(reader.pool(&tenant(), &name(), 8).await.expect("pool").samples.len(), 1);
    let refused = reader.append_report(&tenant(), &name(), report("g-9", &[])).await;
    assert!(matches!(refused, Err(StoreError::ReadOnly { .. })), "{refused:?}");
    assert!(files(&folder) == before, "a reader wrote into {}", folder.display());
    let server = Store::open(&fixture.path()).await.expect("a server starts");
    server.append_report(&tenant(), &name(), report("g-2", &["r-1"])).await.expect("it writes");
    let told = reader.counts(&tenant(), &name()).await.expect_err("the reader stops").to_string();
    assert!(told.contains("a server started"), "{told}");
    reader.close().await;
    server.close().await;
}

#[tokio::test]
async fn a_reader_beside_a_running_server_sees_what_is_committed() {
    let fixture = Fixture::new().await;
    fixture.graded(1).await;
    let reader = Store::open_read_only(&fixture.path()).await.expect("opened");
    assert_eq!(reader.counts(&tenant(), &name()).await.expect("counts").reports, 1);
    fixture.graded(2).await;
    assert_eq!(reader.counts(&tenant(), &name()).await.expect("counts").reports, 2);
    reader.close().await;
    fixture.graded(3).await;
    assert_eq!(fixture.counts().await.reports, 3, "the server goes on");
}

#[tokio::test]
async fn a_reader_refuses_what_is_absent_foreign_or_of_another_version() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("reef.db");
    Store::open_read_only(&path).await.expect_err("absent");
    assert!(!path.exists(), "a reader makes no database");
    std::fs::write(&path, "this is no database, and long enough to be read as a header, or so it seems").expect("text");
    let told = Store::open_read_only(&path).await.expect_err("foreign");
    assert!(matches!(told, StoreError::Corrupt { .. }), "{told:?}");
    std::fs::write(&path, "").expect("an empty file is an empty database");
    let told = Store::open_read_only(&path).await.expect_err("empty").to_string();
    assert!(told.contains("version none") && told.contains("reef.db") && told.contains("reef serve"), "{told}");
}
