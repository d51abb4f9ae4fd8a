//! What is kept for doing a step again: inputs and transcript with their step, heads, quarantine, components.

use std::collections::BTreeMap;

use reef_core::{AssemblyError, Gate, ReleaseOrigin};
use reef_store::{
    Bytes, Commit, Environment, KeptRecipe, ModelCall, PoolEntry, StepInputs, StepTranscript, StoreError,
};
use serde_json::{Value, json};

use crate::fixture::{Fixture, failed, id, name, release, release_id, released, report, skipped, step, tenant};

fn inputs() -> StepInputs {
    StepInputs {
        config: json!({ "lr": 0.1 + 0.2 }).as_object().expect("object").clone(),
        state: BTreeMap::from([("reef.critic".to_owned(), Bytes((0..=255).collect()))]),
        pool: vec![PoolEntry { report: id("g-1"), lag: 2 }],
        retired: vec![(id("g-2"), "too easy".to_owned())],
        unusable: vec![(id("g-3"), "capture off: record r-3".to_owned())],
        unassembled: vec![(id("g-4"), AssemblyError::Fork(2))],
        max_staleness: 4,
        pool_max: 1024,
    }
}

fn transcript() -> StepTranscript {
    let call = |answer| ModelCall {
        function: "held-out-scores".to_owned(),
        binding: "candidate".to_owned(),
        request: "0".repeat(64),
        answer,
    };
    StepTranscript {
        environment: Environment { threads: 2, share: 0.5, lora: json!({ "rank": 16 }), ..Environment::default() },
        gate: Some(Gate::non_inferiority(1.0 / 3.0)),
        held_out: (2, "1".repeat(64)),
        calls: vec![call(Ok(json!([0.1 + 0.2, 1.0]))), call(Err(json!(["budget", "enough"])))],
        complete: true,
        state: BTreeMap::from([("a".to_owned(), Some(Bytes(vec![0, 255]))), ("b".to_owned(), None)]),
    }
}

#[tokio::test]
async fn inputs_come_with_the_beginning_of_a_step_and_the_transcript_with_its_end() {
    let mut fixture = Fixture::new().await;
    fixture.graded(1).await;
    let first = step(1, &fixture.base, &["g-1"]);
    for _ in 0..2 {
        fixture.store.begin_step(&tenant(), &name(), &first, Some(&inputs())).await.expect("begun");
    }
    fixture.reopen().await;
    let record = fixture.store.step_record(&tenant(), &name(), 1).await.expect("read").expect("there");
    assert_eq!((record.inputs, record.transcript), (inputs(), None));
    let commit = Commit { transcript: Some(transcript()), ..Commit::default() };
    fixture.finish(&skipped(&first), commit).await.expect("ended");
    fixture.reopen().await;
    let record = fixture.store.step_record(&tenant(), &name(), 1).await.expect("read").expect("there");
    assert_eq!((record.inputs, record.transcript), (inputs(), Some(transcript())));
}

#[tokio::test]
async fn a_step_that_cannot_begin_leaves_no_inputs_and_one_without_inputs_keeps_no_transcript() {
    let fixture = Fixture::new().await;
    fixture.graded(1).await;
    let wrong = step(1, &fixture.base, &["g-1", "g-9"]);
    fixture.store.begin_step(&tenant(), &name(), &wrong, Some(&inputs())).await.expect_err("no such report");
    assert_eq!(fixture.store.step_record(&tenant(), &name(), 1).await, Ok(None));
    let first = step(1, &fixture.base, &["g-1"]);
    fixture.begin(&first).await.expect("begun");
    let commit = Commit { transcript: Some(transcript()), ..Commit::default() };
    fixture.finish(&failed(&first), commit).await.expect("ended");
    assert_eq!(fixture.store.step_record(&tenant(), &name(), 1).await, Ok(None));
}

#[tokio::test]
async fn heads_know_after_which_record_they_began_and_candidates_are_no_heads() {
    let fixture = Fixture::new().await;
    fixture.graded(1).await;
    let first = step(1, &fixture.base, &["g-1"]);
    fixture.begin(&first).await.expect("begun");
    let next = release(1, Some(&fixture.base), ReleaseOrigin::Step { step: 1 });
    let (ended, commit) = released(&first, &next);
    fixture.finish(&ended, commit).await.expect("released");
    fixture.graded(2).await;
    let second = step(2, &next, &["g-2"]);
    fixture.begin(&second).await.expect("begun");
    let candidate = release(2, Some(&next), ReleaseOrigin::Step { step: 2 });
    let (ended, commit) = crate::fixture::held(&second, &candidate);
    fixture.finish(&ended, commit).await.expect("held");
    let promoted = release(3, Some(&next), ReleaseOrigin::Promotion { step: 2 });
    fixture.store.append_release(&tenant(), &name(), &promoted, Some(&next.release_id)).await.expect("promoted");
    let heads = fixture.store.heads(&tenant(), &name()).await.expect("heads");
    assert_eq!(heads, [(release_id(0), 0), (release_id(1), 2), (release_id(3), 4)]);
}

#[tokio::test]
async fn reports_are_formed_as_if_none_had_been_used() {
    let fixture = Fixture::new().await;
    fixture.graded(1).await;
    let first = step(1, &fixture.base, &["g-1"]);
    fixture.begin(&first).await.expect("begun");
    fixture.finish(&skipped(&first), Commit::default()).await.expect("consumed");
    let mut silent = crate::fixture::inference("r-2", &[1], &[2]);
    silent.capture = false;
    fixture.answer(silent).await;
    fixture.report(report("g-2", &["r-2"])).await.expect("reported");
    fixture.report(report("plain", &[])).await.expect("reported");
    let wanted = [id("g-2"), id("plain"), id("g-1")];
    let formed = fixture.store.formed(&tenant(), &name(), &wanted).await.expect("formed");
    assert_eq!((formed.len(), &formed[0].0, &formed[1].0), (2, &id("g-2"), &id("g-1")), "in the order asked for");
    assert!(formed[0].1.as_ref().expect_err("capture").reason.starts_with("capture off"));
    assert_eq!(formed[1].1.as_ref().expect("a sample").records, [id("r-1")]);
}

#[tokio::test]
async fn what_a_recipe_is_known_for_survives_a_restart_until_it_is_forgiven() {
    let mut fixture = Fixture::new().await;
    let record = json!({ "pauses": 2, "faults_ms": [1, 2] });
    let get = async |fixture: &Fixture, label: &str| fixture.store.quarantine(&tenant(), &name(), label).await;
    let set = async |fixture: &Fixture, record: Option<&Value>| {
        fixture.store.set_quarantine(&tenant(), &name(), "sao@1#sha256:00", record).await
    };
    set(&fixture, Some(&json!({}))).await.expect("written");
    set(&fixture, Some(&record)).await.expect("replaced");
    fixture.reopen().await;
    assert_eq!(get(&fixture, "sao@1#sha256:00").await, Ok(Some(record)));
    assert_eq!(get(&fixture, "sao@1#sha256:01").await, Ok(None), "another build is another recipe");
    set(&fixture, None).await.expect("forgiven");
    assert_eq!(get(&fixture, "sao@1#sha256:00").await, Ok(None));
    let nowhere = reef_core::ScenarioName::parse("nowhere").expect("valid");
    let refused = fixture.store.set_quarantine(&tenant(), &nowhere, "x", Some(&json!({}))).await;
    assert!(matches!(refused, Err(StoreError::UnknownScenario(_))), "{refused:?}");
}

#[tokio::test]
async fn a_component_is_noted_once_with_its_first_time() {
    let fixture = Fixture::new().await;
    let kept = |digest: &str, at| KeptRecipe {
        digest: digest.to_owned(),
        name: "sao".to_owned(),
        version: "0.1.0".to_owned(),
        generation: "0.1.0".to_owned(),
        bytes: 7,
        first_loaded_ms: at,
    };
    for (digest, at) in [("aa", 1), ("bb", 2), ("aa", 3)] {
        fixture.store.keep_recipe(kept(digest, at)).await.expect("kept");
    }
    assert_eq!(fixture.store.kept_recipes().await, Ok(vec![kept("bb", 2), kept("aa", 1)]));
}
