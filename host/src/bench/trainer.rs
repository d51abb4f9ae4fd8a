//! Figures of the trainer.

use std::fmt;
use std::str::FromStr;
use std::time::Instant;

use reef_core::{RecordId, ReleaseId, Sample, Trajectory};
use reef_engine::Engine;
use reef_engine::train::{Beside, Optimizer, PolicyGradient, Reduction, Trainer, Weight};
use serde_json::{Value, json};

use super::{median, resident_mb, rss_mb};
use crate::config::Config;
use crate::error::StartError;
use crate::jobs::training_section::workers;

/// Samples of a batch at most, and tokens of a sample: what a machine that is measured can hold.
const SAMPLES_MAX: usize = 4_096;
const SAMPLE_TOKENS_MAX: usize = 8_192;

/// The batch of a step, written as `SAMPLESxPROMPT+RESPONSE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    samples: usize,
    /// Tokens of each prompt.
    prompt: usize,
    /// Tokens of each response.
    response: usize,
}

impl Shape {
    /// Short answers to short questions.
    pub const SHORT: Self = Self { samples: 32, prompt: 40, response: 8 };

    fn tokens(self) -> usize {
        self.samples * (self.prompt + self.response)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}+{}", self.samples, self.prompt, self.response)
    }
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is no batch; write SAMPLESxPROMPT+RESPONSE, as in {}", Self::SHORT);
        let (samples, tokens) = text.split_once('x').ok_or_else(wrong)?;
        let (prompt, response) = tokens.split_once('+').ok_or_else(wrong)?;
        let number = |text: &str| text.parse().ok().filter(|&number: &usize| number > 0).ok_or_else(wrong);
        let shape = Self { samples: number(samples)?, prompt: number(prompt)?, response: number(response)? };
        if shape.samples > SAMPLES_MAX || shape.prompt.saturating_add(shape.response) > SAMPLE_TOKENS_MAX {
            return Err(format!(
                "'{text}' is too large; at most {SAMPLES_MAX} samples of {SAMPLE_TOKENS_MAX} tokens are measured"
            ));
        }
        Ok(shape)
    }
}

/// What the steps gave.
pub struct Trained {
    /// All tokens / seconds of a step.
    pub tokens_per_second: f64,
    /// The same of each step, in order.
    pub steps: Vec<f64>,
    /// Files of the adapter.
    pub files: Vec<(String, Vec<u8>)>,
}

/// Steps over a batch of this shape, in a process that did nothing before, with the memory they took.
pub async fn figures(engine: &Engine, config: &Config, shape: Shape, runs: usize) -> Result<Value, StartError> {
    let loaded = rss_mb();
    // The first step makes the caches of the kernels and is not told.
    let trained = steps(engine, config, shape, runs + 1).await?;
    let told: Vec<f64> = trained.steps.into_iter().skip(1).collect();
    Ok(json!({
        "batch": shape.to_string(),
        "tokens_per_second": median(told.clone()),
        "steps": told,
        "resident_mb_loaded": loaded,
        "resident_mb_peak": resident_mb("VmHWM:"),
        "lora": config.engine.lora,
        "workers": config.training.workers,
        "training": config.training.compute(),
        "model": engine.info().name,
    }))
}

/// Policy-gradient steps over a batch of recorded-looking samples.
pub async fn steps(engine: &Engine, config: &Config, shape: Shape, runs: usize) -> Result<Trained, StartError> {
    let (engine, lora) = (engine.clone(), config.engine.lora);
    let (ranks, reduce) = (config.training.workers, config.training.reduce);
    let measured = tokio::task::spawn_blocking(move || {
        let samples = training_samples(&engine, shape)?;
        let batch: Vec<&Sample> = samples.iter().collect();
        let mut workers = workers(ranks, reduce)?;
        let beside = Beside { workers: workers.as_mut(), ..Beside::default() };
        let mut trainer = Trainer::open_beside(&engine, &lora, None, beside)?;
        let optimizer = Optimizer {
            learning_rate: 1e-4,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            weight_decay: 0.0,
            gradient_norm_max: 1.0,
        };
        let advantages = vec![1.0; shape.samples * shape.response];
        let terms = [PolicyGradient::new(Weight::Reinforce, advantages, Reduction::SampleTokenMean).into()];
        let mut rates = Vec::with_capacity(runs);
        for _ in 0..runs {
            let began = Instant::now();
            trainer.train(&batch, &terms, &optimizer)?;
            rates.push(shape.tokens() as f64 / began.elapsed().as_secs_f64());
        }
        let tokens_per_second = median(rates.clone());
        Ok::<_, StartError>(Trained { tokens_per_second, steps: rates, files: trainer.checkpoint()? })
    })
    .await;
    measured.map_err(|error| StartError::Other(error.to_string()))?
}

fn training_samples(engine: &Engine, shape: Shape) -> Result<Vec<Sample>, StartError> {
    let ids = engine.encode("The quick brown fox jumps over the lazy dog and runs along the shore.")?;
    let release = ReleaseId::parse("0".repeat(40)).map_err(|error| StartError::Other(error.to_string()))?;
    let sample = |index: usize| Sample {
        report: RecordId::fresh(),
        records: Vec::new(),
        score: Some(1.0),
        metadata: serde_json::Map::new(),
        trajectory: Trajectory {
            tokens: ids.iter().copied().cycle().skip(index).take(shape.prompt + shape.response).collect(),
            prompt_length: shape.prompt,
            mask: vec![1; shape.response],
            logprobs: vec![-1.0; shape.response],
            turns: Vec::new(),
            alternatives: reef_core::Alternatives::default(),
        },
        temperature: 1.0,
        release: release.clone(),
        release_sequence: 0,
        prompt_key: index.to_string(),
        sequence: index as i64,
    };
    Ok((0..shape.samples).map(sample).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_read_as_it_is_told() {
        assert_eq!(Shape::SHORT.to_string().parse(), Ok(Shape::SHORT));
        assert_eq!("8x256+64".parse::<Shape>().map(Shape::tokens), Ok(2_560));
        for wrong in ["", "32", "32x40", "0x40+8", "32x-1+8", "32x40+8+1"] {
            assert!(wrong.parse::<Shape>().expect_err(wrong).contains("SAMPLESxPROMPT+RESPONSE"), "{wrong}");
        }
        assert!("5000x1+1".parse::<Shape>().expect_err("many").contains("too large"));
        assert!("1x9000+1".parse::<Shape>().expect_err("long").contains("too large"));
    }
}
