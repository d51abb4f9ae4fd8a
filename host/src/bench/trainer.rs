//! Figures of the trainer.

use std::time::Instant;

use reef_core::{RecordId, ReleaseId, Sample, Trajectory};
use reef_engine::Engine;
use reef_engine::train::{Optimizer, PolicyGradient, Reduction, Trainer, Weight};

use super::median;
use crate::config::Config;
use crate::error::StartError;

/// Samples of a step, and tokens of each: prompt and response.
const TRAIN_SAMPLES: usize = 32;
const TRAIN_PROMPT: usize = 40;
const TRAIN_RESPONSE: usize = 8;

/// What the steps gave.
pub struct Trained {
    /// All tokens / seconds of a step.
    pub tokens_per_second: f64,
    /// Files of the adapter.
    pub files: Vec<(String, Vec<u8>)>,
}

/// Policy-gradient steps over a batch of recorded-looking samples.
pub async fn steps(engine: &Engine, config: &Config, runs: usize) -> Result<Trained, StartError> {
    let (engine, lora) = (engine.clone(), config.engine.lora);
    let measured = tokio::task::spawn_blocking(move || {
        let samples = training_samples(&engine)?;
        let batch: Vec<&Sample> = samples.iter().collect();
        let mut trainer = Trainer::open(&engine, &lora, None)?;
        let optimizer = Optimizer {
            learning_rate: 1e-4,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            weight_decay: 0.0,
            gradient_norm_max: 1.0,
        };
        let advantages = vec![1.0; TRAIN_SAMPLES * TRAIN_RESPONSE];
        let terms = [PolicyGradient::new(Weight::Reinforce, advantages, Reduction::SampleTokenMean).into()];
        let mut rates = Vec::with_capacity(runs);
        for _ in 0..runs {
            let began = Instant::now();
            trainer.train(&batch, &terms, &optimizer)?;
            rates.push((TRAIN_SAMPLES * (TRAIN_PROMPT + TRAIN_RESPONSE)) as f64 / began.elapsed().as_secs_f64());
        }
        Ok::<_, StartError>(Trained { tokens_per_second: median(rates), files: trainer.checkpoint()? })
    })
    .await;
    measured.map_err(|error| StartError::Other(error.to_string()))?
}

fn training_samples(engine: &Engine) -> Result<Vec<Sample>, StartError> {
    let ids = engine.encode("The quick brown fox jumps over the lazy dog and runs along the shore.")?;
    let release = ReleaseId::parse("0".repeat(40)).map_err(|error| StartError::Other(error.to_string()))?;
    let sample = |index: usize| Sample {
        report: RecordId::fresh(),
        records: Vec::new(),
        score: Some(1.0),
        metadata: serde_json::Map::new(),
        trajectory: Trajectory {
            tokens: ids.iter().copied().cycle().skip(index).take(TRAIN_PROMPT + TRAIN_RESPONSE).collect(),
            prompt_length: TRAIN_PROMPT,
            mask: vec![1; TRAIN_RESPONSE],
            logprobs: vec![-1.0; TRAIN_RESPONSE],
            turns: Vec::new(),
            alternatives: reef_core::Alternatives::default(),
        },
        temperature: 1.0,
        release: release.clone(),
        release_sequence: 0,
        prompt_key: index.to_string(),
        sequence: index as i64,
    };
    Ok((0..TRAIN_SAMPLES).map(sample).collect())
}
