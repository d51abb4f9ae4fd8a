//! The recipe's own gradient against published numbers, and what it asks of the host.

use reef_guest_own_loss::OwnLoss;
use reef_guest_own_loss::masked::{Columns, Masked};
use reef_recipe::testing::{Call, FakeHost, FakeSample};
use reef_recipe::{Bounds, Failure, Objective, Policy, Proposal, Weight};

const DIS: Masked = Masked { low: 0.7, high: 6.0 };

/// Loss and gradient of a batch of one sample with one token.
fn one(current: f32, rollout: f32, advantage: f32) -> (f64, f64) {
    let columns = Columns { mask: &[1], current: &[current], rollout: &[rollout], advantages: &[advantage] };
    (DIS.losses(columns)[0], DIS.gradient(columns, 1)[0])
}

fn close(found: f64, wanted: f64) {
    assert!((found - wanted).abs() < 1e-6, "{found} is not {wanted}");
}

#[test]
fn the_published_losses_and_gradients_of_dis_come_out() {
    let (loss, gradient) = one(-1.0, -1.0, 0.7);
    close(loss, 0.7);
    close(gradient, -0.7);
    let (loss, gradient) = one(-1.3, -1.0, 0.7);
    close(loss, 0.674_145);
    close(gradient, -0.518_573);
    assert_eq!(one(-1.4, -1.0, 0.7), (0.0, 0.0));
    let (_, gradient) = one(-1.3, -3.0, 0.7);
    close(gradient, -0.7 * 5.473_947);
    assert_eq!(one(-1.2, -3.0, 0.7), (0.0, 0.0));
    let (_, gradient) = one(-0.8, -1.0, -0.5);
    close(gradient, 0.610_701);
}

#[test]
fn the_gradient_is_the_derivative_of_the_reduced_loss() {
    let (mask, rollout, advantages) = ([1, 0, 1], [-1.0, -2.0, -0.5], [0.5; 3]);
    let at = |current: [f32; 3]| {
        let columns = Columns { mask: &mask, current: &current, rollout: &rollout, advantages: &advantages };
        (DIS.losses(columns).iter().sum::<f64>() / (2.0 * 4.0), DIS.gradient(columns, 4))
    };
    let (current, step) = ([-1.1, -50.0, -0.4], 1.0f32 / 1024.0);
    let (_, gradient) = at(current);
    assert_eq!(gradient[1], 0.0, "observations do not count");
    for token in [0, 2] {
        let (mut above, mut below) = (current, current);
        above[token] += step;
        below[token] -= step;
        // f(r) is held constant in the gradient, and d(r·log π) = r·(1 + log π), so r·A is what is left of it.
        let slope = (at(above).0 - at(below).0) / f64::from(above[token] - below[token]);
        let through_the_ratio = slope / (1.0 + f64::from(current[token]));
        assert!((through_the_ratio - gradient[token]).abs() < 1e-5, "{through_the_ratio} is not {}", gradient[token]);
    }
}

fn host(loss: &str) -> FakeHost {
    FakeHost::of::<OwnLoss>()
        .config("loss", &format!("\"{loss}\""))
        .sample(FakeSample::scored(1.0).mask(&[1, 0, 1]).forward(&Policy::Current, &[-1.0, -9.0, -1.3]))
        .sample(FakeSample::scored(0.0))
}

#[test]
fn the_host_computes_the_loss_when_asked_to() {
    let mut host = host("host");
    assert_eq!(host.propose::<OwnLoss>(), Ok(Proposal::Weights(9)));
    let [Call::Open, Call::Train { terms, .. }, Call::Checkpoint] = host.calls.as_slice() else {
        panic!("{:?}", host.calls);
    };
    let Objective::PolicyGradient(loss) = &terms[0].what else {
        panic!("{terms:?}");
    };
    assert_eq!(loss.weight, Weight::Masked(Bounds { low: 0.7, high: 6.0 }));
}

#[test]
fn the_guest_computes_the_gradient_when_asked_to() {
    let mut host = host("guest");
    assert_eq!(host.propose::<OwnLoss>(), Ok(Proposal::Weights(9)));
    let [
        Call::Open,
        Call::Forward { .. },
        Call::Backward { gradients, .. },
        Call::OptimizerStep(step),
        Call::Checkpoint,
    ] = host.calls.as_slice()
    else {
        panic!("{:?}", host.calls);
    };
    // Advantages ±0.5, two samples; two action tokens in the first, one in the second.
    let wanted = [-0.5 / 4.0, 0.0, -0.5 * 0.740_818 / 4.0, 0.5 / 2.0];
    assert_eq!(gradients.len(), wanted.len());
    gradients.iter().zip(wanted).for_each(|(&found, wanted)| close(found.into(), wanted));
    assert_eq!(step.learning_rate, 5e-4);
}

#[test]
fn nobody_else_computes_it() {
    assert!(matches!(host("oracle").propose::<OwnLoss>(), Err(Failure::InvalidConfig(_))));
}
