//! The optimiser on packings that are known, the arms, and the committed results.

use reef_experiment_circle_packing::arms::{Arm, Run, run};
use reef_experiment_circle_packing::feasible;
use reef_experiment_circle_packing::report::{Comparison, Experiment, Outcome};
use reef_verifier_circle_packing::{Circle, check, parse};

#[test]
fn a_few_local_runs_pack_densely_and_are_counted() {
    let run = short(Arm::Restarts);
    // Seven equal circles in rows sum to 7/6; sums beyond 1.3 need circles of several sizes.
    assert!(run.best > 1.3 && run.local_runs > 10, "{run:?}");
}

#[test]
fn whatever_overlaps_gives_way_until_it_is_valid_without_tolerance() {
    let circles = [(0.5, 0.5, 0.4), (0.6, 0.5, 0.3), (1.2, -0.5, 0.3), (0.6, 0.5, 0.1)];
    let packed = feasible(circles.map(|(x, y, r)| Circle { x, y, r }).to_vec());
    assert!(check(&packed, 0.0).is_ok(), "{packed:?}");
}

#[expect(clippy::expect_used, reason = "a test that cannot run its arm has failed")]
fn short(arm: Arm) -> Run {
    Run { seconds: 0.0, ..run(arm, 7, 1, 20_000).expect("runs") }
}

#[test]
fn every_arm_spends_its_budget_and_is_the_same_again() {
    for arm in [Arm::Restarts, Arm::Puct, Arm::Greedy] {
        let found = short(arm);
        assert!(found.evaluations >= 20_000 && found.local_runs > 10, "{found:?}");
        assert_eq!(found, short(arm));
        assert!(found.improvements.is_sorted_by(|a, b| a.sum < b.sum && a.evaluations < b.evaluations));
        assert_eq!(parse(&found.packing).and_then(|circles| check(&circles, 0.0)), Ok(found.best));
    }
}

#[test]
fn what_differs_by_rounding_is_a_tie_and_less_is_lost() {
    let base = short(Arm::Restarts);
    let with = |best| Comparison::of(&Run { best, ..base.clone() }, &base).outcome;
    let outcomes = [1e-3, 1e-7, -1e-7, -1e-3].map(|more| with(base.best + more));
    assert_eq!(outcomes, [Outcome::Won, Outcome::Tied, Outcome::Tied, Outcome::Lost]);
}

#[test]
fn the_committed_results_hold_what_they_say() {
    let experiment: Experiment =
        serde_json::from_str(include_str!("../results.json")).expect("the results are an experiment");
    assert!(experiment.runs.len() >= 18, "three arms, two numbers of circles, three seeds");
    for run in &experiment.runs {
        let sum = parse(&run.packing).and_then(|circles| {
            assert_eq!(circles.len(), run.circles);
            check(&circles, 0.0)
        });
        assert_eq!(sum, Ok(run.best));
    }
    for row in &experiment.comparisons {
        let of =
            |arm| experiment.runs.iter().find(|run| (run.circles, run.seed, run.arm) == (row.circles, row.seed, arm));
        let (Some(search), Some(restarts)) = (of(row.arm), of(Arm::Restarts)) else { panic!("{row:?} has no runs") };
        assert!(restarts.evaluations >= search.evaluations, "restarts were given less: {row:?}");
        assert_eq!(Comparison::of(search, restarts), *row);
    }
}
