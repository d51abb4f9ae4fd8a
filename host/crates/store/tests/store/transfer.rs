//! Import and export: what one store writes another takes back, bit for bit, wholly or not at all.

use reef_core::{Alternatives, Inference, RecordStatus, Report, Tag};
use reef_store::{RecordBody, Selector, StoreError};
use serde_json::json;

use crate::fixture::{Fixture, NOW_MS, id, inference, name, report, tenant, traced, usable};

async fn exported(fixture: &Fixture, after: i64) -> Vec<String> {
    let mut out = Vec::new();
    let told = fixture.store.export(&tenant(), &name(), after, &mut out).await.expect("exported");
    let lines: Vec<String> = String::from_utf8(out).expect("text").lines().map(str::to_owned).collect();
    assert_eq!(told.records, lines.len() as u64);
    lines
}

fn read(lines: &[String]) -> Vec<RecordBody> {
    lines.iter().map(|line| RecordBody::from_line(line).expect("a line")).collect()
}

#[tokio::test]
async fn an_export_read_back_is_the_same_log() {
    let (here, there) = (Fixture::new().await, Fixture::new().await);
    let mut record = traced("r-1", |trace| {
        trace.logprobs = vec![-0.1, f32::NEG_INFINITY];
        trace.alternatives =
            Alternatives { k: 2, ids: vec![4, 9, 5, 9], logprobs: vec![-0.1, -2.345_678_9, -0.3, -4e-7] };
    });
    record.status = RecordStatus::Cancelled;
    record.session = Some("s'\u{0}".to_owned());
    record.tags.insert(Tag::parse("call").expect("valid"), "title".to_owned());
    record.request = json!({ "seed": u64::MAX, "n": 0.1 + 0.2, "text": "line\nbreak \u{2028} é" });
    here.answer(record).await;
    here.answer(Inference { tokens: None, ..inference("r-2", &[1], &[2]) }).await;
    let mut graded = report("g-1", &["r-1", "r-2"]);
    graded.feedback = Some(json!({ "text": "slow\n" }));
    here.report(graded.clone()).await.expect("graded");
    here.report(Report { amends: Some(id("g-1")), ..report("g-2", &["r-2"]) }).await.expect("amended");
    let lines = exported(&here, 0).await;
    let appended = there.store.import(&tenant(), &name(), read(&lines)).await.expect("imported");
    assert_eq!(
        appended.appended.iter().map(|a| (a.sequence, a.duplicate)).collect::<Vec<_>>(),
        (1..=4).map(|n| (n, false)).collect::<Vec<_>>()
    );
    let page = async |fixture: &Fixture| fixture.store.records(&tenant(), &name(), 0, 100, None).await.expect("page");
    assert_eq!(page(&there).await, page(&here).await);
    assert_eq!(there.counts().await, here.counts().await);
    let again = there.store.import(&tenant(), &name(), read(&lines)).await.expect("imported again");
    assert!(again.appended.iter().all(|appended| appended.duplicate));
    assert_eq!(exported(&there, 2).await, lines[2..], "an interrupted export goes on after a sequence");
}

#[tokio::test]
async fn an_import_with_one_bad_record_changes_nothing() {
    let fixture = Fixture::new().await;
    fixture.graded(1).await;
    let batch = vec![
        RecordBody::Inference(Box::new(inference("r-2", &[1], &[2]))),
        RecordBody::Report(Box::new(report("g-2", &["r-2"]))),
        RecordBody::Report(Box::new(report("g-3", &["never"]))),
        RecordBody::Inference(Box::new(inference("r-3", &[1], &[2]))),
    ];
    let refused = fixture.store.import(&tenant(), &name(), batch.clone()).await;
    assert_eq!(refused, Err(StoreError::UnknownReference(id("never"))));
    let counts = fixture.counts().await;
    assert_eq!((counts.inferences, counts.reports, counts.pending), (1, 1, 1));
    assert_eq!(fixture.store.record(&tenant(), &name(), &id("r-2")).await, Ok(None));
    let good = batch.into_iter().filter(|body| !matches!(body, RecordBody::Report(r) if r.id == id("g-3"))).collect();
    fixture.store.import(&tenant(), &name(), good).await.expect("imported");
    assert_eq!(usable(&fixture.pool().await), ["g-1", "g-2"]);
    let many = vec![RecordBody::Report(Box::new(report("g", &[]))); 1_001];
    assert!(matches!(fixture.store.import(&tenant(), &name(), many).await, Err(StoreError::Invalid(_))));
}

#[tokio::test]
async fn what_was_erased_does_not_come_back_and_holds_nothing_else_up() {
    let fixture = Fixture::new().await;
    fixture.graded(1).await;
    fixture.graded(2).await;
    let lines = exported(&fixture, 0).await;
    fixture.store.erase(&tenant(), &name(), &Selector::Record(id("r-1")), NOW_MS).await.expect("erased");
    let mut batch = read(&lines);
    batch.push(RecordBody::Report(Box::new(report("late", &["r-1"]))));
    batch.push(RecordBody::Inference(Box::new(inference("new", &[1], &[2]))));
    let imported = fixture.store.import(&tenant(), &name(), batch).await.expect("imported");
    assert_eq!(imported.gone, 3, "the answer, its report, and one that came too late");
    let duplicates: Vec<bool> = imported.appended.iter().map(|appended| appended.duplicate).collect();
    assert_eq!(duplicates, [true, true, false]);
}

#[tokio::test]
async fn a_line_that_is_no_record_is_refused() {
    for line in ["", "{}", "[]", "{\"sequence\":1,\"kind\":\"inference\",\"record\":{}}", "\u{0}", "{\"kind\":7}"] {
        assert!(matches!(RecordBody::from_line(line), Err(StoreError::Invalid(_))), "{line}");
    }
}

#[tokio::test]
async fn a_receiver_that_fails_is_told() {
    let fixture = Fixture::new().await;
    fixture.graded(1).await;
    let (mut near, far) = tokio::io::duplex(16);
    drop(far);
    let told = fixture.store.export(&tenant(), &name(), 0, &mut near).await.expect_err("closed").to_string();
    assert!(told.contains("the export's target"), "{told}");
}

#[tokio::test]
async fn a_parquet_export_has_a_row_for_every_record() {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::RowAccessor;

    let fixture = Fixture::new().await;
    fixture.graded(1).await;
    fixture.answer(Inference { tokens: None, session: Some("s".to_owned()), ..inference("r-2", &[], &[]) }).await;
    fixture.answer(traced("r-3", |trace| trace.prompt = vec![u32::MAX, 7])).await;
    let (told, file) = fixture
        .store
        .export_parquet(&tenant(), &name(), 0, tempfile::tempfile().expect("file"))
        .await
        .expect("exported");
    assert_eq!((told.records, told.last), (4, 4));
    let reader = SerializedFileReader::new(file).expect("a Parquet file");
    let rows: Vec<_> = reader.get_row_iter(None).expect("rows").map(|row| row.expect("a row")).collect();
    let ids: Vec<&String> = rows.iter().map(|row| row.get_string(1).expect("an id")).collect();
    assert_eq!(ids, ["r-1", "g-1", "r-2", "r-3"]);
    assert_eq!(rows[3].get_list(6).expect("a prompt").elements().len(), 2);
    assert_eq!(rows[3].get_list(8).expect("log-probs").elements().len(), 2);
    assert!(rows[2].get_list(6).is_err(), "no tokens are null, not an empty list");
    assert_eq!(rows[2].get_string(4).expect("a session"), "s");
    assert!(rows[0].get_string(9).expect("a body").contains("/v1/chat/completions"));
}
