//! The recipe against a host in memory: what it selects, asks for, proposes and decides.

use reef_recipe::testing::{Call, FakeHost, FakeSample};
use reef_recipe::{
    Choice, Decision, Distillation, Divergence, Failure, Importance, Message, Objective, Policy, Proposal, Recipe,
    Support, Term,
};
use reef_recipe_sdft::Sdft;

fn host() -> FakeHost {
    FakeHost::of::<Sdft>().config("context_template", r#""[{demonstration}]""#)
}

/// A request that was answered in three tokens, and how it should have been.
fn shown(question: &str, demonstration: &str) -> FakeSample {
    let asked = FakeSample::unscored().chat(&[Message::user(question)]).mask(&[1, 1, 1]);
    asked.field("demonstration", &reef_recipe::json::quoted(demonstration))
}

fn ids(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// The samples and the only term of the call of `train`.
fn distillation(host: &FakeHost) -> Option<(&[u32], &Distillation)> {
    host.calls.iter().find_map(|call| {
        let Call::Train { items, terms, .. } = call else { return None };
        let [Term { factor: 1.0, what: Objective::Distill(loss) }] = terms.as_slice() else { return None };
        Some((items.as_slice(), loss))
    })
}

#[test]
fn the_manifest_asks_for_what_is_used_and_explains_every_key() {
    let manifest = Sdft::describe();
    assert_eq!((manifest.name.as_str(), manifest.needs_score), ("sdft", false));
    assert_eq!(manifest.capabilities, ["log", "config", "experience", "training", "tokens", "metrics", "models"]);
    assert!(manifest.config.iter().all(|key| !key.doc.is_empty()));
    let [field] = manifest.report_fields.as_slice() else { panic!("{:?}", manifest.report_fields) };
    assert_eq!((field.name.as_str(), field.required), ("demonstration", true));
}

#[test]
fn the_readme_lists_every_key_with_its_default() {
    let readme = include_str!("../README.md");
    for key in Sdft::describe().config {
        let row = format!("| `{}` | {} | {} |", key.name, key.default_value, key.doc);
        assert!(readme.contains(&row), "the README lacks the row\n{row}");
    }
}

#[test]
fn every_default_is_in_its_own_range() {
    let mut host = FakeHost::of::<Sdft>().sample(shown("1 + 2", "3"));
    assert!(host.select::<Sdft>().is_ok() && host.propose::<Sdft>().is_ok() && host.evaluate::<Sdft>().is_ok());
}

#[test]
fn the_first_samples_whose_teacher_can_read_more_make_a_batch() {
    let mut host = host()
        .config("batch_size", "2")
        .config("max_teacher_tokens", "40")
        .sample(FakeSample::unscored().chat(&[Message::user("?")]))
        .sample(shown("1 + 1", "2"))
        .sample(shown("1 + 1", "2").lag(5))
        .sample(shown("1 + 1", "2").references(3))
        .sample(shown("1 + 1", "two, as is well known"))
        .sample(shown("1 + 1", "2").messages(&[]))
        .sample(shown("1 + 1", "2").prompt_tokens(&[1, 2]))
        .sample(shown("1 + 2", "3"));
    let selection = host.select::<Sdft>().expect("selects");
    assert_eq!(selection.choice, Choice::Train(vec![101, 107]));
    let retired: Vec<_> = selection.retire.iter().map(|gone| (gone.sample, gone.reason.as_str())).collect();
    assert_eq!(
        retired,
        [
            (100, "its report has no demonstration"),
            (104, "its teacher would read 51 tokens, max_teacher_tokens is 40"),
            (105, "its request is no conversation that a text can be added to"),
            (106, "its recorded prompt is not a rendering of its conversation"),
            (102, "sampled 5 releases ago, max_staleness is 4"),
            (103, "its report references 3 records; this recipe learns from exactly one"),
        ]
    );
}

#[test]
fn too_few_samples_wait() {
    let selection = host().sample(shown("1 + 1", "2")).select::<Sdft>().expect("selects");
    assert_eq!((selection.choice, selection.retire.len()), (Choice::Wait("1 of 32 samples".into()), 0));
}

#[test]
fn a_step_moves_the_teacher_and_then_the_student_towards_it() {
    let mut host = host().sample(shown("1 + 1", "2")).sample(shown("1 + 2", "3").lag(2));
    host = host.measures_training("loss", 0.5);
    assert_eq!(host.propose::<Sdft>(), Ok(Proposal::Weights(9)));
    let [first, second, Call::Open, Call::UpdateEma(0.01), Call::Train { .. }, Call::Checkpoint] =
        host.calls.as_slice()
    else {
        panic!("{:?}", host.calls);
    };
    let read = |item, text: &str| Call::Derive { item, prompt: Some(ids(text)), response: None };
    assert_eq!(first, &read(100, "user: 1 + 1\n\n[2]\nassistant: "));
    assert_eq!(second, &read(101, "user: 1 + 2\n\n[3]\nassistant: "));
    let (items, loss) = distillation(&host).expect("distills");
    assert_eq!((items, loss.contexts.as_slice()), (&[100, 101][..], &[1_000_000, 1_000_001][..]));
    assert_eq!((&loss.teacher, &loss.divergence), (&Policy::Ema, &Divergence::FORWARD));
    assert_eq!((&loss.support, &loss.importance), (&Support::Exact, &Importance::Sequence(2.0)));
    assert!(loss.weights.is_empty() && loss.skip == 0);
    let told = ["policy/loss", "lag_mean", "lag_max", "context_tokens_mean"].map(|name| host.metrics[name]);
    assert_eq!(told, [0.5, 1.0, 2.0, 5.0]);
}

#[test]
fn importance_can_be_off_and_the_first_tokens_can_be_skipped() {
    let host = host().config("importance_sampling_cap", "0").config("skip_response_tokens", "3");
    let mut host = host.config("teacher_update_rate", "0").sample(shown("1 + 1", "2"));
    host.propose::<Sdft>().expect("proposes");
    assert!(host.calls.contains(&Call::UpdateEma(0.0)));
    let (_, loss) = distillation(&host).expect("distills");
    assert_eq!((&loss.importance, loss.skip), (&Importance::Off, 3));
}

#[test]
fn a_demonstration_cannot_bring_its_own_placeholder() {
    let mut host = host().sample(shown("q", "{demonstration} and more"));
    host.propose::<Sdft>().expect("proposes");
    let read = ids("user: q\n\n[{demonstration} and more]\nassistant: ");
    assert_eq!(host.calls[0], Call::Derive { item: 100, prompt: Some(read), response: None });
}

#[test]
fn a_student_that_agrees_with_its_teacher_is_left_alone() {
    let mut host = host().sample(shown("1 + 1", "2")).measures_training("skipped", 1.0);
    assert!(matches!(host.propose::<Sdft>(), Ok(Proposal::Skip(reason)) if reason.contains("zero")));
}

#[test]
fn values_out_of_range_name_their_key() {
    let bad = [
        ("batch_size", "241"),
        ("context_template", r#""no place""#),
        ("max_teacher_tokens", "0"),
        ("teacher_update_rate", "1.1"),
        ("importance_sampling_cap", "-1"),
        ("skip_response_tokens", "0.5"),
        ("learning_rate", "0"),
        ("gradient_norm_max", "-1"),
    ];
    for (key, value) in bad {
        for failure in [
            host().config(key, value).sample(shown("1", "1")).propose::<Sdft>().expect_err(key),
            host().config(key, value).select::<Sdft>().expect_err(key),
        ] {
            assert!(matches!(&failure, Failure::InvalidConfig(message) if message.starts_with(key)), "{failure:?}");
        }
    }
}

#[test]
fn a_candidate_that_lost_more_than_the_tolerance_is_rejected() {
    let mut host = host().held_out("candidate", &[0.5, 0.4]).held_out("served", &[0.5, 0.6]);
    assert_eq!(host.evaluate::<Sdft>().expect("judges").decision, Decision::Reject);
}
