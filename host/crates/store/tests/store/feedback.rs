//! Later word on earlier reports: retractions, expiry, duplicates, side calls, and the dead letters that tell of them.

use reef_core::{MAIN_CALL, Report};
use reef_store::{Commit, Retracted, StoreError};

use crate::fixture::{Fixture, NOW_MS, failed, id, inference, name, reasons, report, skipped, step, tenant, usable};

async fn retract(fixture: &Fixture, report: &str) -> Result<Retracted, StoreError> {
    fixture.store.retract(&tenant(), &name(), &id(report), NOW_MS + 1).await
}

#[tokio::test]
async fn a_retracted_report_leaves_the_pool_and_its_record_can_be_graded_again() {
    let fixture = Fixture::new().await;
    fixture.graded(1).await;
    assert_eq!(retract(&fixture, "g-1").await, Ok(Retracted::LeftPool));
    assert_eq!(retract(&fixture, "g-1").await, Ok(Retracted::NotWaiting), "again is no error");
    assert_eq!(fixture.counts().await.retired, 1);
    fixture.report(report("g-2", &["r-1"])).await.expect("graded again");
    assert_eq!(usable(&fixture.pool().await), ["g-2"]);
    assert_eq!(retract(&fixture, "g-9").await, Err(StoreError::UnknownReference(id("g-9"))));
    assert_eq!(
        retract(&fixture, "r-1").await,
        Err(StoreError::UnknownReference(id("r-1"))),
        "an exchange is no report"
    );
    fixture.report(report("plain", &[])).await.expect("reported");
    assert_eq!(retract(&fixture, "plain").await, Ok(Retracted::NotWaiting));
    let letters = fixture.store.dead_letters(&tenant(), &name(), (0, 10), None).await.expect("listed");
    let told: Vec<_> = letters.iter().map(|l| (l.report.as_str(), l.reason.as_str(), l.retired_at_ms)).collect();
    assert_eq!(told, [("g-1", "retracted", NOW_MS + 1)]);
}

#[tokio::test]
async fn a_report_that_is_retracted_during_a_step_leaves_the_pool_only_if_the_step_fails() {
    let fixture = Fixture::new().await;
    fixture.graded(1).await;
    fixture.graded(2).await;
    let first = step(1, &fixture.base, &["g-1"]);
    fixture.begin(&first).await.expect("begun");
    assert_eq!(retract(&fixture, "g-1").await, Ok(Retracted::InStep(1)));
    fixture.finish(&failed(&first), Commit::default()).await.expect("failed");
    assert_eq!(usable(&fixture.pool().await), ["g-2"]);
    let second = step(2, &fixture.base, &["g-2"]);
    fixture.begin(&second).await.expect("begun");
    fixture.finish(&skipped(&second), Commit::default()).await.expect("ended");
    assert_eq!(retract(&fixture, "g-2").await, Ok(Retracted::Trained(2)), "the step is not unmade");
    let counts = fixture.counts().await;
    assert_eq!((counts.pending, counts.reserved, counts.consumed, counts.retired), (0, 0, 1, 1));
}

#[tokio::test]
async fn reports_that_waited_too_long_expire_in_every_batch() {
    let fixture = Fixture::new().await;
    fixture.answer(inference("r-0", &[1], &[2])).await;
    let mut old = Vec::new();
    for n in 0..1_003 {
        let made = Report { created_at_ms: NOW_MS - 1_000 - n, ..report(&format!("g-{n}"), &["r-0"]) };
        old.push(reef_store::RecordBody::Report(Box::new(made)));
    }
    for part in old.chunks(1_000) {
        fixture.store.import(&tenant(), &name(), part.to_vec()).await.expect("imported");
    }
    fixture.report(report("young", &["r-0"])).await.expect("reported");
    let expired = fixture.store.expire(&tenant(), &name(), NOW_MS - 999, NOW_MS).await;
    assert_eq!(expired, Ok(1_003));
    assert_eq!(fixture.store.expire(&tenant(), &name(), NOW_MS - 999, NOW_MS).await, Ok(0));
    assert_eq!(usable(&fixture.pool().await), ["young"]);
    let told = fixture.store.retirement_reasons(&tenant(), &name()).await.expect("reasons");
    assert_eq!(told.into_iter().collect::<Vec<_>>(), [("expired".to_owned(), 1_003)]);
    let page =
        async |after, kind| fixture.store.dead_letters(&tenant(), &name(), (after, 600), kind).await.expect("listed");
    let (first, mut rest) = (page(0, Some("expired")).await, Vec::new());
    rest.extend(page(first.last().expect("a page").sequence, Some("expired")).await);
    assert_eq!((first.len(), rest.len()), (600, 403));
    assert!(page(0, Some("retracted")).await.is_empty());
}

#[tokio::test]
async fn a_report_that_says_the_same_under_another_id_is_told_as_a_duplicate() {
    let fixture = Fixture::new().await;
    fixture.graded(1).await;
    fixture.report(report("g-2", &["r-1"])).await.expect("a retry under a new id");
    fixture.report(Report { score: Some(0.0), ..report("g-3", &["r-1"]) }).await.expect("another opinion");
    let pool = fixture.pool().await;
    assert_eq!(usable(&pool), ["g-1"]);
    let told = [
        ("g-2", "duplicate: report g-1 says the same"),
        ("g-3", "record graded already: record r-1 by report g-1; amend that"),
    ];
    assert_eq!(reasons(&pool), told);
}

#[tokio::test]
async fn side_calls_are_kept_and_not_trained() {
    let fixture = Fixture::new().await;
    for (n, call) in ["title", "compaction", "sub-agent", "warm-up", MAIN_CALL, ""].into_iter().enumerate() {
        let mut record = inference(&format!("r-{n}"), &[1, n as u32], &[2]);
        record.set_call(call).expect("a tag");
        fixture.answer(record).await;
        fixture.report(report(&format!("g-{n}"), &[&format!("r-{n}")])).await.expect("graded");
    }
    let pool = fixture.pool().await;
    assert_eq!(usable(&pool), ["g-4", "g-5"]);
    assert_eq!(reasons(&pool)[0], ("g-0", "side call: record r-0 is a title call"));
    assert_eq!(reasons(&pool)[2], ("g-2", "side call: record r-2 is a sub-agent call"));
    assert_eq!(pool.unusable.len(), 4);
}
