//! What can be shown without a sandbox: it behaves when asked to, and misbehaves only where asked to.

use reef_guest_faults::Faults;
use reef_recipe::testing::{FakeHost, FakeSample};
use reef_recipe::{Choice, Decision, Failure, Proposal};

fn host(fault: &str, place: &str) -> FakeHost {
    FakeHost::of::<Faults>()
        .config("fault", &format!("\"{fault}\""))
        .config("where", &format!("\"{place}\""))
        .sample(FakeSample::scored(1.0))
        .sample(FakeSample::scored(0.0))
}

#[test]
fn without_a_fault_it_trains_and_promotes() {
    let mut host = host("none", "propose");
    assert_eq!(host.select::<Faults>().expect("selects").choice, Choice::Train(vec![100, 101]));
    assert_eq!(host.propose::<Faults>(), Ok(Proposal::Weights(9)));
    assert_eq!(host.evaluate::<Faults>().expect("judges").decision, Decision::Promote);
}

#[test]
fn a_fault_happens_only_where_it_is_configured() {
    let mut host = host("fail", "evaluate");
    assert!(host.select::<Faults>().is_ok() && host.propose::<Faults>().is_ok());
    assert_eq!(host.evaluate::<Faults>(), Err(Failure::Other("gives up as configured".into())));
}

#[test]
fn lies_are_forged_handles_and_names() {
    let selection = host("lie", "select").select::<Faults>().expect("selects");
    assert_eq!(selection.choice, Choice::Train(vec![100, 100, 4_000_000_000]));
    assert_eq!(host("lie", "propose").propose::<Faults>(), Ok(Proposal::Weights(4_000_000_000)));
}

#[test]
fn numbers_that_are_none_reach_the_host() {
    assert!(matches!(host("nan", "propose").propose::<Faults>(), Err(Failure::Capability(_))));
    let verdict = host("nan", "evaluate").evaluate::<Faults>().expect("judges");
    assert!(verdict.measurements.iter().any(|number| number.value.is_nan()));
}

#[test]
#[should_panic(expected = "panicked as configured")]
fn a_trap_is_a_panic_with_a_message() {
    let _ = host("trap", "select").select::<Faults>();
}

#[test]
fn an_unknown_fault_is_a_configuration_error() {
    assert!(matches!(host("gremlin", "select").select::<Faults>(), Err(Failure::InvalidConfig(_))));
}
