//! The harness beside the weights: a chain and a head of its own, proposals that wait, and instructions.

use reef_core::{Instruction, RecordId, Release, ReleaseOrigin, Surface};
use reef_store::{HarnessProposal, RecordBody, RecordKind, ReleaseStatus, Selector, StoreError};

use crate::fixture::{Fixture, NOW_MS, id, inference, name, release, release_id, tenant};

/// A harness release that follows `parent`; its id is told from those of weights by its number.
pub fn harness(n: u32, parent: Option<&Release>, origin: ReleaseOrigin) -> Release {
    let mut made = release(n, parent, origin);
    made.manifest.surface = Surface::Harness;
    made
}

fn proposal(text: &str, of: &Release) -> HarnessProposal {
    HarnessProposal {
        id: id(text),
        release: of.release_id.clone(),
        request: None,
        reason: "shorter answers score better".to_owned(),
        session: Some("s-1".to_owned()),
        created_at_ms: NOW_MS,
    }
}

pub async fn append(fixture: &Fixture, release: &Release, expected: Option<u32>) -> Result<(), StoreError> {
    fixture.store.append_release(&tenant(), &name(), release, expected.map(release_id).as_ref()).await
}

pub async fn hold(fixture: &Fixture, text: &str, release: &Release) -> Result<HarnessProposal, StoreError> {
    fixture.store.hold_proposal(&tenant(), &name(), release, &proposal(text, release)).await
}

async fn status(fixture: &Fixture, n: u32) -> ReleaseStatus {
    fixture.store.release(&tenant(), &name(), &release_id(n)).await.expect("read").expect("there").status
}

async fn harness_head(fixture: &Fixture) -> Option<Release> {
    fixture.store.harness_head(&tenant(), &name()).await.expect("read")
}

/// The scenario with the empty harness 100 beside its base 0.
async fn with_harness() -> (Fixture, Release) {
    let fixture = Fixture::new().await;
    let empty = harness(100, None, ReleaseOrigin::Base);
    assert_eq!(harness_head(&fixture).await, None);
    append(&fixture, &empty, None).await.expect("the first harness");
    (fixture, empty)
}

fn proposed(n: u32, parent: &Release, text: &str) -> Release {
    harness(n, Some(parent), ReleaseOrigin::Proposal { id: id(text) })
}

fn accepted(n: u32, parent: &Release, of: u32) -> Release {
    harness(n, Some(parent), ReleaseOrigin::Acceptance { of: release_id(of) })
}

#[tokio::test]
async fn either_head_moves_alone_and_a_restart_keeps_both() {
    let (mut fixture, empty) = with_harness().await;
    let weights = release(1, Some(&fixture.base), ReleaseOrigin::Rollback { to: release_id(0) });
    append(&fixture, &weights, Some(0)).await.expect("the weights go on");
    assert_eq!(harness_head(&fixture).await.as_ref(), Some(&empty));
    let next = harness(101, Some(&empty), ReleaseOrigin::Rollback { to: release_id(100) });
    append(&fixture, &next, Some(100)).await.expect("the harness goes on");
    fixture.reopen().await;
    assert_eq!(fixture.head().await, release_id(1));
    assert_eq!(harness_head(&fixture).await, Some(next.clone()));
    for (n, told) in [(0, ReleaseStatus::Retained), (1, ReleaseStatus::Served), (100, ReleaseStatus::Retained)] {
        assert_eq!(status(&fixture, n).await, told, "{n}");
    }
    // Each head is compared with the releases of its own surface only.
    let crossed = harness(102, Some(&weights), ReleaseOrigin::Rollback { to: release_id(1) });
    assert!(matches!(append(&fixture, &crossed, Some(1)).await, Err(StoreError::HeadMoved { .. })));
    let ids = async |surface| {
        let listed = fixture.store.releases_of(&tenant(), &name(), surface).await.expect("listed");
        listed.into_iter().map(|listed| listed.release.release_id).collect::<Vec<_>>()
    };
    assert_eq!(ids(Surface::Weights).await, [release_id(1), release_id(0)]);
    assert_eq!(ids(Surface::Harness).await, [release_id(101), release_id(100)]);
    assert_eq!(fixture.store.releases(&tenant(), &name()).await.expect("listed").len(), 4);
    let heads = fixture.store.heads(&tenant(), &name()).await.expect("heads");
    assert_eq!(heads.into_iter().map(|(id, _)| id).collect::<Vec<_>>(), [release_id(0), release_id(1)]);
}

#[tokio::test]
async fn a_proposal_waits_and_is_accepted_once() {
    let (fixture, empty) = with_harness().await;
    let waiting = proposed(101, &empty, "p-1");
    let held = hold(&fixture, "p-1", &waiting).await.expect("held");
    assert_eq!((status(&fixture, 101).await, harness_head(&fixture).await), (ReleaseStatus::Held, Some(empty.clone())));
    // The same content again makes no second release.
    let again = hold(&fixture, "p-1", &proposed(102, &empty, "p-1")).await.expect("the same");
    assert_eq!(again, held);
    assert_eq!(fixture.store.release(&tenant(), &name(), &release_id(102)).await, Ok(None));
    append(&fixture, &accepted(103, &empty, 101), Some(100)).await.expect("accepted");
    assert_eq!(
        (status(&fixture, 101).await, status(&fixture, 103).await),
        (ReleaseStatus::Retained, ReleaseStatus::Served)
    );
    let twice = accepted(104, &accepted(103, &empty, 101), 101);
    let refusal = append(&fixture, &twice, Some(103)).await.expect_err("accepted already");
    assert!(refusal.to_string().contains("does not wait any more"), "{refusal}");
    let rejected = fixture.store.reject_held(&tenant(), &name(), &release_id(101)).await;
    assert!(matches!(rejected, Err(StoreError::Conflict(_))));
    let found = fixture.store.proposal_of(&tenant(), &name(), &release_id(101)).await.expect("read");
    assert_eq!(found, Some(held));
}

#[tokio::test]
async fn a_proposal_to_an_earlier_head_must_be_proposed_again() {
    let (fixture, empty) = with_harness().await;
    for (n, text) in [(101, "p-1"), (102, "p-2")] {
        hold(&fixture, text, &proposed(n, &empty, text)).await.expect("held");
    }
    let first = accepted(103, &empty, 101);
    append(&fixture, &first, Some(100)).await.expect("accepted");
    let refusal = append(&fixture, &accepted(104, &first, 102), Some(103)).await.expect_err("of another head");
    assert!(refusal.to_string().contains("propose its change again"), "{refusal}");
    assert_eq!(
        (status(&fixture, 102).await, status(&fixture, 103).await),
        (ReleaseStatus::Held, ReleaseStatus::Served)
    );
    let late = hold(&fixture, "p-3", &proposed(105, &empty, "p-3")).await;
    assert!(matches!(late, Err(StoreError::HeadMoved { .. })), "{late:?}");
    fixture.store.reject_held(&tenant(), &name(), &release_id(102)).await.expect("rejected");
    assert_eq!(status(&fixture, 102).await, ReleaseStatus::Rejected);
}

#[tokio::test]
async fn no_more_proposals_wait_than_a_person_can_look_at() {
    let (fixture, empty) = with_harness().await;
    for n in 1..=64 {
        let text = format!("p-{n}");
        hold(&fixture, &text, &proposed(100 + n, &empty, &text)).await.expect("held");
    }
    let refusal = hold(&fixture, "p-65", &proposed(165, &empty, "p-65")).await.expect_err("too many");
    assert!(refusal.to_string().contains("promote or reject some of them first"), "{refusal}");
    fixture.store.reject_held(&tenant(), &name(), &release_id(101)).await.expect("rejected");
    hold(&fixture, "p-65", &proposed(165, &empty, "p-65")).await.expect("there is room again");
}

#[tokio::test]
async fn a_harness_is_no_candidate_of_a_rollout() {
    let (fixture, empty) = with_harness().await;
    let plan = reef_core::RolloutPlan::Pin;
    let begun = fixture.store.begin_rollout(&tenant(), &name(), (&empty.release_id, &plan), NOW_MS).await;
    assert!(begun.expect_err("refused").to_string().contains("no release of weights"));
}

fn instruction(text: &str) -> Instruction {
    Instruction {
        id: id(text),
        created_at_ms: NOW_MS,
        text: "Be brief.".to_owned(),
        session: Some("s-1".to_owned()),
        release: None,
        requires: vec![serde_json::json!({ "kind": "env", "name": "KEY", "reason": "" })],
        traceparent: None,
    }
}

#[tokio::test]
async fn an_instruction_is_a_record_of_its_own_kind() {
    let (mut fixture, empty) = with_harness().await;
    let asked = instruction("i-1");
    let put = async |asked| fixture.store.append_instruction(&tenant(), &name(), asked, false).await;
    assert!(!put(asked.clone()).await.expect("filed").duplicate);
    let later = Instruction { created_at_ms: NOW_MS + 1, ..asked.clone() };
    assert!(put(later).await.expect("the same").duplicate);
    let other = Instruction { text: "Be long.".to_owned(), ..asked.clone() };
    assert!(matches!(put(other).await, Err(StoreError::Conflict(_))));
    let counts = fixture.counts().await;
    assert_eq!((counts.inferences, counts.reports), (0, 0), "it is neither");

    let waiting = proposed(101, &empty, "p-1");
    let answer = HarnessProposal { request: Some(id("i-1")), ..proposal("p-1", &waiting) };
    fixture.store.hold_proposal(&tenant(), &name(), &waiting, &answer).await.expect("held");
    fixture.reopen().await;
    let found = fixture.store.record(&tenant(), &name(), &id("i-1")).await.expect("read").expect("there");
    assert_eq!((found.kind, &found.body), (RecordKind::Instruction, &RecordBody::Instruction(Box::new(asked))));
    let line = found.to_line().expect("a line");
    assert_eq!(RecordBody::from_line(&line), Ok(found.body));
    let of_kind = fixture.store.records(&tenant(), &name(), 0, 10, Some(RecordKind::Instruction)).await.expect("read");
    assert_eq!(of_kind.len(), 1);
    let for_it = fixture.store.proposal_for(&tenant(), &name(), &id("i-1")).await.expect("read");
    assert_eq!(for_it, Some(answer));
    // A report grades answers, not what people ask for.
    let graded = fixture.report(crate::fixture::report("g-1", &["i-1"])).await;
    assert_eq!(graded, Err(StoreError::UnknownReference(id("i-1"))));
}

#[tokio::test]
async fn erasing_a_session_takes_its_instructions_and_its_name() {
    let (fixture, empty) = with_harness().await;
    fixture.store.append_instruction(&tenant(), &name(), instruction("i-1"), false).await.expect("filed");
    hold(&fixture, "p-1", &proposed(101, &empty, "p-1")).await.expect("held");
    let erased = fixture.store.erase(&tenant(), &name(), &Selector::Session("s-1".to_owned()), NOW_MS).await;
    assert_eq!(erased.expect("erased").records, 1);
    assert_eq!(fixture.store.record(&tenant(), &name(), &id("i-1")).await, Ok(None));
    let left = fixture.store.proposal(&tenant(), &name(), &id("p-1")).await.expect("read").expect("there");
    assert_eq!(left.session, None);
}

#[tokio::test]
async fn the_receipts_of_a_session_are_those_of_its_conversation() {
    let fixture = Fixture::new().await;
    for n in 1..=4 {
        let mut record = inference(&format!("r-{n}"), &[1, n], &[2]);
        record.session = Some(if n == 2 { "s-2" } else { "s-1" }.to_owned());
        if n == 3 {
            for (tag, value) in [(reef_core::CALL_TAG, "title"), (reef_core::CALL_REASON_TAG, "header")] {
                record.tags.insert(reef_core::Tag::parse(tag).expect("a tag"), value.to_owned());
            }
        }
        fixture.answer(record).await;
    }
    let receipts = async |session, limit| {
        let found = fixture.store.session_receipts(&tenant(), &name(), session, limit).await.expect("read");
        found.iter().map(RecordId::to_string).collect::<Vec<_>>()
    };
    assert_eq!(receipts("s-1", 10).await, ["r-1", "r-4"]);
    assert_eq!(receipts("s-1", 1).await, ["r-4"], "the latest");
    assert!(receipts("s-3", 10).await.is_empty());
}

#[tokio::test]
async fn a_scenario_with_a_proposal_can_be_forgotten() {
    let (fixture, empty) = with_harness().await;
    let change = harness(101, Some(&empty), ReleaseOrigin::Proposal { id: id("p-1") });
    hold(&fixture, "p-1", &change).await.expect("held");
    assert_eq!(fixture.store.forget_scenario(&tenant(), &name()).await.expect("forgotten"), None);
    assert!(fixture.store.scenario(&tenant(), &name()).await.expect("read").is_none());
}
