//! Erasing reaches what recipes and proposers made of the records: every value of every table is searched, packed ones
//! unpacked. What is part of a release stays and is told.

use std::collections::{BTreeMap, BTreeSet};

use reef_core::{DecidedBy, Inference, ReleaseDecision, ReleaseOrigin, ReleaseVerdict, Step, StepOutcome, Surface};
use reef_store::{
    Bytes, Commit, Erased, HarnessProposal, ModelCall, RecipeUse, RefusedProposal, Selector, StepInputs,
    StepTranscript, UseReason,
};
use serde_json::json;

use crate::fixture::{Fixture, NOW_MS, ended, id, inference, name, release, release_id, report, step, tenant};

/// What a person said in the session, and what was reported about it.
const SAID: &str = "My daughter Amanda was born in Trondheim on the 3rd of May, a \"Tuesday\".";
const NOTED: &str = "The caller sounded tired and asked twice about the medicine of her mother.";
const SESSION: &str = "session-of-amanda-s-mother";

/// Every form in which a value may hold the text.
fn holds(value: &[u8], text: &str) -> bool {
    let escaped = json!(text).to_string();
    let mut forms = [text, escaped.trim_matches('"')].into_iter().flat_map(|text| {
        let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
        let numbers: Vec<String> = text.bytes().map(|byte| byte.to_string()).collect();
        [text.to_owned(), hex, numbers.join(",")]
    });
    let unpacked = zstd::bulk::decompress(value, 1 << 20).unwrap_or_default();
    forms.any(|form| [value, &unpacked].iter().any(|bytes| contains(bytes, form.as_bytes())))
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Where the text stands: `table.column`.
async fn places(fixture: &Fixture, text: &str) -> BTreeSet<String> {
    let values = fixture.place.values().await;
    values.into_iter().filter(|(_, value)| holds(value, text)).map(|(place, _)| place).collect()
}

fn quoted(text: &str) -> String {
    format!("not usable: it says \"{text}\" and no more")
}

fn state() -> BTreeMap<String, Bytes> {
    let memory = json!({ "notes": [SAID] }).to_string().into_bytes();
    BTreeMap::from([("memory".to_owned(), Bytes(memory)), ("seen".to_owned(), Bytes(b"7".to_vec()))])
}

fn inputs() -> StepInputs {
    StepInputs {
        state: state(),
        retired: vec![(id("g-3"), quoted(SAID))],
        unusable: vec![(id("g-4"), quoted(NOTED))],
        ..StepInputs::default()
    }
}

fn transcript() -> StepTranscript {
    let call = ModelCall {
        function: "chat".to_owned(),
        binding: "judge".to_owned(),
        request: "0".repeat(64),
        answer: Ok(json!({ "text": format!("As you say: {SAID}") })),
    };
    let state = state().into_iter().map(|(key, value)| (key, Some(value))).collect();
    StepTranscript { calls: vec![call], complete: true, state, ..StepTranscript::default() }
}

fn in_session(receipt: &str) -> Inference {
    let mut record = inference(receipt, &[1, 2], &[3]);
    record.session = Some(SESSION.to_owned());
    record.request = json!({ "messages": [
        { "role": "system", "content": "You are a helpful assistant of the northern branch." },
        { "role": "user", "content": SAID },
    ] });
    record
}

/// A step on the batch, ended so that its recipe quotes what it read.
async fn stepped(fixture: &Fixture, begun: Step, release: Option<&reef_core::Release>) {
    fixture.store.begin_step(&tenant(), &name(), &begun, Some(&inputs())).await.expect("begun");
    let reason = quoted(SAID);
    let outcome = match release {
        Some(release) => StepOutcome::Released { release: release.release_id.clone(), reason },
        None => StepOutcome::Skipped { reason },
    };
    let commit = Commit {
        release: release.cloned(),
        state: state().into_iter().map(|(key, value)| (key, Some(value.0))).collect(),
        recipe: "sao".to_owned(),
        transcript: Some(transcript()),
        ..Commit::default()
    };
    fixture.finish(&ended(&begun, outcome), commit).await.expect("ended");
}

/// A proposal that waits, one that was refused, an exchange of the recipe and what the recipe is known for.
async fn proposed(fixture: &Fixture) {
    let (tenant, name) = (tenant(), name());
    let mut empty = release(100, None, ReleaseOrigin::Base);
    empty.manifest.surface = Surface::Harness;
    fixture.store.append_release(&tenant, &name, &empty, None).await.expect("the empty harness");
    let mut waiting = release(101, Some(&empty), ReleaseOrigin::Proposal { id: id("p-1") });
    waiting.manifest.surface = Surface::Harness;
    let proposal = HarnessProposal {
        id: id("p-1"),
        release: waiting.release_id.clone(),
        request: None,
        reason: "she wants it shorter".to_owned(),
        session: Some(SESSION.to_owned()),
        created_at_ms: NOW_MS,
    };
    fixture.store.hold_proposal(&tenant, &name, &waiting, &proposal).await.expect("held");
    for (at, session) in [(1, Some(SESSION)), (2, None)] {
        let refused = RefusedProposal {
            id: id(&format!("p-refused-{at}")),
            base: empty.release_id.clone(),
            request: None,
            reason: quoted(NOTED),
            reasons: vec![quoted(SAID)],
            session: session.map(str::to_owned),
            created_at_ms: NOW_MS,
        };
        fixture.store.refuse_proposal(&tenant, &name, &refused).await.expect("kept");
    }
    let next = RecipeUse {
        surface: Surface::Weights,
        position: 0,
        digest: "1".repeat(64),
        name: "sao".to_owned(),
        version: "0.2.0".to_owned(),
        reason: UseReason::Fallback,
        note: quoted(SAID),
        at_ms: NOW_MS,
    };
    fixture.store.exchange_recipe(&tenant, &name, next, ("sao", None)).await.expect("exchanged");
    let known = json!({ "faults": [{ "message": quoted(SAID) }] });
    fixture.store.set_quarantine(&tenant, &name, "sao", Some(&known)).await.expect("known");
}

#[tokio::test]
async fn what_was_made_of_the_records_goes_with_them_and_the_rest_stays() {
    let fixture = Fixture::new().await;
    fixture.answer(in_session("r-1")).await;
    let mut noted = report("g-1", &["r-1"]);
    noted.metadata.insert("note".to_owned(), json!(NOTED));
    fixture.report(noted).await.expect("graded");
    fixture.graded(2).await;
    fixture.graded(3).await;
    let next = release(1, Some(&fixture.base), ReleaseOrigin::Step { step: 1 });
    stepped(&fixture, step(1, &fixture.base, &["g-1"]), Some(&next)).await;
    stepped(&fixture, step(2, &next, &["g-2"]), None).await;
    fixture.retire(&[("g-3", &quoted(SAID))]).await.expect("retired");
    proposed(&fixture).await;
    let expected = [
        "proposals.session",
        "quarantine.record",
        "recipe_state.value",
        "recipe_uses.note",
        "recipe_uses.replaced_state",
        "records.body",
        "records.session",
        "refused_proposals.body",
        "refused_proposals.session",
        "samples.metadata",
        "samples.reason",
        "step_inputs.inputs",
        "step_inputs.transcript",
        "steps.body",
    ];
    let mut before = places(&fixture, SAID).await;
    before.extend(places(&fixture, NOTED).await);
    before.extend(places(&fixture, SESSION).await);
    assert_eq!(before.iter().map(String::as_str).collect::<Vec<_>>(), expected, "else this test would see nothing");

    let what = Selector::Session(SESSION.to_owned());
    let erased = fixture.store.erase(&tenant(), &name(), &what, NOW_MS).await.expect("erased");
    assert_eq!((erased.records, erased.waiting), (2, 0));
    assert_eq!(erased.state_entries, 2, "of the recipe now, and as it was exchanged");
    assert_eq!(erased.releases, BTreeSet::from([release_id(1), release_id(101)]), "trained, and proposed");
    for text in [SAID, NOTED, SESSION] {
        assert_eq!(places(&fixture, text).await, BTreeSet::new(), "{text}");
    }
    let state = fixture.store.recipe_state(&tenant(), &name(), "sao").await.expect("state");
    assert_eq!((state.get("seen").map(Vec::as_slice), state.contains_key("memory")), (Some(b"7".as_slice()), false));
    let second = fixture.store.step_record(&tenant(), &name(), 2).await.expect("read").expect("there");
    assert_eq!(second.inputs.retired, [(id("g-3"), "erased".to_owned())]);
    let letters = fixture.store.dead_letters(&tenant(), &name(), (0, 10), Some("not usable")).await.expect("letters");
    assert_eq!(letters.iter().map(|letter| letter.reason.as_str()).collect::<Vec<_>>(), ["not usable: erased"]);
    let refused = fixture.store.refused_proposals(&tenant(), &name(), 10).await.expect("refused");
    assert_eq!(refused.iter().map(|one| one.reasons.clone()).collect::<Vec<_>>(), [["erased".to_owned()]]);
    assert!(fixture.store.record(&tenant(), &name(), &id("r-2")).await.expect("read").is_some());
    let again = fixture.store.erase(&tenant(), &name(), &what, NOW_MS).await.expect("again");
    assert_eq!(again, Erased::default());
}

/// More reports than are read at once, each set aside on both surfaces but the first.
#[tokio::test]
async fn reasons_on_every_surface_are_looked_at() {
    for quoting in [Surface::Weights, Surface::Harness] {
        let fixture = Fixture::new().await;
        let both = [Surface::Weights, Surface::Harness];
        fixture.store.learn_on(&tenant(), &name(), &both).await.expect("learns");
        fixture.answer(in_session("r-1")).await;
        for n in 2..60 {
            fixture.graded(n).await;
            for surface in both {
                let reason = if surface == quoting { quoted(SAID) } else { "not usable: too short".to_owned() };
                let list = [(id(&format!("g-{n}")), reason)];
                if n > 2 || surface == Surface::Weights {
                    fixture.store.retire((&tenant(), &name()), surface, &list, NOW_MS).await.expect("retired");
                }
            }
        }
        assert!(places(&fixture, SAID).await.contains("samples.reason"));
        fixture.store.erase(&tenant(), &name(), &Selector::Record(id("r-1")), NOW_MS).await.expect("erased");
        assert_eq!(places(&fixture, SAID).await, BTreeSet::new(), "{quoting:?}");
    }
}

#[tokio::test]
async fn a_release_that_repeats_an_erased_text_is_told_because_it_stays() {
    let fixture = Fixture::new().await;
    fixture.answer(in_session("r-1")).await;
    fixture.graded(2).await;
    let first = step(1, &fixture.base, &["g-2"]);
    let mut next = release(1, Some(&fixture.base), ReleaseOrigin::Step { step: 1 });
    let decision = ReleaseDecision { verdict: ReleaseVerdict::Promoted, by: DecidedBy::Gate, reason: quoted(SAID) };
    next.manifest.decision = Some(decision);
    stepped(&fixture, first, Some(&next)).await;
    let what = Selector::Record(id("r-1"));
    let erased = fixture.store.erase(&tenant(), &name(), &what, NOW_MS).await.expect("erased");
    assert_eq!((erased.records, erased.releases), (1, BTreeSet::from([release_id(1)])));
    assert_eq!(places(&fixture, SAID).await, BTreeSet::from(["releases.body".to_owned()]));
}

#[tokio::test]
async fn what_the_running_step_was_given_keeps_the_record_until_it_ends() {
    let fixture = Fixture::new().await;
    fixture.answer(in_session("r-1")).await;
    fixture.graded(2).await;
    let first = step(1, &fixture.base, &["g-2"]);
    fixture.store.begin_step(&tenant(), &name(), &first, Some(&inputs())).await.expect("begun");
    let what = Selector::Record(id("r-1"));
    let erased = fixture.store.erase(&tenant(), &name(), &what, NOW_MS).await.expect("asked");
    assert_eq!((erased.records, erased.waiting), (0, 1));
    let given = fixture.store.step_record(&tenant(), &name(), 1).await.expect("read").expect("there").inputs;
    assert_eq!(given, inputs(), "or it could not be formed again");
    fixture.finish(&crate::fixture::failed(&first), Commit::default()).await.expect("failed");
    let erased = fixture.store.erase(&tenant(), &name(), &what, NOW_MS).await.expect("erased");
    assert_eq!((erased.records, erased.waiting), (1, 0));
    assert_eq!(places(&fixture, SAID).await, BTreeSet::new());
}

#[tokio::test]
async fn the_newest_refused_proposals_are_kept_and_one_that_is_admitted_is_refused_no_more() {
    let fixture = Fixture::new().await;
    let refuse = async |n: i64| {
        let refused = RefusedProposal {
            id: id(&format!("p-{n:04}")),
            base: release_id(0),
            request: None,
            reason: "because".to_owned(),
            reasons: vec!["x".repeat(5_000)],
            session: None,
            created_at_ms: NOW_MS + n,
        };
        fixture.store.refuse_proposal(&tenant(), &name(), &refused).await.expect("kept");
    };
    for n in 0..300 {
        refuse(n).await;
    }
    refuse(299).await;
    let kept = fixture.store.refused_proposals(&tenant(), &name(), 1_000).await.expect("listed");
    assert_eq!((kept.len(), &kept[0].id, &kept[255].id), (256, &id("p-0299"), &id("p-0044")));
    assert_eq!(kept[0].reasons[0].len(), 2_000, "a rule's explanation is cut");
    let keep = reef_store::Retention { age_ms_max: Some(1_000), ..Default::default() };
    fixture.store.retain(&tenant(), &name(), &keep, NOW_MS + 1_100).await.expect("kept within");
    let kept = fixture.store.refused_proposals(&tenant(), &name(), 1_000).await.expect("listed");
    assert_eq!((kept.len(), &kept[199].id), (200, &id("p-0100")), "older ones went");
    let mut empty = release(100, None, ReleaseOrigin::Base);
    empty.manifest.surface = Surface::Harness;
    fixture.store.append_release(&tenant(), &name(), &empty, None).await.expect("the empty harness");
    let mut waiting = release(101, Some(&empty), ReleaseOrigin::Proposal { id: id("p-0299") });
    waiting.manifest.surface = Surface::Harness;
    let proposal = HarnessProposal {
        id: id("p-0299"),
        release: waiting.release_id.clone(),
        request: None,
        reason: "because".to_owned(),
        session: None,
        created_at_ms: NOW_MS,
    };
    fixture.store.hold_proposal(&tenant(), &name(), &waiting, &proposal).await.expect("admitted now");
    assert_eq!(fixture.store.refused_proposal(&tenant(), &name(), &id("p-0299")).await, Ok(None));
    let listed = fixture.store.proposals(&tenant(), &name(), 10).await.expect("listed");
    assert_eq!(listed, [(proposal, "held")]);
}
