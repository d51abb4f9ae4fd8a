//! The recipe against a host in memory: which instructions it takes, what editor and reviewer read, and the floor.

use reef_recipe::harness::{Episode, EpisodeStatus};
use reef_recipe::testing::{Call, FakeHost, FakeSample};
use reef_recipe::{Choice, Decision, Entry, EntryKind, Failure, Mutation, Proposal, Recipe};
use reef_recipe_reefine::Reefine;

const EDIT: &str =
    r#"{"notes":"metric","changes":[{"op":"put","kind":"rules","id":"units","text":"Use metric units."}]}"#;
const APPROVED: &str = r#"{"approve": true, "reason": "it does"}"#;
const DENIED: &str = r#"{"approve": false, "reason": "it forgets temperatures"}"#;

/// The agent is healthy unless a rule forbids it to speak.
fn play(entries: &[Entry], task: &str, _: u32) -> Episode {
    if task == "broken" {
        return Episode { status: EpisodeStatus::InfrastructureFailed, ..Episode::scored(f64::NAN) };
    }
    let silent = entries.iter().any(|entry| entry.config.contains("say nothing"));
    Episode::scored(f64::from(u8::from(!silent)))
}

fn host() -> FakeHost {
    let rules = Entry { id: "style".into(), kind: EntryKind::Rules, config: r#"{"text":"Be brief."}"#.into() };
    let host = FakeHost::of::<Reefine>().entry(rules).tasks(&["health", "other"]).plays(play);
    host.config("reviewer_binding", "\"reviewer\"")
}

fn told(instruction: &str) -> FakeSample {
    FakeSample::unscored().response_text("It is 70 °F.").field("instruction", &reef_recipe::json::quoted(instruction))
}

fn asked(host: &FakeHost, of: &str) -> Vec<String> {
    let chat = host.calls.iter().filter_map(|call| match call {
        Call::Chat { binding, requests } if binding == of => Some(requests[0].messages[1].content.clone()),
        _ => None,
    });
    chat.collect()
}

fn skipped(proposal: Result<Proposal, Failure>) -> String {
    match proposal {
        Ok(Proposal::Skip(reason)) => reason,
        other => format!("not skipped: {other:?}"),
    }
}

#[test]
fn the_manifest_asks_for_what_is_used_and_the_readme_lists_every_key() {
    let manifest = Reefine::describe();
    assert_eq!((manifest.name.as_str(), manifest.needs_score), ("reefine", false));
    assert_eq!(manifest.capabilities, ["log", "config", "experience", "models", "harness", "state", "metrics"]);
    let readme = include_str!("../README.md");
    for key in manifest.config {
        let row = format!("| `{}` | {} | {} |", key.name, key.default_value, key.doc);
        assert!(readme.contains(&row), "the README lacks the row\n{row}");
    }
}

#[test]
fn one_instruction_is_taken_and_reports_without_one_are_retired() {
    let mut host = host()
        .sample(FakeSample::scored(1.0))
        .sample(told(&"x".repeat(4_001)))
        .sample(told("Use °C."))
        .sample(told("Next."));
    let selection = host.select::<Reefine>().expect("selects");
    assert_eq!(selection.choice, Choice::Train(vec![102]));
    let reasons: Vec<_> = selection.retire.iter().map(|gone| gone.reason.as_str()).collect();
    assert_eq!(reasons, ["its report has no instruction", "its instruction has 4001 characters, at most 4000"]);
}

#[test]
fn an_edit_that_is_approved_and_healthy_is_promoted() {
    let mut host = host().sample(told("Use °C.")).answers("editor", EDIT).answers("reviewer", APPROVED);
    let wanted = vec![Mutation::put(EntryKind::Rules, "units", r#"{"text":"Use metric units."}"#)];
    assert_eq!(host.propose::<Reefine>(), Ok(Proposal::Mutations(wanted)));
    let (edit, review) = (asked(&host, "editor").concat(), asked(&host, "reviewer").concat());
    assert!(edit.contains("<instruction>\nUse °C.\n</instruction>") && edit.contains("It is 70 °F."), "{edit}");
    assert!(
        review.contains("Use °C.") && review.contains("Use metric units.") && !review.contains("70 °F"),
        "{review}"
    );
    let verdict = host.evaluate::<Reefine>().expect("judges");
    assert_eq!((verdict.decision, verdict.reason.as_str()), (Decision::Promote, "every health task passed"));
    assert_eq!(
        host.calls.iter().filter(|call| matches!(call, Call::Episode { .. })).count(),
        2,
        "the incumbent is not run"
    );
}

#[test]
fn what_review_turns_down_is_edited_once_more_with_its_reason() {
    let mut host = host()
        .sample(told("Use °C."))
        .answers("editor", EDIT)
        .answers("reviewer", DENIED)
        .answers("reviewer", APPROVED);
    assert!(matches!(host.propose::<Reefine>(), Ok(Proposal::Mutations(_))));
    assert!(asked(&host, "editor")[1].contains("not approved in review: it forgets temperatures"));
    for (answer, reason) in
        [(DENIED, "it forgets temperatures"), ("Fine.", "the review cannot be read: the answer holds no JSON object")]
    {
        let mut never = self::host().sample(told("Use °C.")).answers("editor", EDIT).answers("reviewer", answer);
        assert_eq!(skipped(never.propose::<Reefine>()), format!("not approved in review: {reason}"));
        assert_eq!(asked(&never, "editor").len(), 2);
    }
}

#[test]
fn edit_and_review_share_one_budget() {
    let mut host = host().config("max_model_calls_per_step", "1").sample(told("Use °C."));
    host = host.answers("editor", EDIT).answers("reviewer", APPROVED);
    assert_eq!(
        skipped(host.propose::<Reefine>()),
        "the step has made 1 model calls and needs 1 more; max_model_calls_per_step is 1"
    );
    assert!(asked(&host, "reviewer").is_empty());
}

#[test]
fn an_answer_that_cannot_be_used_is_a_reason_and_is_not_reviewed() {
    let hook = r#"{"changes":[{"op":"put","kind":"mcp","id":"x","url":"http://evil"}]}"#;
    let mut host = host().sample(told("Use °C.")).answers("editor", hook).answers("reviewer", APPROVED);
    assert_eq!(skipped(host.propose::<Reefine>()), "the answer changes the kind 'mcp'; it may change rules, skill");
    assert!(asked(&host, "reviewer").is_empty());
}

#[test]
fn what_must_be_granted_waits_for_a_person() {
    let needs = EDIT.replace("\"changes\"", r#""requires":[{"kind":"env","name":"TOKEN","why":"to post"}],"changes""#);
    let mut host = host().sample(told("Post it.")).answers("editor", &needs).answers("reviewer", APPROVED);
    host.propose::<Reefine>().expect("proposes");
    let verdict = host.evaluate::<Reefine>().expect("judges");
    assert_eq!(verdict.decision, Decision::Hold);
    assert_eq!(verdict.reason, "healthy, and waits for a person; it requires env TOKEN (to post)");
    // The next edit requires nothing.
    let mut next = host.config("review", "true");
    next.state.clear();
    assert_eq!(next.evaluate::<Reefine>().expect("judges").reason, "healthy, and waits for a person");
}

#[test]
fn a_candidate_below_the_floor_is_rejected_and_no_score_is_a_miss() {
    let silent = EDIT.replace("Use metric units.", "say nothing");
    let mut host = host().sample(told("Be quiet.")).answers("editor", &silent).answers("reviewer", APPROVED);
    host.propose::<Reefine>().expect("proposes");
    let verdict = host.evaluate::<Reefine>().expect("judges");
    assert_eq!((verdict.decision, verdict.reason.as_str()), (Decision::Reject, "health tasks below 1: health, other"));
    let mut host = self::host().tasks(&["broken", "health"]);
    assert_eq!(host.evaluate::<Reefine>().expect("judges").reason, "health tasks below 1: broken");
    let mut named = host.config("health_tasks", "\"health\"");
    assert_eq!(named.evaluate::<Reefine>().expect("judges").decision, Decision::Promote);
    let verdict = named.config("health_tasks", "\"heart\"").evaluate::<Reefine>().expect("judges");
    assert_eq!(
        (verdict.decision, verdict.reason.as_str()),
        (Decision::Hold, "not tried: the harness has no task 'heart', which health_tasks names")
    );
}

#[test]
fn a_host_without_harness_is_a_reason() {
    let mut none = host().without_harness("not available").sample(told("Use °C."));
    assert_eq!(skipped(none.propose::<Reefine>()), "the harness is not available: harness: not available");
}
