//! The published numbers of the algorithm, through its pure functions.

use reef_recipe_sao::dis::Dis;
use reef_recipe_sao::gae::{Lambda, advantages, critic_targets, returns};
use reef_recipe_sao::schedule::{Turn, turn};

const VALUES: [f64; 5] = [0.2, 0.3, 9.0, 0.5, 0.4];
const MASK: [u8; 5] = [1, 1, 0, 1, 1];

fn close(found: &[f64], wanted: &[f64], tolerance: f64) {
    assert_eq!(found.len(), wanted.len());
    for (found, wanted) in found.iter().zip(wanted) {
        assert!((found - wanted).abs() < tolerance, "{found} is not {wanted}");
    }
}

fn gae(gamma: f64, lambda: f64) -> Vec<f64> {
    advantages(&VALUES, &MASK, 1.0, gamma, lambda)
}

#[test]
fn advantages_skip_the_observation_whatever_its_value() {
    close(&gae(1.0, 1.0), &[0.8, 0.7, 0.0, 0.5, 0.6], 1e-12);
    close(&gae(1.0, 0.9), &[0.6364, 0.596, 0.0, 0.44, 0.6], 1e-12);
    close(&gae(0.99, 0.95), &[0.687551377, 0.62791215, 0.0, 0.4603, 0.6], 5e-10);
}

#[test]
fn advantages_with_the_lambda_of_a_response_of_five_tokens() {
    let lambda = Lambda::Adaptive { alpha: 1.5 }.at(VALUES.len());
    close(&gae(1.0, lambda), &[0.5888, 0.564, 0.0, 0.42, 0.6], 1e-12);
}

#[test]
fn returns_are_advantages_plus_values() {
    close(&returns(&gae(1.0, 1.0), &VALUES, &MASK), &[1.0, 1.0, 0.0, 1.0, 1.0], 1e-12);
    close(&returns(&gae(1.0, 0.9), &VALUES, &MASK), &[0.8364, 0.896, 0.0, 0.94, 1.0], 1e-12);
}

#[test]
fn the_critic_is_fitted_to_the_discounted_reward_itself() {
    close(&critic_targets(&VALUES, &MASK, 1.0, 1.0), &[1.0, 1.0, 0.0, 1.0, 1.0], 1e-12);
    close(&critic_targets(&VALUES, &MASK, 2.0, 0.5), &[0.25, 0.5, 0.0, 1.0, 2.0], 1e-12);
}

#[test]
fn a_trailing_observation_leaves_the_reward_on_the_last_action() {
    close(&advantages(&[0.0; 3], &[1, 1, 0], 1.0, 1.0, 1.0), &[1.0, 1.0, 0.0], 1e-12);
    close(&advantages(&[0.5; 2], &[0, 0], 1.0, 1.0, 1.0), &[0.0, 0.0], 1e-12);
    assert!(advantages(&[], &[], 1.0, 1.0, 1.0).is_empty());
}

#[test]
fn adaptive_lambda_grows_with_the_response() {
    let lambda = |length| Lambda::Adaptive { alpha: 1.5 }.at(length);
    let wanted = [(1, 0.3333), (2, 0.6667), (5, 0.866667), (16, 0.958333), (128, 0.994792), (1000, 0.999333), (0, 0.0)];
    for (length, wanted) in wanted {
        close(&[lambda(length)], &[wanted], 5e-5);
    }
    assert_eq!(Lambda::Adaptive { alpha: 0.1 }.at(5), 0.0);
    assert_eq!(Lambda::Fixed(0.9).at(5), 0.9);
}

#[test]
fn dis_keeps_ratios_strictly_inside_its_bounds() {
    let reasoning = Dis::new(0.3, 5.0);
    let on_policy = reasoning.token(-1.0, -1.0, 0.7);
    assert!(on_policy.kept && (on_policy.loss - 0.7).abs() < 1e-12);

    let drifted = reasoning.token(-1.3, -1.0, 0.7);
    close(&[drifted.ratio, drifted.loss, drifted.gradient], &[0.740818, 0.674145, -0.518573], 1e-6);

    let too_far = reasoning.token(-1.4, -1.0, 0.7);
    close(&[too_far.ratio, too_far.loss, too_far.gradient], &[0.670320, 0.0, 0.0], 1e-6);
    assert!(!too_far.kept);

    let likelier = reasoning.token(-1.3, -3.0, 0.7);
    assert!(likelier.kept && (likelier.ratio - 5.473947).abs() < 1e-6);
    let much_likelier = reasoning.token(-1.2, -3.0, 0.7);
    assert!(!much_likelier.kept && (much_likelier.ratio - 6.049647).abs() < 1e-6);

    let punished = reasoning.token(-0.8, -1.0, -0.5);
    close(&[punished.ratio, punished.gradient], &[1.221403, 0.610701], 1e-6);
}

#[test]
fn dis_bounds_are_exclusive() {
    // A ratio of exactly 1 at the edge of the bounds.
    assert!(!Dis::new(0.0, 5.0).token(-1.0, -1.0, 1.0).kept);
    assert!(!Dis::new(0.3, 0.0).token(-1.0, -1.0, 1.0).kept);
}

#[test]
fn the_policy_learns_after_the_warm_up() {
    assert_eq!(turn(0, 2), Turn::WarmUp { number: 1, of: 2 });
    assert_eq!(turn(1, 2), Turn::WarmUp { number: 2, of: 2 });
    assert_eq!(turn(2, 2), Turn::Actor);
    assert_eq!(turn(0, 0), Turn::Actor);
}
