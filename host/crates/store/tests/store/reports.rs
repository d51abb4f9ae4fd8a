//! Reports: counted once, tied to records of their own scenario, amendable.

use reef_core::Report;
use reef_store::{ScenarioSettings, StoreError};

use crate::fixture::{Place, graded, id, scenario, tenant};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_report_sent_a_thousand_times_at_once_is_counted_once() {
    let place = Place::new().await;
    place.infer("i-1").await;
    let mut sends = tokio::task::JoinSet::new();
    for _ in 0..1000 {
        let (store, t, s) = (place.store.clone(), place.t.clone(), place.s.clone());
        sends.spawn(async move { store.append_report(&t, &s, graded("r-1", &["i-1"], 0.5)).await.expect("append") });
    }
    let answers = sends.join_all().await;
    assert_eq!(answers.iter().filter(|a| !a.duplicate).count(), 1);
    assert!(answers.iter().all(|a| a.sequence == 2));
    let counts = place.store.counts(&place.t, &place.s).await.expect("counts");
    assert_eq!((counts.reports, counts.pending), (1, 1));
}

#[tokio::test]
async fn the_same_id_with_other_content_is_a_conflict() {
    let place = Place::new().await;
    place.sample("1").await;
    let other = place.store.append_report(&place.t, &place.s, graded("r-1", &["i-1"], 0.0)).await;
    assert!(matches!(other, Err(StoreError::Conflict(_))));
    let stolen = place.store.append_report(&place.t, &place.s, graded("i-1", &[], 0.0)).await;
    assert!(matches!(stolen, Err(StoreError::Conflict(_))), "the id of an inference record is taken");
    let later = Report { created_at_ms: 99, traceparent: Some("00-a".to_owned()), ..graded("r-1", &["i-1"], 1.0) };
    assert!(place.report(later).await, "time and trace are no content");
}

#[tokio::test]
async fn references_reach_only_inference_records_of_the_same_tenant_and_scenario() {
    let place = Place::new().await;
    place.sample("1").await;
    let (other, elsewhere) = (tenant("other"), scenario("elsewhere"));
    for (t, s) in [(&other, &place.s), (&place.t, &elsewhere)] {
        place.store.create_scenario(t, s, &ScenarioSettings::default(), 1).await.expect("scenario");
        let refused = place.store.append_report(t, s, graded("r-9", &["i-1"], 1.0)).await;
        assert_eq!(refused, Err(StoreError::UnknownReference(id("i-1"))));
        assert_eq!(place.store.counts(t, s).await.expect("counts"), Default::default(), "nothing is left behind");
    }
    let to_report = place.store.append_report(&place.t, &place.s, graded("r-9", &["i-1", "r-1"], 1.0)).await;
    assert_eq!(to_report, Err(StoreError::UnknownReference(id("r-1"))));
    let twice = place.store.append_report(&place.t, &place.s, graded("r-9", &["i-1", "i-1"], 1.0)).await;
    assert!(matches!(twice, Err(StoreError::Invalid(_))));
    let infinite = place.store.append_report(&place.t, &place.s, graded("r-9", &["i-1"], f64::INFINITY)).await;
    assert!(matches!(infinite, Err(StoreError::Invalid(_))));
}

#[tokio::test]
async fn a_report_without_references_is_kept_and_is_no_sample() {
    let place = Place::new().await;
    place.report(graded("r-1", &[], 1.0)).await;
    let counts = place.store.counts(&place.t, &place.s).await.expect("counts");
    assert_eq!((counts.reports, counts.pending), (1, 0));
}

#[tokio::test]
async fn an_amendment_retires_the_pending_report_and_takes_its_place() {
    let place = Place::new().await;
    place.sample("1").await;
    let better = Report { amends: Some(id("r-1")), ..graded("r-2", &["i-1"], 0.25) };
    place.report(better.clone()).await;
    assert!(place.report(better).await);
    let pool = place.store.pool(&place.t, &place.s, 10).await.expect("pool");
    assert_eq!(pool.samples.iter().map(|s| (s.report.as_str(), s.score)).collect::<Vec<_>>(), [("r-2", Some(0.25))]);
    assert!(pool.unusable.is_empty());
    let reasons = place.store.retirement_reasons(&place.t, &place.s).await.expect("reasons");
    assert_eq!(reasons.into_iter().collect::<Vec<_>>(), [("amended by report".to_owned(), 1)]);
    let again = Report { amends: Some(id("r-1")), ..graded("r-3", &["i-1"], 0.3) };
    let refused = place.store.append_report(&place.t, &place.s, again).await.expect_err("conflict");
    assert!(refused.to_string().contains("amend r-2"), "{refused}");
    let nothing = Report { amends: Some(id("r-404")), ..graded("r-4", &[], 0.3) };
    let refused = place.store.append_report(&place.t, &place.s, nothing).await;
    assert_eq!(refused, Err(StoreError::UnknownReference(id("r-404"))));
}
