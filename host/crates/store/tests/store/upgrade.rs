//! A file of an earlier version opens with everything that it holds, and what it lacks is filled in.

use std::borrow::Cow;

use reef_core::{RecordId, Surface, Tag};
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

/// The tables of version 6, which knew one recipe to a scenario.
fn version_6() -> Migrator {
    let mut all: Vec<Migration> = version_3().iter().cloned().collect();
    for (version, name, sql) in [
        (4, "experience", include_str!("../../migrations/sqlite/0004_experience.sql")),
        (5, "rollouts", include_str!("../../migrations/sqlite/0005_rollouts.sql")),
        (6, "harness", include_str!("../../migrations/sqlite/0006_harness.sql")),
    ] {
        let sql: SqlStr = sql.into_sql_str();
        all.push(Migration::new(version, Cow::Borrowed(name), MigrationType::Simple, sql, false));
    }
    Migrator::with_migrations(all)
}

#[tokio::test]
async fn what_a_harness_used_in_version_6_is_used_up_for_the_harness_and_free_for_the_weights() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("reef.db");
    let options = SqliteConnectOptions::new().filename(&path).create_if_missing(true);
    let old = SqlitePool::connect_with(options).await.expect("made");
    version_6().run(&old).await.expect("tables");
    let rows = "INSERT INTO scenarios (tenant, name, settings, created_at_ms) VALUES ('acme', 'spell', '{}', 1); \
        INSERT INTO samples (tenant, scenario, report, sequence, state, step, metadata) VALUES \
          ('acme', 'spell', 'g-1', 1, 'consumed', 1, '{}'), ('acme', 'spell', 'g-2', 2, 'consumed', 3, '{}'), \
          ('acme', 'spell', 'g-3', 3, 'pending', NULL, '{}'); \
        INSERT INTO releases (tenant, scenario, release_id, position, status, step, metrics, body_bytes, body, surface) \
          VALUES ('acme', 'spell', 'r-1', 1, 'held', 2, '{}', 1, x'00', 'harness'); \
        INSERT INTO proposals VALUES ('acme', 'spell', 'p-1', NULL, 'r-1', 's-1', '{}'); \
        INSERT INTO recipe_uses VALUES ('acme', 'spell', 1, 'd', 'gepa', '1.0.0', 'upload', '', 1, 'gepa', 1, x'00');";
    sqlx::raw_sql(rows).execute(&old).await.expect("written");
    old.close().await;
    let store = Store::open(&path).await.expect("opened");
    store.learn_on(&tenant(), &name(), &[Surface::Weights, Surface::Harness]).await.expect("changed");
    let (_, each) = store.counts_on_each(&tenant(), &name()).await.expect("counts");
    for (surface, pending, consumed) in [(Surface::Weights, 3, 0), (Surface::Harness, 1, 2)] {
        let counts = each.get(&surface).copied().unwrap_or_default();
        assert_eq!((counts.pending, counts.consumed), (pending, consumed), "{surface:?}");
    }
    let uses = store.recipe_uses(&tenant(), &name(), 9).await.expect("uses");
    assert_eq!(uses.iter().map(|row| row.surface).collect::<Vec<_>>(), [Surface::Harness]);
    store.close().await;
    let now = SqlitePool::connect_with(SqliteConnectOptions::new().filename(&path)).await.expect("opened");
    let proposals: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM proposals JOIN releases USING (release_id)")
        .fetch_one(&now)
        .await
        .expect("read");
    assert_eq!(proposals, 1, "proposals are there with their releases");
    now.close().await;
}

#[tokio::test]
async fn a_file_of_this_version_is_filled_no_more() {
    let mut fixture = Fixture::new().await;
    fixture.graded(1).await;
    fixture.reopen().await;
    assert_eq!(usable(&fixture.pool().await), ["g-1"]);
    assert!(fixture.store.record(&tenant(), &name(), &id("r-1")).await.expect("read").is_some());
}
