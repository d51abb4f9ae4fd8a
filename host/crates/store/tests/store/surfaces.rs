//! Weights and harness of one scenario learn from the same reports: each uses every one of them once, one step at a time.

use proptest::prelude::*;
use reef_core::{RecordId, ReleaseOrigin, Report, Surface};
use reef_store::{Commit, Counts, RecipeUse, StepInputs, StoreError, UseReason};

use crate::fixture::{Fixture, NOW_MS, failed, id, name, release, release_id, released, report, skipped, step, tenant};
use crate::harness::{append, harness, hold};

const BOTH: [Surface; 2] = [Surface::Weights, Surface::Harness];

async fn learn_on(fixture: &Fixture, surfaces: &[Surface]) {
    fixture.store.learn_on(&tenant(), &name(), surfaces).await.expect("changed");
}

async fn on(fixture: &Fixture, surface: Surface) -> Counts {
    let (_, mut each) = fixture.store.counts_on_each(&tenant(), &name()).await.expect("counts");
    each.remove(&surface).unwrap_or_default()
}

/// Pending, reserved, consumed, retired.
async fn states(fixture: &Fixture, surface: Surface) -> [i64; 4] {
    let counts = on(fixture, surface).await;
    [counts.pending, counts.reserved, counts.consumed, counts.retired]
}

async fn offered(fixture: &Fixture, surface: Surface) -> Vec<RecordId> {
    let pool = match surface {
        Surface::Harness => fixture.store.text_pool((&tenant(), &name()), 100, &release_id(100)).await,
        Surface::Weights | Surface::Router => fixture.store.pool(&tenant(), &name(), 100).await,
    };
    pool.expect("pool").samples.into_iter().map(|sample| sample.report).collect()
}

/// A scenario that learns on both, with as many reports.
async fn both(reports: u32) -> Fixture {
    let fixture = Fixture::new().await;
    append(&fixture, &harness(100, None, ReleaseOrigin::Base), None).await.expect("the first harness");
    learn_on(&fixture, &BOTH).await;
    for n in 1..=reports {
        fixture.graded(n).await;
    }
    fixture
}

#[tokio::test]
async fn what_one_surface_uses_the_other_uses_too_and_each_only_once() {
    let mut fixture = both(3).await;
    let empty = harness(100, None, ReleaseOrigin::Base);
    let trained = step(1, &fixture.base, &["g-1", "g-2"]);
    fixture.begin(&trained).await.expect("begun");
    let read = step(2, &empty, &["g-2", "g-3"]);
    let told = fixture.begin(&read).await.expect_err("the surfaces take turns").to_string();
    assert!(told.contains("step 1 is running"), "{told}");
    assert_eq!(offered(&fixture, Surface::Harness).await.len(), 3, "what weights hold is no less free for the harness");
    let next = release(1, Some(&fixture.base), ReleaseOrigin::Step { step: 1 });
    let (ended, commit) = released(&trained, &next);
    fixture.finish(&ended, commit).await.expect("ended");
    fixture.begin(&read).await.expect("its turn");
    fixture.reopen().await;
    assert_eq!(fixture.running().await.map(|step| step.parent), Some(release_id(100)), "a restart knows whose it is");
    assert_eq!(states(&fixture, Surface::Weights).await, [1, 0, 2, 0]);
    assert_eq!(states(&fixture, Surface::Harness).await, [1, 2, 0, 0]);
    fixture.finish(&failed(&read), Commit::default()).await.expect("ended");
    assert_eq!(states(&fixture, Surface::Harness).await, [3, 0, 0, 0], "what a failed step held is free there again");
    let read = step(3, &empty, &["g-2", "g-3"]);
    fixture.begin(&read).await.expect("begun");
    fixture.finish(&skipped(&read), Commit::default()).await.expect("ended");
    assert_eq!(states(&fixture, Surface::Harness).await, [1, 0, 2, 0]);
    assert_eq!(
        (offered(&fixture, Surface::Weights).await, offered(&fixture, Surface::Harness).await),
        (vec![id("g-3")], vec![id("g-1")])
    );
    let again = fixture.begin(&step(4, &empty, &["g-2"])).await.expect_err("used").to_string();
    assert!(again.contains("report g-2 is consumed"), "{again}");
    let set_aside = vec![(id("g-1"), "too easy".to_owned())];
    fixture.store.retire((&tenant(), &name()), Surface::Harness, &set_aside, NOW_MS).await.expect("its own");
    assert_eq!(states(&fixture, Surface::Harness).await, [0, 0, 2, 1]);
    let letters = fixture.store.dead_letters(&tenant(), &name(), (0, 9), None).await.expect("listed");
    assert_eq!(letters.iter().map(|letter| letter.surface).collect::<Vec<_>>(), [Surface::Harness]);
    let all = fixture.counts().await;
    assert_eq!((all.pending, all.consumed, all.retired, all.reports), (1, 4, 1, 3));
}

#[tokio::test]
async fn a_surface_that_comes_finds_what_was_reported_and_one_that_goes_leaves_nothing_waiting() {
    let fixture = Fixture::new().await;
    append(&fixture, &harness(100, None, ReleaseOrigin::Base), None).await.expect("the first harness");
    for n in 1..=4 {
        fixture.graded(n).await;
    }
    let trained = step(1, &fixture.base, &["g-1"]);
    fixture.begin(&trained).await.expect("begun");
    fixture.finish(&skipped(&trained), Commit::default()).await.expect("ended");
    fixture.store.retract(&tenant(), &name(), &id("g-2"), NOW_MS).await.expect("taken back");
    let better = Report { amends: Some(id("g-3")), ..report("g-5", &["r-3"]) };
    fixture.report(better).await.expect("amended");
    assert_eq!(states(&fixture, Surface::Weights).await, [2, 0, 1, 2]);
    learn_on(&fixture, &[Surface::Harness]).await;
    assert_eq!(states(&fixture, Surface::Weights).await, [0, 0, 1, 2], "what was used or set aside stays so");
    assert_eq!(
        states(&fixture, Surface::Harness).await,
        [3, 0, 0, 2],
        "also what weights used; not what was taken back"
    );
    fixture.graded(6).await;
    assert_eq!(on(&fixture, Surface::Weights).await.pending, 0, "new reports go where something learns");
    learn_on(&fixture, &BOTH).await;
    assert_eq!(states(&fixture, Surface::Weights).await, [3, 0, 1, 2], "and nothing is used twice after a return");
    assert_eq!(states(&fixture, Surface::Harness).await, [4, 0, 0, 2]);
    let none = fixture.store.learn_on(&tenant(), &name(), &[]).await;
    assert!(matches!(none, Err(StoreError::Invalid(_))), "{none:?}");
}

#[tokio::test]
async fn what_a_failed_step_held_for_a_surface_that_went_waits_for_nobody() {
    let mut fixture = both(2).await;
    let read = step(1, &harness(100, None, ReleaseOrigin::Base), &["g-1"]);
    fixture.begin(&read).await.expect("begun");
    fixture.reopen().await;
    learn_on(&fixture, &[Surface::Weights]).await;
    assert_eq!(states(&fixture, Surface::Harness).await, [0, 1, 0, 0], "the step that was cut off holds its batch");
    fixture.finish(&failed(&read), Commit::default()).await.expect("ended");
    assert_eq!(states(&fixture, Surface::Harness).await, [0, 0, 0, 0]);
    assert_eq!(states(&fixture, Surface::Weights).await, [2, 0, 0, 0], "the surface that stays has all of them");
    learn_on(&fixture, &BOTH).await;
    assert_eq!(states(&fixture, Surface::Harness).await, [2, 0, 0, 0], "and one that returns finds them again");
}

#[tokio::test]
async fn each_surface_has_a_recipe_of_its_own() {
    let fixture = Fixture::new().await;
    let using = |surface, digest: char| RecipeUse {
        position: 0,
        surface,
        digest: digest.to_string().repeat(64),
        name: surface.as_str().to_owned(),
        version: "1.0.0".to_owned(),
        reason: UseReason::Upload,
        note: String::new(),
        at_ms: NOW_MS,
    };
    for (surface, digest) in [(Surface::Weights, 'a'), (Surface::Harness, 'b'), (Surface::Weights, 'c')] {
        let next = using(surface, digest);
        fixture.store.exchange_recipe(&tenant(), &name(), next, (surface.as_str(), None)).await.expect("in use");
    }
    for (surface, digest, position) in [(Surface::Weights, 'c', 3), (Surface::Harness, 'b', 2)] {
        let now = fixture.store.recipe_use(&tenant(), &name(), surface).await.expect("read");
        assert_eq!(now, Some(RecipeUse { position, ..using(surface, digest) }));
    }
    assert_eq!(fixture.store.recipe_use(&tenant(), &name(), Surface::Router).await.expect("read"), None);
}

#[tokio::test]
async fn a_scenario_that_learned_and_was_proposed_to_is_forgotten_whole() {
    let fixture = both(1).await;
    let trained = step(1, &fixture.base, &["g-1"]);
    let inputs = StepInputs::default();
    fixture.store.begin_step(&tenant(), &name(), &trained, Some(&inputs)).await.expect("begun");
    fixture.finish(&skipped(&trained), Commit::default()).await.expect("ended");
    let empty = harness(100, None, ReleaseOrigin::Base);
    let waiting = harness(101, Some(&empty), ReleaseOrigin::Proposal { id: id("p-1") });
    hold(&fixture, "p-1", &waiting).await.expect("it waits");
    fixture.store.forget_scenario(&tenant(), &name()).await.expect("forgotten");
    assert_eq!(fixture.store.scenario(&tenant(), &name()).await, Ok(None));
}

/// A turn of one surface: whose, how many samples it takes, and whether it fails.
type Turn = (bool, usize, bool);

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, max_shrink_iters: 50, ..ProptestConfig::default() })]

    #[test]
    fn on_each_surface_every_report_is_used_at_most_once(turns in prop::collection::vec((any::<bool>(), 1..4usize, any::<bool>()), 1..10)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        runtime.block_on(conserved(turns));
    }
}

async fn conserved(turns: Vec<Turn>) {
    const REPORTS: u32 = 6;
    let fixture = both(REPORTS).await;
    let empty = harness(100, None, ReleaseOrigin::Base);
    let mut used: [Vec<RecordId>; 2] = Default::default();
    for (number, (weights, take, fails)) in (1..).zip(turns) {
        let (at, surface, parent) =
            if weights { (0, Surface::Weights, &fixture.base) } else { (1, Surface::Harness, &empty) };
        let batch: Vec<RecordId> = offered(&fixture, surface).await.into_iter().take(take).collect();
        let names: Vec<&str> = batch.iter().map(RecordId::as_str).collect();
        let turn = step(number, parent, &names);
        fixture.begin(&turn).await.expect("what the pool offers is free");
        let ended = if fails { failed(&turn) } else { skipped(&turn) };
        fixture.finish(&ended, Commit::default()).await.expect("ended");
        if !fails {
            assert!(batch.iter().all(|report| !used[at].contains(report)), "used twice on {surface:?}");
            used[at].extend(batch);
        }
    }
    for (at, surface) in BOTH.into_iter().enumerate() {
        let [pending, reserved, consumed, retired] = states(&fixture, surface).await;
        assert_eq!(pending + reserved + consumed + retired, i64::from(REPORTS), "{surface:?}");
        assert_eq!(consumed, used[at].len() as i64, "{surface:?}");
    }
    fixture.store.close().await;
}
