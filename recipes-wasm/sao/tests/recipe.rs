//! The recipe against a host in memory: what it selects, asks for, proposes and decides.

use reef_recipe::testing::{Call, FakeHost, FakeSample, Level};
use reef_recipe::{
    Advantages, Bounds, Choice, Decision, Failure, KlPenalty, Objective, PolicyGradient, Proposal, RatioSource, Recipe,
    Reduction, Term, Weight,
};
use reef_recipe_sao::Sao;

fn host() -> FakeHost {
    FakeHost::of::<Sao>().config("critic_warmup_steps", "0")
}

/// The worked example of the golden numbers, and a failed answer that the critic foresaw in part.
fn two() -> FakeHost {
    host()
        .sample(FakeSample::scored(1.0).mask(&[1, 1, 0, 1, 1]).values(&[0.2, 0.3, 9.0, 0.5, 0.4]).lag(3))
        .sample(FakeSample::scored(0.0).values(&[0.25]))
}

/// The only term of a call of `train`, with its advantages, which are per token.
fn policy_gradient(call: &Call) -> Option<(&PolicyGradient, &[f32])> {
    let Call::Train { terms, .. } = call else { return None };
    let [Term { factor: 1.0, what: Objective::PolicyGradient(loss) }] = terms.as_slice() else { return None };
    match &loss.advantages {
        Advantages::PerToken(column) => Some((loss, column)),
        Advantages::PerSample(_) => None,
    }
}

fn close(found: &[f32], wanted: &[f32]) {
    assert_eq!(found.len(), wanted.len());
    assert!(found.iter().zip(wanted).all(|(found, wanted)| (found - wanted).abs() < 1e-6), "{found:?}");
}

#[test]
fn the_manifest_asks_for_what_is_used_and_explains_every_key() {
    let manifest = Sao::describe();
    assert_eq!((manifest.name.as_str(), manifest.needs_score), ("sao", true));
    let asked = ["log", "config", "experience", "training", "state", "metrics", "models"];
    assert_eq!(manifest.capabilities, asked);
    assert!(manifest.config.iter().all(|key| !key.doc.is_empty()));
}

#[test]
fn every_default_is_in_its_own_range() {
    let mut host = FakeHost::of::<Sao>().sample(FakeSample::scored(1.0));
    assert!(host.select::<Sao>().is_ok() && host.propose::<Sao>().is_ok() && host.evaluate::<Sao>().is_ok());
}

#[test]
fn the_readme_lists_every_key_with_its_default() {
    let readme = include_str!("../README.md");
    for key in Sao::describe().config {
        let row = format!("| `{}` | {} | {} |", key.name, key.default_value, key.doc);
        assert!(readme.contains(&row), "the README lacks the row\n{row}");
    }
}

#[test]
fn the_first_usable_samples_in_order_make_a_batch() {
    let mut host = host()
        .config("batch_size", "2")
        .sample(FakeSample::unscored())
        .sample(FakeSample::scored(0.0))
        .sample(FakeSample::scored(1.0).references(2))
        .sample(FakeSample::scored(1e308))
        .sample(FakeSample::scored(1.0).lag(5))
        .sample(FakeSample::scored(1.0).lag(4))
        .sample(FakeSample::scored(1.0));
    let selection = host.select::<Sao>().expect("selects");
    assert_eq!(selection.choice, Choice::Train(vec![101, 105]));
    let retired: Vec<_> = selection.retire.iter().map(|gone| (gone.sample, gone.reason.as_str())).collect();
    assert_eq!(
        retired,
        [
            (100, "its report has no score"),
            (102, "its report references 2 records; this recipe learns from exactly one"),
            (103, "its score is beyond ±1,000,000"),
            (104, "sampled 5 releases ago, max_staleness is 4"),
        ]
    );
}

#[test]
fn too_few_samples_wait_and_useless_ones_are_retired_meanwhile() {
    let mut host = host().sample(FakeSample::scored(1.0)).sample(FakeSample::unscored());
    let selection = host.select::<Sao>().expect("selects");
    assert_eq!(selection.choice, Choice::Wait("1 of 32 samples".into()));
    assert_eq!(selection.retire.len(), 1);
}

#[test]
fn a_step_fits_the_critic_trains_the_policy_and_proposes_the_checkpoint() {
    let mut host = two().measures_training("masked_share", 0.125).measures_training("loss", 0.5);
    assert_eq!(host.propose::<Sao>(), Ok(Proposal::Weights(9)));
    let [Call::Open, Call::Values(_), Call::FitValues { returns, optimizer: critic, .. }, train, Call::Checkpoint] =
        host.calls.as_slice()
    else {
        panic!("{:?}", host.calls);
    };
    close(returns, &[1.0, 1.0, 0.0, 1.0, 1.0, 0.0]);
    assert_eq!((critic.updates, critic.learning_rate), (2, 5e-3));

    let (loss, advantages) = policy_gradient(train).expect("one policy gradient");
    close(advantages, &[0.8, 0.7, 0.0, 0.5, 0.6, -0.25]);
    assert_eq!(loss.weight, Weight::Masked(Bounds { low: 0.7, high: 6.0 }));
    assert_eq!((loss.reduction, loss.old), (Reduction::SampleTokenMean, RatioSource::Rollout));
    assert_eq!((loss.kl.as_ref(), loss.entropy, loss.score_centering), (None::<&KlPenalty>, 0.0, false));
    let Call::Train { items, optimizer, .. } = train else {
        panic!("{train:?}");
    };
    assert_eq!(items, &[100, 101]);
    assert_eq!((optimizer.learning_rate, optimizer.gradient_norm_max), (5e-4, 1.0));
    assert_eq!((host.metrics["pg_clipfrac"], host.metrics["policy/loss"]), (0.125, 0.5));
}

#[test]
fn a_step_tells_its_numbers() {
    let mut host = two().measures_fit("value_loss", 0.3).measures_training("logprob_abs_diff", 0.01);
    host.propose::<Sao>().expect("proposes");
    // Returns [1, 1, 1, 1, 0] against values [.2, .3, .5, .4, .25]: Var R = .16, Var (R − V) = .1396.
    let wanted = [
        ("reward_mean", 0.5),
        ("reward_max", 1.0),
        ("advantage_abs_mean", 0.57),
        ("lag_mean", 1.5),
        ("lag_max", 3.0),
        ("effective_token_rate", 5.0 / 6.0),
        ("critic/explained_variance", 0.1275),
        ("critic/value_loss", 0.3),
        ("train_rollout_logprob_abs_diff", 0.01),
    ];
    for (name, number) in wanted {
        assert!((host.metrics[name] - number).abs() < 1e-6, "{name} is {}", host.metrics[name]);
    }
}

#[test]
fn lambda_zero_adapts_to_the_length_of_each_answer() {
    let mut host = two().config("lambda", "0");
    host.propose::<Sao>().expect("proposes");
    let (_, advantages) = policy_gradient(&host.calls[3]).expect("one policy gradient");
    close(advantages, &[0.5888, 0.564, 0.0, 0.42, 0.6, -0.25]);
}

#[test]
fn warm_up_steps_fit_only_the_critic_and_are_counted() {
    let mut host = two().config("critic_warmup_steps", "2");
    for number in 1..=2 {
        let skipped = host.propose::<Sao>();
        assert_eq!(skipped, Ok(Proposal::Skip(format!("critic warm-up {number} of 2"))));
    }
    assert!(!host.calls.iter().any(|call| matches!(call, Call::Train { .. })));
    let fits =
        host.calls.iter().filter(|call| matches!(call, Call::FitValues { optimizer, .. } if optimizer.updates == 50));
    assert_eq!(fits.count(), 2);
    // The critic of a skipped step lives in its checkpoint.
    assert_eq!(host.calls.iter().filter(|&call| *call == Call::Checkpoint).count(), 2);
    assert_eq!(host.propose::<Sao>(), Ok(Proposal::Weights(9)));
}

#[test]
fn a_batch_without_signal_is_skipped_and_said_aloud() {
    let mut host = host().sample(FakeSample::scored(0.0)).sample(FakeSample::scored(0.0));
    assert!(matches!(host.propose::<Sao>(), Ok(Proposal::Skip(reason)) if reason.contains("zero")));
    assert_eq!(host.metrics["zero_advantage_batch"], 1.0);
    let [line] = host.logs.as_slice() else {
        panic!("{:?}", host.logs);
    };
    assert_eq!((line.level, line.context.as_str()), (Level::Warn, "reef_recipe_sao::step"));
    assert!(!host.calls.iter().any(|call| matches!(call, Call::Train { .. })));
}

#[test]
fn a_batch_that_the_critic_foresaw_exactly_is_skipped() {
    let mut host = host().sample(FakeSample::scored(0.5).values(&[0.5]));
    assert!(matches!(host.propose::<Sao>(), Ok(Proposal::Skip(_))));
}

#[test]
fn a_batch_whose_tokens_are_all_masked_is_skipped_and_its_critic_stays() {
    let mut host = two().measures_training("skipped", 1.0);
    assert!(matches!(host.propose::<Sao>(), Ok(Proposal::Skip(reason)) if reason.contains("gradient")));
    assert_eq!(host.calls.last(), Some(&Call::Checkpoint));
}

#[test]
fn values_out_of_range_name_their_key() {
    let bad = [
        ("gamma", "1.01"),
        ("lambda", "-0.1"),
        ("alpha", "0"),
        ("eps_low", "0"),
        ("eps_low", "1.5"),
        ("eps_high", "0"),
        ("policy_lr", "0"),
        ("critic_lr", "-1"),
        ("critic_warmup_steps", "1.5"),
        ("critic_warmup_updates", "0"),
        ("critic_steps_per_actor", "65"),
        ("gradient_norm_max", "-1"),
    ];
    for (key, value) in bad {
        let failure = two().config(key, value).propose::<Sao>().expect_err(key);
        assert!(matches!(&failure, Failure::InvalidConfig(message) if message.starts_with(key)), "{failure:?}");
    }
    assert!(matches!(two().config("batch_size", "0").select::<Sao>(), Err(Failure::InvalidConfig(_))));
    assert!(matches!(two().config("batch_size", "513").select::<Sao>(), Err(Failure::InvalidConfig(_))));
    assert!(matches!(two().config("keep_tolerance", "2").evaluate::<Sao>(), Err(Failure::InvalidConfig(_))));
}

#[test]
fn nothing_is_remembered_of_a_step_that_fails() {
    let mut host = FakeHost::of::<Sao>().config("critic_lr", "1").sample(FakeSample::scored(f64::MAX));
    // The return does not fit into the f32 of the host, which refuses it.
    assert!(matches!(host.propose::<Sao>(), Err(Failure::Capability(_))));
    assert!(host.state.is_empty());
}

#[test]
fn a_candidate_is_compared_on_the_first_held_out_tasks() {
    let mut host = host().config("evaluate_tasks", "2").held_out("candidate", &[1.0, 0.5, 0.0]);
    host = host.held_out("served", &[0.5, 0.5, 1.0]);
    let verdict = host.evaluate::<Sao>().expect("judges");
    assert_eq!((verdict.decision, verdict.reason.as_str()), (Decision::Promote, "held-out 0.5000 → 0.7500 on 2 tasks"));
    assert_eq!(host.calls, [Call::HeldOut("candidate".into(), 0, 2), Call::HeldOut("served".into(), 0, 2)]);
}

#[test]
fn a_candidate_that_lost_more_than_the_tolerance_is_rejected_with_the_numbers() {
    let mut host = host().held_out("candidate", &[0.5, 0.4]).held_out("served", &[0.5, 0.6]);
    let verdict = host.evaluate::<Sao>().expect("judges");
    assert_eq!(verdict.decision, Decision::Reject);
    assert_eq!(verdict.reason, "held-out 0.5500 → 0.4500 on 2 tasks: more than 0.05 lost");
    let numbers: Vec<_> = verdict.measurements.iter().map(|number| (number.name.as_str(), number.value)).collect();
    assert_eq!(numbers, [("held_out_candidate", 0.45), ("held_out_served", 0.55), ("wins", 0.0), ("losses", 1.0)]);
}

#[test]
fn without_held_out_tasks_the_gate_decides() {
    assert_eq!(host().evaluate::<Sao>().expect("judges").decision, Decision::Promote);
    let mut host = host().config("evaluate_tasks", "0").held_out("candidate", &[0.0]).held_out("served", &[1.0]);
    assert!(host.evaluate::<Sao>().expect("judges").reason.contains("operator's gate"));
}
