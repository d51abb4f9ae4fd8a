//! Figures of the embedded engine: decode with and without adapters, prefill, swaps.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use reef_core::{Message, Sampling};
use reef_engine::{Engine, Event, Request, Weights};

use super::median;
use crate::config::Config;
use crate::error::StartError;
use crate::host::engine_config;

/// Tokens decoded per stream and run.
const DECODE_TOKENS: u32 = 64;
/// Prompt tokens of the prefill measurement.
const PREFILL_TOKENS: usize = 512;
/// Streams, and adapters among them, of the measurement with several adapters.
const ADAPTERS: usize = 8;
/// Swaps of one run, and the time between them.
const SWAPS: usize = 10;
const SWAP_EVERY: Duration = Duration::from_millis(150);

/// Figures of serving, tokens per second.
pub struct Serving {
    pub decode_1: f64,
    pub decode_8: f64,
    pub decode_32: f64,
    /// One stream with an adapter.
    pub decode_1_lora: f64,
    /// Eight streams with one adapter.
    pub decode_8_lora: f64,
    /// Eight streams, each with an adapter of its own.
    pub decode_8_adapters: f64,
    pub prefill: f64,
}

/// The engine of the configuration.
pub async fn load(config: &Config) -> Result<Engine, StartError> {
    let engine = engine_config(config);
    let loaded = tokio::task::spawn_blocking(move || Engine::load(engine)).await;
    Ok(loaded.map_err(|error| StartError::Other(error.to_string()))??)
}

/// Decode and prefill; `files` are those of an adapter. The measurements of one run follow each other, so that a
/// slow phase of the machine meets all of them.
pub async fn serving(engine: &Engine, files: &[(String, Vec<u8>)], runs: usize) -> Result<Serving, StartError> {
    let adapters = (0..ADAPTERS).map(|_| engine.adapter_from_files(files).map(Weights::Adapter));
    let adapters: Vec<Weights> = adapters.collect::<Result<_, _>>()?;
    let (base, one) = ([Weights::Base], adapters.get(..1).unwrap_or_default());
    let plan: [(usize, &[Weights]); 6] = [(1, &base), (8, &base), (32, &base), (1, one), (8, one), (8, &adapters)];
    decode(engine, 1, &base).await?;
    let mut measured: [Vec<f64>; 7] = Default::default();
    for _ in 0..runs {
        for (series, (streams, weights)) in measured.iter_mut().zip(plan) {
            series.push(decode(engine, streams, weights).await?);
        }
        if let Some(series) = measured.last_mut() {
            series.push(prefill(engine).await?);
        }
    }
    let [decode_1, decode_8, decode_32, decode_1_lora, decode_8_lora, decode_8_adapters, prefill] =
        measured.map(median);
    Ok(Serving { decode_1, decode_8, decode_32, decode_1_lora, decode_8_lora, decode_8_adapters, prefill })
}

/// Steady decode: from the moment every stream has its first token to the end.
async fn decode(engine: &Engine, streams: usize, weights: &[Weights]) -> Result<f64, StartError> {
    let prompt = engine.render_chat(&[user("Tell me a long story about the sea.")])?;
    let mut running = Vec::with_capacity(streams);
    for (seed, weights) in (0..streams).zip(weights.iter().cycle()) {
        let asked = request(prompt.clone(), seed as u64, DECODE_TOKENS);
        running.push(engine.generate(Request { weights: weights.clone(), ..asked })?);
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
    // Another first token each time: nothing of an earlier run can be used again.
    static RUN: AtomicU32 = AtomicU32::new(0);
    let first = 1000 + RUN.fetch_add(1, Ordering::Relaxed) % 10_000;
    let unit = engine.encode(" sea")?;
    let prompt = [first].into_iter().chain(unit.iter().copied().cycle()).take(PREFILL_TOKENS).collect();
    let began = Instant::now();
    let mut events = engine.generate(request(prompt, 0, 1))?;
    events.recv().await;
    Ok(PREFILL_TOKENS as f64 / began.elapsed().as_secs_f64())
}

/// Extra gap between two tokens of a running stream when the adapter of new requests is exchanged:
/// largest gap with swaps minus largest gap without, milliseconds, never below 0.
pub async fn swap_pause_ms(engine: &Engine, files: &[(String, Vec<u8>)], runs: usize) -> Result<f64, StartError> {
    let mut pauses = Vec::with_capacity(runs);
    for _ in 0..runs {
        let quiet = largest_gap_ms(engine, None).await?;
        let swapped = largest_gap_ms(engine, Some(files)).await?;
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

/// One message of a person.
pub fn user(text: &str) -> Message {
    Message { role: "user".to_owned(), content: text.to_owned() }
}

fn request(prompt: Vec<u32>, seed: u64, tokens_max: u32) -> Request {
    let sampling = Sampling { temperature: 1.0, top_p: 1.0, top_k: 0, seed };
    Request::new("bench", prompt, Weights::Base, sampling, tokens_max)
}
