//! A file of an earlier version opens with everything that it holds, and what it lacks is filled in.

use std::borrow::Cow;

use reef_core::{RecordId, Tag};
use reef_store::{Selector, Store};
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};
use sqlx::{SqlSafeStr, SqlStr};

use crate::fixture::{Fixture, NOW_MS, id, inference, name, report, tenant, usable};

/// Records of the earlier file: more than one batch.
const RECORDS: u32 = 1_100;

/// The tables of version 3, as a server of that version made them.
fn version_3() -> Migrator {
    let migration = |version, name, sql: &'static str| {
        let sql: SqlStr = sql.into_sql_str();
        Migration::new(version, Cow::Borrowed(name), MigrationType::Simple, sql, false)
    };
    Migrator::with_migrations(vec![
        migration(1, "log", include_str!("../../migrations/sqlite/0001_log.sql")),
        migration(2, "inputs", include_str!("../../migrations/sqlite/0002_inputs.sql")),
        migration(3, "recipe uses", include_str!("../../migrations/sqlite/0003_recipe_uses.sql")),
    ])
}

fn packed(value: &impl serde::Serialize) -> (i64, Vec<u8>) {
    let raw = serde_json::to_vec(value).expect("JSON");
    (raw.len() as i64, zstd::bulk::compress(&raw, 1).expect("packed"))
}

async fn insert(old: &SqlitePool, sequence: i64, id: &RecordId, kind: &str, body: (i64, Vec<u8>)) {
    let sql = "INSERT INTO records (tenant, scenario, sequence, id, kind, status, capture, body_bytes, body) \
               VALUES ('acme', 'spell', ?, ?, ?, ?, ?, ?, ?)";
    let query = sqlx::query(sql).bind(sequence).bind(id.as_str()).bind(kind);
    let query = query.bind((kind == "inference").then_some("complete")).bind((kind == "inference").then_some(1));
    query.bind(body.0).bind(body.1).execute(old).await.expect("written");
}

#[tokio::test]
async fn a_file_of_version_3_opens_with_all_that_it_holds() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("reef.db");
    let options = SqliteConnectOptions::new().filename(&path).create_if_missing(true);
    let old = SqlitePool::connect_with(options).await.expect("made");
    version_3().run(&old).await.expect("tables");
    let scenario = format!(
        "INSERT INTO scenarios (tenant, name, settings, created_at_ms, last_sequence, inferences, reports) \
         VALUES ('acme', 'spell', '{{}}', 1, {}, {RECORDS}, 1)",
        RECORDS + 1
    );
    sqlx::query(sqlx::AssertSqlSafe(scenario)).execute(&old).await.expect("written");
    let mut records = Vec::new();
    for n in 0..RECORDS {
        let mut record = inference(&format!("r-{n}"), &[1], &[2]);
        record.tokens = None;
        record.session = Some(format!("s-{}", n % 11));
        record.tags.insert(Tag::parse("user").expect("valid"), format!("u-{}", n % 7));
        insert(&old, i64::from(n) + 1, &record.id, "inference", packed(&record)).await;
        records.push(record);
    }
    let graded = report("g-1", &["r-5"]);
    insert(&old, i64::from(RECORDS) + 1, &graded.id, "report", packed(&graded)).await;
    let sample = format!(
        "INSERT INTO samples (tenant, scenario, report, sequence, state, score, metadata) \
         VALUES ('acme', 'spell', 'g-1', {}, 'pending', 1.0, '{{}}')",
        RECORDS + 1
    );
    sqlx::query(sqlx::AssertSqlSafe(sample)).execute(&old).await.expect("written");
    let link = "INSERT INTO sample_records VALUES ('acme', 'spell', 'g-1', 'r-5')";
    sqlx::query(link).execute(&old).await.expect("written");
    old.close().await;

    let store = Store::open(&path).await.expect("opened");
    let counts = store.counts(&tenant(), &name()).await.expect("counts");
    assert_eq!((counts.inferences, counts.reports, counts.pending), (i64::from(RECORDS), 1, 1));
    let stored = store.stored(&tenant(), &name()).await.expect("stored");
    assert!(stored.records == i64::from(RECORDS) + 1 && stored.bytes > 0, "{stored:?}");
    for record in records.iter().step_by(97) {
        let found = store.record(&tenant(), &name(), &record.id).await.expect("read").expect("there");
        assert_eq!(found.body, reef_store::RecordBody::Inference(Box::new(record.clone())));
    }
    assert_eq!(store.expire(&tenant(), &name(), NOW_MS, NOW_MS).await, Ok(0), "times are filled in");
    let session = store.erase(&tenant(), &name(), &Selector::Session("s-3".to_owned()), NOW_MS).await.expect("erased");
    assert_eq!(session.records, 100);
    let user = Selector::Tag(Tag::parse("user").expect("valid"), "u-0".to_owned());
    let user = store.erase(&tenant(), &name(), &user, NOW_MS).await.expect("erased");
    let left = (0..RECORDS).filter(|n| n % 11 != 3 && n % 7 == 0).count() as u64;
    assert_eq!(user.records, left);
    store.append_inference(&tenant(), &name(), inference("new", &[1], &[2])).await.expect("it goes on");
    store.close().await;
    Store::open(&path).await.expect("opened again").close().await;
}

#[tokio::test]
async fn a_file_of_this_version_is_filled_no_more() {
    let mut fixture = Fixture::new().await;
    fixture.graded(1).await;
    fixture.reopen().await;
    assert_eq!(usable(&fixture.pool().await), ["g-1"]);
    assert!(fixture.store.record(&tenant(), &name(), &id("r-1")).await.expect("read").is_some());
}
