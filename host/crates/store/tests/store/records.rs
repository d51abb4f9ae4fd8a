//! Inference records: what is appended is what is read, once, in order.

use reef_core::{Alternatives, RecordStatus, Tag};
use reef_store::{RecordBody, RecordKind, StoreError};
use serde_json::{Value, json};

use crate::fixture::{Fixture, id, inference, name, report, tenant, traced};

fn ids(page: &[reef_store::StoredRecord]) -> Vec<(i64, String)> {
    let id = |body: &RecordBody| match body {
        RecordBody::Inference(record) => record.id.to_string(),
        RecordBody::Report(report) => report.id.to_string(),
        RecordBody::Instruction(instruction) => instruction.id.to_string(),
    };
    page.iter().map(|stored| (stored.sequence, id(&stored.body))).collect()
}

/// `k` alternatives of two tokens.
fn alternatives(k: u32, logprob: f32) -> Alternatives {
    Alternatives { k, ids: vec![1; 2 * k as usize], logprobs: vec![logprob; 2 * k as usize] }
}

#[tokio::test]
async fn a_record_returns_bit_for_bit() {
    let mut fixture = Fixture::new().await;
    let mut record = traced("r-1", |trace| trace.logprobs = vec![-0.0, f32::MIN_POSITIVE]);
    record.status = RecordStatus::Cancelled;
    record.session = Some("s'; --".to_owned());
    record.tags.insert(Tag::parse("trial").expect("valid"), "a:/../\u{0}\"'".to_owned());
    record.request = json!({ "temperature": 0.1 + 0.2, "seed": u64::MAX, "n": -1.5e-300, "text": "\u{0}é\u{1f41a}" });
    fixture.answer(record.clone()).await;
    fixture.reopen().await;
    let stored = fixture.store.record(&tenant(), &name(), &record.id).await.expect("read").expect("there");
    assert_eq!(stored.body, RecordBody::Inference(Box::new(record)));
    assert_eq!((stored.kind, stored.sequence), (RecordKind::Inference, 1));
}

#[tokio::test]
async fn the_same_record_again_keeps_its_sequence_and_another_is_a_conflict() {
    let fixture = Fixture::new().await;
    let first = fixture.answer(inference("r-1", &[1], &[2])).await;
    fixture.answer(inference("r-2", &[1], &[2])).await;
    assert_eq!(fixture.answer(inference("r-1", &[1], &[2])).await, first);
    let other = fixture.store.append_inference(&tenant(), &name(), inference("r-1", &[1], &[3])).await;
    let refusal = other.expect_err("other content");
    assert!(matches!(refusal, StoreError::Conflict(_)) && refusal.to_string().contains("r-1"), "{refusal}");
    assert_eq!(fixture.counts().await.inferences, 2);
}

#[tokio::test]
async fn an_unknown_scenario_is_named_with_the_remedy() {
    let fixture = Fixture::new().await;
    let other = reef_core::ScenarioName::parse("other").expect("valid");
    let refused = fixture.store.append_inference(&tenant(), &other, inference("r-1", &[1], &[2])).await;
    assert_eq!(refused.expect_err("unknown").to_string(), "scenario 'other' does not exist; create it first");
}

#[tokio::test]
async fn pages_follow_one_another_without_gap_or_overlap() {
    let fixture = Fixture::new().await;
    for n in 1..=5 {
        fixture.graded(n).await;
    }
    let read =
        async |after, limit, kind| fixture.store.records(&tenant(), &name(), after, limit, kind).await.expect("page");
    let (mut after, mut all) = (0, Vec::new());
    loop {
        let page = read(after, 3, None).await;
        let Some(last) = page.last() else { break };
        after = last.sequence;
        all.extend(ids(&page));
    }
    assert_eq!(all.iter().map(|(sequence, _)| *sequence).collect::<Vec<_>>(), (1..=10).collect::<Vec<_>>());
    let reports = ids(&read(0, 3, Some(RecordKind::Report)).await);
    assert_eq!(reports, [(2, "g-1".to_owned()), (4, "g-2".to_owned()), (6, "g-3".to_owned())]);
    assert!(read(0, 0, None).await.is_empty());
}

#[tokio::test]
async fn a_page_ends_before_its_bodies_fill_the_memory() {
    let fixture = Fixture::new().await;
    for n in 1..=3 {
        let mut record = inference(&format!("r-{n}"), &[1], &[2]);
        record.response = Value::String("x".repeat(40 << 20));
        fixture.answer(record).await;
    }
    let page = fixture.store.records(&tenant(), &name(), 0, 1_000, None).await.expect("page");
    assert_eq!(ids(&page), [(1, "r-1".to_owned())], "two bodies are over 64 MiB");
}

#[tokio::test]
async fn a_body_too_deep_to_be_read_back_is_refused_and_harms_no_page() {
    let fixture = Fixture::new().await;
    let nested = |levels| (1..levels).fold(json!([]), |inner, _| json!([inner]));
    for levels in [126, 127, 128, 200] {
        let mut record = inference(&format!("r-{levels}"), &[1], &[2]);
        record.request = nested(levels);
        let appended = fixture.store.append_inference(&tenant(), &name(), record).await;
        assert_eq!(appended.is_ok(), levels == 126, "{levels} levels in the request");
        if let Err(refusal) = appended {
            assert!(refusal.to_string().contains("levels deep; the limit is 127"), "{refusal}");
        }
    }
    let mut deep = report("g-1", &["r-126"]);
    deep.feedback = Some(nested(127));
    assert!(matches!(fixture.report(deep).await, Err(StoreError::Invalid(_))));
    let page = fixture.store.records(&tenant(), &name(), 0, 10, None).await.expect("readable");
    assert_eq!(ids(&page), [(1, "r-126".to_owned())]);
}

#[tokio::test]
async fn records_that_break_a_rule_are_refused_in_a_sentence() {
    let fixture = Fixture::new().await;
    let cases = [
        (traced("r-1", |trace| trace.logprobs.truncate(1)), "2 tokens, 1 log-probs"),
        (traced("r-1", |trace| trace.alternatives.k = 1), "its alternatives are not"),
        (traced("r-1", |trace| trace.alternatives = alternatives(65, -1.0)), "its alternatives are not"),
        (traced("r-1", |trace| trace.alternatives = alternatives(1, f32::NAN)), "log-prob of an alternative"),
        (traced("r-2", |trace| trace.sampling.temperature = f32::NAN), "nothing that was sampled with"),
        (traced("r-2", |trace| trace.sampling.temperature = -1.0), "nothing that was sampled with"),
        (traced("r-3", |trace| trace.prompt = vec![0; 1 << 20]), "more than 1048576 tokens"),
    ];
    for (record, rule) in cases {
        let (named, refused) = (record.id.clone(), fixture.store.append_inference(&tenant(), &name(), record).await);
        let told = refused.expect_err(rule).to_string();
        assert!(told.contains(rule) && told.contains(named.as_str()), "{told}");
    }
    let mut long = inference("r-4", &[1], &[2]);
    long.session = Some("s".repeat(5_000));
    assert!(matches!(fixture.store.append_inference(&tenant(), &name(), long).await, Err(StoreError::Invalid(_))));
    assert_eq!(fixture.counts().await.inferences, 0);
    assert_eq!(fixture.store.record(&tenant(), &name(), &id("r-4")).await.expect("read"), None);
}
