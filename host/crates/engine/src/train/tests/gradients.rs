//! Gradients that add up over calls, gradients that the caller computes, and what a failed call leaves.

use tch::Tensor;

use super::super::fixture;
use super::*;

const HALF: usize = 11;
const PPO: Weight = Weight::Ppo { low: 0.8, high: 1.28 };
const DIS: Weight = Weight::Masked { low: 0.7, high: 6.0 };

fn largest(numbers: &[f32]) -> f32 {
    numbers.iter().fold(0.0, |most, number| most.max(number.abs()))
}

/// The largest difference of two gradients, as a share of the largest entry.
fn apart(a: &[f32], b: &[f32]) -> f32 {
    assert!(a.len() == b.len() && largest(a) > 0.0);
    a.iter().zip(b).fold(0.0f32, |most, (a, b)| most.max((a - b).abs())) / largest(a)
}

/// Samples recorded by the base, so that ratios under a stepped adapter are near 1 and not equal to it.
fn recorded(model: &Arc<Model>) -> Vec<Sample> {
    let mut samples = samples();
    record(&mut trainer_over(model, None), &mut samples);
    samples
}

/// dL/d(log π) of a token-sum policy gradient with advantages from `advantages`, as a caller would compute it
/// from `forward` and the recorded log-probs.
fn by_hand(trainer: &mut Trainer, weight: Weight, samples: &[Sample]) -> Vec<f32> {
    let logp = trainer.forward(Policy::Current, &refs(samples)).expect("log-probs");
    let recorded: Vec<f32> = samples.iter().flat_map(|sample| sample.trajectory.logprobs.clone()).collect();
    // The same exp as the kernels use; that of the standard library may differ in the last bit.
    let ratios = (Tensor::from_slice(&logp) - Tensor::from_slice(&recorded)).exp();
    let ratios = Vec::<f32>::try_from(&ratios).expect("f32");
    let masks = samples.iter().flat_map(|sample| sample.trajectory.mask.clone());
    let token = |((ratio, advantage), mask): ((f32, f32), u8)| {
        let factor = match weight {
            Weight::Reinforce => 1.0,
            Weight::Ratio => ratio,
            Weight::Truncated(cap) => ratio.min(cap),
            Weight::Masked { low, high } => {
                if low < ratio && ratio < high {
                    ratio
                } else {
                    0.0
                }
            }
            // The gradient of the clipped side is 0; at a tie both sides have the same loss and the same slope.
            Weight::Ppo { low, high } => {
                if -ratio * advantage >= -ratio.clamp(low, high) * advantage {
                    ratio
                } else {
                    0.0
                }
            }
        };
        if mask == 1 { -(factor * advantage) } else { 0.0 }
    };
    ratios.into_iter().zip(advantages(samples)).zip(masks).map(token).collect()
}

#[test]
fn a_policy_gradient_written_by_the_caller_equals_the_one_of_the_host_bit_for_bit() {
    let model = tiny_model();
    let (files, samples) = (stepped(&model), recorded(&model));
    for weight in [Weight::Reinforce, Weight::Ratio, Weight::Truncated(1.0), DIS, PPO] {
        let (mut host, mut caller) = (trainer_over(&model, Some(&files)), trainer_over(&model, Some(&files)));
        let terms = [PolicyGradient::new(weight, advantages(&samples), Reduction::TokenSum).into()];
        let of_host = host.forward_backward(&refs(&samples), &terms).expect("pass");
        let gradients = by_hand(&mut caller, weight, &samples);
        let of_caller = caller.backward(&refs(&samples), &gradients).expect("pass");
        assert_eq!(of_caller["gradient_norm"], of_host["gradient_norm"], "{weight:?}");
        assert_eq!(of_caller["tokens"], response_tokens(&samples) as f64);
        assert!(
            host.gradient.flat() == caller.gradient.flat(),
            "{weight:?}: {}",
            apart(&host.gradient.flat(), &caller.gradient.flat())
        );
        host.optimizer_step(&ADAM).expect("step");
        caller.optimizer_step(&ADAM).expect("step");
        assert!(host.checkpoint().expect("files") == caller.checkpoint().expect("files"), "{weight:?}");
    }
}

#[test]
fn a_given_gradient_counts_on_observations_too() {
    let (model, mut samples) = (tiny_model(), samples());
    let gradient = |samples: &[Sample]| {
        let mut trainer = trainer_over(&model, None);
        trainer.backward(&refs(samples), &advantages(samples)).expect("pass");
        trainer.gradient.flat()
    };
    let with_observations = gradient(&samples);
    for sample in &mut samples {
        sample.trajectory.mask.fill(1);
    }
    assert!(with_observations == gradient(&samples) && largest(&with_observations) > 0.0);
}

#[test]
fn given_gradients_of_wrong_length_or_not_finite_are_refused_by_name() {
    let (mut trainer, samples) = (trainer_over(&tiny_model(), None), samples());
    let mut wild = advantages(&samples);
    wild[5] = f32::INFINITY;
    for (gradients, problem) in [(wild, "number 5 is not finite"), (vec![1.0; 3], "3 numbers for")] {
        let refusal = trainer.backward(&refs(&samples), &gradients).expect_err("refused").to_string();
        assert!(refusal.contains("gradients") && refusal.contains(problem), "{refusal}");
    }
    // Finite numbers whose sum is not.
    let huge = vec![f32::MAX; response_tokens(&samples)];
    let refusal = trainer.backward(&refs(&samples), &huge).expect_err("refused").to_string();
    assert!(refusal.contains("gradient"), "{refusal}");
    assert_eq!(largest(&trainer.gradient.flat()), 0.0);
    assert_eq!(
        trainer.backward(&refs(&samples), &vec![0.0; response_tokens(&samples)]).expect("none")["gradient_norm"],
        0.0
    );
}

#[test]
fn the_halves_of_a_batch_add_up_to_the_whole() {
    let model = tiny_model();
    let (files, samples) = (stepped(&model), samples());
    let advantages = advantages(&samples);
    let (first, second) = samples.split_at(HALF);
    let (of_first, of_second) = advantages.split_at(response_tokens(first));
    let terms = |part: &[f32]| [PolicyGradient::new(Weight::Ratio, part.to_vec(), Reduction::TokenSum).into()];
    let mut whole = trainer_over(&model, Some(&files));
    whole.forward_backward(&refs(&samples), &terms(&advantages)).expect("whole");
    let mut halves = trainer_over(&model, Some(&files));
    let alone = halves.forward_backward(&refs(first), &terms(of_first)).expect("first");
    halves.forward_backward(&refs(second), &terms(of_second)).expect("second");
    assert!(apart(&whole.gradient.flat(), &halves.gradient.flat()) < 1e-6);

    // A given gradient adds up like any other, and the norm it reports is that of the sum.
    let mut mixed = trainer_over(&model, Some(&files));
    mixed.forward_backward(&refs(first), &terms(of_first)).expect("first");
    let gradients = {
        let weight = Weight::Ratio;
        let all = by_hand(&mut trainer_over(&model, Some(&files)), weight, &samples);
        all[response_tokens(first)..].to_vec()
    };
    let metrics = mixed.backward(&refs(second), &gradients).expect("second");
    assert!(apart(&halves.gradient.flat(), &mixed.gradient.flat()) < 1e-6);
    let norm = |gradient: &[f32]| gradient.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
    assert!((metrics["gradient_norm"] / norm(&mixed.gradient.flat()) - 1.0).abs() < 1e-6, "{metrics:?}");
    assert!(metrics["gradient_norm"] != alone["gradient_norm"]);
}

#[test]
fn train_is_a_pass_and_a_step_from_a_gradient_of_zero() {
    let (model, samples) = (tiny_model(), samples());
    let terms = objective(Weight::Ratio, &samples);
    let (mut together, mut apart) = (trainer_over(&model, None), trainer_over(&model, None));
    // What was added before has no part in it.
    together.forward_backward(&refs(&samples), &nll()).expect("pass");
    let of_train = together.train(&refs(&samples), &terms, &ADAM).expect("step");
    let of_pass = apart.forward_backward(&refs(&samples), &terms).expect("pass");
    let of_step = apart.optimizer_step(&ADAM).expect("step");
    assert_eq!(of_train, of_pass);
    assert_eq!((of_step["gradient_norm"], of_step["skipped"]), (of_train["gradient_norm"], 0.0));
    assert!(together.checkpoint().expect("files") == apart.checkpoint().expect("files"));
    // The gradient is 0 again, and a step on 0 changes nothing.
    for trainer in [&mut together, &mut apart] {
        let before = trainer.checkpoint().expect("files");
        assert_eq!(largest(&trainer.gradient.flat()), 0.0);
        let skipped = trainer.optimizer_step(&ADAM).expect("skipped");
        assert_eq!((skipped["gradient_norm"], skipped["skipped"]), (0.0, 1.0));
        assert!(before == trainer.checkpoint().expect("files"));
    }
}

#[test]
fn a_failed_or_cancelled_call_leaves_weights_moments_and_gradient_bit_for_bit() {
    let model = tiny_model();
    let (files, samples) = (stepped(&model), samples());
    let terms = objective(Weight::Reinforce, &samples);
    let huge = PolicyGradient::new(Weight::Reinforce, vec![f32::MAX; response_tokens(&samples)], Reduction::TokenSum);
    let huge: [Term; 1] = [huge.into()];
    type Call<'a> = &'a dyn Fn(&mut Trainer) -> Result<(), EngineError>;
    let calls: [Call<'_>; 3] = [
        &|trainer| trainer.forward_backward(&refs(&samples), &terms).map(drop),
        &|trainer| trainer.backward(&refs(&samples), &advantages(&samples)).map(drop),
        &|trainer| trainer.train(&refs(&samples), &terms, &ADAM).map(drop),
    ];
    for call in calls {
        let mut trainer = crowded(&model, Some(&files));
        trainer.forward_backward(&refs(&samples), &nll()).expect("pass");
        trainer.update_ema(0.25).expect("average");
        let (gradient, before) = (trainer.gradient.flat(), trainer.checkpoint().expect("files"));
        let unchanged = |trainer: &Trainer| {
            assert!(gradient == trainer.gradient.flat() && before == trainer.checkpoint().expect("files"));
        };
        assert!(matches!(trainer.forward_backward(&refs(&samples), &huge), Err(EngineError::Invalid(_))));
        assert!(matches!(trainer.train(&refs(&samples), &huge, &ADAM), Err(EngineError::Invalid(_))));
        assert!(trainer.optimizer_step(&Optimizer { beta1: 1.0, ..ADAM }).is_err());
        unchanged(&trainer);
        cancelled(&mut trainer, call);
        unchanged(&trainer);
        assert!(matches!(trainer.optimizer_step(&ADAM), Err(EngineError::Cancelled)));
        assert!(matches!(trainer.update_ema(0.5), Err(EngineError::Cancelled)));
        unchanged(&trainer);
    }
}

#[test]
fn the_same_calls_give_the_same_bytes() {
    let run = || {
        let model = tiny_model();
        let samples = recorded(&model);
        let mut trainer = trainer_over(&model, Some(&stepped(&model)));
        let mut metrics = Vec::new();
        for weight in [DIS, PPO] {
            metrics.push(trainer.forward_backward(&refs(&samples[..HALF]), &objective(weight, &samples[..HALF])));
            let gradients = by_hand(&mut trainer, weight, &samples[HALF..]);
            metrics.push(trainer.backward(&refs(&samples[HALF..]), &gradients));
            metrics.push(trainer.optimizer_step(&ADAM));
            trainer.update_ema(0.1).expect("average");
            metrics.push(trainer.train(&refs(&samples), &objectives::everything(&samples), &ADAM));
        }
        let metrics = metrics.into_iter().collect::<Result<Vec<_>, _>>().expect("metrics");
        (metrics, trainer.checkpoint().expect("files"))
    };
    let first = run();
    assert!(first == run());
    println!("digest of the checkpoint {:016x}", fixture::digest(&first.1));
}

#[test]
fn a_shared_beginning_changes_neither_log_probs_nor_gradients() {
    let model = tiny_model();
    let files = stepped(&model);
    // Ends of several lengths after one beginning of 30 tokens; alone, a sample shares nothing.
    let begin: Vec<u32> = (0..30).map(|t| (13 * t + 2) % 50).collect();
    let with = |n: u32| [begin.clone(), (0..3 + n % 4).map(|t| (7 * n + 5 * t) % 50).collect()].concat();
    let samples: Vec<Sample> = (0..9).map(|n| sample(i64::from(n), &with(n), 3)).collect();
    let (mut together, mut alone) = (trainer_over(&model, Some(&files)), trainer_over(&model, Some(&files)));
    let logp = together.forward(Policy::Current, &refs(&samples)).expect("log-probs");
    let gradients = advantages(&samples);
    together.backward(&refs(&samples), &gradients).expect("pass");
    for ((sample, logp), gradients) in samples.iter().zip(logp.chunks(3)).zip(gradients.chunks(3)) {
        let own = alone.forward(Policy::Current, &[sample]).expect("log-probs");
        assert!(own.iter().zip(logp).all(|(own, logp)| (own - logp).abs() < 1e-5), "{own:?} and {logp:?}");
        alone.backward(&[sample], gradients).expect("pass");
    }
    let apart = apart(&together.gradient.flat(), &alone.gradient.flat());
    assert!(apart < 1e-5, "{apart}");
}
