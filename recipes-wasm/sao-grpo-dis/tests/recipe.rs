//! The recipe against a host in memory: what it selects, asks for, proposes and decides.

use reef_recipe::testing::{Call, FakeHost, FakeSample, Level};
use reef_recipe::{
    Advantages, Bounds, Choice, Decision, Failure, Objective, Proposal, RatioSource, Recipe, Reduction, Term, Weight,
};
use reef_recipe_sao_grpo_dis::SaoGrpoDis;

/// Two groups of two a step.
fn host() -> FakeHost {
    FakeHost::of::<SaoGrpoDis>().config("groups_per_step", "2").config("rollouts_per_group", "2")
}

fn answers(host: FakeHost, scores: &[f64]) -> FakeHost {
    scores.iter().fold(host, |host, &score| host.sample(FakeSample::scored(score)))
}

/// An answer with its place, as a report tells it.
fn placed(score: f64, group: u32, rollout: u32) -> FakeSample {
    FakeSample::scored(score).field("group", &group.to_string()).field("rollout", &rollout.to_string())
}

/// Names and slots of the chosen groups; none if it waits.
fn names(choice: &Choice) -> Vec<(&str, &[u32])> {
    let groups = if let Choice::TrainGroups(groups) = choice { groups.as_slice() } else { &[] };
    groups.iter().map(|group| (group.name.as_str(), group.slots.as_slice())).collect()
}

#[test]
fn the_manifest_asks_for_what_is_used_and_explains_every_key() {
    let manifest = SaoGrpoDis::describe();
    assert_eq!((manifest.name.as_str(), manifest.needs_score), ("sao-grpo-dis", true));
    assert_eq!(manifest.capabilities, ["log", "config", "experience", "training", "metrics", "models"]);
    assert!(manifest.config.iter().all(|key| !key.doc.is_empty()));
    let fields: Vec<_> = manifest.report_fields.iter().map(|field| (field.name.as_str(), field.required)).collect();
    assert_eq!(fields, [("step", false), ("group", false), ("rollout", false)]);
}

#[test]
fn the_readme_lists_every_key_with_its_default() {
    let readme = include_str!("../README.md");
    for key in SaoGrpoDis::describe().config {
        let row = format!("| `{}` | {} | {} |", key.name, key.default_value, key.doc);
        assert!(readme.contains(&row), "the README lacks the row\n{row}");
    }
}

#[test]
fn every_default_is_in_its_own_range() {
    let mut host = answers(FakeHost::of::<SaoGrpoDis>(), &[1.0; 8]);
    assert!(host.select::<SaoGrpoDis>().is_ok() && host.propose::<SaoGrpoDis>().is_ok());
    assert!(host.evaluate::<SaoGrpoDis>().is_ok());
}

#[test]
fn whole_groups_of_one_prompt_and_one_release_make_a_batch() {
    let of = |prompt: &str, lag| FakeSample::scored(1.0).prompt(prompt).lag(lag);
    let mut host = host().sample(of("a", 0)).sample(of("b", 1)).sample(of("a", 1)).sample(of("b", 1));
    let selection = host.select::<SaoGrpoDis>().expect("selects");
    assert_eq!(selection.choice, Choice::Wait("1 of 2 whole groups of 2; 2 incomplete".into()));
    assert!(selection.retire.is_empty(), "an incomplete group waits");
    let selection = host.sample(of("a", 0)).select::<SaoGrpoDis>().expect("selects");
    let chosen: Vec<_> = names(&selection.choice).into_iter().map(|(_, slots)| slots.to_vec()).collect();
    assert_eq!(chosen, [[101, 103], [100, 104]]);
}

#[test]
fn an_incomplete_group_is_retired_once_it_is_stale() {
    let mut host = host().sample(FakeSample::scored(1.0).lag(5)).sample(FakeSample::unscored());
    let selection = host.select::<SaoGrpoDis>().expect("selects");
    let reasons: Vec<_> = selection.retire.iter().map(|gone| gone.reason.as_str()).collect();
    assert_eq!(reasons, ["sampled 5 releases ago, max_staleness is 4", "its report has no score"]);
    assert_eq!(selection.choice, Choice::Wait("0 of 2 whole groups of 2; 0 incomplete".into()));
}

#[test]
fn reports_may_say_which_group_an_answer_belongs_to() {
    let mut host = host()
        .config("group_by", r#""report""#)
        .sample(placed(1.0, 7, 1))
        .sample(placed(1.0, 4, 0).lag(1))
        .sample(placed(0.0, 4, 1).lag(2))
        .sample(placed(0.0, 7, 0))
        .sample(placed(0.0, 2, 0))
        .sample(placed(0.0, 2, 1));
    let selection = host.select::<SaoGrpoDis>().expect("selects");
    assert_eq!(names(&selection.choice), [("step-0-group-2", &[104, 105][..]), ("step-0-group-7", &[103, 100][..])]);
    let retired: Vec<_> = selection.retire.iter().map(|gone| (gone.sample, gone.reason.as_str())).collect();
    let reason = "step-0-group-4 was sampled by 2 releases";
    assert_eq!(retired, [(101, reason), (102, reason)]);
}

#[test]
fn a_step_credits_answers_with_their_distance_to_the_group() {
    let mut host = answers(host(), &[1.0, 0.0, 0.25, 0.75]).measures_training("masked_share", 0.125);
    assert_eq!(host.propose::<SaoGrpoDis>(), Ok(Proposal::Weights(9)));
    let [Call::Open, Call::Train { items, terms, optimizer }, Call::Checkpoint] = host.calls.as_slice() else {
        panic!("{:?}", host.calls);
    };
    assert_eq!(items, &[100, 101, 102, 103]);
    let [Term { factor: 1.0, what: Objective::PolicyGradient(loss) }] = terms.as_slice() else { panic!("{terms:?}") };
    assert_eq!(loss.advantages, Advantages::PerSample(vec![1.0, -1.0, -1.0, 1.0]));
    assert_eq!(loss.weight, Weight::Masked(Bounds { low: 0.7, high: 6.0 }));
    assert_eq!((loss.reduction, loss.old), (Reduction::SampleTokenMean, RatioSource::Rollout));
    assert!(loss.kl.is_none() && loss.entropy == 0.0 && !loss.score_centering);
    assert_eq!((optimizer.learning_rate, optimizer.gradient_norm_max), (5e-4, 1.0));
    let told = ["pg_clipfrac", "reward_mean", "advantage_abs_mean", "constant_groups"].map(|name| host.metrics[name]);
    assert_eq!(told, [0.125, 0.5, 1.0, 0.0]);
}

#[test]
fn advantages_may_stay_in_points() {
    let mut host = answers(host(), &[1.0, 0.0, 0.25, 0.75]).config("divide_by_std", "false");
    host.propose::<SaoGrpoDis>().expect("proposes");
    let Call::Train { terms, .. } = &host.calls[1] else { panic!("{:?}", host.calls) };
    let [Term { what: Objective::PolicyGradient(loss), .. }] = terms.as_slice() else { panic!("{terms:?}") };
    assert_eq!(loss.advantages, Advantages::PerSample(vec![0.5, -0.5, -0.25, 0.25]));
}

#[test]
fn constant_groups_are_left_out_and_counted() {
    let mut host = answers(host(), &[1.0, 1.0, 0.0, 1.0]);
    assert_eq!(host.propose::<SaoGrpoDis>(), Ok(Proposal::Weights(9)));
    assert!(matches!(&host.calls[1], Call::Train { items, .. } if items == &[102, 103]));
    assert_eq!(host.metrics["constant_groups"], 1.0);
}

#[test]
fn a_batch_of_constant_groups_is_skipped_and_said_aloud() {
    let mut host = answers(host(), &[1.0, 1.0, 0.0, 0.0]);
    assert!(matches!(host.propose::<SaoGrpoDis>(), Ok(Proposal::Skip(reason)) if reason.contains("equal scores")));
    assert_eq!((host.metrics["zero_advantage_batch"], host.metrics["constant_groups"]), (1.0, 2.0));
    let [line] = host.logs.as_slice() else { panic!("{:?}", host.logs) };
    assert_eq!((line.level, line.context.as_str()), (Level::Warn, "reef_recipe_sao_grpo_dis::step"));
    assert!(host.calls.is_empty());
}

#[test]
fn a_batch_that_is_not_of_whole_groups_fails_the_step() {
    assert!(matches!(answers(host(), &[1.0, 0.0, 1.0]).propose::<SaoGrpoDis>(), Err(Failure::Other(_))));
}

#[test]
fn values_out_of_range_name_their_key() {
    let bad = [
        ("groups_per_step", "0"),
        ("rollouts_per_group", "1"),
        ("eps_low", "0"),
        ("eps_high", "0"),
        ("policy_lr", "0"),
        ("gradient_norm_max", "-1"),
        ("divide_by_std", "1"),
    ];
    for (key, value) in bad {
        let failure = answers(host(), &[1.0, 0.0]).config(key, value).propose::<SaoGrpoDis>().expect_err(key);
        assert!(matches!(&failure, Failure::InvalidConfig(message) if message.starts_with(key)), "{failure:?}");
    }
    let failure = host().config("groups_per_step", "257").select::<SaoGrpoDis>().expect_err("514 samples");
    assert_eq!(
        failure,
        Failure::InvalidConfig("groups_per_step: 257 times 2 rollouts_per_group is more than 512".into())
    );
    let failure = host().config("group_by", r#""tag""#).select::<SaoGrpoDis>().expect_err("no such way");
    assert!(matches!(failure, Failure::InvalidConfig(message) if message.starts_with("group_by")));
}

#[test]
fn a_candidate_that_lost_more_than_the_tolerance_is_rejected() {
    let mut host = host().held_out("candidate", &[0.5, 0.4]).held_out("served", &[0.5, 0.6]);
    assert_eq!(host.evaluate::<SaoGrpoDis>().expect("judges").decision, Decision::Reject);
}
