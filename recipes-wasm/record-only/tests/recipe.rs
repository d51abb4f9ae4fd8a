//! The recipe against a host in memory: whatever it is given, nothing is consumed and nothing changes.

use reef_recipe::testing::{FakeHost, FakeSample};
use reef_recipe::{Choice, Decision, Failure, Recipe};
use reef_recipe_record_only::RecordOnly;

/// More than any batch, of every kind: old, unscored, of many records.
fn full() -> FakeHost {
    (0..1_024).fold(FakeHost::of::<RecordOnly>(), |host, index| {
        host.sample(FakeSample::scored(if index % 2 == 0 { 1.0 } else { f64::NAN }).lag(index).references(index))
    })
}

#[test]
fn the_manifest_asks_for_nothing_and_wants_nothing_of_a_report() {
    let manifest = RecordOnly::describe();
    assert_eq!((manifest.name.as_str(), manifest.needs_score), ("record-only", false));
    assert_eq!(manifest.capabilities, ["log"]);
    assert!(manifest.config.is_empty() && manifest.report_fields.is_empty());
}

#[test]
fn every_sample_is_kept_and_the_status_says_so() {
    let mut host = full();
    let selection = host.select::<RecordOnly>().expect("selects");
    assert_eq!(selection.choice, Choice::Wait("record-only never trains; 1024 samples are kept".into()));
    assert!(selection.retire.is_empty());
    assert!(host.calls.is_empty() && host.state.is_empty());
}

#[test]
fn a_batch_that_it_did_not_choose_is_not_consumed() {
    let mut host = full();
    assert!(matches!(host.propose::<RecordOnly>(), Err(Failure::Other(_))));
    assert!(host.calls.is_empty() && host.state.is_empty());
}

#[test]
fn a_candidate_that_is_not_its_own_is_not_released() {
    assert_eq!(full().evaluate::<RecordOnly>().expect("judges").decision, Decision::Reject);
}
