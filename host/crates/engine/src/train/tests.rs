//! The trainer as a whole, over a tiny random model and over the real one.

use reef_core::Sample;

use super::fixture::{sample, tiny_model, trainer_over};
use super::{Objective, Optimizer, Policy, Reduction, Trainer, Weight};
use crate::error::EngineError;

const ADAM: Optimizer = Optimizer {
    learning_rate: 1e-2,
    beta1: 0.9,
    beta2: 0.95,
    epsilon: 1e-8,
    weight_decay: 0.01,
    gradient_norm_max: 1.0,
};

/// Samples of uneven lengths, temperatures and masks that fill more than one micro-batch.
fn samples() -> Vec<Sample> {
    let mut samples: Vec<Sample> = (0..24u32)
        .map(|n| {
            let tokens: Vec<u32> = (0..20 + n).map(|t| (7 * n + 3 * t) % 50).collect();
            sample(i64::from(n), &tokens, 1 + n as usize % 5)
        })
        .collect();
    for sample in samples.iter_mut().step_by(3) {
        sample.temperature = 0.7;
        sample.trajectory.mask[0] = 0;
    }
    samples
}

fn refs(samples: &[Sample]) -> Vec<&Sample> {
    samples.iter().collect()
}

fn response_tokens(samples: &[Sample]) -> usize {
    samples.iter().map(|sample| sample.trajectory.mask.len()).sum()
}

fn advantages(samples: &[Sample]) -> Vec<f32> {
    (0..response_tokens(samples)).map(|n| (n as f32 * 0.7).sin()).collect()
}

fn objective(weight: Weight, samples: &[Sample]) -> Objective {
    Objective::PolicyGradient { weight, advantages: advantages(samples), reduction: Reduction::SampleTokenMean }
}

/// Records the log-probs of the trainer itself, as an engine with the same weights would.
fn record(trainer: &mut Trainer, samples: &mut [Sample]) {
    let logp = trainer.forward(Policy::Current, &refs(samples)).expect("log-probs");
    let mut rest = logp.as_slice();
    for sample in samples {
        let (part, after) = rest.split_at(sample.trajectory.mask.len());
        sample.trajectory.logprobs = part.to_vec();
        rest = after;
    }
}

#[test]
fn a_fresh_adapter_speaks_like_the_base_and_log_probs_follow_the_caller_s_order() {
    let mut trainer = trainer_over(&tiny_model(), None);
    let mut samples = samples();
    let base = trainer.forward(Policy::Base, &refs(&samples)).expect("base");
    assert_eq!(trainer.forward(Policy::Current, &refs(&samples)).expect("current"), base);
    assert!(base.iter().all(|logp| logp.is_finite() && *logp <= 0.0));
    let first = samples[0].trajectory.mask.len();
    samples.rotate_left(1);
    let rotated = trainer.forward(Policy::Base, &refs(&samples)).expect("rotated");
    assert_eq!(rotated[..base.len() - first], base[first..]);
    assert_eq!(rotated[base.len() - first..], base[..first]);
}

#[test]
fn a_log_prob_is_the_same_alone_and_in_a_padded_batch() {
    let mut trainer = trainer_over(&tiny_model(), None);
    let samples = samples();
    let together = trainer.forward(Policy::Base, &refs(&samples)).expect("together");
    let mut alone = Vec::new();
    for sample in &samples {
        alone.extend(trainer.forward(Policy::Base, &[sample]).expect("alone"));
    }
    for (a, b) in together.iter().zip(&alone) {
        assert!((a - b).abs() < 1e-4, "{a} and {b}");
    }
}

#[test]
fn the_first_step_starts_at_kl_zero_and_on_policy() {
    let mut trainer = trainer_over(&tiny_model(), None);
    let mut samples = samples();
    record(&mut trainer, &mut samples);
    let dis = objective(Weight::Masked { low: 0.7, high: 6.0 }, &samples);
    let metrics = trainer.train(&refs(&samples), &dis, &ADAM).expect("step");
    assert_eq!(metrics["first_step_kl"], 0.0, "{metrics:?}");
    assert!(metrics["logprob_abs_diff"] < 1e-6, "{metrics:?}");
    assert_eq!((metrics["masked_share"], metrics["skipped"]), (0.0, 0.0), "{metrics:?}");
    let actions: usize = samples.iter().map(|s| s.trajectory.mask.iter().filter(|&&m| m == 1).count()).sum();
    assert_eq!(metrics["tokens"], actions as f64);
    assert!(metrics["gradient_norm"] > 0.0 && metrics["entropy"] > 0.0, "{metrics:?}");
    let again = trainer.train(&refs(&samples), &dis, &ADAM).expect("step");
    assert!(again["first_step_kl"] != 0.0 && again["logprob_abs_diff"] > 0.0, "{again:?}");
}

#[test]
fn the_order_of_the_items_changes_no_bit() {
    let model = tiny_model();
    let samples = samples();
    let mut reversed = samples.clone();
    reversed.reverse();
    let forward = advantages(&samples);
    let mut rest = forward.as_slice();
    let mut parts = Vec::new();
    for sample in &samples {
        let (part, after) = rest.split_at(sample.trajectory.mask.len());
        parts.push(part.to_vec());
        rest = after;
    }
    let backward: Vec<f32> = parts.into_iter().rev().flatten().collect();
    let step = |samples: &[Sample], advantages: Vec<f32>| {
        let mut trainer = trainer_over(&model, None);
        let objective =
            Objective::PolicyGradient { weight: Weight::Ratio, advantages, reduction: Reduction::GlobalTokenMean };
        let metrics = trainer.train(&refs(samples), &objective, &ADAM).expect("step");
        (metrics, trainer.checkpoint().expect("files"))
    };
    assert!(step(&samples, forward) == step(&reversed, backward));
}

#[test]
fn micro_batches_add_up_to_the_loss_of_the_whole_batch() {
    // Samples one by one, each with the weight it has in the batch, against the batch at once.
    let model = tiny_model();
    let samples = samples();
    let count = samples.len() as f32;
    let whole = {
        let mut trainer = trainer_over(&model, None);
        trainer.train(&refs(&samples), &objective(Weight::Reinforce, &samples), &ADAM).expect("step")
    };
    let mut loss = 0.0;
    let all = advantages(&samples);
    let mut rest = all.as_slice();
    for sample in &samples {
        let (part, after) = rest.split_at(sample.trajectory.mask.len());
        rest = after;
        let mut trainer = trainer_over(&model, None);
        let scaled = part.iter().map(|a| a / count).collect();
        let one = Objective::PolicyGradient {
            weight: Weight::Reinforce,
            advantages: scaled,
            reduction: Reduction::SampleTokenMean,
        };
        loss += trainer.train(&[sample], &one, &ADAM).expect("step")["loss"];
    }
    assert!((loss - whole["loss"]).abs() < 1e-4, "{loss} and {}", whole["loss"]);
}

#[test]
fn the_gradient_is_the_slope_of_the_loss() {
    // −Σ A·log π moves by lr·‖g‖² along the gradient; one plain step is imitated with AdamW's first step,
    // which moves every parameter by lr against the sign, so the loss must fall by lr·‖g‖₁ to first order.
    let model = tiny_model();
    let mut trainer = trainer_over(&model, None);
    let samples = samples();
    let objective = objective(Weight::Reinforce, &samples);
    let small = Optimizer { learning_rate: 1e-5, weight_decay: 0.0, gradient_norm_max: 0.0, ..ADAM };
    let first = trainer.train(&refs(&samples), &objective, &small).expect("step");
    let l1: f64 = trainer.gradient_l1();
    let second = trainer.train(&refs(&samples), &objective, &small).expect("step");
    let (fell, predicted) = (first["loss"] - second["loss"], 1e-5 * l1);
    assert!((fell - predicted).abs() < 0.05 * predicted, "fell {fell}, predicted {predicted}");
}

#[test]
fn resuming_from_a_checkpoint_equals_not_stopping() {
    let model = tiny_model();
    let samples = samples();
    let returns = vec![1.0; response_tokens(&samples)];
    let step = |trainer: &mut Trainer| {
        trainer.fit_values(&refs(&samples), &returns, 1e-2, 3).expect("critic");
        trainer.train(&refs(&samples), &objective(Weight::Reinforce, &samples), &ADAM).expect("step");
    };
    let mut straight = trainer_over(&model, None);
    step(&mut straight);
    let files = straight.checkpoint().expect("files");
    assert!(files == straight.checkpoint().expect("files"), "equal state gives equal bytes");
    step(&mut straight);

    let mut resumed = trainer_over(&model, Some(&files));
    assert!(files == resumed.checkpoint().expect("files"), "a checkpoint reads back to itself");
    step(&mut resumed);
    assert!(straight.checkpoint().expect("files") == resumed.checkpoint().expect("files"));
    assert_eq!(straight.values(&refs(&samples)).expect("values"), resumed.values(&refs(&samples)).expect("values"));
}

#[test]
fn a_batch_without_signal_changes_nothing() {
    let mut trainer = trainer_over(&tiny_model(), None);
    let mut samples = samples();
    let before = trainer.checkpoint().expect("files");
    let zeros = Objective::PolicyGradient {
        weight: Weight::Reinforce,
        advantages: vec![0.0; response_tokens(&samples)],
        reduction: Reduction::TokenSum,
    };
    assert_eq!(trainer.train(&refs(&samples), &zeros, &ADAM).expect("skipped")["skipped"], 1.0);
    // Every ratio outside the bounds: the gradient is exactly 0.
    let masked = objective(Weight::Masked { low: 1e6, high: 1e7 }, &samples);
    let metrics = trainer.train(&refs(&samples), &masked, &ADAM).expect("skipped");
    assert_eq!((metrics["skipped"], metrics["masked_share"]), (1.0, 1.0));
    for sample in &mut samples {
        sample.trajectory.mask.fill(0);
    }
    assert_eq!(trainer.train(&refs(&samples), &Objective::Nll, &ADAM).expect("skipped")["skipped"], 1.0);
    assert!(before == trainer.checkpoint().expect("files"));
}

#[test]
fn refused_and_cancelled_calls_change_nothing() {
    let mut trainer = trainer_over(&tiny_model(), None);
    let samples = samples();
    let before = trainer.checkpoint().expect("files");
    let mut with_nan = advantages(&samples);
    with_nan[3] = f32::NAN;
    for bad in [with_nan, vec![1.0]] {
        let objective =
            Objective::PolicyGradient { weight: Weight::Reinforce, advantages: bad, reduction: Reduction::TokenSum };
        let refusal = trainer.train(&refs(&samples), &objective, &ADAM).expect_err("refused");
        assert!(refusal.to_string().contains("advantages"), "{refusal}");
    }
    let huge = Objective::PolicyGradient {
        weight: Weight::Reinforce,
        advantages: vec![f32::MAX; response_tokens(&samples)],
        reduction: Reduction::TokenSum,
    };
    assert!(matches!(trainer.train(&refs(&samples), &huge, &ADAM), Err(EngineError::Invalid(_))));
    trainer.control().cancel();
    assert!(matches!(trainer.train(&refs(&samples), &Objective::Nll, &ADAM), Err(EngineError::Cancelled)));
    assert!(before == trainer.checkpoint().expect("files"));
}

#[test]
fn nll_and_reinforce_raise_the_log_prob_of_what_they_reward() {
    let mut trainer = trainer_over(&tiny_model(), None);
    let samples = [sample(0, &[5, 9, 11, 3, 42], 1), sample(1, &[5, 9, 11, 3, 17], 1)];
    let before = trainer.forward(Policy::Current, &refs(&samples)).expect("before");
    let reward = Objective::PolicyGradient {
        weight: Weight::Reinforce,
        advantages: vec![1.0, -1.0],
        reduction: Reduction::TokenSum,
    };
    for _ in 0..5 {
        trainer.train(&refs(&samples), &reward, &ADAM).expect("step");
    }
    let after = trainer.forward(Policy::Current, &refs(&samples)).expect("after");
    assert!(after[0] > before[0] && after[1] < before[1], "{before:?} → {after:?}");
    for _ in 0..10 {
        trainer.train(&[&samples[1]], &Objective::Nll, &ADAM).expect("step");
    }
    assert!(trainer.forward(Policy::Current, &refs(&samples)).expect("nll")[1] > after[1]);
    assert_eq!(trainer.forward(Policy::Base, &refs(&samples)).expect("base"), before, "the base never moves");
}

#[test]
fn the_critic_learns_on_frozen_features_in_any_order() {
    let model = tiny_model();
    let mut trainer = trainer_over(&model, None);
    let samples = samples();
    let returns: Vec<f32> = samples
        .iter()
        .flat_map(|s| vec![if s.sequence % 2 == 0 { 1.0 } else { 0.0 }; s.trajectory.mask.len()])
        .collect();
    assert!(trainer.values(&refs(&samples)).expect("values").iter().all(|&v| v == 0.0));
    let first = trainer.fit_values(&refs(&samples), &returns, 1e-2, 50).expect("fit");
    assert!(first["value_loss_after"] < first["value_loss"], "{first:?}");
    let second = trainer.fit_values(&refs(&samples), &returns, 1e-2, 0).expect("measured");
    assert!(second["explained_variance"] > 0.0, "{second:?}");
    let values = trainer.values(&refs(&samples)).expect("values");
    // The adapter moves; the features of the critic do not.
    trainer.train(&refs(&samples), &objective(Weight::Reinforce, &samples), &ADAM).expect("step");
    assert_eq!(trainer.values(&refs(&samples)).expect("values"), values);
    assert!(trainer.fit_values(&refs(&samples), &returns[1..], 1e-2, 1).is_err());
}
