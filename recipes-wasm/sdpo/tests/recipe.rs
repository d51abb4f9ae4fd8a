//! The recipe against a host in memory: what it selects, asks for, proposes and decides.

use reef_recipe::testing::{Call, FakeHost, FakeSample, Level};
use reef_recipe::{
    Choice, Decision, Distillation, Divergence, Failure, Importance, Message, Objective, Policy, Proposal, Recipe,
    Support, Term,
};
use reef_recipe_sdpo::Sdpo;

const CLOSING: &str = "\n\nNow answer the original request.\nassistant: ";

/// One group of three a step.
fn host() -> FakeHost {
    FakeHost::of::<Sdpo>().config("groups_per_step", "1").config("rollouts_per_group", "3")
}

/// An answer of two tokens to the question of the group.
fn answer(score: f64, text: &str) -> FakeSample {
    FakeSample::scored(score).chat(&[Message::user("3 + 4")]).response_text(text).mask(&[1, 1])
}

fn failed(feedback: &str) -> FakeSample {
    answer(0.0, "8").field("feedback", &reef_recipe::json::quoted(feedback))
}

fn with_feedback(host: FakeHost) -> FakeHost {
    host.config("include_environment_feedback", "true")
}

/// The samples and the only term of the call of `train`.
fn distillation(host: &FakeHost) -> Option<(&[u32], &Distillation)> {
    host.calls.iter().find_map(|call| {
        let Call::Train { items, terms, .. } = call else { return None };
        let [Term { factor: 1.0, what: Objective::Distill(loss) }] = terms.as_slice() else { return None };
        Some((items.as_slice(), loss))
    })
}

fn weights(host: &FakeHost) -> Option<&[f32]> {
    distillation(host).map(|(_, loss)| loss.weights.as_slice())
}

/// The prompts that teachers read, with the sample that each is for. The double has one id a byte.
fn read(host: &FakeHost) -> Vec<(u32, String)> {
    let text = |ids: &[u32]| ids.iter().map(|&id| char::from_u32(id).unwrap_or_default()).collect();
    let derived = host.calls.iter().filter_map(|call| match call {
        Call::Derive { item, prompt: Some(prompt), response: None } => Some((*item, text(prompt))),
        _ => None,
    });
    derived.collect()
}

fn solved(by: &str) -> String {
    format!("user: 3 + 4\n\nA correct answer to this: <solution>{by}</solution>{CLOSING}")
}

fn told(feedback: &str) -> String {
    format!("user: 3 + 4\n\nWhat was said of an earlier attempt: <feedback>{feedback}</feedback>{CLOSING}")
}

#[test]
fn the_manifest_asks_for_what_is_used_and_explains_every_key() {
    let manifest = Sdpo::describe();
    assert_eq!((manifest.name.as_str(), manifest.needs_score), ("sdpo", true));
    assert_eq!(manifest.capabilities, ["log", "config", "experience", "training", "tokens", "metrics", "models"]);
    assert!(manifest.config.iter().all(|key| !key.doc.is_empty()));
    let fields: Vec<_> = manifest.report_fields.iter().map(|field| field.name.as_str()).collect();
    assert_eq!(fields, ["step", "group", "rollout", "feedback"]);
    assert!(manifest.report_fields.iter().all(|field| !field.required));
}

#[test]
fn the_readme_lists_every_key_with_its_default() {
    let readme = include_str!("../README.md");
    for key in Sdpo::describe().config {
        let row = format!("| `{}` | {} | {} |", key.name, key.default_value, key.doc);
        assert!(readme.contains(&row), "the README lacks the row\n{row}");
    }
}

#[test]
fn every_default_is_in_its_own_range() {
    let mut host = (0..8).fold(FakeHost::of::<Sdpo>(), |host, _| host.sample(answer(1.0, "7")));
    assert!(host.select::<Sdpo>().is_ok() && host.evaluate::<Sdpo>().is_ok());
    assert_eq!(host.propose::<Sdpo>(), Ok(Proposal::Weights(9)));
}

#[test]
fn the_whole_grid_is_waited_for() {
    let mut host = host().config("groups_per_step", "2");
    host = (0..5).fold(host, |host, _| host.sample(answer(0.0, "8"))).sample(FakeSample::unscored());
    let selection = host.select::<Sdpo>().expect("selects");
    assert_eq!(selection.choice, Choice::Wait("1 of 2 whole groups of 3; 1 incomplete".into()));
    assert_eq!(selection.retire.len(), 1);
    let selection = host.sample(answer(1.0, "7")).select::<Sdpo>().expect("selects");
    assert!(matches!(&selection.choice, Choice::TrainGroups(groups) if groups.len() == 2), "{selection:?}");
}

#[test]
fn a_group_of_two_requests_or_two_releases_is_retired() {
    let placed = |group: u32, rollout: u32| {
        answer(0.0, "8").field("group", &group.to_string()).field("rollout", &rollout.to_string())
    };
    let mut host = host()
        .config("group_by", r#""report""#)
        .sample(placed(0, 0))
        .sample(placed(0, 1).prompt("another"))
        .sample(placed(1, 0))
        .sample(placed(1, 1).lag(1));
    let selection = host.select::<Sdpo>().expect("selects");
    let reasons: Vec<_> = selection.retire.iter().map(|gone| gone.reason.as_str()).collect();
    let (prompts, releases) = ("step-0-group-0 has 2 different prompts", "step-0-group-1 was sampled by 2 releases");
    assert_eq!(reasons, [prompts, prompts, releases, releases]);
}

#[test]
fn teachers_read_the_first_sibling_that_succeeded() {
    let mut host = host().sample(answer(0.0, "8")).sample(answer(0.5, "<think>!</think>7"));
    host = host.sample(answer(1.0, "seven").lag(3)).measures_training("loss", 0.5);
    assert_eq!(host.propose::<Sdpo>(), Ok(Proposal::Weights(9)));
    assert_eq!(read(&host), [(100, solved("7")), (101, solved("seven")), (102, solved("7"))]);
    let (items, loss) = distillation(&host).expect("distills");
    assert_eq!((items, loss.contexts.as_slice()), (&[100, 101, 102][..], &[1_000_000, 1_000_001, 1_000_002][..]));
    assert_eq!((&loss.teacher, &loss.divergence), (&Policy::Ema, &Divergence::jensen_shannon(0.5)));
    assert_eq!((&loss.support, &loss.importance), (&Support::TopKTail(100), &Importance::Token(2.0)));
    assert_eq!((loss.weights.as_slice(), loss.skip), (&[1.0, 1.0, 1.0][..], 0));
    assert!(host.calls.contains(&Call::UpdateEma(0.05)));
    let told = ["policy/loss", "reward_mean", "success_share", "active_share", "groups_without_success", "lag_max"];
    assert_eq!(told.map(|name| host.metrics[name]), [0.5, 0.5, 2.0 / 3.0, 1.0, 0.0, 3.0]);
}

#[test]
fn an_answer_without_a_teacher_weighs_nothing_but_stays() {
    let mut host = host().sample(answer(0.0, "8")).sample(answer(1.0, "7")).sample(answer(0.0, "9"));
    assert_eq!(host.propose::<Sdpo>(), Ok(Proposal::Weights(9)));
    let (items, loss) = distillation(&host).expect("distills");
    assert_eq!(items, &[100, 101, 102]);
    assert_eq!(loss.weights, [1.0, 0.0, 1.0]);
    // The only success reads its own prompt: it is no sibling of its own.
    assert_eq!(loss.contexts, [1_000_000, 101, 1_000_001]);
    assert!((host.metrics["active_share"] - 2.0 / 3.0).abs() < 1e-12);
}

#[test]
fn feedback_stands_in_where_no_sibling_succeeded() {
    let mut host = with_feedback(host()).sample(failed("too large")).sample(failed(" ")).sample(answer(0.0, "6"));
    assert_eq!(host.propose::<Sdpo>(), Ok(Proposal::Weights(9)));
    assert_eq!(read(&host), [(100, told("too large"))]);
    assert_eq!(weights(&host), Some(&[1.0, 0.0, 0.0][..]));
    assert_eq!(host.metrics["groups_without_success"], 1.0);
}

#[test]
fn feedback_is_read_beside_a_solution_only_when_asked_for() {
    let group = |host: FakeHost| host.sample(failed("too large")).sample(answer(1.0, "7")).sample(answer(0.0, "9"));
    let mut host = group(with_feedback(self::host()));
    host.propose::<Sdpo>().expect("proposes");
    assert_eq!(read(&host), [(100, solved("7")), (102, solved("7"))]);
    let mut host = group(with_feedback(self::host()).config("environment_feedback_only_without_solution", "false"));
    host.propose::<Sdpo>().expect("proposes");
    assert!(read(&host)[0].1.contains("<solution>7</solution>\n\nWhat was said"), "{:?}", read(&host));
    // Without the switch feedback is not read at all.
    let mut host = self::host().sample(failed("a")).sample(failed("b")).sample(failed("c"));
    assert!(matches!(host.propose::<Sdpo>(), Ok(Proposal::Skip(_))));
}

#[test]
fn a_batch_without_any_teacher_is_skipped_and_said_aloud() {
    let mut host = host().sample(answer(0.0, "8")).sample(answer(0.0, "9")).sample(answer(1.0, "<think>7"));
    assert!(matches!(host.propose::<Sdpo>(), Ok(Proposal::Skip(reason)) if reason.contains("nothing to learn from")));
    assert_eq!((host.metrics["active_share"], host.metrics["success_share"]), (0.0, 1.0 / 3.0));
    let [line] = host.logs.as_slice() else { panic!("{:?}", host.logs) };
    assert_eq!((line.level, line.context.as_str()), (Level::Warn, "reef_recipe_sdpo::step"));
    assert!(host.calls.is_empty());
}

#[test]
fn a_teacher_that_would_read_too_much_is_none_and_the_reason_is_logged() {
    let group = |host: FakeHost| host.sample(answer(0.0, "8")).sample(answer(1.0, "7")).sample(answer(1.0, "7777777"));
    let tokens = u32::try_from(solved("7").len() + 2).expect("small");
    let mut host = group(self::host().config("max_teacher_tokens", &tokens.to_string()));
    host.propose::<Sdpo>().expect("proposes");
    assert_eq!(weights(&host), Some(&[1.0, 0.0, 1.0][..]));
    let wanted = format!(
        "an answer has no teacher: its teacher would read {} tokens, max_teacher_tokens is {tokens}",
        tokens + 6
    );
    assert_eq!(host.logs.iter().map(|line| line.message.as_str()).collect::<Vec<_>>(), [wanted]);
    // So is one beyond the context of the model, or of a prompt that is no rendering of the conversation.
    let mut host = group(self::host().context_length(solved("7").len() + 1));
    host.propose::<Sdpo>().expect("proposes");
    assert_eq!(weights(&host), Some(&[1.0, 0.0, 1.0][..]));
    let raw = |score| answer(score, "7").prompt_tokens(&[1, 2, 3]);
    let mut host = self::host().sample(raw(1.0)).sample(raw(1.0)).sample(raw(0.0));
    assert!(matches!(host.propose::<Sdpo>(), Ok(Proposal::Skip(_))));
    assert!(host.logs[0].message.contains("not a rendering"), "{:?}", host.logs);
}

#[test]
fn a_student_that_agrees_with_its_teacher_is_left_alone() {
    let mut host = (0..3).fold(host(), |host, _| host.sample(answer(1.0, "7"))).measures_training("skipped", 1.0);
    assert!(matches!(host.propose::<Sdpo>(), Ok(Proposal::Skip(reason)) if reason.contains("zero")));
}

#[test]
fn a_batch_that_is_not_of_whole_groups_fails_the_step() {
    assert!(matches!(host().sample(answer(1.0, "7")).propose::<Sdpo>(), Err(Failure::Other(_))));
}

#[test]
fn values_out_of_range_name_their_key() {
    let bad = [
        ("groups_per_step", "0"),
        ("rollouts_per_group", "1"),
        ("success_reward_threshold", "true"),
        ("include_environment_feedback", "1"),
        ("environment_feedback_only_without_solution", "null"),
        ("max_teacher_tokens", "0"),
        ("top_k", "0"),
        ("jsd_beta", "0"),
        ("jsd_beta", "1"),
        ("teacher_update_rate", "-0.1"),
        ("importance_sampling_cap", "-1"),
        ("learning_rate", "0"),
        ("gradient_norm_max", "-1"),
    ];
    for (key, value) in bad {
        let failure = host().config(key, value).select::<Sdpo>().expect_err(key);
        assert!(matches!(&failure, Failure::InvalidConfig(message) if message.starts_with(key)), "{failure:?}");
    }
    let mut paper = host().config("groups_per_step", "32").config("rollouts_per_group", "8");
    assert!(paper.select::<Sdpo>().is_ok());
    assert!(matches!(paper.config("groups_per_step", "33").select::<Sdpo>(), Err(Failure::InvalidConfig(_))));
}

#[test]
fn a_candidate_that_lost_more_than_the_tolerance_is_rejected() {
    let mut host = host().held_out("candidate", &[0.5, 0.4]).held_out("served", &[0.5, 0.6]);
    assert_eq!(host.evaluate::<Sdpo>().expect("judges").decision, Decision::Reject);
}
