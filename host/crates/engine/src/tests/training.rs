//! The trainer on the real model: samples that the engine itself recorded, and the answers after a few steps.

use reef_core::Sample;

use super::*;
use crate::train::{
    KlPenalty, Optimizer, Policy, PolicyGradient, RatioSource, Reduction, Term, Trainer, Weight, fixture,
};

/// A learning rate at which an adapter moves within a few steps.
const ADAM: Optimizer = Optimizer {
    learning_rate: 5e-4,
    beta1: 0.9,
    beta2: 0.95,
    epsilon: 1e-8,
    weight_decay: 0.0,
    gradient_norm_max: 1.0,
};

const DIS: Weight = Weight::Masked { low: 0.7, high: 6.0 };

fn sample(sequence: i64, prompt: &[u32], output: &[u32], logprobs: Vec<f32>) -> Sample {
    let mut sample = fixture::sample(sequence, &[prompt, output].concat(), output.len());
    sample.trajectory.logprobs = logprobs;
    sample
}

/// What the engine answers and records at `temperature` under `weights`.
fn recorded(count: i64, weights: &Weights, temperature: f32) -> Vec<Sample> {
    let word = |n: i64| ["river", "stone", "cloud", "lamp"][n as usize % 4];
    let prompts: Vec<Vec<u32>> =
        (0..count).map(|n| chat(&format!("Repeat this word and nothing else: {}", word(n)))).collect();
    let start = |(seed, prompt): (u64, &Vec<u32>)| {
        let sampling = Sampling { temperature, top_p: 1.0, top_k: 0, seed };
        engine().generate(Request { sampling, weights: weights.clone(), ..greedy(prompt.clone(), 8) }).expect("queued")
    };
    let running: Vec<_> = (0..).zip(&prompts).map(start).collect();
    let sampled = |((sequence, prompt), events): ((i64, &Vec<u32>), _)| {
        let (tokens, _) = collect(events);
        let output: Vec<u32> = tokens.iter().map(|token| token.id).collect();
        let logprobs = tokens.iter().map(|token| token.logprob).collect();
        Sample { temperature, ..sample(sequence, prompt, &output, logprobs) }
    };
    (0..).zip(&prompts).zip(running).map(sampled).collect()
}

fn trainer(files: Option<&[(String, Vec<u8>)]>) -> Trainer {
    let trainer = Trainer::open(engine(), &LoraConfig::default(), files).expect("trainer");
    // Other tests serve from the same engine meanwhile.
    trainer.control().set_share(1.0).expect("share");
    trainer
}

fn policy_gradient(samples: &[Sample], weight: Weight) -> [Term; 1] {
    let tokens = samples.iter().map(|sample| sample.trajectory.mask.len()).sum();
    [PolicyGradient::new(weight, vec![1.0; tokens], Reduction::SampleTokenMean).into()]
}

#[test]
fn the_trainer_agrees_with_what_the_engine_recorded() {
    for temperature in [1.0, 0.7] {
        let samples = recorded(4, &Weights::Base, temperature);
        let batch: Vec<&Sample> = samples.iter().collect();
        let mut trainer = trainer(None);
        let logp = trainer.forward(Policy::Current, &batch).expect("log-probs");
        let recorded = samples.iter().flat_map(|sample| &sample.trajectory.logprobs);
        let apart: Vec<f32> = logp.iter().zip(recorded).map(|(a, b)| (a - b).abs()).collect();
        // The default model's weights are low-bit: serving rounds activations to 16 bits, training does not.
        assert!(apart.iter().all(|&apart| apart < 5e-3), "{apart:?}");
        let metrics = trainer.train(&batch, &policy_gradient(&samples, DIS), &ADAM).expect("step");
        println!(
            "base, temperature {temperature}: largest difference {:e}; {metrics:?}",
            apart.iter().copied().fold(0.0, f32::max)
        );
        assert_eq!(metrics["first_step_kl"], 0.0);
        assert!(metrics["logprob_abs_diff"] < 1e-3, "{metrics:?}");
        assert_eq!(metrics["masked_share"], 0.0);
    }
}

#[test]
fn a_released_adapter_serves_what_was_trained_and_resumes_bit_for_bit() {
    let samples = recorded(4, &Weights::Base, 1.0);
    let batch: Vec<&Sample> = samples.iter().collect();
    let objective = policy_gradient(&samples, Weight::Reinforce);
    let mut straight = trainer(None);
    straight.train(&batch, &objective, &ADAM).expect("step");
    let files = straight.checkpoint().expect("files");

    let served = engine().adapter_from_files(&files).expect("adapter");
    let fresh = recorded(4, &Weights::Adapter(served), 1.0);
    let fresh_batch: Vec<&Sample> = fresh.iter().collect();
    let mut resumed = trainer(Some(&files));
    let logp = resumed.forward(Policy::Current, &fresh_batch).expect("log-probs");
    let recorded: Vec<f32> = fresh.iter().flat_map(|sample| sample.trajectory.logprobs.clone()).collect();
    let mean = logp.iter().zip(&recorded).map(|(a, b)| (a - b).abs()).sum::<f32>() / logp.len() as f32;
    println!("adapter: mean log-prob difference {mean:e}");
    assert!(mean < 1e-3, "{mean}");

    assert_eq!(resumed.train(&batch, &objective, &ADAM).expect("step")["first_step_kl"], 0.0);
    straight.train(&batch, &objective, &ADAM).expect("step");
    assert!(resumed.checkpoint().expect("files") == straight.checkpoint().expect("files"));
}

#[test]
fn reinforce_raises_the_log_prob_of_a_rewarded_token() {
    let prompt = chat("Name a colour.");
    let (wanted, other) = (engine().encode("Blue").expect("ids")[0], engine().encode("The").expect("ids")[0]);
    let samples = [sample(0, &prompt, &[wanted], vec![0.0]), sample(1, &prompt, &[other], vec![0.0])];
    let batch: Vec<&Sample> = samples.iter().collect();
    let objective = [PolicyGradient::new(Weight::Reinforce, vec![1.0, -1.0], Reduction::TokenSum).into()];
    let mut trainer = trainer(None);
    let before = trainer.forward(Policy::Base, &batch).expect("before");
    for _ in 0..4 {
        trainer.train(&batch, &objective, &ADAM).expect("step");
    }
    let after = trainer.forward(Policy::Current, &batch).expect("after");
    println!("{before:?} → {after:?}");
    assert!(after[0] > before[0] + 0.5 && after[1] < before[1], "{before:?} → {after:?}");
    assert_eq!(trainer.forward(Policy::Base, &batch).expect("base"), before);
}

#[test]
fn the_same_calls_give_the_same_bytes() {
    let words = ["Name a colour.", "Count to five.", "What is the sea?", "Say hello to a friend of yours."];
    let answer = engine().encode("The sea is a very large body of salt water.").expect("ids");
    let samples: Vec<Sample> =
        (0..).zip(words).map(|(n, word)| sample(n, &chat(word), &answer, vec![-2.0; answer.len()])).collect();
    let batch: Vec<&Sample> = samples.iter().collect();
    let gradient = |weight| PolicyGradient::new(weight, vec![0.5; 4 * answer.len()], Reduction::GlobalTokenMean);
    let penalised = PolicyGradient {
        old: RatioSource::Recomputed,
        kl: Some(KlPenalty { coefficient: 0.1, reference: Policy::Base }),
        entropy: 0.01,
        ..gradient(Weight::Ratio)
    };
    let run = || {
        let mut trainer = trainer(None);
        for _ in 0..2 {
            trainer.forward_backward(&batch, &[penalised.clone().into()]).expect("pass");
            trainer.backward(&batch, &vec![-0.01; 4 * answer.len()]).expect("pass");
            trainer.optimizer_step(&ADAM).expect("step");
            trainer.update_ema(0.5).expect("average");
        }
        trainer.checkpoint().expect("files")
    };
    let first = run();
    println!("digest of the checkpoint {:016x}", fixture::digest(&first));
    assert!(first == run());
}
