//! Retention by age, number and bytes: what goes, what stays because a sample needs it, and what clocks may do.

use reef_core::Inference;
use reef_store::{Commit, RecordBody, Retention, Stored};

use crate::fixture::{Fixture, NOW_MS, id, inference, name, report, skipped, step, tenant};

fn made(n: i64, created_at_ms: i64) -> Inference {
    Inference { created_at_ms, ..inference(&format!("r-{n}"), &[1, 2, 3], &[4]) }
}

async fn fill(fixture: &Fixture, records: impl Iterator<Item = Inference>) {
    let records: Vec<RecordBody> = records.map(|record| RecordBody::Inference(Box::new(record))).collect();
    for part in records.chunks(1_000) {
        fixture.store.import(&tenant(), &name(), part.to_vec()).await.expect("imported");
    }
}

async fn retain(fixture: &Fixture, keep: Retention) -> u64 {
    fixture.store.retain(&tenant(), &name(), &keep, NOW_MS).await.expect("retained").records
}

async fn stored(fixture: &Fixture) -> Stored {
    fixture.store.stored(&tenant(), &name()).await.expect("stored")
}

async fn there(fixture: &Fixture) -> Vec<String> {
    let page = fixture.store.records(&tenant(), &name(), 0, 1_000, None).await.expect("page");
    let id = |body: &RecordBody| match body {
        RecordBody::Inference(record) => record.id.to_string(),
        RecordBody::Report(report) => report.id.to_string(),
        RecordBody::Instruction(instruction) => instruction.id.to_string(),
    };
    page.iter().map(|stored| id(&stored.body)).collect()
}

#[tokio::test]
async fn records_over_the_age_go_in_every_batch_and_no_younger_one() {
    let fixture = Fixture::new().await;
    fill(&fixture, (0..1_200).map(|n| made(n, NOW_MS - 5_000 + n))).await;
    fill(&fixture, (1_200..1_210).map(|n| made(n, NOW_MS - 10))).await;
    let keep = Retention { age_ms_max: Some(1_000), ..Retention::default() };
    assert_eq!(retain(&fixture, keep).await, 1_200);
    assert_eq!(there(&fixture).await.len(), 10);
    assert_eq!(retain(&fixture, keep).await, 0);
    assert_eq!(fixture.counts().await.inferences, 1_210, "what came is still counted");
}

#[tokio::test]
async fn the_oldest_go_until_number_and_bytes_fit() {
    let fixture = Fixture::new().await;
    fill(&fixture, (0..20).map(|n| made(n, NOW_MS))).await;
    let each = stored(&fixture).await.bytes / 20;
    assert_eq!(retain(&fixture, Retention { records_max: Some(15), ..Retention::default() }).await, 5);
    assert_eq!(there(&fixture).await[0], "r-5");
    let keep = Retention { bytes_max: Some(each * 10), ..Retention::default() };
    let gone = retain(&fixture, keep).await;
    assert!((5..=6).contains(&gone), "{gone}");
    let left = stored(&fixture).await;
    assert!(left.bytes <= each * 10 && left.records == 15 - i64::try_from(gone).expect("few"), "{left:?}");
    assert_eq!(retain(&fixture, Retention::default()).await, 0, "no rule lets nothing go");
}

#[tokio::test]
async fn what_a_waiting_or_running_sample_needs_stays() {
    let fixture = Fixture::new().await;
    for n in 1..=4 {
        fixture.graded(n).await;
    }
    fixture.answer(inference("loose", &[1], &[2])).await;
    let first = step(1, &fixture.base, &["g-1"]);
    fixture.begin(&first).await.expect("begun");
    fixture.retire(&[("g-2", "too easy")]).await.expect("retired");
    let keep = Retention { records_max: Some(0), ..Retention::default() };
    assert_eq!(retain(&fixture, keep).await, 3, "the loose one, and the retired report with its record");
    assert_eq!(there(&fixture).await, ["r-1", "g-1", "r-3", "g-3", "r-4", "g-4"]);
    fixture.finish(&skipped(&first), Commit::default()).await.expect("ended");
    assert_eq!(retain(&fixture, keep).await, 2);
    assert_eq!(fixture.pool().await.samples.len(), 2, "the others are whole");
    let stone = fixture.store.tombstone(&tenant(), &name(), &id("r-1")).await.expect("read").expect("there");
    assert_eq!(stone.cause, reef_store::Cause::Dropped);
    let counts = fixture.counts().await;
    assert_eq!((counts.pending, counts.consumed, counts.retired, counts.reports), (2, 1, 1, 4));
}

#[tokio::test]
async fn a_clock_that_jumps_costs_at_most_the_records_that_it_stamped() {
    let fixture = Fixture::new().await;
    let year = 365 * 24 * 3_600_000;
    for (n, at) in [(0, NOW_MS), (1, NOW_MS + 50 * year), (2, 0), (3, -year), (4, NOW_MS)] {
        fixture.answer(made(n, at)).await;
    }
    let keep = Retention { age_ms_max: Some(year), ..Retention::default() };
    assert_eq!(retain(&fixture, keep).await, 2);
    assert_eq!(there(&fixture).await, ["r-0", "r-1", "r-4"], "the order of the log does not follow the clock");
    let far = fixture.store.retain(&tenant(), &name(), &keep, i64::MIN).await.expect("no overflow");
    assert_eq!(far.records, 0);
    fixture.report(report("g-1", &["r-1"])).await.expect("graded");
    assert_eq!(fixture.store.expire(&tenant(), &name(), i64::MIN, NOW_MS).await, Ok(0));
}
