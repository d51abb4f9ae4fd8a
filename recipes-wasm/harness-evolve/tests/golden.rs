//! The worked numbers of the gate: wins, losses and what the sign test says of them.

use reef_evolution::trials::{Trials, sign_test};
use reef_recipe::{Decision, Failure};

fn trials(pairs: &[(f64, f64)]) -> Trials {
    let mut trials = Trials::default();
    pairs.iter().enumerate().for_each(|(task, pair)| trials.add(&task.to_string(), Some(pair.0), Some(pair.1)));
    trials
}

#[test]
fn one_win_on_three_tasks_is_noise() {
    let trials = trials(&[(1.0, 0.0), (1.0, 1.0), (1.0, 1.0)]);
    assert_eq!((trials.wins_and_losses(), sign_test(1, 0)), ((1, 0), 0.5));
    let verdict = trials.verdict(true, 0.1).expect("judges");
    assert_eq!(verdict.decision, Decision::Hold);
    assert!(
        verdict.reason.starts_with("1 wins, 0 losses, 2 ties on 3 pairs; sign test p = 0.500: chance"),
        "{}",
        verdict.reason
    );
    assert_eq!(trials.verdict(true, 1.0).map(|verdict| verdict.decision), Ok(Decision::Promote));
}

#[test]
fn four_wins_without_a_loss_are_not() {
    let trials = trials(&[(1.0, 0.0); 4]);
    assert_eq!(trials.verdict(true, 0.1).map(|verdict| verdict.decision), Ok(Decision::Promote));
    let verdict = trials.verdict(false, 0.1).expect("judges");
    assert_eq!(verdict.decision, Decision::Reject);
    let number = |name: &str| verdict.measurements.iter().find(|number| number.name == name).map(|number| number.value);
    assert_eq!((number("wins"), number("pairs"), number("sign_test_p")), (Some(4.0), Some(4.0), Some(0.0625)));
}

#[test]
fn episodes_without_a_score_decide_nothing() {
    let mut trials = Trials::default();
    trials.add("a", None, Some(1.0));
    assert_eq!(trials.verdict(true, 1.0), Err(Failure::other("no pair of episodes gave a score (1 tried)")));
}
