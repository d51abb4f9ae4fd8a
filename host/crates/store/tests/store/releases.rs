//! The chain: the head moves by compare-and-swap, and a held candidate is decided upon once.

use reef_core::{Release, ReleaseOrigin, ScenarioName};
use reef_store::{ReleaseStatus, ScenarioSettings, StoreError};
use tokio::task::JoinSet;

use crate::fixture::{Fixture, held, name, release, release_id, step, tenant};

async fn append(fixture: &Fixture, release: &Release, expected: Option<u32>) -> Result<(), StoreError> {
    fixture.store.append_release(&tenant(), &name(), release, expected.map(release_id).as_ref()).await
}

async fn status(fixture: &Fixture, n: u32) -> ReleaseStatus {
    fixture.store.release(&tenant(), &name(), &release_id(n)).await.expect("read").expect("there").status
}

/// A scenario whose step 1 made the candidate 1, which waits.
async fn with_candidate() -> Fixture {
    let fixture = Fixture::new().await;
    fixture.graded(1).await;
    let first = step(1, &fixture.base, &["g-1"]);
    fixture.begin(&first).await.expect("begun");
    let (ended, commit) = held(&first, &release(1, Some(&fixture.base), ReleaseOrigin::Step { step: 1 }));
    fixture.finish(&ended, commit).await.expect("held");
    fixture
}

#[tokio::test]
async fn of_many_that_build_on_one_head_exactly_one_wins() {
    let fixture = Fixture::new().await;
    let mut calls = JoinSet::new();
    for n in 1..=32 {
        let (store, next) =
            (fixture.store.clone(), release(n, Some(&fixture.base), ReleaseOrigin::Rollback { to: release_id(0) }));
        calls.spawn(async move { (n, store.append_release(&tenant(), &name(), &next, Some(&release_id(0))).await) });
    }
    let results = calls.join_all().await;
    let won: Vec<u32> = results.iter().filter(|(_, result)| result.is_ok()).map(|(n, _)| *n).collect();
    assert_eq!(won.len(), 1);
    assert_eq!(fixture.head().await, release_id(won[0]));
    for (_, lost) in results.iter().filter(|(n, _)| *n != won[0]) {
        let moved =
            StoreError::HeadMoved { scenario: name(), expected: Some(release_id(0)), actual: Some(release_id(won[0])) };
        assert_eq!(*lost, Err(moved));
    }
    assert_eq!(fixture.store.releases(&tenant(), &name()).await.expect("releases").len(), 2, "what lost is not listed");
    assert_eq!(status(&fixture, 0).await, ReleaseStatus::Retained);
}

#[tokio::test]
async fn a_base_starts_a_chain_once() {
    let fixture = Fixture::new().await;
    append(&fixture, &fixture.base, None).await.expect("the same base again");
    let other = append(&fixture, &release(1, None, ReleaseOrigin::Base), None).await.expect_err("a second base");
    let told = format!("the head of scenario 'spell' is {}, not none: another release was made", release_id(0));
    assert!(other.to_string().starts_with(&told), "{other}");
    let orphan = append(&fixture, &release(1, None, ReleaseOrigin::Base), Some(0)).await.expect_err("no parent");
    assert!(orphan.to_string().contains("names another parent"), "{orphan}");
    let next = release(1, Some(&fixture.base), ReleaseOrigin::Rollback { to: release_id(0) });
    append(&fixture, &next, Some(0)).await.expect("appended");
    assert!(
        matches!(append(&fixture, &fixture.base, Some(1)).await, Err(StoreError::Conflict(_))),
        "history is not rewritten"
    );
}

#[tokio::test]
async fn a_promotion_takes_the_held_candidate_once() {
    let fixture = with_candidate().await;
    let promoted = release(2, Some(&fixture.base), ReleaseOrigin::Promotion { step: 1 });
    append(&fixture, &promoted, Some(0)).await.expect("promoted");
    assert_eq!((fixture.head().await, status(&fixture, 1).await), (release_id(2), ReleaseStatus::Retained));
    let again = release(3, Some(&promoted), ReleaseOrigin::Promotion { step: 1 });
    let refusal = append(&fixture, &again, Some(2)).await.expect_err("promoted already");
    assert!(refusal.to_string().contains("no candidate of step 1 is held"), "{refusal}");
    assert_eq!(fixture.head().await, release_id(2), "a refused promotion moves nothing");
    let rejected = fixture.store.reject_held(&tenant(), &name(), &release_id(1)).await;
    assert!(matches!(rejected, Err(StoreError::Conflict(_))));
}

#[tokio::test]
async fn a_rejected_candidate_is_never_served() {
    let mut fixture = with_candidate().await;
    for _ in 0..2 {
        fixture.store.reject_held(&tenant(), &name(), &release_id(1)).await.expect("rejected");
    }
    fixture.reopen().await;
    assert_eq!(status(&fixture, 1).await, ReleaseStatus::Rejected);
    let promoted = release(2, Some(&fixture.base), ReleaseOrigin::Promotion { step: 1 });
    assert!(matches!(append(&fixture, &promoted, Some(0)).await, Err(StoreError::Conflict(_))));
    assert_eq!(fixture.head().await, release_id(0));
    let head = fixture.store.reject_held(&tenant(), &name(), &release_id(0)).await.expect_err("the head is not held");
    assert!(head.to_string().contains("roll back to another release"), "{head}");
    let never = fixture.store.reject_held(&tenant(), &name(), &release_id(9)).await;
    assert_eq!(never, Err(StoreError::UnknownRelease(release_id(9))));
}

#[tokio::test]
async fn a_release_that_belongs_elsewhere_is_refused() {
    let fixture = Fixture::new().await;
    let mut foreign = release(1, Some(&fixture.base), ReleaseOrigin::Rollback { to: release_id(0) });
    foreign.manifest.scenario = reef_core::ScenarioName::parse("other").expect("valid");
    let refusal = append(&fixture, &foreign, Some(0)).await.expect_err("of another scenario");
    assert!(refusal.to_string().contains("belongs to scenario 'other' of tenant 'acme'"), "{refusal}");
}

#[tokio::test]
async fn a_release_returns_with_every_metric_bit_for_bit() {
    let mut fixture = Fixture::new().await;
    let mut next = release(1, Some(&fixture.base), ReleaseOrigin::Rollback { to: release_id(0) });
    next.manifest.metrics = [("third", 1.0 / 3.0), ("most", f64::MAX), ("none", f64::NEG_INFINITY)]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
    append(&fixture, &next, Some(0)).await.expect("appended");
    fixture.reopen().await;
    let head = fixture.store.head(&tenant(), &name()).await.expect("read");
    assert_eq!(head, Some(next));
}

#[tokio::test]
async fn a_fork_is_created_with_its_first_release_or_not_at_all() {
    let fixture = Fixture::new().await;
    let first = |n: u32| {
        let mut first = release(n, Some(&fixture.base), ReleaseOrigin::Base);
        (first.manifest.scenario, first.manifest.sequence) = (ScenarioName::parse("fork").expect("a name"), 0);
        first
    };
    let fork = first(1).manifest.scenario;
    let create =
        async |first: &Release| fixture.store.create_fork(&tenant(), &fork, &ScenarioSettings::default(), first).await;
    let mut foreign = first(1);
    foreign.manifest.scenario = name();
    create(&foreign).await.expect_err("of another scenario");
    assert!(fixture.store.scenario(&tenant(), &fork).await.expect("read").is_none());
    create(&first(1)).await.expect("created");
    let head = fixture.store.head(&tenant(), &fork).await.expect("read").expect("a head");
    assert_eq!((head.release_id, head.manifest.parent), (release_id(1), Some(release_id(0))));
    let began = fixture.store.first_release(&tenant(), &fork).await.expect("read").expect("there");
    assert_eq!(began.release.release_id, release_id(1));
    let again = create(&first(2)).await.expect_err("it has begun");
    assert!(matches!(again, StoreError::HeadMoved { .. }), "{again}");
    assert_eq!(fixture.head().await, release_id(0), "the source is as it was");
}
