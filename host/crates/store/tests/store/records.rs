//! Inference records: exact, ordered, bounded.

use reef_core::{Inference, RecordStatus};
use reef_store::{RecordBody, RecordKind, StoreError};
use serde_json::{Value, json};

use crate::fixture::{Place, graded, id, inference, scenario, tenant};

#[tokio::test]
async fn a_record_returns_exactly_as_it_was() {
    let mut place = Place::new().await;
    let mut record = inference("i-1");
    record.request = json!({ "x": 0.1, "big": u64::MAX, "text": "\u{0}\u{1f30a}" });
    record.tokens.as_mut().expect("tokens").logprobs = vec![-0.0, f32::NEG_INFINITY];
    place.store.append_inference(&place.t, &place.s, record.clone()).await.expect("append");
    place.reopen().await;
    let found = place.store.record(&place.t, &place.s, &id("i-1")).await.expect("read").expect("there");
    assert_eq!((found.sequence, found.kind), (1, RecordKind::Inference));
    assert_eq!(found.body, RecordBody::Inference(Box::new(record)));
}

#[tokio::test]
async fn the_same_record_again_keeps_its_sequence_and_another_is_a_conflict() {
    let place = Place::new().await;
    let first = place.infer("i-1").await;
    assert_eq!(place.infer("i-1").await, first);
    let other = Inference { status: RecordStatus::Cancelled, ..inference("i-1") };
    let refused = place.store.append_inference(&place.t, &place.s, other).await.expect_err("conflict");
    assert!(matches!(refused, StoreError::Conflict(_)), "{refused}");
    assert_eq!(place.store.counts(&place.t, &place.s).await.expect("counts").inferences, 1);
    assert_eq!(place.infer("i-2").await, first + 1, "a refusal takes no sequence");
}

#[tokio::test]
async fn records_are_read_in_pages_by_kind_and_by_tenant() {
    let place = Place::new().await;
    for n in 0..5 {
        place.sample(&n.to_string()).await;
    }
    let page = |after, limit, kind| place.store.records(&place.t, &place.s, after, limit, kind);
    let first = page(0, 3, None).await.expect("page");
    assert_eq!(first.iter().map(|r| r.sequence).collect::<Vec<_>>(), [1, 2, 3]);
    let rest = page(3, 100, None).await.expect("page");
    assert_eq!(rest.len(), 7);
    let reports = page(0, 100, Some(RecordKind::Report)).await.expect("page");
    assert_eq!(reports.len(), 5);
    assert!(reports.iter().all(|r| matches!(r.body, RecordBody::Report(_))));
    assert!(page(10, 100, None).await.expect("page").is_empty());
    let foreign = place.store.records(&tenant("other"), &place.s, 0, 100, None).await.expect("page");
    assert!(foreign.is_empty());
    assert_eq!(place.store.record(&tenant("other"), &place.s, &id("i-1")).await.expect("read"), None);
}

#[tokio::test]
async fn a_page_ends_before_its_bodies_fill_memory_but_never_is_empty() {
    let place = Place::new().await;
    for n in 0..3 {
        let request = Value::String("x".repeat(40 << 20));
        let record = Inference { request, ..inference(&format!("i-{n}")) };
        place.store.append_inference(&place.t, &place.s, record).await.expect("append");
    }
    let page = place.store.records(&place.t, &place.s, 0, 100, None).await.expect("page");
    assert_eq!(page.len(), 1);
}

#[tokio::test]
async fn oversize_and_inconsistent_records_are_refused_by_name() {
    let place = Place::new().await;
    let big = Inference { request: Value::String("x".repeat(129 << 20)), ..inference("i-big") };
    let mut uneven = inference("i-uneven");
    uneven.tokens.as_mut().expect("tokens").logprobs.pop();
    for (record, said) in [(big, "limit"), (uneven, "2 tokens, 1 log-probs")] {
        let name = record.id.to_string();
        let refused = place.store.append_inference(&place.t, &place.s, record).await.expect_err("refused");
        assert!(
            matches!(&refused, StoreError::Invalid(text) if text.contains(&name) && text.contains(said)),
            "{refused}"
        );
    }
}

#[tokio::test]
async fn a_scenario_must_exist() {
    let place = Place::new().await;
    let none = scenario("none");
    let unknown = Err(StoreError::UnknownScenario(none.clone()));
    assert_eq!(place.store.append_inference(&place.t, &none, inference("i-1")).await, unknown);
    let report = place.store.append_report(&place.t, &none, graded("r-1", &[], 1.0)).await;
    assert_eq!(report.map(|a| a.sequence), unknown);
}
