//! The recipe against a host in memory: what it selects, asks for, proposes and decides.

use reef_recipe::testing::{Call, FakeHost, FakeSample};
use reef_recipe::{
    Choice, Decision, Divergence, Failure, Importance, Objective, Policy, Proposal, Recipe, Support, Term,
};
use reef_recipe_opd::Opd;

fn host() -> FakeHost {
    FakeHost::of::<Opd>()
}

#[test]
fn the_manifest_asks_for_what_is_used_and_explains_every_key() {
    let manifest = Opd::describe();
    assert_eq!((manifest.name.as_str(), manifest.needs_score), ("opd", false));
    assert_eq!(manifest.capabilities, ["log", "config", "experience", "training", "metrics", "models"]);
    assert!(manifest.config.iter().all(|key| !key.doc.is_empty()) && manifest.report_fields.is_empty());
}

#[test]
fn the_readme_lists_every_key_with_its_default() {
    let readme = include_str!("../README.md");
    for key in Opd::describe().config {
        let row = format!("| `{}` | {} | {} |", key.name, key.default_value, key.doc);
        assert!(readme.contains(&row), "the README lacks the row\n{row}");
    }
}

#[test]
fn every_default_is_in_its_own_range() {
    let mut host = host().sample(FakeSample::unscored());
    assert!(host.select::<Opd>().is_ok() && host.propose::<Opd>().is_ok() && host.evaluate::<Opd>().is_ok());
}

#[test]
fn any_fresh_answer_is_used_and_stale_ones_are_retired() {
    let mut host = host()
        .config("batch_size", "2")
        .sample(FakeSample::unscored().lag(5))
        .sample(FakeSample::unscored().references(3))
        .sample(FakeSample::scored(0.0).lag(4))
        .sample(FakeSample::unscored());
    let selection = host.select::<Opd>().expect("selects");
    assert_eq!(selection.choice, Choice::Train(vec![101, 102]));
    let retired: Vec<_> = selection.retire.iter().map(|gone| (gone.sample, gone.reason.as_str())).collect();
    assert_eq!(retired, [(100, "sampled 5 releases ago, max_staleness is 4")]);
}

#[test]
fn too_few_samples_wait() {
    let selection = host().sample(FakeSample::unscored()).select::<Opd>().expect("selects");
    assert_eq!(selection.choice, Choice::Wait("1 of 32 samples".into()));
}

#[test]
fn a_step_moves_towards_the_named_teacher_on_the_sampled_tokens() {
    let mut host = host()
        .config("teacher", r#""large""#)
        .sample(FakeSample::unscored().mask(&[1, 0, 1]))
        .sample(FakeSample::unscored().lag(2))
        .measures_training("loss", 0.25);
    assert_eq!(host.propose::<Opd>(), Ok(Proposal::Weights(9)));
    let [Call::Open, Call::Train { items, terms, optimizer }, Call::Checkpoint] = host.calls.as_slice() else {
        panic!("{:?}", host.calls);
    };
    let [Term { factor: 1.0, what: Objective::Distill(loss) }] = terms.as_slice() else { panic!("{terms:?}") };
    assert_eq!(items, &[100, 101]);
    assert_eq!(loss.teacher, Policy::Named("large".into()));
    assert_eq!((&loss.divergence, &loss.support), (&Divergence::REVERSE, &Support::Sampled));
    assert!(matches!(loss.importance, Importance::Off));
    assert!(loss.contexts.is_empty() && loss.weights.is_empty() && loss.skip == 0);
    assert_eq!((optimizer.learning_rate, optimizer.gradient_norm_max), (5e-4, 1.0));
    let told = ["policy/loss", "lag_mean", "lag_max"].map(|name| host.metrics[name]);
    assert_eq!(told, [0.25, 1.0, 2.0]);
}

#[test]
fn a_student_that_agrees_with_its_teacher_is_left_alone() {
    let mut host = host().sample(FakeSample::unscored()).measures_training("skipped", 1.0);
    assert!(matches!(host.propose::<Opd>(), Ok(Proposal::Skip(reason)) if reason.contains("zero")));
}

#[test]
fn values_out_of_range_name_their_key() {
    for (key, value) in [("learning_rate", "0"), ("gradient_norm_max", "-1"), ("teacher", r#"" ""#)] {
        let failure = host().config(key, value).sample(FakeSample::unscored()).propose::<Opd>().expect_err(key);
        assert!(matches!(&failure, Failure::InvalidConfig(message) if message.starts_with(key)), "{failure:?}");
    }
    assert!(matches!(host().config("batch_size", "513").select::<Opd>(), Err(Failure::InvalidConfig(_))));
}

#[test]
fn a_candidate_that_lost_more_than_the_tolerance_is_rejected() {
    let mut host = host().held_out("candidate", &[0.5, 0.4]).held_out("served", &[0.5, 0.6]);
    assert_eq!(host.evaluate::<Opd>().expect("judges").decision, Decision::Reject);
}
