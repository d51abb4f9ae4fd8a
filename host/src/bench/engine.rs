//! Figures of the embedded engine and the trainer.

use std::time::{Duration, Instant};

use reef_core::{Message, RecordId, ReleaseId, Sample, Sampling, Trajectory};
use reef_engine::train::{Optimizer, PolicyGradient, Reduction, Trainer, Weight};
use reef_engine::{Engine, Event, Request, Weights};

use super::median;
use crate::config::Config;
use crate::error::StartError;
use crate::host::engine_config;

/// Tokens decoded per stream and run.
const DECODE_TOKENS: u32 = 64;
/// Prompt tokens of the prefill measurement.
const PREFILL_TOKENS: usize = 512;
/// Samples of the training measurement, and tokens of each: prompt and response.
const TRAIN_SAMPLES: usize = 32;
const TRAIN_PROMPT: usize = 40;
const TRAIN_RESPONSE: usize = 8;
/// Swaps of one run, and the time between them.
const SWAPS: usize = 10;
const SWAP_EVERY: Duration = Duration::from_millis(150);

/// Figures of serving, tokens per second.
pub struct Serving {
    pub decode_1: f64,
    pub decode_8: f64,
    pub decode_32: f64,
    pub prefill: f64,
}

/// The engine of the configuration.
pub async fn load(config: &Config) -> Result<Engine, StartError> {
    let engine = engine_config(config);
    let loaded = tokio::task::spawn_blocking(move || Engine::load(engine)).await;
    Ok(loaded.map_err(|error| StartError::Other(error.to_string()))??)
}

/// Decode at 1, 8 and 32 streams, and prefill.
pub async fn serving(engine: &Engine, runs: usize) -> Result<Serving, StartError> {
    decode(engine, 1).await?;
    let mut measured = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..runs {
        for (series, streams) in measured.iter_mut().zip([1, 8, 32]) {
            series.push(decode(engine, streams).await?);
        }
        if let Some(series) = measured.last_mut() {
            series.push(prefill(engine).await?);
        }
    }
    let [decode_1, decode_8, decode_32, prefill] = measured.map(median);
    Ok(Serving { decode_1, decode_8, decode_32, prefill })
}

/// Steady decode: from the moment every stream has its first token to the end.
async fn decode(engine: &Engine, streams: usize) -> Result<f64, StartError> {
    let prompt = engine.render_chat(&[user("Tell me a long story about the sea.")])?;
    let mut running = Vec::with_capacity(streams);
    for seed in 0..streams {
        running.push(engine.generate(request(prompt.clone(), seed as u64, DECODE_TOKENS))?);
    }
    for events in &mut running {
        events.recv().await;
    }
    let began = Instant::now();
    let mut tokens = 0usize;
    for mut events in running {
        while let Some(event) = events.recv().await {
            tokens += usize::from(matches!(event, Event::Token(_)));
        }
    }
    Ok(tokens as f64 / began.elapsed().as_secs_f64())
}

async fn prefill(engine: &Engine) -> Result<f64, StartError> {
    let unit = engine.encode(" sea")?;
    let prompt: Vec<u32> = unit.iter().copied().cycle().take(PREFILL_TOKENS).collect();
    let began = Instant::now();
    let mut events = engine.generate(request(prompt, 0, 1))?;
    events.recv().await;
    Ok(PREFILL_TOKENS as f64 / began.elapsed().as_secs_f64())
}

/// Extra gap between two tokens of a running stream when the adapter of new requests is exchanged:
/// largest gap with swaps minus largest gap without, milliseconds, never below 0.
pub async fn swap_pause_ms(engine: &Engine, config: &Config, runs: usize) -> Result<f64, StartError> {
    let files = {
        let (engine, lora) = (engine.clone(), config.engine.lora);
        let made = tokio::task::spawn_blocking(move || Trainer::open(&engine, &lora, None)?.checkpoint()).await;
        made.map_err(|error| StartError::Other(error.to_string()))??
    };
    let mut pauses = Vec::with_capacity(runs);
    for _ in 0..runs {
        let quiet = largest_gap_ms(engine, None).await?;
        let swapped = largest_gap_ms(engine, Some(&files)).await?;
        pauses.push((swapped - quiet).max(0.0));
    }
    Ok(median(pauses))
}

async fn largest_gap_ms(engine: &Engine, files: Option<&[(String, Vec<u8>)]>) -> Result<f64, StartError> {
    let prompt = engine.render_chat(&[user("Tell me a long story about the sea.")])?;
    let mut events = engine.generate(request(prompt, 1, DECODE_TOKENS))?;
    events.recv().await;
    let swapper = files.map(|files| {
        let (engine, files) = (engine.clone(), files.to_vec());
        tokio::task::spawn_blocking(move || {
            for _ in 0..SWAPS {
                let served = engine.adapter_from_files(&files).map(Weights::Adapter);
                drop(served);
                std::thread::sleep(SWAP_EVERY);
            }
        })
    });
    let (mut last, mut largest) = (Instant::now(), Duration::ZERO);
    while let Some(event) = events.recv().await {
        if matches!(event, Event::Token(_)) {
            largest = largest.max(last.elapsed());
            last = Instant::now();
        }
    }
    if let Some(swapper) = swapper {
        swapper.await.map_err(|error| StartError::Other(error.to_string()))?;
    }
    Ok(largest.as_secs_f64() * 1000.0)
}

/// One policy-gradient step over a batch of recorded-looking samples: all tokens / seconds.
pub async fn train_tokens_per_second(engine: &Engine, config: &Config, runs: usize) -> Result<f64, StartError> {
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
        Ok::<f64, StartError>(median(rates))
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
        },
        temperature: 1.0,
        release: release.clone(),
        release_sequence: 0,
        prompt_key: index.to_string(),
        sequence: index as i64,
    };
    Ok((0..TRAIN_SAMPLES).map(sample).collect())
}

fn user(text: &str) -> Message {
    Message { role: "user".to_owned(), content: text.to_owned() }
}

fn request(prompt: Vec<u32>, seed: u64, tokens_max: u32) -> Request {
    let sampling = Sampling { temperature: 1.0, top_p: 1.0, top_k: 0, seed };
    Request::new("bench", prompt, Weights::Base, sampling, tokens_max)
}
