//! Erased bytes are gone from the disk: the raw file and its log are searched for them.

use std::path::Path;

use reef_core::{Inference, Tag};
use reef_store::{RecordBody, Selector, StoreError};
use serde_json::json;

use crate::fixture::{Fixture, NOW_MS, inference, name, report, tenant};

/// Texts that stand in columns of their own, and token ids as they are stored.
fn marked(n: u32) -> (Inference, Vec<Vec<u8>>) {
    let (session, value) = (format!("session-of-person-{n:04}"), format!("person-{n:04}@example.org"));
    let tokens: Vec<u32> = (0..20 + n % 700).map(|at| 0x4d41_0000 + n * 1_000 + at).collect();
    let mut record = inference(&format!("r-{n}"), &tokens, &tokens);
    record.session = Some(session.clone());
    record.tags.insert(Tag::parse("mail").expect("valid"), value.clone());
    // Too short and too random to be compressed, so that it stands in the body as it is.
    let word = format!("{:016x}", u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    record.request = json!({ "messages": [{ "role": "user", "content": word }] });
    let bytes: Vec<u8> = tokens.iter().take(8).flat_map(|token| token.to_le_bytes()).collect();
    (record, vec![session.into_bytes(), value.into_bytes(), bytes, word.into_bytes()])
}

/// The database and whatever lies beside it.
fn raw(path: &Path) -> Vec<u8> {
    let entries = std::fs::read_dir(path.parent().expect("a folder")).expect("listed");
    entries.flat_map(|entry| std::fs::read(entry.expect("entry").path()).expect("read")).collect()
}

fn holds(raw: &[u8], mark: &[u8]) -> bool {
    raw.windows(mark.len()).any(|window| window == mark)
}

#[tokio::test]
async fn not_a_byte_of_what_was_erased_is_left_in_the_files() {
    let fixture = Fixture::new().await;
    let (records, marks): (Vec<_>, Vec<_>) = (0..400).map(marked).unzip();
    for part in records.chunks(100) {
        let part = part.iter().map(|record| RecordBody::Inference(Box::new(record.clone()))).collect();
        fixture.store.import(&tenant(), &name(), part).await.expect("imported");
    }
    let mut graded = report("g-7", &["r-7"]);
    graded.metadata.insert("note".to_owned(), json!("said in the metadata"));
    fixture.report(graded).await.expect("graded");
    let before = raw(&fixture.path());
    let seen = marks.iter().flatten().filter(|mark| holds(&before, mark)).count();
    assert!(seen >= 3 * 400, "only {seen} marks are found at all: this test would see nothing");
    assert!(holds(&before, b"said in the metadata"));
    let tag = Tag::parse("mail").expect("valid");
    for n in (0..400).step_by(7) {
        let what = match n % 3 {
            0 => Selector::Session(format!("session-of-person-{n:04}")),
            1 => Selector::Tag(tag.clone(), format!("person-{n:04}@example.org")),
            _ => Selector::Record(crate::fixture::id(&format!("r-{n}"))),
        };
        let erased = fixture.store.erase(&tenant(), &name(), &what, NOW_MS).await.expect("erased");
        assert!(erased.records >= 1, "{what:?}");
    }
    let after = raw(&fixture.path());
    for (n, marks) in marks.iter().enumerate() {
        for mark in marks {
            let text = String::from_utf8_lossy(mark);
            assert!(n % 7 != 0 || !holds(&after, mark), "'{text}' of record {n} is still there");
            assert!(n % 7 == 0 || holds(&after, mark) == holds(&before, mark), "'{text}' of record {n} is lost");
        }
    }
    assert!(!holds(&after, b"said in the metadata"));
}

#[tokio::test]
async fn a_reader_that_keeps_an_earlier_state_is_told_and_the_next_erasure_finishes() {
    let fixture = Fixture::new().await;
    let (record, marks) = marked(1);
    fixture.answer(record).await;
    let options = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(fixture.path())
        .busy_timeout(std::time::Duration::from_millis(1));
    let outsider = sqlx::SqlitePool::connect_with(options).await.expect("opened");
    let mut long = outsider.begin().await.expect("begun");
    let _: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM records").fetch_one(&mut *long).await.expect("read");
    let what = Selector::Record(crate::fixture::id("r-1"));
    let told = fixture.store.erase(&tenant(), &name(), &what, NOW_MS).await.expect_err("a reader is there");
    assert!(
        matches!(&told, StoreError::Conflict(told) if told.contains("end that program and erase again")),
        "{told:?}"
    );
    assert!(fixture.store.record(&tenant(), &name(), &crate::fixture::id("r-1")).await.expect("read").is_none());
    drop(long);
    outsider.close().await;
    fixture.store.erase(&tenant(), &name(), &what, NOW_MS).await.expect("finished");
    let after = raw(&fixture.path());
    assert!(marks.iter().all(|mark| !holds(&after, mark)));
}
