//! The pool: which reports become samples, and why the others do not.

use reef_core::{AssemblyError, RecordStatus, ReleaseSpan, Report, Surface};
use reef_store::{Commit, StoreError};

use crate::fixture::{
    Fixture, id, ids, inference, name, reasons, release_id, report, skipped, step, tenant, traced, usable,
};

/// Two turns: the golden first turn of recipes.md §0 and a second with this prompt.
async fn two_turns(second_prompt: &[u32]) -> Fixture {
    let fixture = Fixture::new().await;
    fixture.answer(inference("r-1", &[1, 2, 3], &[4, 5])).await;
    fixture.answer(inference("r-2", second_prompt, &[7])).await;
    // The order of the references does not matter: the turns are in the order in which they happened.
    fixture.report(report("g-1", &["r-2", "r-1"])).await.expect("graded");
    fixture
}

#[tokio::test]
async fn a_sample_carries_exactly_what_was_sampled() {
    let fixture = Fixture::new().await;
    fixture.answer(inference("r-1", &[1, 2, 3], &[4, 5])).await;
    fixture.answer(inference("r-2", &[1, 2, 3], &[6])).await;
    let mut graded = report("g-1", &["r-1"]);
    graded.metadata.insert("group".to_owned(), 3.into());
    fixture.report(graded.clone()).await.expect("graded");
    fixture.report(report("g-2", &["r-2"])).await.expect("graded");
    let pool = fixture.pool().await;
    let sample = &pool.samples[0];
    assert_eq!((sample.records.clone(), sample.score, &sample.metadata), (ids(&["r-1"]), Some(1.0), &graded.metadata));
    assert_eq!((sample.trajectory.tokens.as_slice(), sample.trajectory.prompt_length), ([1, 2, 3, 4, 5].as_slice(), 3));
    assert_eq!(
        (sample.trajectory.mask.as_slice(), sample.trajectory.logprobs.as_slice()),
        ([1, 1].as_slice(), [-0.1, -0.2].as_slice())
    );
    assert_eq!((sample.temperature, &sample.release, sample.release_sequence), (0.7, &release_id(0), 0));
    assert_eq!(sample.prompt_key, pool.samples[1].prompt_key, "equal prompts have equal keys");
    assert_eq!(sample.sequence, 3);
}

#[tokio::test]
async fn two_turns_merge_when_the_first_is_a_prefix_of_the_second() {
    let pool = two_turns(&[1, 2, 3, 4, 5, 6]).await.pool().await;
    let (sample, merged) = (&pool.samples[0], &pool.samples[0].trajectory);
    assert_eq!(sample.records, ids(&["r-1", "r-2"]));
    assert_eq!(
        (merged.tokens.as_slice(), merged.mask.as_slice()),
        ([1, 2, 3, 4, 5, 6, 7].as_slice(), [1, 1, 0, 1].as_slice())
    );
    assert_eq!(merged.logprobs, [-0.1, -0.2, 0.0, -0.1]);
}

#[tokio::test]
async fn a_second_turn_that_rewrites_the_last_response_masks_it() {
    let pool = two_turns(&[1, 2, 3, 4, 9, 6]).await.pool().await;
    let merged = &pool.samples[0].trajectory;
    assert_eq!(
        (merged.tokens.as_slice(), merged.mask.as_slice()),
        ([1, 2, 3, 4, 9, 6, 7].as_slice(), [0, 0, 0, 1].as_slice())
    );
}

#[tokio::test]
async fn a_second_turn_that_leaves_the_transcript_is_a_fork() {
    let pool = two_turns(&[1, 2, 8, 4, 5, 6]).await.pool().await;
    assert!(pool.samples.is_empty());
    assert_eq!(reasons(&pool), [("g-1", "not one trajectory: turn 1 forks from the transcript")]);
    assert_eq!(pool.unusable[0].1.assembly, Some(AssemblyError::Fork(1)), "the recipe hears of it");
}

#[tokio::test]
async fn an_exchange_that_cannot_be_trained_on_says_why() {
    let fixture = Fixture::new().await;
    let plain = |receipt| inference(receipt, &[1, 2], &[3]);
    let mut bare = plain("r-bare");
    bare.tokens = None;
    let mut off = plain("r-off");
    off.capture = false;
    let mut gone = traced("r-gone", |trace| (trace.output, trace.logprobs) = (Vec::new(), Vec::new()));
    gone.status = RecordStatus::Cancelled;
    let mut broken = plain("r-broken");
    broken.status = RecordStatus::Failed;
    let mut cut = plain("r-cut");
    cut.status = RecordStatus::Cancelled;
    let nameless = traced("r-nameless", |trace| trace.spans.clear());
    let late = traced("r-late", |trace| trace.spans[0].start = 1);
    let infinite = traced("r-infinite", |trace| trace.logprobs[1] = f32::NEG_INFINITY);
    let swapped =
        traced("r-swapped", |trace| trace.spans.push(ReleaseSpan { start: 1, release: release_id(1), sequence: 1 }));
    for record in [bare, off, gone, broken, cut, nameless, late, infinite, swapped] {
        let receipt = record.id.to_string();
        fixture.answer(record).await;
        fixture.report(report(&receipt.replace("r-", "g-"), &[&receipt])).await.expect("graded");
    }
    let pool = fixture.pool().await;
    assert_eq!(usable(&pool), ["g-cut"], "a client that went away leaves the tokens that were sampled");
    let two_releases = format!("more than one release: {} and {}", release_id(0), release_id(1));
    assert_eq!(
        reasons(&pool),
        [
            ("g-bare", "no captured tokens: record r-bare"),
            ("g-off", "capture off: record r-off"),
            ("g-gone", "cancelled before a token: record r-gone"),
            ("g-broken", "request failed: record r-broken"),
            ("g-nameless", "no release recorded: its first tokens name no release"),
            ("g-late", "no release recorded: its first tokens name no release"),
            ("g-infinite", "log-prob not finite: record r-infinite"),
            ("g-swapped", two_releases.as_str()),
        ]
    );
}

#[tokio::test]
async fn turns_of_two_releases_or_two_temperatures_are_no_sample() {
    let fixture = Fixture::new().await;
    let turn = |receipt: &str, sequence: u32, temperature: f32| {
        traced(receipt, |trace| {
            trace.spans[0].release = release_id(sequence);
            trace.spans[0].sequence = sequence;
            trace.sampling.temperature = temperature;
        })
    };
    let nameless = traced("r-nameless", |trace| trace.spans.clear());
    for record in [turn("r-1", 0, 0.7), turn("r-2", 1, 0.7), turn("r-3", 0, 1.0), turn("r-4", 0, 0.0), nameless] {
        fixture.answer(record).await;
    }
    for (grade, second) in [("g-2", "r-2"), ("g-3", "r-3"), ("g-4", "r-nameless")] {
        fixture.report(report(grade, &["r-1", second])).await.expect("graded");
    }
    fixture.report(report("g-5", &["r-4"])).await.expect("graded");
    let pool = fixture.pool().await;
    let kinds: Vec<&str> = pool.unusable.iter().map(|(_, why)| why.reason.split(':').next().expect("a kind")).collect();
    assert_eq!(kinds, ["more than one release", "more than one temperature", "no release recorded"]);
    assert_eq!(
        (usable(&pool), pool.samples[0].temperature),
        (vec!["g-5"], 1.0),
        "greedy answers carry log-probs of temperature 1"
    );
}

#[tokio::test]
async fn a_record_counts_for_its_oldest_report_and_trains_once() {
    let fixture = Fixture::new().await;
    fixture.graded(1).await;
    fixture.report(Report { score: Some(0.5), ..report("g-late", &["r-1"]) }).await.expect("graded");
    let pool = fixture.pool().await;
    assert_eq!(usable(&pool), ["g-1"]);
    assert_eq!(reasons(&pool), [("g-late", "record graded already: record r-1 by report g-1; amend that")]);
    let both = fixture.begin(&step(1, &fixture.base, &["g-1", "g-late"])).await.expect_err("one record twice");
    assert_eq!(both.to_string(), "step 1: record r-1 would be trained twice");
    let first = step(1, &fixture.base, &["g-1"]);
    fixture.begin(&first).await.expect("begun");
    assert_eq!(fixture.pool().await, reef_store::Pool::default(), "left out until the step ends");
    fixture.finish(&skipped(&first), Commit::default()).await.expect("ended");
    let pool = fixture.pool().await;
    assert_eq!(reasons(&pool), [("g-late", "record trained already: record r-1 through report g-1")]);
    let again = fixture.begin(&step(2, &fixture.base, &["g-late"])).await.expect_err("trained already");
    assert!(matches!(again, StoreError::Conflict(_)), "{again}");
    assert_eq!(fixture.counts().await.pending, 1, "a refused step reserves nothing");
}

#[tokio::test]
async fn the_pool_is_limited_and_oldest_first() {
    let fixture = Fixture::new().await;
    for n in 1..=4 {
        fixture.graded(n).await;
    }
    let pool = fixture.store.pool(&tenant(), &name(), 3).await.expect("pool");
    assert_eq!(usable(&pool), ["g-1", "g-2", "g-3"]);
}

#[tokio::test]
async fn retired_reports_leave_with_their_first_reason() {
    let fixture = Fixture::new().await;
    for n in 1..=4 {
        fixture.graded(n).await;
    }
    let long = "expired: ".to_owned() + &"é\n".repeat(1_000);
    fixture
        .retire(&[("g-1", "capture off: record r-1"), ("g-2", &long), ("g-1", "second: word")])
        .await
        .expect("retired");
    fixture.retire(&[("g-1", "third: word")]).await.expect("again");
    let told = fixture.store.retirement_reasons(&tenant(), &name()).await.expect("reasons");
    assert_eq!(told.into_iter().collect::<Vec<_>>(), [("capture off".to_owned(), 1), ("expired".to_owned(), 1)]);
    assert_eq!(fixture.retire(&[("g-3", "x"), ("never", "x")]).await, Err(StoreError::UnknownReference(id("never"))));
    fixture.begin(&step(1, &fixture.base, &["g-4"])).await.expect("begun");
    let reserved = fixture.retire(&[("g-3", "x"), ("g-4", "x")]).await.expect_err("reserved");
    assert_eq!(reserved.to_string(), "report g-4 is reserved and can no longer be retired");
    assert_eq!(usable(&fixture.pool().await), ["g-3"], "a refused call retires none");
}

#[tokio::test]
async fn samples_are_formed_again_in_the_order_asked_for() {
    let fixture = Fixture::new().await;
    for n in 1..=12 {
        fixture.graded(n).await;
    }
    let order = ["g-11", "g-2", "g-12", "g-1", "g-10", "g-3", "g-9", "g-4", "g-8", "g-5", "g-7", "g-6"];
    let samples = fixture.store.samples(&tenant(), &name(), &ids(&order)).await.expect("samples");
    assert_eq!(samples.iter().map(|sample| sample.report.as_str()).collect::<Vec<_>>(), order);
    let missing = fixture.store.samples(&tenant(), &name(), &ids(&["g-1", "g-13"])).await;
    assert_eq!(missing, Err(StoreError::UnknownReference(id("g-13"))));
}

#[tokio::test]
async fn a_learner_that_reads_texts_needs_no_tokens_and_no_single_trajectory() {
    // The second turn forks, and another record was answered by somebody who gives no tokens.
    let fixture = two_turns(&[1, 2, 8, 4, 5, 6]).await;
    let mut bare = inference("r-bare", &[1], &[2]);
    bare.tokens = None;
    fixture.answer(bare).await;
    let mut failed = inference("r-failed", &[1], &[2]);
    failed.status = RecordStatus::Failed;
    fixture.answer(failed).await;
    fixture.report(report("g-bare", &["r-bare"])).await.expect("graded");
    fixture.report(report("g-failed", &["r-failed"])).await.expect("graded");
    let both = [Surface::Weights, Surface::Harness];
    fixture.store.learn_on(&tenant(), &name(), &both).await.expect("changed");
    let head = release_id(7);
    let pool = fixture.store.text_pool((&tenant(), &name()), 1_000, &head).await.expect("pool");
    assert_eq!(usable(&pool), ["g-1", "g-bare"]);
    assert_eq!(reasons(&pool), [("g-failed", "request failed: record r-failed")]);
    let sample = &pool.samples[0];
    assert_eq!((&sample.records, &sample.release), (&ids(&["r-1", "r-2"]), &head));
    assert!(sample.trajectory.tokens.is_empty() && sample.trajectory.mask.is_empty());
    let again = fixture.store.text_samples((&tenant(), &name()), &ids(&["g-bare"]), &head).await.expect("formed");
    assert_eq!(again, pool.samples[1..]);
    assert_eq!(usable(&fixture.pool().await), Vec::<&str>::new(), "training on tokens needs them");
}
