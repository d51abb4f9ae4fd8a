//! Full disks, read-only disks and damaged files: a sentence with the remedy, and nothing acknowledged is lost.

use std::path::{Path, PathBuf};
use std::process::Command;

use reef_core::Inference;
use reef_store::{ScenarioSettings, Store, StoreError};
use tokio::task::JoinSet;

use crate::fixture::{Fixture, NOW_MS, id, inference, name, tenant};

/// Tells a test that it runs in its namespace, and where.
const PLACE: &str = "REEF_TEST_PLACE";
/// Bytes that the test frees when the disk is full.
const BALLAST_BYTES: usize = 512 << 10;

fn mount(arguments: &[&str]) {
    let done = Command::new("mount").args(arguments).status().expect("mount runs");
    assert!(done.success(), "mount {arguments:?}");
}

/// A namespace in which a test may mount a disk of its own.
const MOUNTING: [&str; 2] = ["--map-root-user", "--mount"];
/// A namespace in which file permissions bind, whoever runs the tests.
const ORDINARY: [&str; 1] = ["--map-user=1000"];

/// Runs a test of this file again in a namespace, with a folder to work in.
fn again_in(namespace: &'static [&'static str], test: &str) {
    let tried = Command::new("unshare").args(namespace).arg("true").output();
    if !tried.is_ok_and(|tried| tried.status.success()) {
        println!("skipped: this system has no unshare, or allows no test a namespace of its own");
        return;
    }
    let folder = tempfile::tempdir().expect("folder");
    let mut again = Command::new("unshare");
    again.args(namespace).arg(std::env::current_exe().expect("this program"));
    again.args(["--exact", test, "--nocapture"]).env(PLACE, folder.path());
    let ran = again.output().expect("ran");
    let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && said.contains("1 passed"), "{said}");
    println!("{said}");
}

/// The folder to work in, inside the namespace.
fn place() -> Option<PathBuf> {
    std::env::var_os(PLACE).map(PathBuf::from)
}

/// A disk of 2 MB, inside the namespace.
fn small_disk() -> Option<PathBuf> {
    let point = place()?;
    mount(&["-t", "tmpfs", "-o", "size=2m", "reef", point.to_str().expect("a name")]);
    Some(point)
}

/// A record of about 16 KB that does not compress.
fn large(n: u32) -> Inference {
    let noise: Vec<u32> = (0..4_000).map(|at| (n * 4_000 + at).wrapping_mul(2_654_435_761)).collect();
    inference(&format!("r-{n}"), &noise, &[1])
}

async fn append(store: &Store, n: u32) -> Result<i64, StoreError> {
    store.append_inference(&tenant(), &name(), large(n)).await
}

async fn fill(store: &Store) -> (u32, StoreError) {
    for n in 0.. {
        if let Err(error) = append(store, n).await {
            return (n, error);
        }
    }
    unreachable!("a disk of 2 MB is full at some time")
}

async fn all_there(store: &Store, upto: u32) {
    for n in 0..upto {
        let found = store.record(&tenant(), &name(), &id(&format!("r-{n}"))).await.expect("read");
        assert!(found.is_some(), "record r-{n} was acknowledged");
    }
}

#[tokio::test]
async fn a_full_disk_loses_nothing_and_writes_go_on_when_there_is_room() {
    let Some(point) = small_disk() else {
        let test = "disk::a_full_disk_loses_nothing_and_writes_go_on_when_there_is_room";
        return again_in(&MOUNTING, test);
    };
    let (path, ballast) = (point.join("reef.db"), point.join("ballast"));
    std::fs::write(&ballast, vec![1; BALLAST_BYTES]).expect("written");
    let store = Store::open(&path).await.expect("opened");
    store.create_scenario(&tenant(), &name(), &ScenarioSettings::default(), NOW_MS).await.expect("created");
    let (stored, error) = fill(&store).await;
    assert_eq!(error, StoreError::Full { path: path.clone() });
    let told = error.to_string();
    assert!(told.contains(path.to_str().expect("a name")) && told.contains("free space there"), "{told}");
    let mut calls = JoinSet::new();
    for n in 1..=24 {
        let store = store.clone();
        calls.spawn(async move { append(&store, stored + n).await });
    }
    for result in calls.join_all().await {
        assert_eq!(result, Err(StoreError::Full { path: path.clone() }), "it stays full, for all of a group");
    }
    all_there(&store, stored).await;
    assert_eq!(store.counts(&tenant(), &name()).await.expect("counts").inferences, i64::from(stored));
    std::fs::remove_file(&ballast).expect("removed");
    for n in stored..stored + 4 {
        append(&store, n).await.expect("there is room again");
    }
    store.close().await;
    let store = Store::open(&path).await.expect("opened again");
    all_there(&store, stored + 4).await;
    println!("full after {stored} records");
}

#[tokio::test]
async fn a_disk_that_is_full_at_the_start_is_told_in_a_sentence() {
    let Some(point) = small_disk() else {
        let test = "disk::a_disk_that_is_full_at_the_start_is_told_in_a_sentence";
        return again_in(&MOUNTING, test);
    };
    let ballast = point.join("ballast");
    std::fs::write(&ballast, vec![1; 4 << 20]).expect_err("the disk is smaller");
    let path = point.join("reef.db");
    assert_eq!(Store::open(&path).await.map(drop), Err(StoreError::Full { path: path.clone() }));
    std::fs::remove_file(&ballast).expect("removed");
    Store::open(&path).await.expect("opened").close().await;
}

#[tokio::test]
async fn a_read_only_disk_is_told_when_the_store_opens() {
    let Some(point) = small_disk() else {
        let test = "disk::a_read_only_disk_is_told_when_the_store_opens";
        return again_in(&MOUNTING, test);
    };
    let path = point.join("reef.db");
    Store::open(&path).await.expect("opened").close().await;
    mount(&["-o", "remount,ro", point.to_str().expect("a name")]);
    for path in [path, point.join("new.db")] {
        let error = Store::open(&path).await.map(drop).expect_err("read-only");
        assert_eq!(error, StoreError::ReadOnly { path: path.clone() });
        assert!(error.to_string().contains("write permission"), "{error}");
    }
}

#[tokio::test]
async fn a_file_without_write_permission_is_told_when_the_store_opens() {
    let Some(folder) = place() else {
        return again_in(&ORDINARY, "disk::a_file_without_write_permission_is_told_when_the_store_opens");
    };
    let path = folder.join("reef.db");
    Store::open(&path).await.expect("opened").close().await;
    let log = folder.join("reef.db-wal");
    for readonly in [path.clone(), folder, log.clone()] {
        if readonly == log {
            std::fs::write(&log, "").expect("a log that another user left behind");
        }
        let mut permissions = std::fs::metadata(&readonly).expect("there").permissions();
        let before = permissions.clone();
        permissions.set_readonly(true);
        std::fs::set_permissions(&readonly, permissions).expect("set");
        let opened = Store::open(&path).await.map(drop);
        std::fs::set_permissions(&readonly, before).expect("set back");
        assert_eq!(opened, Err(StoreError::ReadOnly { path: path.clone() }), "{} refuses writes", readonly.display());
    }
    Store::open(&path).await.expect("the remedy helps").close().await;
}

#[tokio::test]
async fn a_file_that_was_taken_away_is_not_replaced_by_an_empty_one() {
    let Some(point) = small_disk() else {
        return again_in(&MOUNTING, "disk::a_file_that_was_taken_away_is_not_replaced_by_an_empty_one");
    };
    let path = point.join("reef.db");
    let store = Store::open(&path).await.expect("opened");
    store.create_scenario(&tenant(), &name(), &ScenarioSettings::default(), NOW_MS).await.expect("created");
    // A failed transaction makes the writer connect again.
    assert_eq!(fill(&store).await.1, StoreError::Full { path: path.clone() });
    for file in ["reef.db", "reef.db-wal", "reef.db-shm"] {
        std::fs::remove_file(point.join(file)).expect("removed");
    }
    let error = append(&store, 9_999).await.expect_err("there is no database");
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    assert!(!path.exists(), "nothing stands in its place");
}

async fn opening(path: &Path) -> StoreError {
    Store::open(path).await.map(drop).expect_err("cannot be opened")
}

#[tokio::test]
async fn a_damaged_file_is_named_with_the_remedy() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("reef.db");
    std::fs::write(&path, "no database, only words. ".repeat(400)).expect("written");
    let error = opening(&path).await;
    assert!(matches!(&error, StoreError::Corrupt { path: named, .. } if *named == path), "{error}");
    assert!(error.to_string().contains("put a backup in its place"), "{error}");
    assert!(std::fs::read_to_string(&path).expect("read").starts_with("no database"), "it is left as it was found");
}

#[tokio::test]
async fn a_file_damaged_in_the_middle_is_told_when_it_is_read() {
    let fixture = Fixture::new().await;
    for n in 0..64 {
        fixture.answer(large(n)).await;
    }
    fixture.store.close().await;
    let mut bytes = std::fs::read(fixture.path()).expect("read");
    let length = bytes.len();
    bytes[length / 4..].fill(0x5a);
    std::fs::write(fixture.path(), bytes).expect("written");
    let store = Store::open(&fixture.path()).await;
    let read = match &store {
        Ok(store) => store.records(&tenant(), &name(), 0, 1_000, None).await.map(drop),
        Err(error) => Err(error.clone()),
    };
    assert!(matches!(read, Err(StoreError::Corrupt { .. })), "{read:?}");
}

#[tokio::test]
async fn a_missing_folder_and_a_folder_in_place_of_the_file_are_sentences() {
    let folder = tempfile::tempdir().expect("folder");
    for path in [folder.path().join("none").join("reef.db"), folder.path().to_owned()] {
        let error = opening(&path).await;
        assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains("check that its folder exists"), "{error}");
    }
}

#[tokio::test]
async fn a_database_of_another_version_is_left_alone() {
    let fixture = Fixture::new().await;
    fixture.store.close().await;
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(fixture.path());
    let outsider = sqlx::SqlitePool::connect_with(options).await.expect("opened");
    let newer = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
                 VALUES (9999, 'later', TRUE, x'00', 0)";
    sqlx::query(newer).execute(&outsider).await.expect("written");
    outsider.close().await;
    let error = opening(&fixture.path()).await;
    assert!(matches!(error, StoreError::Version { .. }), "{error}");
    assert!(error.to_string().contains("run that version"), "{error}");
}
