//! Steps: one at a time, the same batch after a restart, one transaction at the end.

use reef_core::{RecordId, ReleaseOrigin, Report, StepOutcome};
use reef_store::{Commit, ReleaseStatus, StoreError};

use crate::fixture::{Place, ended, graded, id, release, release_id, step, why};

fn released(n: u32) -> StepOutcome {
    StepOutcome::Released { release: release_id(n), reason: why() }
}

fn commit(n: u32, parent: u32, number: u32) -> Commit {
    Commit {
        release: Some(release(n, Some(parent), ReleaseOrigin::Step { step: number })),
        state: vec![("seen".to_owned(), Some(vec![n as u8])), ("gone".to_owned(), None)],
        recipe: "sao".to_owned(),
        ..Commit::default()
    }
}

async fn batch(place: &Place, names: &[&str]) -> Vec<RecordId> {
    let mut ids = Vec::new();
    for name in names {
        ids.push(place.sample(name).await);
    }
    ids
}

#[tokio::test]
async fn a_running_step_forms_the_same_batch_after_a_restart() {
    let mut place = Place::with_base().await;
    let mut ids = batch(&place, &["a", "b", "c"]).await;
    ids.reverse();
    let begun = step(1, 0, &ids);
    let before = place.store.samples(&place.t, &place.s, &ids).await.expect("samples");
    place.store.begin_step(&place.t, &place.s, &begun).await.expect("begin");
    place.store.begin_step(&place.t, &place.s, &begun).await.expect("the same again");
    place.reopen().await;
    let running = place.store.running_step(&place.t, &place.s).await.expect("read").expect("running");
    assert_eq!(running, begun);
    assert_eq!(place.store.samples(&place.t, &place.s, &running.batch).await.expect("samples"), before);
    assert_eq!(place.store.counts(&place.t, &place.s).await.expect("counts").reserved, 3);
    assert_eq!(place.store.next_step_number(&place.t, &place.s).await.expect("number"), 2);
}

#[tokio::test]
async fn finishing_moves_step_samples_release_head_and_state_together_and_once() {
    let mut place = Place::with_base().await;
    let begun = step(1, 0, &batch(&place, &["a", "b"]).await);
    place.store.begin_step(&place.t, &place.s, &begun).await.expect("begin");
    let mut done = ended(&begun, released(1));
    done.metrics.insert("loss".to_owned(), f64::INFINITY);
    for _ in 0..2 {
        place.store.finish_step(&place.t, &place.s, &done, commit(1, 0, 1)).await.expect("finish");
        place.reopen().await;
    }
    assert_eq!(place.store.head(&place.t, &place.s).await.expect("head").expect("head").release_id, release_id(1));
    assert_eq!(place.store.step(&place.t, &place.s, 1).await.expect("step"), Some(done.clone()));
    assert_eq!(place.store.steps(&place.t, &place.s, 10).await.expect("steps"), [done.clone()]);
    assert_eq!(place.store.running_step(&place.t, &place.s).await.expect("read"), None);
    let state = place.store.recipe_state(&place.t, &place.s, "sao").await.expect("state");
    assert_eq!(state.into_iter().collect::<Vec<_>>(), [("seen".to_owned(), vec![1])]);
    let counts = place.store.counts(&place.t, &place.s).await.expect("counts");
    assert_eq!((counts.consumed, counts.pending, counts.steps), (2, 0, 1));
    let other = ended(&begun, StepOutcome::Skipped { reason: why() });
    let refused = place.store.finish_step(&place.t, &place.s, &other, Commit::default()).await;
    assert!(matches!(refused, Err(StoreError::Conflict(_))));
}

#[tokio::test]
async fn a_moved_head_undoes_everything_and_the_step_can_still_fail() {
    let place = Place::with_base().await;
    let begun = step(1, 0, &batch(&place, &["a"]).await);
    place.store.begin_step(&place.t, &place.s, &begun).await.expect("begin");
    let rollback = release(7, Some(0), ReleaseOrigin::Rollback { to: release_id(0) });
    place.store.append_release(&place.t, &place.s, &rollback, Some(&release_id(0))).await.expect("rollback");
    let done = ended(&begun, released(1));
    let refused = place.store.finish_step(&place.t, &place.s, &done, commit(1, 0, 1)).await;
    assert!(
        matches!(&refused, Err(StoreError::HeadMoved { actual: Some(now), .. }) if *now == release_id(7)),
        "{refused:?}"
    );
    assert!(place.store.recipe_state(&place.t, &place.s, "sao").await.expect("state").is_empty());
    assert_eq!(place.store.release(&place.t, &place.s, &release_id(1)).await.expect("read"), None);
    assert_eq!(place.store.running_step(&place.t, &place.s).await.expect("read"), Some(begun.clone()));
    let failed = ended(&begun, StepOutcome::Failed { reason: why() });
    place.store.finish_step(&place.t, &place.s, &failed, Commit::default()).await.expect("fail");
    assert_eq!(place.store.counts(&place.t, &place.s).await.expect("counts").pending, 1);
    let stale = place.store.begin_step(&place.t, &place.s, &step(2, 0, &begun.batch)).await;
    assert!(matches!(stale, Err(StoreError::HeadMoved { .. })));
    place.store.begin_step(&place.t, &place.s, &step(2, 7, &begun.batch)).await.expect("again on the new head");
}

#[tokio::test]
async fn a_failed_step_returns_its_batch_but_for_reports_amended_meanwhile() {
    let place = Place::with_base().await;
    let begun = step(1, 0, &batch(&place, &["a", "b"]).await);
    place.store.begin_step(&place.t, &place.s, &begun).await.expect("begin");
    place.report(Report { amends: Some(id("r-a")), ..graded("r-a2", &["i-a"], 0.1) }).await;
    let failed = ended(&begun, StepOutcome::Failed { reason: why() });
    let state = Commit { state: vec![("k".to_owned(), Some(vec![1]))], recipe: "sao".to_owned(), ..Commit::default() };
    place.store.finish_step(&place.t, &place.s, &failed, state).await.expect("fail");
    assert!(place.store.recipe_state(&place.t, &place.s, "sao").await.expect("state").is_empty());
    let pool = place.store.pool(&place.t, &place.s, 10).await.expect("pool");
    assert_eq!(pool.samples.iter().map(|s| s.report.as_str()).collect::<Vec<_>>(), ["r-b", "r-a2"]);
    assert_eq!(place.store.counts(&place.t, &place.s).await.expect("counts").retired, 1);
}

#[tokio::test]
async fn one_step_runs_at_a_time_in_order_on_free_samples() {
    let place = Place::with_base().await;
    let ids = batch(&place, &["a", "b"]).await;
    let (a, b) = (&ids[..1], &ids[1..]);
    let early = place.store.begin_step(&place.t, &place.s, &step(2, 0, a)).await;
    assert!(matches!(&early, Err(StoreError::Conflict(text)) if text.contains("the next step is 1")), "{early:?}");
    place.store.begin_step(&place.t, &place.s, &step(1, 0, a)).await.expect("begin");
    let second = place.store.begin_step(&place.t, &place.s, &step(2, 0, b)).await;
    assert!(matches!(&second, Err(StoreError::Conflict(text)) if text.contains("step 1 is running")), "{second:?}");
    let failed = ended(&step(1, 0, a), StepOutcome::Rejected { reason: why() });
    place.store.finish_step(&place.t, &place.s, &failed, Commit::default()).await.expect("finish");
    let used = place.store.begin_step(&place.t, &place.s, &step(2, 0, &ids)).await;
    assert!(matches!(&used, Err(StoreError::Conflict(text)) if text.contains("r-a is consumed")), "{used:?}");
    assert_eq!(place.store.counts(&place.t, &place.s).await.expect("counts").pending, 1, "nothing was reserved");
}

#[tokio::test]
async fn outcome_and_commit_must_fit() {
    let place = Place::with_base().await;
    let begun = step(1, 0, &batch(&place, &["a"]).await);
    place.store.begin_step(&place.t, &place.s, &begun).await.expect("begin");
    let wrong = [
        (ended(&begun, StepOutcome::Running), Commit::default()),
        (ended(&begun, released(1)), Commit::default()),
        (ended(&begun, released(2)), commit(1, 0, 1)),
        (ended(&begun, StepOutcome::Held { reason: why() }), commit(1, 0, 1)),
        (ended(&begun, StepOutcome::Rejected { reason: why() }), commit(1, 0, 1)),
    ];
    for (step, commit) in wrong {
        let refused = place.store.finish_step(&place.t, &place.s, &step, commit).await;
        assert!(matches!(refused, Err(StoreError::Invalid(_))), "{refused:?}");
    }
    let other_batch = step(1, 0, &[]);
    let skipped = ended(&other_batch, StepOutcome::Skipped { reason: why() });
    let refused = place.store.finish_step(&place.t, &place.s, &skipped, Commit::default()).await;
    assert!(matches!(refused, Err(StoreError::Conflict(_))));
    assert_eq!(place.store.counts(&place.t, &place.s).await.expect("counts").reserved, 1);
}

#[tokio::test]
async fn a_held_candidate_waits_beside_the_chain() {
    let place = Place::with_base().await;
    for (number, name) in [(1, "a"), (2, "b")] {
        let begun = step(number, 0, &batch(&place, &[name]).await);
        place.store.begin_step(&place.t, &place.s, &begun).await.expect("begin");
        let held = Some(release(10 + number, Some(0), ReleaseOrigin::Step { step: number }));
        let commit = Commit { held, ..Commit::default() };
        let step = ended(&begun, StepOutcome::Held { reason: why() });
        place.store.finish_step(&place.t, &place.s, &step, commit).await.expect("finish");
    }
    let status =
        async |n| place.store.release(&place.t, &place.s, &release_id(n)).await.expect("read").expect("there").status;
    assert_eq!(place.store.head(&place.t, &place.s).await.expect("head").expect("head").release_id, release_id(0));
    assert_eq!(status(11).await, ReleaseStatus::Held);
    place.store.reject_held(&place.t, &place.s, &release_id(11)).await.expect("reject");
    place.store.reject_held(&place.t, &place.s, &release_id(11)).await.expect("again");
    assert_eq!(status(11).await, ReleaseStatus::Rejected);
    let promoted = release(20, Some(0), ReleaseOrigin::Promotion { step: 2 });
    place.store.append_release(&place.t, &place.s, &promoted, Some(&release_id(0))).await.expect("promote");
    assert_eq!((status(20).await, status(12).await), (ReleaseStatus::Served, ReleaseStatus::Retained));
    let late = place.store.reject_held(&place.t, &place.s, &release_id(12)).await;
    assert!(matches!(late, Err(StoreError::Conflict(_))));
    let none = place.store.reject_held(&place.t, &place.s, &release_id(99)).await;
    assert_eq!(none, Err(StoreError::UnknownRelease(release_id(99))));
}
