//! The recipe against a host in memory: what it selects, tries, keeps, proposes and decides. The agent of these tests
//! solves a task iff a rule of the tree names it.

use reef_recipe::harness::{Episode, EpisodeStatus};
use reef_recipe::testing::{Call, FakeHost, FakeSample};
use reef_recipe::{Choice, Decision, Entry, EntryKind, Failure, Mutation, Proposal, Recipe};
use reef_recipe_gepa::Gepa;

const TASKS: [&str; 4] = ["alpha", "beta", "gamma", "delta"];

fn rules(text: &str) -> Entry {
    Entry {
        id: "style".into(),
        kind: EntryKind::Rules,
        config: format!("{{\"text\":{}}}", reef_recipe::json::quoted(text)),
    }
}

/// 1 if the rules name the task, else 0.
fn play(entries: &[Entry], task: &str, _: u32) -> Episode {
    let solved = entries.iter().any(|entry| entry.config.contains(task));
    Episode { trace: format!("tried {task}"), ..Episode::scored(f64::from(u8::from(solved))) }
}

fn answer(text: &str) -> String {
    format!("The rules do not say how.\n```\n{text}\n```")
}

fn host() -> FakeHost {
    FakeHost::of::<Gepa>().entry(rules("Be brief.")).tasks(&TASKS).plays(play)
}

fn failed() -> FakeSample {
    FakeSample::scored(0.0).response_text("I cannot.").field("feedback", "\"say how\"")
}

fn episodes(host: &FakeHost) -> usize {
    host.calls.iter().filter(|call| matches!(call, Call::Episode { .. })).count()
}

fn asked(host: &FakeHost) -> Vec<String> {
    let chat = host.calls.iter().filter_map(|call| match call {
        Call::Chat { requests, .. } => Some(requests[0].messages[1].content.clone()),
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
fn the_manifest_asks_for_what_is_used_and_explains_every_key() {
    let manifest = Gepa::describe();
    assert_eq!((manifest.name.as_str(), manifest.needs_score), ("gepa", true));
    assert_eq!(manifest.capabilities, ["log", "config", "experience", "models", "harness", "state", "metrics"]);
    assert!(manifest.config.iter().all(|key| !key.doc.is_empty()));
    assert!(manifest.report_fields.iter().all(|field| !field.required));
}

#[test]
fn the_readme_lists_every_key_with_its_default() {
    let readme = include_str!("../README.md");
    for key in Gepa::describe().config {
        let row = format!("| `{}` | {} | {} |", key.name, key.default_value, key.doc);
        assert!(readme.contains(&row), "the README lacks the row\n{row}");
    }
}

#[test]
fn scored_answers_begin_a_step_and_scores_that_no_episode_has_are_retired() {
    let mut host = host().sample(failed()).sample(FakeSample::scored(2.0)).sample(FakeSample::unscored());
    let selection = host.select::<Gepa>().expect("selects");
    assert_eq!(selection.choice, Choice::Wait("1 of 3 samples".into()));
    let reasons: Vec<_> = selection.retire.iter().map(|gone| gone.reason.as_str()).collect();
    assert_eq!(reasons, ["its report has no score", "its score 2 is not in [0, 1], as episodes' are"]);
    let selection = host.sample(failed()).sample(failed()).select::<Gepa>().expect("selects");
    assert_eq!(selection.choice, Choice::Train(vec![100, 103, 104]));
}

#[test]
fn a_child_that_does_better_is_validated_proposed_and_promoted() {
    let new = "Be brief. alpha, beta, gamma and delta need care.";
    let mut host = host().sample(failed()).answers("reflection", &answer(new));
    let Ok(Proposal::Mutations(changes)) = host.propose::<Gepa>() else { panic!("{:?}", host.state) };
    assert_eq!(changes, [Mutation::Put(rules(new))]);
    // Two validation and two training tasks of the parent, then of the child.
    assert_eq!((episodes(&host), host.metrics["metric_calls"]), (8, 8.0));
    let read = asked(&host);
    assert!(read[0].contains("tried alpha") && read[0].contains("feedback: say how"), "{read:?}");
    assert!(!read[0].contains("tried beta"), "beta is for validation: {read:?}");
    let verdict = host.evaluate::<Gepa>().expect("judges");
    assert_eq!(
        (verdict.decision, verdict.reason.as_str()),
        (Decision::Promote, "validation 0.0000 → 1.0000; sign test p = 0.250")
    );
    // Released, it is the parent that is perfect.
    host.release_candidate().expect("applies");
    assert_eq!(skipped(host.propose::<Gepa>()), "candidate 1 is perfect on its minibatch");
    assert_eq!(episodes(&host), 8, "all its scores are known");
}

#[test]
fn a_child_that_is_not_strictly_better_on_the_minibatch_is_forgotten() {
    let mut host = host().sample(failed()).answers("reflection", &answer("beta and gamma need care."));
    assert_eq!(skipped(host.propose::<Gepa>()), "the child scores 0 on the minibatch, its parent 0");
    assert_eq!((host.metrics["candidates"], episodes(&host)), (1.0, 6));
}

#[test]
fn a_child_that_only_trains_well_joins_the_archive_but_is_not_served() {
    let mut host = host().sample(failed()).answers("reflection", &answer("alpha needs care."));
    let told = "candidate 1 joins the archive; validation 0.0000, what serves has 0.0000";
    assert_eq!(skipped(host.propose::<Gepa>()), told);
    assert_eq!((host.metrics["candidates"], host.metrics["pareto_candidates"]), (2.0, 1.0));
}

#[test]
fn traffic_that_tried_a_training_task_is_free_and_a_validation_task_is_not_learned_from() {
    let of =
        |task: &str| failed().response_text(&format!("live {task}")).field("task", &reef_recipe::json::quoted(task));
    let mut host = host().config("minibatch_size", "2").answers("reflection", &answer("alpha, delta."));
    host = host.sample(of("alpha")).sample(of("delta")).sample(of("beta"));
    assert!(skipped(host.propose::<Gepa>()).starts_with("candidate 1 joins"));
    // The parent's two validation tasks; the child's two training and two validation tasks.
    assert_eq!(episodes(&host), 6);
    let read = asked(&host).concat();
    assert!(read.contains("live alpha") && read.contains("live delta") && !read.contains("live beta"), "{read}");
}

#[test]
fn answers_that_cannot_be_used_are_reasons_and_components_take_turns() {
    let second = Entry { id: "zeal".into(), ..rules("Try.") };
    let mut host = host().entry(second).sample(failed());
    host = host.answers("reflection", "I would rather not.").answers("reflection", &answer("Be brief."));
    assert_eq!(skipped(host.propose::<Gepa>()), "the answer has no text between ``` fences");
    assert_eq!(skipped(host.propose::<Gepa>()), "the child scores 0 on the minibatch, its parent 0");
    let read = asked(&host);
    assert!(read[0].starts_with("The text rules/style:") && read[1].starts_with("The text rules/zeal:"), "{read:?}");
}

#[test]
fn a_text_that_changes_nothing_is_not_tried() {
    let mut host = host().sample(failed()).answers("reflection", &answer("Be brief."));
    assert_eq!(skipped(host.propose::<Gepa>()), "the new text of rules/style makes candidate 0 again");
}

#[test]
fn a_search_stops_at_its_budget_and_goes_on_when_it_grows() {
    let new = "alpha, beta, gamma, delta";
    let mut host = host().config("max_metric_calls", "3").sample(failed()).answers("reflection", &answer(new));
    assert_eq!(skipped(host.propose::<Gepa>()), "the search has used its 3 metric calls");
    assert_eq!((episodes(&host), host.metrics["metric_calls"]), (3, 3.0));
    let waits = host.select::<Gepa>().expect("waits");
    assert_eq!(waits.choice, Choice::Wait("the search has used its 3 metric calls".into()));
    host = host.config("max_metric_calls", "8");
    assert!(matches!(host.propose::<Gepa>(), Ok(Proposal::Mutations(_))));
    assert_eq!(episodes(&host), 8, "what was known is not tried again");
}

#[test]
fn a_machine_that_fails_is_no_score_of_zero() {
    fn broken(_: &[Entry], _: &str, _: u32) -> Episode {
        Episode { status: EpisodeStatus::InfrastructureFailed, ..Episode::scored(0.0) }
    }
    let mut host = host().plays(broken).sample(failed()).answers("reflection", &answer("alpha"));
    assert_eq!(skipped(host.propose::<Gepa>()), "no task of the minibatch gave a score to both");
}

#[test]
fn a_host_without_harness_tasks_or_texts_is_a_reason() {
    let mut none = host().without_harness("not available").sample(failed());
    assert_eq!(skipped(none.propose::<Gepa>()), "the harness is not available: harness: not available");
    let mut one = host().tasks(&["alpha"]).sample(failed());
    assert!(skipped(one.propose::<Gepa>()).starts_with("the harness has one task"));
    let mut empty = FakeHost::of::<Gepa>().tasks(&TASKS).plays(play).sample(failed());
    assert_eq!(skipped(empty.propose::<Gepa>()), "the tree has no entry of the kinds rules, skill to work on");
}

#[test]
fn a_candidate_that_the_archive_does_not_know_is_rejected() {
    assert_eq!(host().evaluate::<Gepa>().expect("judges").decision, Decision::Reject);
}

#[test]
fn a_binding_that_is_not_there_fails_the_call_and_keeps_the_state() {
    let mut host = host().sample(failed());
    assert!(matches!(host.propose::<Gepa>(), Err(Failure::Capability(_))));
    assert!(host.state.is_empty());
}
