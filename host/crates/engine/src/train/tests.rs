//! The trainer as a whole, over a tiny random model.

mod compute;
mod distillation;
mod golden;
mod gradients;
mod objectives;
mod peft;
mod workers;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use reef_core::Sample;

use super::fixture::{open, sample, tiny_model, trainer_over};
use super::{
    CRITIC_FILE, Objective, Optimizer, Policy, PolicyGradient, Reduction, TRAINER_STATE_FILE, Term, Trainer, Weight,
};
use crate::engine::ServingLoad;
use crate::error::EngineError;
use crate::model::Model;
use crate::peft::{CONFIG_FILE, WEIGHTS_FILE};

const ADAM: Optimizer = Optimizer {
    learning_rate: 1e-2,
    beta1: 0.9,
    beta2: 0.95,
    epsilon: 1e-8,
    weight_decay: 0.01,
    gradient_norm_max: 1.0,
};

/// Samples of uneven lengths, temperatures and masks that fill more than one micro-batch; the last has more
/// response tokens than get logits together.
fn samples() -> Vec<Sample> {
    let mut samples: Vec<Sample> = (0..24u32)
        .map(|n| {
            let tokens: Vec<u32> = (0..20 + n).map(|t| (7 * n + 3 * t) % 50).collect();
            sample(i64::from(n), &tokens, 1 + n as usize % 5)
        })
        .collect();
    samples.push(sample(24, &(0..120).map(|t| (11 * t + 5) % 50).collect::<Vec<u32>>(), 100));
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

fn gradient_of(weight: Weight, samples: &[Sample]) -> PolicyGradient {
    PolicyGradient::new(weight, advantages(samples), Reduction::SampleTokenMean)
}

fn objective(weight: Weight, samples: &[Sample]) -> [Term; 1] {
    [gradient_of(weight, samples).into()]
}

fn nll() -> [Term; 1] {
    [Objective::Nll.into()]
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
        let objective = PolicyGradient::new(Weight::Ratio, advantages, Reduction::GlobalTokenMean);
        let metrics = trainer.train(&refs(samples), &[objective.into()], &ADAM).expect("step");
        (metrics, trainer.checkpoint().expect("files"))
    };
    assert!(step(&samples, forward) == step(&reversed, backward));
}

/// The files of a trainer after one step: no factor is zero any more, so every parameter has a gradient.
fn stepped(model: &Arc<Model>) -> Vec<(String, Vec<u8>)> {
    let (mut trainer, samples) = (trainer_over(model, None), samples());
    trainer.train(&refs(&samples), &objective(Weight::Reinforce, &samples), &ADAM).expect("step");
    trainer.checkpoint().expect("files")
}

fn without(files: &[(String, Vec<u8>)], left_out: &[&str]) -> Vec<(String, Vec<u8>)> {
    files.iter().filter(|(name, _)| !left_out.contains(&name.as_str())).cloned().collect()
}

#[test]
fn micro_batches_add_up_to_the_gradient_of_the_whole_batch() {
    // Each sample alone, summed, with its advantages already divided by the denominator of the whole batch.
    let model = tiny_model();
    let (files, samples, advantages) = (stepped(&model), samples(), advantages(&samples()));
    let actions = |sample: &Sample| sample.trajectory.mask.iter().filter(|&&m| m == 1).count() as f32;
    let all_actions: f32 = samples.iter().map(actions).sum();
    for reduction in [Reduction::TokenSum, Reduction::SampleTokenMean, Reduction::GlobalTokenMean] {
        let mut whole = trainer_over(&model, Some(&files));
        let weight = Weight::Ratio;
        let objective = PolicyGradient::new(weight, advantages.clone(), reduction);
        let metrics = whole.forward_backward(&refs(&samples), &[objective.into()]).expect("pass");
        let mut gradient = vec![0.0; whole.gradient.flat().len()];
        let (mut loss, mut rest) = (0.0, advantages.as_slice());
        for sample in &samples {
            let (part, after) = rest.split_at(sample.trajectory.mask.len());
            rest = after;
            let denominator = match reduction {
                Reduction::TokenSum => 1.0,
                Reduction::SampleTokenMean => samples.len() as f32 * actions(sample).max(1.0),
                Reduction::GlobalTokenMean => all_actions,
            };
            let advantages = part.iter().map(|a| a / denominator).collect();
            let one = PolicyGradient::new(weight, advantages, Reduction::TokenSum);
            let mut alone = trainer_over(&model, Some(&files));
            let metrics = alone.forward_backward(&[sample], &[one.into()]).expect("pass");
            gradient.iter_mut().zip(alone.gradient.flat()).for_each(|(sum, part)| *sum += part);
            loss += metrics["loss"];
        }
        let largest = gradient.iter().fold(0.0f32, |most, g| most.max(g.abs()));
        let apart =
            gradient.iter().zip(whole.gradient.flat()).fold(0.0f32, |most, (sum, whole)| most.max((sum - whole).abs()));
        assert!(largest > 0.0 && apart < 1e-5 * largest, "{reduction:?}: {apart} of {largest}");
        assert!((loss - metrics["loss"]).abs() < 1e-5 * loss.abs().max(1.0), "{loss} and {}", metrics["loss"]);
    }
}

#[test]
fn the_adapter_of_one_checkpoint_goes_on_with_the_critic_of_another() {
    let model = tiny_model();
    let samples = samples();
    let adapter = stepped(&model);
    let mut fitted = trainer_over(&model, None);
    let returns = vec![1.0; response_tokens(&samples)];
    fitted.fit_values(&refs(&samples), &returns, 1e-2, 3).expect("critic");
    let values = fitted.values(&refs(&samples)).expect("values");
    let critic = fitted.checkpoint().expect("files").into_iter().filter(|(name, _)| name == CRITIC_FILE);

    let combined: Vec<_> = without(&adapter, &[CRITIC_FILE]).into_iter().chain(critic).collect();
    let mut trainer = trainer_over(&model, Some(&combined));
    assert!(trainer.checkpoint().expect("files") == combined);
    assert_eq!(trainer.values(&refs(&samples)).expect("values"), values);
    let mut bare = trainer_over(&model, Some(&without(&combined, &[CRITIC_FILE, TRAINER_STATE_FILE])));
    assert!(bare.values(&refs(&samples)).expect("values").iter().all(|&v| v == 0.0));
    assert!(
        bare.forward(Policy::Current, &refs(&samples)).expect("logp")
            == trainer.forward(Policy::Current, &refs(&samples)).expect("logp")
    );
}

#[test]
fn half_an_adapter_is_refused_and_none_is_a_fresh_one() {
    let model = tiny_model();
    let fresh = trainer_over(&model, None).checkpoint().expect("files");
    assert_eq!(fresh.len(), 4);
    assert!(trainer_over(&model, Some(&[])).checkpoint().expect("files") == fresh);
    for left_out in [CONFIG_FILE, WEIGHTS_FILE] {
        let files = without(&fresh, &[left_out]);
        let opened = open(&model, Arc::new(ServingLoad::default()), Some(&files));
        assert!(opened.expect_err("refused").to_string().contains(left_out));
    }
}

/// A trainer beside a request that never ends, whose next call pauses after its first micro-batch.
fn crowded(model: &Arc<Model>, files: Option<&[(String, Vec<u8>)]>) -> Trainer {
    let serving = Arc::new(ServingLoad::default());
    serving.active.store(1, Ordering::Relaxed);
    let trainer = open(model, serving, files).expect("trainer");
    trainer.control().set_share(1.0).expect("share");
    trainer
}

/// Runs `call` and cancels it while it makes room for serving.
fn cancelled<T>(trainer: &mut Trainer, call: impl FnOnce(&mut Trainer) -> Result<T, EngineError>) {
    let control = trainer.control();
    control.set_share(1e-6).expect("share");
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            control.cancel();
        });
        call(trainer)
    });
    assert!(matches!(outcome, Err(EngineError::Cancelled)));
}

#[test]
fn a_step_cancelled_while_it_makes_room_changes_nothing() {
    let mut trainer = crowded(&tiny_model(), None);
    let samples = samples();
    let before = trainer.checkpoint().expect("files");
    cancelled(&mut trainer, |trainer| trainer.train(&refs(&samples), &objective(Weight::Reinforce, &samples), &ADAM));
    assert!(before == trainer.checkpoint().expect("files"));
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
    let again = trainer_over(&model, Some(&files)).train(&refs(&samples), &objective(Weight::Ratio, &samples), &ADAM);
    assert_eq!(again.expect("step")["first_step_kl"], 0.0);
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
    let zeros = PolicyGradient::new(Weight::Reinforce, vec![0.0; response_tokens(&samples)], Reduction::TokenSum);
    assert_eq!(trainer.train(&refs(&samples), &[zeros.into()], &ADAM).expect("skipped")["skipped"], 1.0);
    // Every ratio outside the bounds: the gradient is exactly 0.
    let masked = objective(Weight::Masked { low: 1e6, high: 1e7 }, &samples);
    let metrics = trainer.train(&refs(&samples), &masked, &ADAM).expect("skipped");
    assert_eq!((metrics["skipped"], metrics["masked_share"]), (1.0, 1.0));
    for sample in &mut samples {
        sample.trajectory.mask.fill(0);
    }
    assert_eq!(trainer.train(&refs(&samples), &nll(), &ADAM).expect("skipped")["skipped"], 1.0);
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
        let bad = PolicyGradient::new(Weight::Reinforce, bad, Reduction::TokenSum);
        let terms = [Objective::Nll.into(), bad.into()];
        let refusal = trainer.train(&refs(&samples), &terms, &ADAM).expect_err("refused");
        assert!(refusal.to_string().contains("terms[1].advantages"), "{refusal}");
    }
    let huge = PolicyGradient::new(Weight::Reinforce, vec![f32::MAX; response_tokens(&samples)], Reduction::TokenSum);
    assert!(matches!(trainer.train(&refs(&samples), &[huge.into()], &ADAM), Err(EngineError::Invalid(_))));
    trainer.control().cancel();
    assert!(matches!(trainer.train(&refs(&samples), &nll(), &ADAM), Err(EngineError::Cancelled)));
    assert!(before == trainer.checkpoint().expect("files"));
}

#[test]
fn nll_and_reinforce_raise_the_log_prob_of_what_they_reward() {
    let mut trainer = trainer_over(&tiny_model(), None);
    let samples = [sample(0, &[5, 9, 11, 3, 42], 1), sample(1, &[5, 9, 11, 3, 17], 1)];
    let before = trainer.forward(Policy::Current, &refs(&samples)).expect("before");
    let reward = [PolicyGradient::new(Weight::Reinforce, vec![1.0, -1.0], Reduction::TokenSum).into()];
    for _ in 0..5 {
        trainer.train(&refs(&samples), &reward, &ADAM).expect("step");
    }
    let after = trainer.forward(Policy::Current, &refs(&samples)).expect("after");
    assert!(after[0] > before[0] && after[1] < before[1], "{before:?} → {after:?}");
    for _ in 0..10 {
        trainer.train(&[&samples[1]], &nll(), &ADAM).expect("step");
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
