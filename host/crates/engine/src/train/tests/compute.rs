//! Settings that change what a step costs and not what it does.

use super::super::fixture;
use super::*;
use crate::checkpoint::Checkpoint;
use crate::compute::{Compute, Precision};
use crate::tests::model_path;

fn tiny(compute: Compute) -> Arc<Model> {
    Arc::new(Arc::into_inner(tiny_model()).expect("nobody else has it").computing(compute))
}

/// The files after two steps of a policy gradient, which also needs policies without a graph.
fn stepped(model: &Arc<Model>) -> Vec<(String, Vec<u8>)> {
    let (mut trainer, samples) = (trainer_over(model, None), samples());
    let gradient = PolicyGradient::new(Weight::Ratio, advantages(&samples), Reduction::SampleTokenMean);
    for _ in 0..2 {
        trainer.train(&refs(&samples), &[gradient.clone().into()], &ADAM).expect("a step");
    }
    trainer.checkpoint().expect("files")
}

/// The gradient of one call, in one row.
fn gradient(model: &Arc<Model>, samples: &[Sample]) -> Vec<f32> {
    let mut trainer = trainer_over(model, None);
    let tokens = response_tokens(samples);
    let gradient = PolicyGradient::new(Weight::Reinforce, vec![1.0; tokens], Reduction::SampleTokenMean);
    trainer.forward_backward(&refs(samples), &[gradient.into()]).expect("a pass");
    trainer.gradient.flat()
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[test]
fn blocks_that_are_computed_again_give_the_same_bytes() {
    let again = Compute { gradient_checkpointing: true, ..Compute::default() };
    let (kept, again) = (stepped(&tiny(Compute::default())), stepped(&tiny(again)));
    assert_eq!(fixture::digest(&kept), fixture::digest(&again));
}

#[test]
fn the_size_of_a_micro_batch_changes_the_order_of_sums_alone() {
    let of = |micro_batch_tokens| gradient(&tiny(Compute { micro_batch_tokens, ..Compute::default() }), &samples());
    let (small, large) = (of(64), of(4_096));
    let most = small.iter().fold(0.0f32, |most, number| most.max(number.abs()));
    assert!(most > 0.0);
    for (small, large) in small.iter().zip(&large) {
        assert!((small - large).abs() < 1e-5 * most, "{small} and {large} of {most}");
    }
}

#[test]
fn half_the_bits_give_nearly_the_same_gradient_and_log_probs() {
    let checkpoint = Checkpoint::open(&model_path()).expect("the model");
    let load = |precision| {
        let compute = Compute { precision, ..Compute::default() };
        Arc::new(Model::load(&checkpoint, checkpoint.config().clone(), compute).expect("its weights"))
    };
    let samples: Vec<Sample> = (1..5)
        .map(|n| sample(i64::from(n), &(0..24).map(|t| (977 * n + 31 * t) % 40_000).collect::<Vec<u32>>(), 8))
        .collect();
    let (whole, half) = (load(Precision::F32), load(Precision::Bf16));
    let logp = |model| trainer_over(model, None).forward(Policy::Current, &refs(&samples)).expect("log-probs");
    let apart = logp(&whole).iter().zip(logp(&half)).map(|(a, b)| f64::from((a - b).abs())).sum::<f64>();
    let apart = apart / response_tokens(&samples) as f64;
    assert!(apart > 0.0 && apart < 0.15, "log-probs of random tokens are {apart} apart");
    let alike = cosine(&gradient(&whole, &samples), &gradient(&half, &samples));
    assert!(alike > 0.99, "{alike}");
}
