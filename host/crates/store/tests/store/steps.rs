//! Steps: a batch is reserved, survives a restart, and ends in one transaction.

use reef_core::{ReleaseOrigin, StepOutcome};
use reef_store::{Commit, ReleaseStatus, StoreError};

use crate::fixture::{
    Fixture, ended, failed, held, ids, name, release, release_id, released, skipped, step, tenant, usable,
};

async fn with_samples(samples: u32) -> Fixture {
    let fixture = Fixture::new().await;
    for n in 1..=samples {
        fixture.graded(n).await;
    }
    fixture
}

fn written(key: &str, value: &[u8]) -> (String, Option<Vec<u8>>) {
    (key.to_owned(), Some(value.to_vec()))
}

fn remembering(state: Vec<(String, Option<Vec<u8>>)>) -> Commit {
    Commit { state, recipe: "sao".to_owned(), ..Commit::default() }
}

async fn state(fixture: &Fixture) -> Vec<(String, Vec<u8>)> {
    fixture.store.recipe_state(&tenant(), &name(), "sao").await.expect("state").into_iter().collect()
}

#[tokio::test]
async fn a_step_that_begins_reserves_its_batch() {
    let fixture = with_samples(3).await;
    let first = step(1, &fixture.base, &["g-3", "g-1"]);
    fixture.begin(&first).await.expect("begun");
    fixture.begin(&first).await.expect("the same step again is no error");
    let counts = fixture.counts().await;
    assert_eq!((counts.pending, counts.reserved, counts.consumed, counts.steps), (1, 2, 0, 1));
    assert_eq!(usable(&fixture.pool().await), ["g-2"]);
    let second = fixture.begin(&step(2, &fixture.base, &["g-2"])).await.expect_err("one at a time");
    assert_eq!(second.to_string(), "step 1 is running; end it first");
}

#[tokio::test]
async fn a_step_that_cannot_begin_reserves_nothing() {
    let fixture = with_samples(3).await;
    fixture.retire(&[("g-3", "expired: too old")]).await.expect("retired");
    let other = release(5, None, ReleaseOrigin::Base);
    let mut ended_already = step(1, &fixture.base, &["g-1"]);
    ended_already.outcome = StepOutcome::Skipped { reason: String::new() };
    let cases = [
        (step(1, &fixture.base, &["g-1", "g-3"]), "report g-3 is retired; form the batch again"),
        (step(1, &fixture.base, &["g-1", "g-9"]), "report g-9 is not a sample of this scenario; form the batch again"),
        (step(1, &fixture.base, &["g-1", "g-1"]), "its batch names a report twice"),
        (step(2, &fixture.base, &["g-1"]), "the next step is 1"),
        (step(1, &other, &["g-1"]), "start again from the new head"),
        (ended_already, "a step begins as running"),
    ];
    for (wrong, told) in cases {
        let refusal = fixture.begin(&wrong).await.expect_err(told).to_string();
        assert!(refusal.contains(told), "{refusal}");
    }
    let counts = fixture.counts().await;
    assert_eq!((counts.pending, counts.reserved, counts.steps), (2, 0, 0));
    assert_eq!(fixture.running().await, None);
}

#[tokio::test]
async fn a_running_step_forms_the_same_batch_in_the_same_order_after_a_restart() {
    let mut fixture = with_samples(12).await;
    let batch = ["g-11", "g-2", "g-12", "g-1", "g-10", "g-3"];
    let first = step(1, &fixture.base, &batch);
    fixture.begin(&first).await.expect("begun");
    let before = fixture.store.samples(&tenant(), &name(), &first.batch).await.expect("samples");
    fixture.reopen().await;
    let running = fixture.running().await.expect("still running");
    assert!(running.metrics["loss"].is_nan());
    assert_eq!(running.metrics["score"].to_bits(), first.metrics["score"].to_bits());
    assert_eq!((&running.batch, running.seed, &running.recipe), (&ids(&batch), first.seed, &first.recipe));
    let after = fixture.store.samples(&tenant(), &name(), &running.batch).await.expect("samples");
    assert_eq!(after, before);
    fixture.begin(&first).await.expect("the same step, as the restarted learner begins it");
    assert_eq!(fixture.counts().await.reserved, 6);
    fixture.finish(&skipped(&running), Commit::default()).await.expect("the restarted learner ends it");
    fixture.reopen().await;
    let counts = fixture.counts().await;
    assert_eq!((counts.reserved, counts.consumed, fixture.running().await), (0, 6, None));
}

#[tokio::test]
async fn a_failed_step_returns_its_samples_and_writes_no_state() {
    let fixture = with_samples(2).await;
    let first = step(1, &fixture.base, &["g-2", "g-1"]);
    fixture.begin(&first).await.expect("begun");
    fixture.finish(&failed(&first), remembering(vec![written("plan", b"x")])).await.expect("ended");
    assert_eq!(usable(&fixture.pool().await), ["g-1", "g-2"]);
    assert_eq!((fixture.running().await, state(&fixture).await), (None, Vec::new()));
    assert_eq!(fixture.store.next_step_number(&tenant(), &name()).await, Ok(2));
    fixture.begin(&step(2, &fixture.base, &["g-1", "g-2"])).await.expect("the samples are free again");
}

#[tokio::test]
async fn a_released_step_consumes_its_batch_moves_the_head_and_keeps_its_state() {
    let mut fixture = with_samples(2).await;
    let first = step(1, &fixture.base, &["g-1"]);
    fixture.begin(&first).await.expect("begun");
    let next = release(1, Some(&fixture.base), ReleaseOrigin::Step { step: 1 });
    let (ended, commit) = released(&first, &next);
    let commit = Commit { release: commit.release, ..remembering(vec![written("a", b"1"), written("b", b"\x00\xff")]) };
    fixture.finish(&ended, commit).await.expect("released");
    fixture.reopen().await;
    assert_eq!(fixture.head().await, next.release_id);
    let counts = fixture.counts().await;
    assert_eq!((counts.pending, counts.reserved, counts.consumed), (1, 0, 1));
    assert_eq!(state(&fixture).await, [("a".to_owned(), b"1".to_vec()), ("b".to_owned(), b"\x00\xff".to_vec())]);
    let stored = fixture.store.step(&tenant(), &name(), 1).await.expect("read").expect("there");
    assert_eq!((stored.outcome, stored.batch), (ended.outcome, ended.batch));
    let second = step(2, &next, &["g-2"]);
    fixture.begin(&second).await.expect("begun");
    let changed = remembering(vec![("a".to_owned(), None), written("b", b"2")]);
    fixture.finish(&skipped(&second), changed).await.expect("skipped");
    assert_eq!(state(&fixture).await, [("b".to_owned(), b"2".to_vec())]);
    let other = fixture.store.recipe_state(&tenant(), &name(), "opd").await.expect("state");
    assert!(other.is_empty(), "state belongs to one recipe");
}

#[tokio::test]
async fn a_head_that_moved_leaves_the_step_running_and_nothing_written() {
    let fixture = with_samples(1).await;
    let first = step(1, &fixture.base, &["g-1"]);
    fixture.begin(&first).await.expect("begun");
    let rollback = release(7, Some(&fixture.base), ReleaseOrigin::Rollback { to: release_id(0) });
    fixture.store.append_release(&tenant(), &name(), &rollback, Some(&release_id(0))).await.expect("rolled back");
    let next = release(1, Some(&fixture.base), ReleaseOrigin::Step { step: 1 });
    let (ended, commit) = released(&first, &next);
    let commit = Commit { release: commit.release, ..remembering(vec![written("a", b"1")]) };
    let moved = fixture.finish(&ended, commit).await;
    let expected =
        StoreError::HeadMoved { scenario: name(), expected: Some(release_id(0)), actual: Some(release_id(7)) };
    assert_eq!(moved, Err(expected));
    assert_eq!((fixture.head().await, state(&fixture).await), (release_id(7), Vec::new()));
    assert_eq!(fixture.store.release(&tenant(), &name(), &release_id(1)).await, Ok(None));
    assert_eq!((fixture.counts().await.reserved, fixture.running().await.map(|step| step.step)), (1, Some(1)));
    fixture.finish(&failed(&first), Commit::default()).await.expect("the learner gives the batch back");
    assert_eq!(usable(&fixture.pool().await), ["g-1"]);
}

#[tokio::test]
async fn ending_a_step_twice_is_no_error_and_ending_it_otherwise_is_one() {
    let fixture = with_samples(1).await;
    let first = step(1, &fixture.base, &["g-1"]);
    fixture.begin(&first).await.expect("begun");
    let next = release(1, Some(&fixture.base), ReleaseOrigin::Step { step: 1 });
    let (ended, commit) = released(&first, &next);
    for _ in 0..2 {
        fixture.finish(&ended, commit.clone()).await.expect("ended");
    }
    let counts = fixture.counts().await;
    assert_eq!((counts.consumed, counts.steps, fixture.head().await), (1, 1, next.release_id.clone()));
    let otherwise = fixture.finish(&failed(&first), Commit::default()).await.expect_err("ended already");
    assert_eq!(otherwise.to_string(), "step 1 has ended otherwise already");
    assert_eq!(fixture.counts().await, counts);
    let never = fixture.finish(&skipped(&step(2, &next, &[])), Commit::default()).await.expect_err("never begun");
    assert_eq!(never.to_string(), "step 2 has not begun in this scenario");
}

#[tokio::test]
async fn an_ending_that_contradicts_itself_is_refused() {
    let fixture = with_samples(2).await;
    let first = step(1, &fixture.base, &["g-1"]);
    fixture.begin(&first).await.expect("begun");
    let next = release(1, Some(&fixture.base), ReleaseOrigin::Step { step: 1 });
    let orphan = release(1, None, ReleaseOrigin::Step { step: 1 });
    let mut foreign = next.clone();
    foreign.manifest.tenant = reef_core::TenantId::parse("rival").expect("valid");
    let with = |release| Commit { release: Some(release), ..Commit::default() };
    let (won, _) = released(&first, &next);
    let wrong_state = remembering(vec![written(&"k".repeat(257), b"")]);
    let nameless = Commit { state: vec![written("a", b"1")], ..Commit::default() };
    let mut other_batch = skipped(&first);
    other_batch.batch = ids(&["g-2"]);
    let cases = [
        (first.clone(), Commit::default(), "it has not ended"),
        (won.clone(), Commit::default(), "do not fit"),
        (won.clone(), with(release(2, Some(&fixture.base), ReleaseOrigin::Step { step: 1 })), "do not fit"),
        (won.clone(), with(orphan), "names another parent"),
        (won, with(foreign), "belongs to scenario 'spell' of tenant 'rival'"),
        (skipped(&first), with(next.clone()), "do not fit"),
        (ended(&first, StepOutcome::Held { reason: String::new() }), Commit::default(), "do not fit"),
        (skipped(&first), wrong_state, "state key of 257 bytes"),
        (skipped(&first), nameless, "the recipe's name has 0 bytes"),
        (other_batch, Commit::default(), "began with another batch or parent"),
    ];
    for (step, commit, told) in cases {
        let refusal = fixture.finish(&step, commit).await.expect_err(told).to_string();
        assert!(refusal.contains(told), "{refusal}");
    }
    assert_eq!((fixture.head().await, fixture.counts().await.reserved), (release_id(0), 1));
}

#[tokio::test]
async fn what_two_calls_may_change_fits_one_step_and_one_that_does_not_fit_can_still_fail() {
    const TWO_CALLS: usize = 20_000;
    const OF_THE_HOST: usize = 16;
    let fixture = with_samples(1).await;
    let first = step(1, &fixture.base, &["g-1"]);
    fixture.begin(&first).await.expect("begun");
    let keys = |count: usize| remembering((0..count).map(|key| written(&key.to_string(), b"1")).collect());
    let refusal = fixture.finish(&skipped(&first), keys(TWO_CALLS + OF_THE_HOST + 1)).await.expect_err("too many");
    assert!(matches!(&refusal, StoreError::Invalid(told) if told.contains("20017 state writes")), "{refusal}");
    assert_eq!(fixture.running().await.map(|step| step.step), Some(1), "it still runs");
    fixture.finish(&failed(&first), remembering(Vec::new())).await.expect("without what was refused");
    let second = step(2, &fixture.base, &["g-1"]);
    fixture.begin(&second).await.expect("its batch is free again");
    fixture.finish(&skipped(&second), keys(TWO_CALLS + OF_THE_HOST)).await.expect("all of it");
    assert_eq!(state(&fixture).await.len(), TWO_CALLS + OF_THE_HOST);
}

#[tokio::test]
async fn steps_are_listed_newest_first() {
    let fixture = with_samples(1).await;
    for number in 1..=3 {
        let step = step(number, &fixture.base, &["g-1"]);
        fixture.begin(&step).await.expect("begun");
        fixture.finish(&failed(&step), Commit::default()).await.expect("failed");
    }
    let listed = fixture.store.steps(&tenant(), &name(), 2).await.expect("steps");
    assert_eq!(listed.iter().map(|step| step.step).collect::<Vec<_>>(), [3, 2]);
}

#[tokio::test]
async fn a_held_candidate_consumes_its_batch_and_leaves_the_head() {
    let fixture = with_samples(1).await;
    let first = step(1, &fixture.base, &["g-1"]);
    fixture.begin(&first).await.expect("begun");
    let candidate = release(1, Some(&fixture.base), ReleaseOrigin::Step { step: 1 });
    let (waiting, commit) = held(&first, &candidate);
    fixture.finish(&waiting, commit).await.expect("held");
    assert_eq!((fixture.head().await, fixture.counts().await.consumed), (release_id(0), 1));
    let listed = fixture.store.releases(&tenant(), &name()).await.expect("releases");
    let standing: Vec<_> = listed.iter().map(|listed| (listed.release.release_id.clone(), listed.status)).collect();
    assert_eq!(standing, [(release_id(1), ReleaseStatus::Held), (release_id(0), ReleaseStatus::Served)]);
    assert_eq!(listed[0].release, candidate);
}
