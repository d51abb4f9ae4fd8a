//! Rollouts: one at a time, of a release that stands as the plan needs it, with scores that count each unit once.

use std::collections::BTreeMap;

use reef_core::{
    Arm, CanaryPlan, Inference, Report, Rollout, RolloutEnd, RolloutOutcome, RolloutPlan, ScenarioName, Tag, TenantId,
};
use reef_store::{ROLLOUT_TAG, ROLLOUT_UNIT_TAG, Retention, StoreError, arm_tag};

use crate::fixture::{Fixture, NOW_MS, held, id, inference, name, release, release_id, report, step, tenant};

fn canary() -> RolloutPlan {
    RolloutPlan::Canary(CanaryPlan::of_sessions(10.0))
}

fn end() -> RolloutEnd {
    RolloutEnd { at_ms: NOW_MS + 1, outcome: RolloutOutcome::Stopped, reason: "enough".to_owned(), figures: None }
}

async fn begin(fixture: &Fixture, n: u32, plan: RolloutPlan) -> Result<Rollout, StoreError> {
    fixture.store.begin_rollout(&tenant(), &name(), (&release_id(n), &plan), NOW_MS).await
}

/// A candidate beside the base, as release 1.
async fn with_candidate() -> Fixture {
    let fixture = Fixture::new().await;
    fixture.graded(1).await;
    let running = step(1, &fixture.base, &["g-1"]);
    fixture.begin(&running).await.expect("begun");
    let candidate = release(1, Some(&fixture.base), reef_core::ReleaseOrigin::Step { step: 1 });
    let (ended, commit) = held(&running, &candidate);
    fixture.finish(&ended, commit).await.expect("held");
    fixture
}

#[tokio::test]
async fn one_runs_at_a_time_and_what_ended_is_listed() {
    let mut fixture = with_candidate().await;
    let first = begin(&fixture, 1, canary()).await.expect("begun");
    assert_eq!((first.number, first.end.is_none()), (1, true));
    assert!(
        matches!(begin(&fixture, 1, canary()).await, Err(StoreError::Conflict(told)) if told.contains("rollout 1"))
    );
    fixture.reopen().await;
    let running = fixture.store.running_rollout(&tenant(), &name()).await.expect("read");
    assert_eq!(running, Some(first.clone()), "a restart does not end it");
    let ended = fixture.store.end_rollout(&tenant(), &name(), 1, &end()).await.expect("ended");
    assert_eq!(ended, Rollout { end: Some(end()), ..first });
    assert!(fixture.store.end_rollout(&tenant(), &name(), 1, &end()).await.is_err(), "it ends once");
    let second = begin(&fixture, 1, RolloutPlan::Shadow { percent: 100.0 }).await.expect("begun");
    assert_eq!(fixture.store.rollouts(&tenant(), &name()).await.expect("read"), [second, ended]);
}

#[tokio::test]
async fn the_release_must_stand_as_the_plan_needs_it() {
    let fixture = with_candidate().await;
    assert!(matches!(begin(&fixture, 9, canary()).await, Err(StoreError::UnknownRelease(_))));
    assert!(matches!(begin(&fixture, 0, canary()).await, Err(StoreError::Conflict(_))), "the head");
    assert!(matches!(begin(&fixture, 1, RolloutPlan::Pin).await, Err(StoreError::Conflict(_))), "not the head");
    assert!(matches!(begin(&fixture, 1, RolloutPlan::Shadow { percent: 0.0 }).await, Err(StoreError::Invalid(_))));
    fixture.store.reject_held(&tenant(), &name(), &release_id(1)).await.expect("rejected");
    assert!(matches!(begin(&fixture, 1, canary()).await, Err(StoreError::Conflict(_))), "refused for ever");
    assert!(begin(&fixture, 0, RolloutPlan::Pin).await.is_ok());
    let (other, elsewhere) = (TenantId::parse("other").expect("a name"), ScenarioName::parse("none").expect("a name"));
    assert_eq!(fixture.store.running_rollout(&other, &name()).await.expect("read"), None);
    let begun = fixture.store.begin_rollout(&other, &elsewhere, (&release_id(0), &RolloutPlan::Pin), NOW_MS).await;
    assert!(begun.is_err());
}

/// The first rollout, as far as its tags name it.
fn first() -> Rollout {
    Rollout { number: 1, release: release_id(1), plan: canary(), started_at_ms: NOW_MS, end: None }
}

/// An answer of an arm of the first rollout.
fn tagged(receipt: &str, arm: Arm, unit: &str) -> Inference {
    let tag = |name: &str| Tag::parse(name).expect("a tag");
    let tags = BTreeMap::from([(tag(ROLLOUT_TAG), arm_tag(&first(), arm)), (tag(ROLLOUT_UNIT_TAG), unit.to_owned())]);
    Inference { tags, ..inference(receipt, &[1], &[2]) }
}

fn scored(name: &str, receipt: &str, score: f64) -> Report {
    Report { score: Some(score), ..report(name, &[receipt]) }
}

#[tokio::test]
async fn retention_spares_what_a_running_canary_was_measured_by() {
    let fixture = with_candidate().await;
    let keep = Retention { age_ms_max: Some(-1), records_max: Some(0), ..Retention::default() };
    let retain = async || fixture.store.retain(&tenant(), &name(), &keep, NOW_MS).await.expect("retained").records;
    retain().await;
    begin(&fixture, 1, canary()).await.expect("begun");
    for (n, arm) in [(1, Arm::Candidate), (2, Arm::Incumbent)] {
        fixture.answer(tagged(&format!("a-{n}"), arm, &format!("u-{n}"))).await;
        fixture.report(scored(&format!("s-{n}"), &format!("a-{n}"), 0.5)).await.expect("reported");
    }
    fixture.answer(tagged("ungraded", Arm::Incumbent, "u-3")).await;
    fixture.retire(&[("s-1", "too easy"), ("s-2", "too easy")]).await.expect("retired");
    assert_eq!(retain().await, 1, "what nobody graded");
    for arm in [Arm::Candidate, Arm::Incumbent] {
        assert_eq!(fixture.store.arm_scores(&tenant(), &name(), (&first(), arm)).await.expect("read").len(), 1);
    }
    fixture.store.end_rollout(&tenant(), &name(), 1, &end()).await.expect("ended");
    assert_eq!(retain().await, 4, "now nothing needs them");
}

#[tokio::test]
async fn each_unit_counts_once_and_only_by_reports_that_stand() {
    let fixture = with_candidate().await;
    let records = [
        ("c-1", Arm::Candidate, "u"),
        ("c-2", Arm::Candidate, "u"),
        ("c-3", Arm::Candidate, "v"),
        ("i-1", Arm::Incumbent, "w"),
    ];
    for (receipt, arm, unit) in records {
        fixture.answer(tagged(receipt, arm, unit)).await;
    }
    for (name, receipt, score) in [
        ("says-3", "c-3", 0.25),
        ("says-2", "c-2", 0.5),
        ("says-1", "c-1", 1.0),
        ("says-4", "i-1", 0.75),
        ("says-5", "i-1", 0.1),
    ] {
        fixture.report(scored(name, receipt, score)).await.expect("reported");
    }
    let scores = async |arm| fixture.store.arm_scores(&tenant(), &name(), (&first(), arm)).await.expect("read");
    let scores = async |arm| scores(arm).await.iter().map(|(_, one)| one.score).collect::<Vec<f64>>();
    assert_eq!(scores(Arm::Candidate).await, [0.25, 0.5], "of the units v and u");
    assert_eq!(scores(Arm::Incumbent).await, [0.75], "of w");
    fixture.store.retract(&tenant(), &name(), &id("says-2"), NOW_MS).await.expect("taken back");
    let amended = Report { amends: Some(id("says-4")), ..scored("says-6", "i-1", 0.0) };
    fixture.report(amended).await.expect("amended");
    assert_eq!(scores(Arm::Candidate).await, [0.25, 1.0]);
    assert_eq!(scores(Arm::Incumbent).await, [0.1]);
    let second = Rollout { number: 2, ..first() };
    let elsewhere = Rollout { release: release_id(7), ..first() };
    assert_eq!(fixture.store.arm_scores(&tenant(), &name(), (&elsewhere, Arm::Candidate)).await.expect("read"), []);
    assert_eq!(fixture.store.arm_scores(&tenant(), &name(), (&second, Arm::Candidate)).await.expect("read"), []);
}
