//! The recipe against a host in memory: what it selects, asks for, proposes and decides.

use reef_recipe::testing::{Call, FakeHost, FakeSample};
use reef_recipe::{Choice, Decision, Failure, Message, Objective, Proposal, Recipe, Term};
use reef_recipe_sft::Sft;

fn host() -> FakeHost {
    FakeHost::of::<Sft>()
}

/// A request that was answered, and how it should have been.
fn shown(question: &str, demonstration: &str) -> FakeSample {
    let asked = FakeSample::unscored().chat(&[Message::system("Add."), Message::user(question)]);
    asked.field("demonstration", &reef_recipe::json::quoted(demonstration))
}

fn ids(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

#[test]
fn the_manifest_asks_for_what_is_used_and_explains_every_key() {
    let manifest = Sft::describe();
    assert_eq!((manifest.name.as_str(), manifest.needs_score), ("sft", false));
    let asked = ["log", "config", "experience", "training", "tokens", "metrics", "models"];
    assert_eq!(manifest.capabilities, asked);
    assert!(manifest.config.iter().all(|key| !key.doc.is_empty()));
    let [field] = manifest.report_fields.as_slice() else { panic!("{:?}", manifest.report_fields) };
    assert_eq!((field.name.as_str(), field.required), ("demonstration", true));
}

#[test]
fn the_readme_lists_every_key_with_its_default() {
    let readme = include_str!("../README.md");
    for key in Sft::describe().config {
        let row = format!("| `{}` | {} | {} |", key.name, key.default_value, key.doc);
        assert!(readme.contains(&row), "the README lacks the row\n{row}");
    }
}

#[test]
fn every_default_is_in_its_own_range() {
    let mut host = host().sample(shown("1 + 2", "3"));
    assert!(host.select::<Sft>().is_ok() && host.propose::<Sft>().is_ok() && host.evaluate::<Sft>().is_ok());
}

#[test]
fn the_first_samples_that_can_be_learned_from_make_a_batch() {
    let mut host = host()
        .config("batch_size", "2")
        .config("answer_tokens_max", "4")
        .sample(FakeSample::unscored().chat(&[Message::user("?")]))
        .sample(shown("1 + 1", "2"))
        .sample(shown("1 + 1", "2").lag(5))
        .sample(shown("1 + 1", "2").references(3))
        .sample(shown("1 + 1", "two!"))
        .sample(shown("", "2").messages(&[]))
        .sample(shown("1 + 2", "3"))
        .sample(shown("1 + 3", "4"));
    let selection = host.select::<Sft>().expect("selects");
    assert_eq!(selection.choice, Choice::Train(vec![101, 106]));
    let retired: Vec<_> = selection.retire.iter().map(|gone| (gone.sample, gone.reason.as_str())).collect();
    assert_eq!(
        retired,
        [
            (100, "its report has no demonstration"),
            (104, "its demonstration has 5 tokens, answer_tokens_max is 4"),
            (105, "its request is no conversation that could be answered"),
            (102, "sampled 5 releases ago, max_staleness is 4"),
            (103, "its report references 3 records; this recipe learns from exactly one"),
        ]
    );
}

#[test]
fn what_is_beyond_the_context_is_retired_unless_everything_is() {
    let one = |tokens| host().config("batch_size", "1").context_length(tokens);
    for (question, demonstration, reason) in [
        ("1 + 1".to_owned(), "2".repeat(60), "its demonstrated answer has no ids: "),
        ("1".repeat(60), "2".to_owned(), "its request has no ids: "),
    ] {
        let selection = one(60).sample(shown(&question, &demonstration)).select::<Sft>().expect("selects");
        assert!(matches!(&selection.choice, Choice::Wait(_)));
        assert!(selection.retire[0].reason.starts_with(reason), "{selection:?}");
    }
    let failure = one(5).sample(shown("1 + 1", "2")).select::<Sft>().expect_err("no conversation fits");
    assert!(matches!(failure, Failure::Capability(_)));
}

#[test]
fn too_few_samples_wait() {
    let selection = host().sample(shown("1 + 1", "2")).select::<Sft>().expect("selects");
    assert_eq!((selection.choice, selection.retire.len()), (Choice::Wait("1 of 32 samples".into()), 0));
}

#[test]
fn a_step_trains_the_demonstrated_answers_on_the_recorded_prompts() {
    let mut host = host().sample(shown("1 + 1", "2")).sample(shown("1 + 2", "three")).measures_training("loss", 1.5);
    assert_eq!(host.propose::<Sft>(), Ok(Proposal::Weights(9)));
    let [first, second, Call::Open, Call::Forward { .. }, train, Call::Checkpoint] = host.calls.as_slice() else {
        panic!("{:?}", host.calls);
    };
    let derived = |item, text: &str| Call::Derive { item, prompt: None, response: Some(ids(text)) };
    // The template of the double ends a turn with a line break.
    assert_eq!((first, second), (&derived(100, "2\n"), &derived(101, "three\n")));
    let Call::Train { items, terms, optimizer } = train else { panic!("{train:?}") };
    assert_eq!(items, &[1_000_000, 1_000_001]);
    assert!(matches!(terms.as_slice(), [Term { factor: 1.0, what: Objective::Nll }]));
    assert_eq!((optimizer.learning_rate, optimizer.gradient_norm_max), (5e-4, 1.0));
    assert_eq!((host.metrics["policy/loss"], host.metrics["demonstration_tokens"]), (1.5, 8.0));
}

#[test]
fn a_batch_that_moves_nothing_is_skipped() {
    let mut host = host().sample(shown("1 + 1", "2")).measures_training("skipped", 1.0);
    assert!(matches!(host.propose::<Sft>(), Ok(Proposal::Skip(reason)) if reason.contains("zero")));
}

#[test]
fn values_out_of_range_name_their_key() {
    for (key, value) in [("learning_rate", "0"), ("weight_decay", "-1"), ("gradient_norm_max", "-1")] {
        let failure = host().config(key, value).sample(shown("1", "1")).propose::<Sft>().expect_err(key);
        assert!(matches!(&failure, Failure::InvalidConfig(message) if message.starts_with(key)), "{failure:?}");
    }
    for (key, value) in [("batch_size", "0"), ("batch_size", "241"), ("answer_tokens_max", "0")] {
        let failure = host().config(key, value).select::<Sft>().expect_err(key);
        assert!(matches!(&failure, Failure::InvalidConfig(message) if message.starts_with(key)), "{failure:?}");
    }
}

#[test]
fn a_candidate_that_lost_more_than_the_tolerance_is_rejected() {
    let mut host = host().held_out("candidate", &[0.5, 0.4]).held_out("served", &[0.5, 0.6]);
    assert_eq!(host.evaluate::<Sft>().expect("judges").decision, Decision::Reject);
}
