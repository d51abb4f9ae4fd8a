//! Erased bytes are gone from the disk: the raw file and its log are searched for them.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;

use reef_core::{Inference, Tag};
use reef_store::{RecordBody, Selector, StoreError};
use serde_json::json;

use crate::fixture::{Fixture, NOW_MS, inference, name, report, tenant};

/// What a report says about one of them.
const NOTE: &[u8] = b"said in the metadata";

/// Texts that stand in columns of their own, and token ids as they are stored.
fn marked(n: u32) -> (Inference, Vec<Vec<u8>>) {
    let (session, value) = (format!("session-of-person-{n:04}"), format!("person-{n:04}@example.org"));
    let tokens: Vec<u32> = (0..20 + n % 700).map(|at| 0x4d41_0000 + n * 1_000 + at).collect();
    let mut record = inference(&format!("r-{n}"), &tokens, &tokens);
    record.session = Some(session.clone());
    record.tags.insert(Tag::parse("mail").expect("valid"), value.clone());
    // Too short and too random to be compressed, so that it stands in the body as it is.
    let word = format!("{:016x}", (1 + u64::from(n)).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    record.request = json!({ "messages": [{ "role": "user", "content": word }] });
    let bytes: Vec<u8> = tokens.iter().take(8).flat_map(|token| token.to_le_bytes()).collect();
    (record, vec![session.into_bytes(), value.into_bytes(), bytes, word.into_bytes()])
}

/// The database and whatever lies beside it.
fn raw(path: &Path) -> Vec<u8> {
    let entries = std::fs::read_dir(path.parent().expect("a folder")).expect("listed");
    entries.flat_map(|entry| std::fs::read(entry.expect("entry").path()).expect("read")).collect()
}

/// Which of the marks are somewhere in there.
fn found(raw: &[u8], marks: &[Vec<u8>]) -> BTreeSet<Vec<u8>> {
    let lengths: BTreeSet<usize> = marks.iter().map(Vec::len).collect();
    let wanted: HashSet<&[u8]> = marks.iter().map(Vec::as_slice).collect();
    let windows = lengths.into_iter().flat_map(|length| raw.windows(length));
    windows.filter(|window| wanted.contains(window)).map(<[u8]>::to_vec).collect()
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
    graded.metadata.insert("note".to_owned(), json!(String::from_utf8_lossy(NOTE)));
    fixture.report(graded).await.expect("graded");
    let all: Vec<Vec<u8>> = marks.iter().flatten().cloned().chain([NOTE.to_vec()]).collect();
    let before = found(&raw(&fixture.path()), &all);
    assert!(before.len() >= 3 * 400, "only {} marks are found at all: this test would see nothing", before.len());
    assert!(before.contains(NOTE));
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
    let after = found(&raw(&fixture.path()), &all);
    for (n, marks) in marks.iter().enumerate() {
        for mark in marks {
            let text = String::from_utf8_lossy(mark);
            assert!(n % 7 != 0 || !after.contains(mark), "'{text}' of record {n} is still there");
            assert!(n % 7 == 0 || after.contains(mark) == before.contains(mark), "'{text}' of record {n} is lost");
        }
    }
    assert!(!after.contains(NOTE));
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
    assert!(found(&raw(&fixture.path()), &marks).is_empty());
}
