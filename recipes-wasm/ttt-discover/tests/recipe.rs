//! The recipe against a host in memory: which grids it takes, what it asks for and what it proposes.

use reef_recipe::testing::{Call, FakeHost, FakeSample, Level};
use reef_recipe::{
    Advantages, Choice, Decision, Failure, Objective, Policy, PolicyGradient, Proposal, RatioSource, Recipe, Reduction,
    Term, Weight,
};
use reef_recipe_ttt_discover::TttDiscover;
use reef_recipe_ttt_discover::entropic;

/// Step, group, rollout.
type Place = (u32, u32, u32);

/// A rollout of a grid of `shape`.
fn rollout((step, group, rollout): Place, shape: (u32, u32), score: f64) -> FakeSample {
    let fields = [
        ("step", step),
        ("group", group),
        ("rollout", rollout),
        ("groups_per_step", shape.0),
        ("rollouts_per_group", shape.1),
    ];
    fields.iter().fold(FakeSample::scored(score), |sample, (name, value)| sample.field(name, &value.to_string()))
}

fn host() -> FakeHost {
    FakeHost::of::<TttDiscover>()
}

/// A whole grid of step 0; the scores group by group.
fn grid(scores: &[&[f64]]) -> FakeHost {
    let shape = (scores.len() as u32, scores[0].len() as u32);
    let mut host = host();
    for (group, scores) in scores.iter().enumerate() {
        for (index, score) in scores.iter().enumerate() {
            host = host.sample(rollout((0, group as u32, index as u32), shape, *score));
        }
    }
    host
}

fn policy_gradient(call: &Call) -> Option<(&[u32], &PolicyGradient, &[f32])> {
    let Call::Train { items, terms, .. } = call else { return None };
    let [Term { factor: 1.0, what: Objective::PolicyGradient(loss) }] = terms.as_slice() else { return None };
    match &loss.advantages {
        Advantages::PerToken(column) => Some((items, loss, column)),
        Advantages::PerSample(_) => None,
    }
}

fn close(found: &[f32], wanted: &[f64]) {
    assert_eq!(found.len(), wanted.len());
    let near = found.iter().zip(wanted).all(|(&found, wanted)| (f64::from(found) - wanted).abs() < 1e-5);
    assert!(near, "{found:?} is not {wanted:?}");
}

#[test]
fn the_manifest_asks_for_what_is_used_and_explains_every_key_and_field() {
    let manifest = TttDiscover::describe();
    assert_eq!((manifest.name.as_str(), manifest.needs_score), ("ttt-discover", true));
    assert_eq!(manifest.capabilities, ["log", "config", "experience", "training", "metrics"]);
    assert!(manifest.config.iter().all(|key| !key.doc.is_empty()));
    let fields: Vec<_> = manifest.report_fields.iter().map(|field| (field.name.as_str(), field.required)).collect();
    let names = ["step", "group", "rollout", "groups_per_step", "rollouts_per_group"];
    assert_eq!(fields, names.map(|name| (name, true)));
}

#[test]
fn the_readme_lists_every_key_with_its_default() {
    let readme = include_str!("../README.md");
    for key in TttDiscover::describe().config {
        let row = format!("| `{}` | {} | {} |", key.name, key.default_value, key.doc);
        assert!(readme.contains(&row), "the README lacks the row\n{row}");
    }
}

#[test]
fn a_full_grid_is_taken_in_the_order_of_its_slots_however_it_arrived() {
    let shape = (2, 2);
    let mut host = host();
    for place in [(0, 1, 1), (0, 0, 1), (1, 0, 0), (0, 1, 0), (0, 0, 0)] {
        host = host.sample(rollout(place, shape, 1.0));
    }
    let selection = host.select::<TttDiscover>().expect("selects");
    assert_eq!(selection.choice, Choice::Train(vec![104, 101, 103, 100]));
    assert!(selection.retire.is_empty());
}

#[test]
fn a_grid_with_a_missing_slot_waits() {
    let mut host = host();
    for place in [(3, 0, 0), (3, 0, 1), (3, 1, 0)] {
        host = host.sample(rollout(place, (2, 2), 1.0));
    }
    let selection = host.select::<TttDiscover>().expect("selects");
    assert_eq!(selection.choice, Choice::Wait("step 3: 3 of 4 rollouts".into()));
    assert_eq!(
        FakeHost::of::<TttDiscover>().select::<TttDiscover>().map(|selection| selection.choice),
        Ok(Choice::Wait("no rollout of a grid".into()))
    );
}

#[test]
fn what_fits_no_slot_is_retired_with_the_reason() {
    let shape = (1, 3);
    let mut host = host()
        .sample(rollout((0, 0, 0), shape, 1.0))
        .sample(rollout((0, 0, 0), shape, 2.0))
        .sample(rollout((0, 1, 0), shape, 1.0))
        .sample(rollout((0, 0, 3), shape, 1.0))
        .sample(rollout((0, 0, 1), (1, 4), 1.0))
        .sample(rollout((0, 0, 0), (1, 1), 1.0))
        .sample(rollout((1, 0, 0), (1_000, 1_000), 1.0))
        .sample(rollout((0, 0, 1), shape, f64::NAN))
        .sample(rollout((0, 0, 1), shape, 1e13))
        .sample(rollout((0, 0, 1), shape, 1.0).references(2))
        .sample(FakeSample::scored(1.0))
        .sample(rollout((0, 0, 1), shape, 1.0).field("step", "-1"));
    let selection = host.select::<TttDiscover>().expect("selects");
    assert_eq!(selection.choice, Choice::Wait("step 0: 1 of 3 rollouts".into()));
    let retired: Vec<_> = selection.retire.iter().map(|gone| (gone.sample, gone.reason.as_str())).collect();
    assert_eq!(
        retired,
        [
            (101, "slot (0, 0) of step 0 is taken"),
            (102, "its slot (1, 0) is outside its grid of 1 x 3"),
            (103, "its slot (0, 3) is outside its grid of 1 x 3"),
            (104, "step 0 is a grid of 1 x 3 according to its first report"),
            (105, "a group of one rollout has nothing to compare with"),
            (106, "its grid of 1000 x 1000 is larger than 4096 rollouts"),
            (107, "its report has no score"),
            (108, "its score is beyond ±10^12"),
            (109, "its report references 2 records; ttt-discover learns from exactly one"),
            (110, "its report lacks a field of the grid"),
            (111, "its report lacks a field of the grid"),
        ]
    );
}

#[test]
fn steps_are_taken_in_order_and_one_that_was_overtaken_is_given_up() {
    let shape = (1, 2);
    let mut host = host();
    for place in [(0, 0, 0), (2, 0, 0), (2, 0, 1), (1, 0, 0), (1, 0, 1)] {
        host = host.sample(rollout(place, shape, 1.0));
    }
    let selection = host.select::<TttDiscover>().expect("selects");
    assert_eq!(selection.choice, Choice::Train(vec![103, 104]));
    let [gone] = selection.retire.as_slice() else { panic!("{:?}", selection.retire) };
    assert_eq!((gone.sample, gone.reason.as_str()), (100, "step 0 never filled its grid, and step 1 did"));
}

#[test]
fn of_a_pool_that_is_too_large_to_read_the_oldest_reports_are_used() {
    let pool = grid(&[&[0., 1.], &[0., 1.]]).sample(rollout((1, 0, 0), (2, 2), 1.0));
    let selection = pool.clone().allows_report_fields(4 * 5 + 2).select::<TttDiscover>().expect("selects");
    assert_eq!(selection.choice, Choice::Train(vec![100, 101, 102, 103]));

    let mut host = pool.allows_report_fields(3 * 5);
    let selection = host.select::<TttDiscover>().expect("selects");
    let reason = "step 0: 3 of 4 rollouts; only 3 of 5 reports were read, raise sandbox.host_calls_max: \
                  experience: over budget: too many calls";
    assert_eq!((selection.choice, host.logs.len()), (Choice::Wait(reason.into()), 1));
}

#[test]
fn a_step_takes_one_unclipped_update_on_the_sum_over_tokens() {
    let mut host = grid(&[&[0., 0., 1., 2.], &[0., 1., 2., 3.]]).measures_training("loss", 0.5);
    assert_eq!(host.propose::<TttDiscover>(), Ok(Proposal::Weights(9)));
    let [Call::Open, Call::Forward { which: Policy::Base, items }, train, Call::Checkpoint] = host.calls.as_slice()
    else {
        panic!("{:?}", host.calls);
    };
    assert_eq!(items.len(), 8);
    let (items, loss, advantages) = policy_gradient(train).expect("one policy gradient");
    assert_eq!(items, (100..108).collect::<Vec<_>>());
    // The base is scripted to agree with the rollout, so that the pull is 0.
    let [a, b] = [[0., 0., 1., 2.], [0., 1., 2., 3.]].map(|rewards| entropic::advantages(&rewards));
    close(advantages, &[a, b].concat());
    assert_eq!((loss.weight, loss.reduction, loss.old), (Weight::Ratio, Reduction::TokenSum, RatioSource::Rollout));
    assert_eq!((loss.kl.is_some(), loss.entropy, loss.score_centering), (false, 0.0, false));
    let Call::Train { optimizer, .. } = train else { panic!("{train:?}") };
    assert_eq!((optimizer.learning_rate, optimizer.beta1, optimizer.beta2), (4e-5, 0.9, 0.95));
    assert_eq!((optimizer.epsilon, optimizer.weight_decay, optimizer.gradient_norm_max), (1e-8, 0.0, 0.0));
    assert_eq!(host.metrics["policy/loss"], 0.5);
}

#[test]
fn the_pull_to_the_base_is_added_token_by_token_and_leaves_observations_out() {
    let shape = (1, 3);
    let tokens = |index, score, rollout_logprobs: &[f32], base: &[f32]| {
        let mask = if base.len() == 3 { vec![1, 0, 1] } else { vec![1; base.len()] };
        rollout((0, 0, index), shape, score).mask(&mask).logprobs(rollout_logprobs).forward(&Policy::Base, base)
    };
    let mut host = host()
        .sample(tokens(0, 0.0, &[-1.0, -0.5], &[-1.2, -0.6]))
        .sample(tokens(1, 0.0, &[-2.0, 0.0, -0.1], &[-1.5, -9.0, -0.1]))
        .sample(tokens(2, 1.0, &[-0.4], &[-0.7]));
    host.propose::<TttDiscover>().expect("proposes");
    let [low, _, high] = entropic::advantages(&[0.0, 0.0, 1.0])[..] else { panic!("three") };
    let (_, _, advantages) = policy_gradient(&host.calls[2]).expect("one policy gradient");
    close(advantages, &[low - 0.018, low - 0.008, low + 0.052, low, low + 0.002, high - 0.028]);

    let mut host = host.config("kl_coefficient", "0");
    host.calls.clear();
    host.propose::<TttDiscover>().expect("proposes");
    assert!(!host.calls.iter().any(|call| matches!(call, Call::Forward { .. })), "nobody asks the base in vain");
}

#[test]
fn groups_without_signal_are_dropped_and_if_all_are_the_first_stays() {
    let mut host = grid(&[&[1., 1., 1.], &[0., 0., 1.], &[0., 0., 0.]]);
    host.propose::<TttDiscover>().expect("proposes");
    let (items, _, _) = policy_gradient(&host.calls[2]).expect("one policy gradient");
    assert_eq!(items, [103, 104, 105]);
    let told = ["grid_groups", "grid_rollouts", "constant_groups", "training_groups", "training_rollouts"];
    assert_eq!(told.map(|name| host.metrics[name]), [3.0, 9.0, 2.0, 1.0, 3.0]);
    let told = ["reward_min", "reward_max", "reward_mean", "zero_fraction"];
    assert_eq!(told.map(|name| host.metrics[name]), [0.0, 1.0, 4.0 / 9.0, 5.0 / 9.0]);
    assert!((host.metrics["reward_std"] - (20.0f64 / 81.0).sqrt()).abs() < 1e-12);

    let mut host = grid(&[&[1., 1., 1.], &[0., 0., 0.]]);
    assert!(matches!(host.propose::<TttDiscover>(), Ok(Proposal::Skip(reason)) if reason.contains("zero")));
    assert_eq!((host.metrics["zero_advantage_batch"], host.metrics["training_rollouts"]), (1.0, 3.0));
    assert_eq!(host.logs[0].level, Level::Warn);
    assert!(!host.calls.iter().any(|call| matches!(call, Call::Train { .. })));
}

#[test]
fn a_grid_of_two_releases_is_discarded_in_sight() {
    let shape = (1, 3);
    let mut host = host();
    for (index, lag) in [0, 1, 0].into_iter().enumerate() {
        host = host.sample(rollout((0, 0, index as u32), shape, index as f64).lag(lag));
    }
    let proposal = host.propose::<TttDiscover>();
    let reason = "the rollouts of the grid come from 2 releases: the step is discarded";
    assert_eq!(proposal, Ok(Proposal::Skip(reason.into())));
    assert_eq!((host.metrics["mixed_releases"], host.calls.len()), (2.0, 0));
}

#[test]
fn a_batch_that_is_no_grid_is_refused() {
    let mut host = host().sample(rollout((0, 0, 0), (1, 3), 1.0));
    assert!(matches!(host.propose::<TttDiscover>(), Err(Failure::Other(reason)) if reason.contains("no grid")));
}

#[test]
fn values_out_of_range_name_their_key() {
    for (key, value) in [("kl_coefficient", "-1"), ("learning_rate", "0"), ("beta1", "1"), ("beta2", "1")] {
        let failure = grid(&[&[0., 1., 2.]]).config(key, value).propose::<TttDiscover>().expect_err(key);
        assert!(matches!(&failure, Failure::InvalidConfig(message) if message.starts_with(key)), "{failure:?}");
    }
}

#[test]
fn the_candidate_is_left_to_the_operators_gate() {
    assert_eq!(host().evaluate::<TttDiscover>().expect("judges").decision, Decision::Promote);
}

#[test]
fn the_grid_of_the_paper_is_selected_and_learned_from() {
    let mut host = host();
    let score = |index: u32| f64::from(index.wrapping_mul(2_654_435_761) % 1_000) / 1_000.0;
    let scores: Vec<f64> = (0..512).map(score).collect();
    for (index, score) in (0..).zip(&scores) {
        host = host.sample(rollout((0, index / 64, index % 64), (8, 64), *score));
    }
    assert!(
        matches!(host.select::<TttDiscover>().expect("selects").choice, Choice::Train(batch) if batch.len() == 512)
    );
    assert_eq!(host.propose::<TttDiscover>(), Ok(Proposal::Weights(9)));
}
