//! The pool: which reports become samples, and what is said of the others.

use reef_core::{Inference, RecordStatus, ReleaseSpan, StepOutcome, sha256_hex};
use reef_store::{Commit, StoreError};

use crate::fixture::{Place, ended, graded, id, inference, release_id, step, turn, why};

#[tokio::test]
async fn turns_are_merged_in_the_order_in_which_they_happened() {
    let place = Place::new().await;
    for record in [turn("a", &[1, 2, 3], &[4, 5]), turn("b", &[1, 2, 3, 4, 5, 6], &[7])] {
        place.store.append_inference(&place.t, &place.s, record).await.expect("append");
    }
    place.report(graded("r-1", &["b", "a"], 0.5)).await;
    let pool = place.store.pool(&place.t, &place.s, 10).await.expect("pool");
    let sample = pool.samples.first().expect("sample");
    assert_eq!(sample.trajectory.tokens, [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(sample.trajectory.mask, [1, 1, 0, 1]);
    assert_eq!(sample.records, [id("a"), id("b")]);
    assert_eq!((sample.score, sample.temperature, sample.sequence), (Some(0.5), 0.7, 3));
    assert_eq!((&sample.release, sample.release_sequence), (&release_id(0), 0));
    assert_eq!(sample.prompt_key, sha256_hex(&[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]));
}

/// Makes one record unusable.
type Spoil = fn(&mut Inference);

#[tokio::test]
async fn every_unusable_report_has_its_reason() {
    let place = Place::new().await;
    let cases: [(&str, Spoil); 6] = [
        ("capture off", |r| r.capture = false),
        ("no captured tokens", |r| r.tokens = None),
        ("request failed", |r| r.status = RecordStatus::Failed),
        ("cancelled before a token", |r| (r.status, r.tokens) = (RecordStatus::Cancelled, None)),
        ("no release recorded", |r| r.tokens.as_mut().expect("tokens").spans.clear()),
        ("more than one release", |r| {
            let spans = &mut r.tokens.as_mut().expect("tokens").spans;
            spans.push(ReleaseSpan { start: 1, release: release_id(1), sequence: 1 });
        }),
    ];
    for (n, (_, spoil)) in cases.iter().enumerate() {
        let mut record = inference(&format!("i-{n}"));
        spoil(&mut record);
        place.store.append_inference(&place.t, &place.s, record).await.expect("append");
        place.report(graded(&format!("r-{n}"), &[&format!("i-{n}")], 1.0)).await;
    }
    let pool = place.store.pool(&place.t, &place.s, 100).await.expect("pool");
    assert!(pool.samples.is_empty());
    let kinds: Vec<_> = pool.unusable.iter().map(|(_, reason)| reason.split(':').next().expect("kind")).collect();
    assert_eq!(kinds, cases.map(|(kind, _)| kind));
    place.store.retire(&place.t, &place.s, &pool.unusable, 20).await.expect("retire");
    assert!(place.store.pool(&place.t, &place.s, 100).await.expect("pool").unusable.is_empty());
    let reasons = place.store.retirement_reasons(&place.t, &place.s).await.expect("reasons");
    assert_eq!(reasons.values().sum::<i64>(), 6);
}

#[tokio::test]
async fn forks_and_mixed_temperatures_are_no_trajectory() {
    let place = Place::new().await;
    let mut hot = turn("hot", &[1, 2, 3, 4, 5, 6], &[7]);
    hot.tokens.as_mut().expect("tokens").sampling.temperature = 1.0;
    for record in [turn("a", &[1, 2, 3], &[4, 5]), turn("fork", &[1, 2, 8, 4, 5, 6], &[7]), hot] {
        place.store.append_inference(&place.t, &place.s, record).await.expect("append");
    }
    place.report(graded("r-1", &["a", "fork"], 1.0)).await;
    place.report(graded("r-2", &["a", "hot"], 1.0)).await;
    let pool = place.store.pool(&place.t, &place.s, 10).await.expect("pool");
    let said: Vec<_> = pool.unusable.iter().map(|(_, reason)| reason.as_str()).collect();
    assert_eq!(said, ["not one trajectory: turn 1 forks from the transcript", "more than one temperature: 0.7 and 1"]);
}

#[tokio::test]
async fn a_greedy_answer_counts_as_temperature_one() {
    let place = Place::new().await;
    let mut greedy = inference("i-1");
    greedy.tokens.as_mut().expect("tokens").sampling.temperature = 0.0;
    place.store.append_inference(&place.t, &place.s, greedy).await.expect("append");
    place.report(graded("r-1", &["i-1"], 1.0)).await;
    let pool = place.store.pool(&place.t, &place.s, 10).await.expect("pool");
    assert_eq!(pool.samples.first().expect("sample").temperature, 1.0);
}

#[tokio::test]
async fn a_record_is_trained_once_however_many_reports_name_it() {
    let place = Place::with_base().await;
    let first = place.sample("1").await;
    place.report(graded("r-second", &["i-1"], 0.0)).await;
    let pool = place.store.pool(&place.t, &place.s, 10).await.expect("pool");
    assert_eq!((pool.samples.len(), pool.unusable.len()), (1, 1));
    let both = step(1, 0, &[first.clone(), id("r-second")]);
    let refused = place.store.begin_step(&place.t, &place.s, &both).await;
    assert!(matches!(refused, Err(StoreError::Conflict(_))), "{refused:?}");

    let one = step(1, 0, &[first]);
    place.store.begin_step(&place.t, &place.s, &one).await.expect("begin");
    let during = place.store.pool(&place.t, &place.s, 10).await.expect("pool");
    assert!(during.samples.is_empty() && during.unusable.is_empty(), "undecided until the step ends");
    let skipped = ended(&one, StepOutcome::Skipped { reason: why() });
    place.store.finish_step(&place.t, &place.s, &skipped, Commit::default()).await.expect("finish");
    let after = place.store.pool(&place.t, &place.s, 10).await.expect("pool");
    assert!(after.unusable.first().expect("one").1.starts_with("record trained already"));
}

#[tokio::test]
async fn retiring_is_for_ever_and_refused_for_samples_in_use() {
    let place = Place::with_base().await;
    let (a, b) = (place.sample("a").await, place.sample("b").await);
    let retire = |items: Vec<_>| {
        let place = &place;
        async move { place.store.retire(&place.t, &place.s, &items, 5).await }
    };
    retire(vec![(a.clone(), "too old: lag 5".to_owned())]).await.expect("retire");
    retire(vec![(a.clone(), "another: reason".to_owned())]).await.expect("again");
    let reasons = place.store.retirement_reasons(&place.t, &place.s).await.expect("reasons");
    assert_eq!(reasons.get("too old"), Some(&1));
    place.store.begin_step(&place.t, &place.s, &step(1, 0, &[b.clone()])).await.expect("begin");
    assert!(matches!(retire(vec![(b, why())]).await, Err(StoreError::Conflict(_))));
    assert_eq!(retire(vec![(id("none"), why())]).await, Err(StoreError::UnknownReference(id("none"))));
    assert!(place.store.begin_step(&place.t, &place.s, &step(2, 0, &[a])).await.is_err());
}
