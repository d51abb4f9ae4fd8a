//! Feedback: counted once, joined to its records, replaced by an amendment.

use std::collections::BTreeSet;

use reef_core::{Report, ScenarioName, StepOutcome, TenantId};
use reef_store::{Commit, RecordBody, ScenarioSettings, StoreError};
use serde_json::json;
use tokio::task::JoinSet;

use crate::fixture::{Fixture, NOW_MS, ended, failed, id, inference, name, reasons, report, step, tenant, usable};

fn amending(old: &str, new: &str, references: &[&str]) -> Report {
    Report { amends: Some(id(old)), score: Some(0.5), ..report(new, references) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_same_report_a_thousand_times_at_once_is_counted_once() {
    let fixture = Fixture::new().await;
    fixture.answer(inference("r-1", &[1], &[2])).await;
    let mut calls = JoinSet::new();
    for n in 0..1_000 {
        let store = fixture.store.clone();
        let mut same = report("g-1", &["r-1"]);
        same.score = Some(0.1 + 0.2);
        same.metadata.insert("ratio".to_owned(), json!(1.0 / 3.0));
        // Retries arrive later and in other traces.
        same.created_at_ms += n;
        same.traceparent = Some(format!("00-{n:032x}-0000000000000001-01"));
        calls.spawn(async move { store.append_report(&tenant(), &name(), same).await.expect("accepted") });
    }
    let appended = calls.join_all().await;
    assert_eq!(appended.iter().filter(|appended| !appended.duplicate).count(), 1);
    assert_eq!(appended.iter().map(|appended| appended.sequence).collect::<BTreeSet<_>>(), BTreeSet::from([2]));
    let counts = fixture.counts().await;
    assert_eq!((counts.reports, counts.pending), (1, 1));
    assert_eq!(usable(&fixture.pool().await), ["g-1"]);
}

#[tokio::test]
async fn an_id_with_other_content_is_a_conflict() {
    let fixture = Fixture::new().await;
    fixture.graded(1).await;
    let others = [
        Report { score: Some(0.0), ..report("g-1", &["r-1"]) },
        Report { feedback: Some(json!("good")), ..report("g-1", &["r-1"]) },
        report("g-1", &[]),
        report("r-1", &[]),
    ];
    for other in others {
        let refusal = fixture.report(other).await.expect_err("other content");
        assert!(matches!(&refusal, StoreError::Conflict(told) if told.contains("exists already")), "{refusal}");
    }
    let taken = fixture.store.append_inference(&tenant(), &name(), inference("g-1", &[1], &[2])).await;
    assert!(matches!(taken, Err(StoreError::Conflict(_))), "the id of a report is no receipt");
    assert_eq!(fixture.counts().await.reports, 1);
}

#[tokio::test]
async fn references_are_receipts_of_this_scenario_of_this_tenant() {
    let fixture = Fixture::new().await;
    let (rival, other) = (TenantId::parse("rival").expect("valid"), ScenarioName::parse("other").expect("valid"));
    for (tenant, scenario) in [(&rival, &name()), (&tenant(), &other)] {
        fixture.store.create_scenario(tenant, scenario, &ScenarioSettings::default(), NOW_MS).await.expect("created");
        fixture.store.append_inference(tenant, scenario, inference("theirs", &[1], &[2])).await.expect("appended");
    }
    fixture.graded(1).await;
    for wrong in ["never", "theirs", "g-1"] {
        let refused = fixture.report(report("g-2", &["r-1", wrong])).await;
        assert_eq!(refused, Err(StoreError::UnknownReference(id(wrong))));
    }
    for wrong in ["never", "theirs", "r-1"] {
        assert_eq!(
            fixture.report(amending(wrong, "g-2", &["r-1"])).await,
            Err(StoreError::UnknownReference(id(wrong)))
        );
    }
    let counts = fixture.counts().await;
    assert_eq!((counts.reports, counts.pending), (1, 1), "a refused report leaves nothing");
    let next = fixture.report(report("g-2", &[])).await.expect("its id is still free");
    assert_eq!((next.sequence, next.duplicate), (3, false));
}

#[tokio::test]
async fn a_report_without_references_is_kept_and_is_no_sample() {
    let fixture = Fixture::new().await;
    let free = Report { feedback: Some(json!({ "text": "slow today" })), score: None, ..report("g-1", &[]) };
    fixture.report(free.clone()).await.expect("kept");
    let stored = fixture.store.record(&tenant(), &name(), &free.id).await.expect("read").expect("there");
    assert_eq!(stored.body, RecordBody::Report(Box::new(free)));
    let counts = fixture.counts().await;
    assert_eq!((counts.reports, counts.pending), (1, 0));
}

#[tokio::test]
async fn an_amendment_retires_the_pending_original() {
    let fixture = Fixture::new().await;
    fixture.graded(1).await;
    fixture.report(amending("g-1", "g-2", &["r-1"])).await.expect("amended");
    let pool = fixture.pool().await;
    assert_eq!((usable(&pool), pool.unusable.len()), (vec!["g-2"], 0));
    assert_eq!(pool.samples[0].score, Some(0.5));
    let counts = fixture.counts().await;
    assert_eq!((counts.reports, counts.pending, counts.retired), (2, 1, 1));
    let told = fixture.store.retirement_reasons(&tenant(), &name()).await.expect("reasons");
    assert_eq!(told.into_iter().collect::<Vec<_>>(), [("amended by report".to_owned(), 1)]);
    let original = fixture.store.record(&tenant(), &name(), &id("g-1")).await.expect("read");
    assert!(original.is_some(), "the history is kept");
}

#[tokio::test]
async fn an_amendment_without_references_takes_the_original_back() {
    let fixture = Fixture::new().await;
    fixture.graded(1).await;
    fixture.report(amending("g-1", "g-2", &[])).await.expect("taken back");
    let counts = fixture.counts().await;
    assert_eq!((counts.pending, counts.retired), (0, 1));
}

#[tokio::test]
async fn a_report_is_amended_once_and_then_its_amendment_is() {
    let fixture = Fixture::new().await;
    fixture.graded(1).await;
    fixture.report(amending("g-1", "g-2", &["r-1"])).await.expect("amended");
    let again = fixture.report(amending("g-1", "g-2", &["r-1"])).await.expect("a retry");
    assert!(again.duplicate);
    let refusal = fixture.report(amending("g-1", "g-3", &["r-1"])).await.expect_err("amended already");
    assert_eq!(refusal.to_string(), "report g-1 was amended by g-2 already; amend g-2");
    fixture.report(amending("g-2", "g-3", &["r-1"])).await.expect("the chain goes on");
    assert_eq!(usable(&fixture.pool().await), ["g-3"]);
    assert!(matches!(fixture.report(amending("g-9", "g-9", &[])).await, Err(StoreError::Invalid(_))));
    // The same of reports about no record, which make no sample.
    fixture.report(report("n-1", &[])).await.expect("said");
    fixture.report(amending("n-1", "n-2", &[])).await.expect("amended");
    let refusal = fixture.report(amending("n-1", "n-3", &[])).await.expect_err("amended already");
    assert_eq!(refusal.to_string(), "report n-1 was amended by n-2 already; amend n-2");
}

#[tokio::test]
async fn an_amendment_during_a_step_counts_only_if_the_step_fails() {
    let fixture = Fixture::new().await;
    fixture.graded(1).await;
    let first = step(1, &fixture.base, &["g-1"]);
    fixture.begin(&first).await.expect("begun");
    fixture.report(amending("g-1", "g-2", &["r-1"])).await.expect("amended");
    let waiting = fixture.pool().await;
    assert_eq!((usable(&waiting).len(), waiting.unusable.len()), (0, 0), "the step may still consume the record");
    fixture.finish(&failed(&first), Commit::default()).await.expect("failed");
    assert_eq!(usable(&fixture.pool().await), ["g-2"]);
    let second = step(2, &fixture.base, &["g-2"]);
    fixture.begin(&second).await.expect("begun");
    fixture.report(amending("g-2", "g-3", &["r-1"])).await.expect("amended");
    let outcome = StepOutcome::Rejected { reason: "worse".to_owned() };
    fixture.finish(&ended(&second, outcome), Commit::default()).await.expect("rejected");
    let pool = fixture.pool().await;
    assert_eq!(reasons(&pool), [("g-3", "record trained already: record r-1 through report g-2")]);
    let counts = fixture.counts().await;
    assert_eq!((counts.pending, counts.reserved, counts.consumed, counts.retired), (1, 0, 1, 1));
}

#[tokio::test]
async fn reports_that_break_a_rule_are_refused_in_a_sentence() {
    let fixture = Fixture::new().await;
    fixture.answer(inference("r-1", &[1], &[2])).await;
    let mut large = report("g-1", &["r-1"]);
    large.metadata.insert("text".to_owned(), json!("x".repeat(300 << 10)));
    let many: Vec<String> = (0..257).map(|n| format!("r-{n}")).collect();
    let cases = [
        (Report { score: Some(f64::NAN), ..report("g-1", &["r-1"]) }, "the score is not finite"),
        (Report { score: Some(f64::INFINITY), ..report("g-1", &["r-1"]) }, "the score is not finite"),
        (report("g-1", &["r-1", "r-1"]), "named twice"),
        (report("g-1", &many.iter().map(String::as_str).collect::<Vec<_>>()), "more than 256 references"),
        (large, "the limit is 262144"),
    ];
    for (wrong, rule) in cases {
        let refusal = fixture.report(wrong).await.expect_err(rule);
        assert!(matches!(&refusal, StoreError::Invalid(told) if told.contains(rule)), "{refusal}");
    }
    assert_eq!(fixture.counts().await.reports, 0);
}
