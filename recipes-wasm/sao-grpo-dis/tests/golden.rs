//! The published numbers of the algorithm, through its pure functions.

use reef_recipe_sao_grpo_dis::advantage::group_relative;
use reef_recipe_sao_grpo_dis::dis::Dis;

fn close(found: &[f64], wanted: &[f64], tolerance: f64) {
    assert_eq!(found.len(), wanted.len());
    for (found, wanted) in found.iter().zip(wanted) {
        assert!((found - wanted).abs() < tolerance, "{found} is not {wanted}");
    }
}

#[test]
fn advantages_are_standard_scores_of_the_group() {
    let relative = |rewards: &[f64]| group_relative(rewards, true).expect("not constant");
    close(&relative(&[1.0, 0.0, 0.0, 1.0]), &[1.0, -1.0, -1.0, 1.0], 1e-12);
    close(&relative(&[1.0, 0.0, 0.0, 0.0]), &[1.7320508, -0.5773503, -0.5773503, -0.5773503], 1e-7);
    close(&relative(&[0.2, 0.4, 0.9]), &[-1.0190493, -0.3396831, 1.3587325], 1e-7);
}

#[test]
fn advantages_in_points_are_the_distance_to_the_mean() {
    close(&group_relative(&[1.0, 0.0, 0.0, 0.0], false).expect("not constant"), &[0.75, -0.25, -0.25, -0.25], 1e-12);
}

#[test]
fn a_constant_group_has_no_advantages_however_its_scores_round() {
    for rewards in [[0.0; 3], [1.0; 3], [0.1 + 0.2, 0.3, 0.3], [1e6, 1e6, 1e6 + 1e-7]] {
        assert_eq!(group_relative(&rewards, true), None, "{rewards:?}");
        assert_eq!(group_relative(&rewards, false), None, "{rewards:?}");
    }
    assert_eq!(group_relative(&[], true), None);
    assert!(group_relative(&[0.0, 1e-6], true).is_some());
}

#[test]
fn advantages_of_a_group_sum_to_nothing() {
    let sum: f64 = group_relative(&[0.3, 0.9, 0.35, -4.0, 12.0], true).expect("not constant").iter().sum();
    assert!(sum.abs() < 1e-12, "{sum}");
}

#[test]
fn dis_keeps_ratios_strictly_inside_its_bounds() {
    let reasoning = Dis::new(0.3, 5.0);
    let on_policy = reasoning.token(-1.0, -1.0, 0.7);
    assert!(on_policy.kept && (on_policy.loss - 0.7).abs() < 1e-12);
    let drifted = reasoning.token(-1.3, -1.0, 0.7);
    close(&[drifted.ratio, drifted.loss, drifted.gradient], &[0.740818, 0.674145, -0.518573], 1e-6);
    let too_far = reasoning.token(-1.4, -1.0, 0.7);
    assert_eq!((too_far.kept, too_far.loss, too_far.gradient), (false, 0.0, 0.0));
    let likelier = reasoning.token(-1.3, -3.0, 0.7);
    assert!(likelier.kept && (likelier.ratio - 5.473947).abs() < 1e-6);
    assert!(!reasoning.token(-1.2, -3.0, 0.7).kept);
    let punished = reasoning.token(-0.8, -1.0, -0.5);
    close(&[punished.ratio, punished.gradient], &[1.221403, 0.610701], 1e-6);
}
