//! The recipe of the README, as an author would write and test it.

use reef_recipe::prelude::*;
use reef_recipe::testing::{Call, FakeHost, FakeSample};
use reef_recipe::{Choice, Decision, Objective, Term};

struct Reinforce;

const BATCH_SIZE: Key<u32> = Key::count("batch_size", 32, "answers per step").within(2.0, 512.0);
const TONE: Key<&str> = Key::text("tone", "plain \"words\"", "unused");
const TURN: Field<u32> = Field::new("turn", "number of the turn");

impl Recipe for Reinforce {
    fn describe() -> Manifest {
        let asks = [Capability::Experience, Capability::Training];
        Manifest::weights("reinforce", "0.1.0").needs_score().asks(&asks).key(BATCH_SIZE).key(TONE).field(TURN)
    }
    fn select(_: &Context, pool: &Pool) -> Result<Selection> {
        Ok(pool.first(BATCH_SIZE.get()?))
    }
    fn propose(_: &Context, batch: &Batch) -> Result<Proposal> {
        let scores = batch.scores()?;
        let mean = maths::mean(&scores);
        let advantages: Vec<f64> = scores.iter().map(|score| score - mean).collect();
        let loss = PolicyGradient::new(Weight::Reinforce, batch.per_token(&advantages)?);
        let trainer = Trainer::open()?;
        trainer.train(batch, loss, Optimizer::adamw(5e-4))?;
        Ok(trainer.checkpoint()?.into())
    }
}

reef_recipe::export!(Reinforce);

fn host() -> FakeHost {
    FakeHost::of::<Reinforce>()
        .sample(FakeSample::scored(1.0).mask(&[1, 0, 1]).field("turn", "3"))
        .sample(FakeSample::scored(0.0))
}

#[test]
fn the_manifest_says_what_the_recipe_reads() {
    let manifest = Reinforce::describe();
    assert_eq!(manifest.capabilities, ["log", "experience", "training", "config"]);
    assert_eq!(manifest.config[0].default_value, "32");
    assert_eq!((manifest.config[0].minimum, manifest.config[0].maximum), (Some(2.0), Some(512.0)));
    assert_eq!((manifest.config[1].minimum, manifest.config[1].maximum), (None, None));
    assert_eq!(manifest.config[1].default_value, r#""plain \"words\"""#);
    assert!(manifest.needs_score && !manifest.report_fields[0].required);
}

#[test]
fn a_recipe_waits_until_its_batch_is_full() {
    assert_eq!(host().select::<Reinforce>().expect("selects").choice, Choice::Wait("2 of 32 samples".into()));
    let choice = host().config("batch_size", "2").select::<Reinforce>().expect("selects").choice;
    assert_eq!(choice, Choice::Train(vec![100, 101]));
}

#[test]
fn a_value_of_the_wrong_type_or_range_names_its_key() {
    for (value, wanted) in [
        ("\"many\"", "batch_size: \"many\" is not a whole number"),
        ("2.5", "batch_size: 2.5 is not a whole number"),
        ("-1", "batch_size: -1 is not a whole number"),
        ("1", "batch_size: 1 is not a whole number from 2 to 512"),
    ] {
        let failure = host().config("batch_size", value).select::<Reinforce>().expect_err("refused");
        assert_eq!(failure, Failure::InvalidConfig(wanted.into()));
    }
    assert!(host().config("batch_size", "2.0e0").select::<Reinforce>().is_ok());
}

#[test]
fn a_batch_is_trained_with_one_advantage_per_token() {
    let mut host = host();
    assert_eq!(host.propose::<Reinforce>(), Ok(Proposal::Weights(9)));
    let [Call::Open, Call::Train { items, terms, .. }, Call::Checkpoint] = host.calls.as_slice() else {
        panic!("{:?}", host.calls);
    };
    assert_eq!(items, &[100, 101]);
    let [Term { factor: 1.0, what: Objective::PolicyGradient(loss) }] = terms.as_slice() else {
        panic!("{terms:?}");
    };
    assert_eq!(loss.advantages, Advantages::PerToken(vec![0.5, 0.5, 0.5, -0.5]));
}

#[test]
fn without_an_opinion_the_gate_decides() {
    assert_eq!(host().evaluate::<Reinforce>().expect("evaluates").decision, Decision::Promote);
}

#[test]
fn state_of_a_failed_call_is_dropped() {
    let mut host = host();
    let written = host.call(|| state::set("n", &1u32).and_then(|()| state::get::<u32>("n")));
    assert_eq!(written, Ok(Some(1)));
    let failed: Result<()> = host.call(|| state::set("n", &2u32).and(Err(Failure::other("gives up"))));
    assert!(failed.is_err());
    assert_eq!(host.call(|| state::get::<u32>("n")), Ok(Some(1)));
    assert!(matches!(host.call(|| state::get::<f64>("n")), Err(Failure::Other(_))));
}

#[test]
fn report_fields_are_typed_and_optional() {
    let mut host = host();
    assert_eq!(host.call(|| TURN.of(100)), Ok(Some(3)));
    assert_eq!(host.call(|| TURN.of(101)), Ok(None));
    assert!(matches!(host.call(|| TURN.of(0)), Err(Failure::Capability(_))));
}

#[test]
fn a_column_of_the_wrong_length_is_refused() {
    let outcome = host().call(|| {
        let column: PerToken<f32> = [vec![1.0]].into_iter().collect();
        let loss = PolicyGradient::new(Weight::Reinforce, column);
        let batch = Batch::from(vec![100, 101]);
        Trainer::open()?.train(&batch, loss, Optimizer::adamw(1e-3))
    });
    assert!(matches!(outcome, Err(Failure::Capability(message)) if message.contains("1 numbers for 4 tokens")));
}

#[test]
fn outside_a_host_the_recipe_says_so() {
    assert!(matches!(BATCH_SIZE.get(), Err(Failure::Other(message)) if message.contains("FakeHost")));
}

#[test]
fn the_recipe_of_the_readme_is_the_one_that_is_built() {
    assert!(include_str!("../README.md").contains(include_str!("../examples/reinforce.rs")));
}
