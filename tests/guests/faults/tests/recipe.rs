//! What can be shown without a sandbox: it behaves when asked to, and misbehaves only where asked to.

use reef_guest_faults::Faults;
use reef_recipe::testing::{FakeHost, FakeSample};
use reef_recipe::{Choice, Decision, Exchange, Failure, Message, Proposal, Request, Requests};

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

fn exchange(tags: &[(&str, &str)]) -> Exchange {
    Exchange {
        id: "record-1".into(),
        release: "0".repeat(40),
        at_ms: 1.0,
        session: None,
        tags: pairs(tags),
        messages: vec![Message::user("hello")],
        answer: "hi".into(),
        tools: false,
        prompt_tokens: 4,
        answer_tokens: 2,
    }
}

fn pairs(tags: &[(&str, &str)]) -> Vec<(String, String)> {
    tags.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn request(tags: &[(&str, &str)]) -> Request {
    Request { messages: vec![Message::user("hello")], session: None, tags: pairs(tags) }
}

#[test]
fn the_optional_exports_behave_unless_told_otherwise() {
    let mut host = host("none", "propose");
    let judged = host.ingest::<Faults>(&[exchange(&[("judge", "yes")])]).expect("judges");
    assert_eq!((judged.len(), judged[0].score), (1, 0.5));
    assert_eq!(host.state["ingested"], 1u32.to_le_bytes());
    host.migrate::<Faults>("0.0.1").expect("migrates");
    assert_eq!(host.state["migrated_from"], b"0.0.1");
    assert_eq!(host.state["ingested"], 1u32.to_le_bytes());
    assert_eq!(Faults::transform(&request(&[])), None);
    let changed = Faults::transform(&request(&[("say", "!")])).expect("changed");
    assert_eq!(changed, [Message::user("hello!")]);
}

#[test]
fn each_optional_export_is_told_its_fault_by_its_input() {
    let mut host = host("none", "propose");
    assert!(matches!(host.ingest::<Faults>(&[exchange(&[("fault", "fail")])]), Err(Failure::Other(_))));
    assert!(host.ingest::<Faults>(&[exchange(&[("fault", "nan")])]).expect("judges")[0].score.is_nan());
    host.state.insert("fault".into(), b"fail".to_vec());
    assert_eq!(host.migrate::<Faults>("0.0.1"), Err(Failure::Other("gives up as configured".into())));
    let forged = Faults::transform(&request(&[("fault", "lie")])).expect("changed");
    assert_eq!(forged[0].role, "emperor");
}

#[test]
#[should_panic(expected = "panicked as configured")]
fn a_request_can_trap() {
    let _ = Faults::transform(&request(&[("fault", "trap")]));
}
