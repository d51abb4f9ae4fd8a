//! Erasing: records and the reports about them are gone, tombstones explain what named them, releases are told.

use std::collections::BTreeSet;

use reef_core::{Inference, ReleaseOrigin, ScenarioName, Tag};
use reef_store::{Cause, Commit, Erased, ScenarioSettings, Selector, StepInputs, StoreError};

use crate::fixture::{
    Fixture, NOW_MS, failed, id, ids, inference, name, release, release_id, released, report, step, tenant, usable,
};

fn in_session(receipt: &str, session: &str) -> Inference {
    Inference { session: Some(session.to_owned()), ..inference(receipt, &[1, 2], &[3]) }
}

async fn erase(fixture: &Fixture, what: Selector) -> Erased {
    fixture.store.erase(&tenant(), &name(), &what, NOW_MS).await.expect("erased")
}

async fn is_there(fixture: &Fixture, record: &str) -> bool {
    fixture.store.record(&tenant(), &name(), &id(record)).await.expect("read").is_some()
}

#[tokio::test]
async fn a_session_is_erased_with_the_reports_about_it_and_nothing_else() {
    let mut fixture = Fixture::new().await;
    // More than one batch.
    let mut many = Vec::new();
    for n in 0..700 {
        many.push(reef_store::RecordBody::Inference(Box::new(in_session(&format!("r-{n}"), "s-1"))));
    }
    fixture.store.import(&tenant(), &name(), many).await.expect("imported");
    fixture.answer(in_session("other", "s-2")).await;
    fixture.report(report("g-1", &["r-699", "other"])).await.expect("graded");
    fixture.report(report("g-2", &["other"])).await.expect("graded");
    let erased = erase(&fixture, Selector::Session("s-1".to_owned())).await;
    assert_eq!((erased.records, erased.waiting, erased.releases.len()), (701, 0, 0));
    fixture.reopen().await;
    for gone in ["r-0", "r-699", "g-1"] {
        assert!(!is_there(&fixture, gone).await, "{gone}");
        let stone = fixture.store.tombstone(&tenant(), &name(), &id(gone)).await.expect("read").expect("there");
        assert_eq!((stone.cause, stone.at_ms), (Cause::Erased, NOW_MS));
    }
    assert!(is_there(&fixture, "other").await && is_there(&fixture, "g-2").await);
    assert_eq!(usable(&fixture.pool().await), ["g-2"]);
    let counts = fixture.counts().await;
    assert_eq!((counts.inferences, counts.reports, counts.pending, counts.retired), (701, 2, 1, 1));
    assert_eq!(fixture.store.stored(&tenant(), &name()).await.expect("stored").records, 2);
    assert_eq!(erase(&fixture, Selector::Session("s-1".to_owned())).await, Erased::default(), "again is no error");
}

#[tokio::test]
async fn a_tag_finds_its_records_whatever_its_value_looks_like() {
    let fixture = Fixture::new().await;
    let values = ["plain", "a:/../\u{0}\"'", "'; DROP TABLE records; --", ""];
    let long = "x".repeat(3_000);
    let tag = Tag::parse("user").expect("valid");
    for (n, value) in values.iter().copied().chain([long.as_str()]).enumerate() {
        let mut record = inference(&format!("r-{n}"), &[1], &[2]);
        record.tags.insert(tag.clone(), value.to_owned());
        fixture.answer(record).await;
    }
    for (n, value) in values.iter().copied().chain([long.as_str()]).enumerate() {
        assert!(is_there(&fixture, &format!("r-{n}")).await);
        assert_eq!(erase(&fixture, Selector::Tag(tag.clone(), value.to_owned())).await.records, 1, "{value}");
        assert!(!is_there(&fixture, &format!("r-{n}")).await);
    }
    let other = Tag::parse("client").expect("valid");
    assert_eq!(erase(&fixture, Selector::Tag(other, "plain".to_owned())).await.records, 0);
}

#[tokio::test]
async fn releases_that_were_trained_on_what_is_erased_are_told_and_steps_still_explain_themselves() {
    let fixture = Fixture::new().await;
    fixture.graded(1).await;
    fixture.graded(2).await;
    let first = step(1, &fixture.base, &["g-1"]);
    fixture.begin(&first).await.expect("begun");
    let next = release(1, Some(&fixture.base), ReleaseOrigin::Step { step: 1 });
    let (ended, commit) = released(&first, &next);
    fixture.finish(&ended, commit).await.expect("released");
    let erased = erase(&fixture, Selector::Record(id("r-1"))).await;
    assert_eq!((erased.records, erased.releases), (2, BTreeSet::from([release_id(1)])));
    let kept = fixture.store.step(&tenant(), &name(), 1).await.expect("read").expect("there");
    assert_eq!(kept.batch, ids(&["g-1"]));
    let formed = fixture.store.formed(&tenant(), &name(), &kept.batch).await.expect("formed");
    let why = formed[0].1.as_ref().expect_err("its record is gone");
    assert_eq!(why.reason, "record gone: record r-1 was erased or dropped");
    assert_eq!(fixture.counts().await.consumed, 1);
    assert_eq!(erase(&fixture, Selector::Record(id("g-2"))).await.records, 1, "a report alone");
    assert!(is_there(&fixture, "r-2").await && !is_there(&fixture, "g-2").await);
}

#[tokio::test]
async fn what_a_running_step_holds_waits_for_its_end() {
    let fixture = Fixture::new().await;
    fixture.graded(1).await;
    let first = step(1, &fixture.base, &["g-1"]);
    fixture.begin(&first).await.expect("begun");
    let erased = erase(&fixture, Selector::Record(id("r-1"))).await;
    assert_eq!((erased.records, erased.waiting), (0, 2));
    assert!(is_there(&fixture, "r-1").await && is_there(&fixture, "g-1").await);
    fixture.finish(&failed(&first), Commit::default()).await.expect("failed");
    let erased = erase(&fixture, Selector::Record(id("r-1"))).await;
    assert_eq!((erased.records, erased.waiting), (2, 0));
}

#[tokio::test]
async fn a_session_of_any_characters_can_be_erased() {
    let fixture = Fixture::new().await;
    for (n, session) in ["a\0b", "sha256:ab", "ü\u{1f600}'"].into_iter().enumerate() {
        fixture.answer(in_session(&format!("r-{n}"), session)).await;
        let erased = erase(&fixture, Selector::Session(session.to_owned())).await;
        assert_eq!(erased.records, 1, "{session:?}");
    }
}

#[tokio::test]
async fn an_erased_record_does_not_come_back_and_cannot_be_graded() {
    let fixture = Fixture::new().await;
    fixture.answer(inference("r-1", &[1], &[2])).await;
    erase(&fixture, Selector::Record(id("r-1"))).await;
    let again = fixture.store.append_inference(&tenant(), &name(), inference("r-1", &[1], &[2])).await;
    assert_eq!(again, Err(StoreError::Gone(id("r-1"))));
    let graded = fixture.report(report("g-1", &["r-1"])).await;
    assert_eq!(graded, Err(StoreError::Gone(id("r-1"))));
    let nowhere = reef_core::ScenarioName::parse("nowhere").expect("valid");
    let refused = fixture.store.erase(&tenant(), &nowhere, &Selector::Record(id("r-1")), NOW_MS).await;
    assert_eq!(refused, Err(StoreError::UnknownScenario(nowhere)));
}

#[tokio::test]
async fn a_forgotten_scenario_leaves_nothing_and_its_name_begins_anew() {
    let mut fixture = Fixture::new().await;
    let other = ScenarioName::parse("other").expect("valid");
    let settings = ScenarioSettings::default();
    fixture.store.create_scenario(&tenant(), &other, &settings, NOW_MS).await.expect("created");
    fixture.store.append_inference(&tenant(), &other, inference("r-1", &[1], &[2])).await.expect("kept");
    let mut secret = in_session("r-1", "s-1");
    secret.request = serde_json::json!({ "messages": [{ "role": "user", "content": "zanzibar-4711" }] });
    fixture.answer(secret).await;
    fixture.report(report("g-1", &["r-1"])).await.expect("graded");
    let running = step(1, &fixture.base, &["g-1"]);
    fixture.store.begin_step(&tenant(), &name(), &running, Some(&StepInputs::default())).await.expect("begun");
    let (ended, commit) = released(&running, &release(1, Some(&fixture.base), ReleaseOrigin::Step { step: 1 }));
    fixture.finish(&ended, commit).await.expect("ended");
    assert_eq!(fixture.store.forget_scenario(&tenant(), &name()).await.expect("forgotten"), None);
    fixture.reopen().await;
    assert!(!is_there(&fixture, "r-1").await && !is_there(&fixture, "g-1").await);
    assert!(fixture.store.scenario(&tenant(), &name()).await.expect("read").is_none());
    assert!(fixture.store.record(&tenant(), &other, &id("r-1")).await.expect("read").is_some(), "the other stays");
    let again = fixture.store.forget_scenario(&tenant(), &name()).await.expect_err("there is none");
    assert!(matches!(again, StoreError::UnknownScenario(_)), "{again}");
    fixture.store.create_scenario(&tenant(), &name(), &settings, NOW_MS).await.expect("created anew");
    let sequence = fixture.answer(inference("r-1", &[1, 2], &[3])).await;
    assert_eq!((sequence, fixture.counts().await.steps), (1, 0), "it begins at the first record");
}
