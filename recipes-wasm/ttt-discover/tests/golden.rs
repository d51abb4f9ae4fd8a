//! The published numbers of the algorithm, through its pure functions.

use reef_recipe_ttt_discover::entropic::{advantages, beta, leave_one_out};
use reef_recipe_ttt_discover::reference::pull;

fn close(found: &[f64], wanted: &[f64], tolerance: f64) {
    assert_eq!(found.len(), wanted.len());
    for (found, wanted) in found.iter().zip(wanted) {
        assert!((found - wanted).abs() < tolerance, "{found} is not {wanted}");
    }
}

#[test]
fn the_advantages_of_groups_whose_beta_is_found_by_bisection() {
    let a = -0.797962508;
    let b = -0.729939785;
    let c = -0.771968092;
    let two_of_eight = [3.771733064, 3.771733064, c, c, c, c, c, c];
    let cases: [(&[f64], f64, &[f64]); 6] = [
        (&[0., 0., 1., 2.], 1.621565927, &[-0.905287557, -0.905287557, -0.450165511, 9.882501610]),
        (&[0., 1., 2., 3.], 1.445859224, &[-0.969633079, -0.866698059, -0.338700558, 8.865417943]),
        (&[0., 0., 0., 1.], 2.553244909, &[a, a, a, 11.848729170]),
        (&[0., 0., 0., 0., 1.], 2.469074613, &[b, b, b, b, 10.811511568]),
        (&[1., 1., 0., 0., 0., 0., 0., 0.], 2.553244909, &two_of_eight),
        (&[0., 2.60, 2.61, 2.62, 2.63], 105.094617, &[-1., -0.883870793, -0.648864100, 0.200412479, 6.773595825]),
    ];
    for (rewards, sharpness, wanted) in cases {
        assert!((beta(rewards) - sharpness).abs() < 1e-6, "{rewards:?}: {}", beta(rewards));
        close(&advantages(rewards), wanted, 1e-8);
    }
}

#[test]
fn only_the_order_and_the_proportions_of_the_rewards_matter() {
    let (plain, fine) = (advantages(&[0., 1., 2., 3.]), advantages(&[2.60, 2.61, 2.62, 2.63]));
    assert!((beta(&[2.60, 2.61, 2.62, 2.63]) - 144.585922).abs() < 1e-5);
    close(&plain, &fine, 1e-8);
}

#[test]
fn a_tie_for_the_best_of_half_the_group_is_at_the_edge_of_what_a_beta_can_do() {
    close(&advantages(&[0., 0., 1., 1.]), &[-1., -1., 2., 2.], 1e-6);
}

#[test]
fn a_constant_group_teaches_nothing() {
    assert_eq!(beta(&[0.5; 4]), 1_048_576.0);
    close(&advantages(&[0.5; 4]), &[0.0; 4], 1e-9);
}

#[test]
fn the_formula_explodes_for_two_rewards_and_is_bounded_there() {
    close(&leave_one_out(&[0., 1.], beta(&[0., 1.])), &[-1., 1e12], 1e3);
    close(&advantages(&[0., 1.]), &[-1., 1.], 1e-6);
    close(&advantages(&[7.]), &[0.], 1e-9);
    assert_eq!((beta(&[7.]), advantages(&[]).len()), (0.0, 0));
}

#[test]
fn a_group_of_three_needs_no_bound() {
    let found = advantages(&[0., 0., 1.]);
    assert!(found[2] > 10.0 && found[2] < 30.0, "{found:?}");
}

#[test]
fn a_fixed_beta_is_the_alternative_of_the_paper() {
    close(&leave_one_out(&[0., 0., 1., 2.], 2.0), &[-0.952371280, -0.952371280, -0.608341116, 16.445252044], 1e-8);
}

#[test]
fn the_pull_to_the_base_is_centred_over_the_whole_batch() {
    let (rollout, base) = ([-1., -0.5, -2., -0.1, -0.4], [-1.2, -0.6, -1.5, -0.1, -0.7]);
    close(&pull(&rollout, &base, &[1; 5], 0.1), &[-0.018, -0.008, 0.052, 0.002, -0.028], 1e-8);
}

#[test]
fn observations_neither_pull_nor_are_pulled() {
    close(&pull(&[-1., 0., -2.], &[-2., -9., -2.], &[1, 0, 1], 1.0), &[-0.5, 0.0, 0.5], 1e-12);
}
