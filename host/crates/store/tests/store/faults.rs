//! Faults of the disk that need no privileges: a log whose end is missing, a file that may not grow, a clock that jumps.

use std::path::Path;
use std::process::Command;

use reef_store::{Store, StoreError};

use crate::fixture::{Fixture, NOW_MS, id, inference, name, report, tenant};

/// Tells a test that its files may not grow, and where its store is.
const PLACE: &str = "REEF_TEST_SMALL_FILES";
/// Blocks of 512 bytes to which a file may grow, and the signal that would end the process ignored.
const SMALL_FILES: &str = r#"trap "" XFSZ; ulimit -f 700; exec "$0" "$@""#;

async fn is_there(store: &Store, n: u32) -> bool {
    store.record(&tenant(), &name(), &id(&format!("r-{n}"))).await.expect("read").is_some()
}

#[tokio::test]
async fn a_log_without_its_end_has_lost_only_what_was_written_there() {
    let fixture = Fixture::new().await;
    let log = fixture.path().with_file_name("reef.db-wal");
    let mut ends = Vec::new();
    for n in 0..8 {
        fixture.answer(inference(&format!("r-{n}"), &[n; 400], &[1])).await;
        ends.push(std::fs::metadata(&log).expect("there").len());
    }
    for (kept, end) in ends.iter().enumerate() {
        let next = ends.get(kept + 1).copied().unwrap_or(end + 1);
        for cut in [*end, end + 1, (end + next) / 2, next - 1] {
            let image = tempfile::tempdir().expect("folder");
            let path = image.path().join("reef.db");
            std::fs::copy(fixture.path(), &path).expect("copied");
            let mut bytes = std::fs::read(&log).expect("read");
            bytes.truncate(usize::try_from(cut).expect("small"));
            std::fs::write(image.path().join("reef.db-wal"), bytes).expect("written");
            let store = Store::open(&path).await.expect("opened");
            for n in 0..8 {
                assert_eq!(is_there(&store, n).await, n as usize <= kept, "record {n}, log cut at {cut} of {ends:?}");
            }
            store.append_inference(&tenant(), &name(), inference("new", &[1], &[2])).await.expect("it goes on");
            store.close().await;
        }
    }
}

/// Writes until the file may not grow; the last line says how many were acknowledged.
async fn fill(path: &Path) {
    let store = Store::open(path).await.expect("opened");
    let mut stored = 0_u32;
    let told = loop {
        let noise: Vec<u32> = (0..2_000).map(|at| (stored * 2_000 + at).wrapping_mul(2_654_435_761)).collect();
        match store.append_inference(&tenant(), &name(), inference(&format!("r-{stored}"), &noise, &[1])).await {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(told, StoreError::Full { .. } | StoreError::Unavailable { .. }), "{told:?}");
    for n in 0..stored {
        assert!(is_there(&store, n).await, "record {n} was acknowledged");
    }
    println!("acknowledged {stored}");
}

#[tokio::test]
async fn a_file_that_may_not_grow_loses_nothing_that_was_acknowledged() {
    const TEST: &str = "faults::a_file_that_may_not_grow_loses_nothing_that_was_acknowledged";
    if let Some(path) = std::env::var_os(PLACE) {
        return fill(Path::new(&path)).await;
    }
    let fixture = Fixture::new().await;
    fixture.store.close().await;
    let ran = Command::new("sh")
        .args(["-c", SMALL_FILES])
        .arg(std::env::current_exe().expect("this program"))
        .args(["--exact", TEST, "--nocapture"])
        .env(PLACE, fixture.path())
        .output()
        .expect("ran");
    let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    let (_, told) = said.split_once("acknowledged ").expect("a number");
    let stored: u32 = told.lines().next().and_then(|number| number.parse().ok()).expect("a number");
    assert!(stored > 0, "{said}");
    let store = Store::open(&fixture.path()).await.expect("opened without the limit");
    for n in 0..stored {
        assert!(is_there(&store, n).await, "record {n} was acknowledged");
    }
    store.append_inference(&tenant(), &name(), inference("new", &[1], &[2])).await.expect("it goes on");
    store.close().await;
}

#[tokio::test]
async fn a_clock_that_jumps_back_changes_no_order() {
    let fixture = Fixture::new().await;
    for (n, at) in [(0, NOW_MS), (1, i64::MAX), (2, i64::MIN), (3, 0)] {
        let mut record = inference(&format!("r-{n}"), &[1, n], &[2]);
        record.created_at_ms = at;
        fixture.answer(record).await;
        let mut graded = report(&format!("g-{n}"), &[&format!("r-{n}")]);
        graded.created_at_ms = at;
        fixture.report(graded).await.expect("graded");
    }
    let pool = fixture.pool().await;
    assert_eq!(crate::fixture::usable(&pool), ["g-0", "g-1", "g-2", "g-3"]);
}
