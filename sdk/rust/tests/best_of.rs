//! The example `best-of`, which exists in every language that has an SDK: these are the numbers that all of them give.

#[path = "../examples/best_of.rs"]
#[expect(unused_attributes, reason = "as an example it is a crate of its own, without the standard library")]
mod best_of;

use best_of::BestOf;
use reef_recipe::testing::{Call, FakeHost, FakeSample, Level};
use reef_recipe::{
    Advantages, Choice, Objective, Optimizer, PolicyGradient, Proposal, Recipe, Retirement, Term, ValueKind, Weight,
};

fn host(scores: &[f64]) -> FakeHost {
    scores.iter().fold(FakeHost::of::<BestOf>(), |host, &score| host.sample(FakeSample::scored(score).mask(&[1, 1])))
}

#[test]
fn the_manifest_is_the_agreed_one() {
    let manifest = BestOf::describe();
    assert_eq!((manifest.name.as_str(), manifest.version.as_str()), ("best-of", "0.1.0"));
    let mut capabilities = manifest.capabilities.clone();
    capabilities.sort();
    assert_eq!(capabilities, ["config", "experience", "log", "metrics", "state", "training"]);
    let keys: Vec<_> = manifest
        .config
        .iter()
        .map(|key| (key.name.as_str(), key.kind, key.default_value.as_str(), key.minimum, key.maximum))
        .collect();
    assert_eq!(
        keys,
        [
            ("batch_size", ValueKind::Number, "4", Some(2.0), Some(512.0)),
            ("learning_rate", ValueKind::Number, "0.0005", None, None)
        ]
    );
    assert!(manifest.needs_score);
}

#[test]
fn samples_without_a_score_are_retired_and_the_rest_waited_for() {
    let selection = host(&[1.0, f64::NAN, 0.0, f64::INFINITY, 1.0]).select::<BestOf>().expect("selects");
    assert_eq!(selection.choice, Choice::Wait("3 of 4 samples".into()));
    assert_eq!(selection.retire, [Retirement::new(101, "no score"), Retirement::new(103, "no score")]);
    let selection = host(&[1.0, f64::NAN, 0.0, 0.5, 1.0, 0.0]).select::<BestOf>().expect("selects");
    assert_eq!(selection.choice, Choice::Train(vec![100, 102, 103, 104]));
}

#[test]
fn a_batch_is_trained_on_what_is_above_its_mean() {
    let mut host = host(&[1.0, 0.0, 0.5, 0.5]);
    assert_eq!(host.propose::<BestOf>(), Ok(Proposal::Weights(9)));
    let [Call::Open, Call::Train { items, terms, optimizer }, Call::Checkpoint] = host.calls.as_slice() else {
        panic!("{:?}", host.calls);
    };
    assert_eq!((items.as_slice(), *optimizer), (&[100, 101, 102, 103][..], Optimizer::adamw(5e-4)));
    let advantages = Advantages::PerSample(vec![0.5, -0.5, 0.0, 0.0]);
    let loss = PolicyGradient::new(Weight::Reinforce, vec![]);
    let wanted = Objective::PolicyGradient(PolicyGradient { advantages, ..loss });
    assert_eq!(terms.as_slice(), [Term { factor: 1.0, what: wanted }]);
    assert_eq!(host.metrics["best_of/mean"], 0.5);
    let line = &host.logs[0];
    let told = (line.level, line.context.as_str(), line.message.as_str());
    assert_eq!(told, (Level::Info, "best-of", "trained on 4 samples"));
}

#[test]
fn a_batch_without_signal_is_counted_and_skipped() {
    let mut host = host(&[0.5, 0.5]);
    for count in 1..=2u32 {
        assert_eq!(host.propose::<BestOf>(), Ok(Proposal::Skip("all scores are equal".into())));
        assert_eq!(host.state["skipped"], count.to_le_bytes());
    }
    assert!(host.calls.is_empty());
}

#[test]
fn a_candidate_is_left_to_the_gate_with_its_handle() {
    let verdict = host(&[]).evaluate::<BestOf>().expect("judges");
    assert_eq!(verdict.reason, "left to the operator's gate");
    assert_eq!((verdict.measurements[0].name.as_str(), verdict.measurements[0].value), ("best_of/candidate", 9.0));
}
