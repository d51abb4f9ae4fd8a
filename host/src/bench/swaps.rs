//! Adapters exchanged every second while streams run, for minutes: what running requests notice of it.
//! Half of the time nothing is exchanged; the two halves are compared. Each exchange is followed by a check that the
//! new weights' answer is that of an engine that has seen nothing, token for token.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reef_core::Sampling;
use reef_engine::{Engine, EngineConfig, Event, Request, Weights};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::engine::user;
use super::{rss_mb, share};
use crate::error::StartError;
use crate::weights::Loader;

/// Streams that run all the time.
const STREAMS: usize = 4;
/// Tokens of each of their answers.
const TOKENS: u32 = 64;
/// Tokens of the answers that are compared with a cold start.
const TOKENS_CHECKED: u32 = 8;
/// An adapter as a release holds it.
type Files = Arc<Vec<(String, Vec<u8>)>>;

/// Time between two exchanges.
const EVERY: Duration = Duration::from_secs(1);

/// Gaps between two tokens of a stream, and what went wrong.
#[derive(Debug, Default)]
struct Watched {
    gaps_ms: Vec<f64>,
    requests: usize,
    failed: usize,
    stalled: usize,
}

/// The figures of `seconds` without and `seconds` with exchanges between the two adapters. Without, a request comes
/// every second all the same: what differs is the exchange.
pub async fn figures(
    engine: &Engine,
    config: EngineConfig,
    adapters: [Vec<(String, Vec<u8>)>; 2],
    seconds: u64,
) -> Result<Value, StartError> {
    let adapters = adapters.map(Arc::new);
    let loader = Loader::start().map_err(|error| StartError::Other(error.to_string()))?;
    let mut cold = Vec::new();
    for files in &adapters {
        cold.push(cold_answer(config.clone(), &loader, files).await?);
    }
    let time = Duration::from_secs(seconds.max(2));
    let (quiet, ..) = half((engine, &loader), time, &adapters, None).await?;
    // What is kept for prompts fills up to its bound in the first half of the exchanges; nothing else may grow.
    let (rss_before, middle) = (rss_mb(), tokio::spawn(async move { rss_after(time / 2).await }));
    let (busy, swaps, stale) = half((engine, &loader), time, &adapters, Some(&cold)).await?;
    let rss_middle = middle.await.unwrap_or(f64::NAN);
    Ok(json!({
        "seconds": seconds,
        "swaps": swaps,
        "requests": busy.requests,
        "failed": busy.failed + quiet.failed,
        "stalled": busy.stalled + quiet.stalled,
        "stale_answers": stale,
        "gap_p50_ms": { "without": share(&quiet.gaps_ms, 0.5), "with": share(&busy.gaps_ms, 0.5) },
        "gap_p99_ms": { "without": share(&quiet.gaps_ms, 0.99), "with": share(&busy.gaps_ms, 0.99) },
        "gap_largest_ms": { "without": share(&quiet.gaps_ms, 1.0), "with": share(&busy.gaps_ms, 1.0) },
        "rss_grown_mb": { "first_half": rss_middle - rss_before, "second_half": rss_mb() - rss_middle },
    }))
}

async fn rss_after(time: Duration) -> f64 {
    tokio::time::sleep(time).await;
    rss_mb()
}

/// Streams for a time; with answers to compare with, the weights are exchanged every second. What the streams saw,
/// the exchanges, and the answers that were not those of a cold start.
async fn half(
    (engine, loader): (&Engine, &Loader),
    time: Duration,
    adapters: &[Files; 2],
    cold: Option<&[Vec<u32>]>,
) -> Result<(Watched, usize, usize), StartError> {
    let mut weights: Vec<Weights> = Vec::new();
    for files in adapters {
        weights.push(Weights::Adapter(load((engine, loader), files).await?));
    }
    let start = weights.first().cloned().unwrap_or(Weights::Base);
    let (current, seen) = watch::channel(start);
    let streams = tokio::spawn({
        let engine = engine.clone();
        async move { watch_streams(&engine, &seen, time).await }
    });
    let (mut swaps, mut stale, mut round, began) = (0usize, 0usize, 0usize, Instant::now());
    let mut next = tokio::time::interval(EVERY);
    while began.elapsed() < time {
        next.tick().await;
        let which = round % adapters.len();
        round += 1;
        let (Some(files), Some(kept)) = (adapters.get(which), weights.get(which)) else { break };
        let Some(cold) = cold else {
            answer(engine, kept.clone()).await?;
            continue;
        };
        let weights = Weights::Adapter(load((engine, loader), files).await?);
        current.send_replace(weights.clone());
        swaps += 1;
        stale += usize::from(cold.get(which) != Some(&answer(engine, weights).await?));
    }
    let watched = streams.await.map_err(|error| StartError::Other(error.to_string()))??;
    Ok((watched, swaps, stale))
}

/// The answer of an engine that has seen nothing.
async fn cold_answer(config: EngineConfig, loader: &Loader, files: &Files) -> Result<Vec<u32>, StartError> {
    let loaded = tokio::task::spawn_blocking(move || Engine::load(EngineConfig { batch_max: 1, ..config })).await;
    let engine = loaded.map_err(|error| StartError::Other(error.to_string()))??;
    answer(&engine, Weights::Adapter(load((&engine, loader), files).await?)).await
}

/// An adapter, read beside serving.
async fn load((engine, loader): (&Engine, &Loader), files: &Files) -> Result<Arc<reef_engine::Adapter>, StartError> {
    let (engine, files) = (engine.clone(), Arc::clone(files));
    let read = loader.run(move || engine.adapter_from_files(&files)).await;
    Ok(read.ok_or_else(|| StartError::Other("the thread that reads an adapter died".to_owned()))??)
}

/// Runs the streams for a time, each request with the weights that are current when it starts.
async fn watch_streams(
    engine: &Engine,
    current: &watch::Receiver<Weights>,
    time: Duration,
) -> Result<Watched, StartError> {
    let began = Instant::now();
    let prompt = engine.render_chat(&[user("Tell me a long story about the sea.")])?;
    let tasks: Vec<_> = (0..STREAMS)
        .map(|stream| {
            let (engine, current, prompt) = (engine.clone(), current.clone(), prompt.clone());
            tokio::spawn(async move {
                let mut watched = Watched::default();
                while began.elapsed() < time {
                    let sampling = Sampling { temperature: 1.0, top_p: 1.0, top_k: 0, seed: stream as u64 };
                    let weights = current.borrow().clone();
                    let asked = Request::new("bench", prompt.clone(), weights, sampling, TOKENS);
                    watched.requests += 1;
                    match engine.generate(asked) {
                        Ok(mut events) => watched.follow(&mut events).await,
                        Err(_) => watched.failed += 1,
                    }
                }
                watched
            })
        })
        .collect();
    let mut all = Watched::default();
    for task in tasks {
        let one = task.await.map_err(|error| StartError::Other(error.to_string()))?;
        all.gaps_ms.extend(one.gaps_ms);
        (all.requests, all.failed, all.stalled) =
            (all.requests + one.requests, all.failed + one.failed, all.stalled + one.stalled);
    }
    Ok(all)
}

/// A gap that nobody would wait through.
const STALL: Duration = Duration::from_secs(5);

impl Watched {
    async fn follow(&mut self, events: &mut tokio::sync::mpsc::Receiver<Event>) {
        let mut last: Option<Instant> = None;
        loop {
            match tokio::time::timeout(STALL, events.recv()).await {
                Ok(Some(Event::Token(_))) => {
                    let now = Instant::now();
                    self.gaps_ms.extend(last.map(|last| (now - last).as_secs_f64() * 1000.0));
                    last = Some(now);
                }
                Ok(Some(Event::Done(_))) => return,
                Ok(Some(Event::Failed(_)) | None) => {
                    self.failed += 1;
                    return;
                }
                Err(_) => {
                    self.stalled += 1;
                    return;
                }
            }
        }
    }
}

/// Greedy ids of an answer to a prompt that fills several pages.
async fn answer(engine: &Engine, weights: Weights) -> Result<Vec<u32>, StartError> {
    let text = "Write about a sailor, a lighthouse and the sea. ".repeat(6);
    let sampling = Sampling { temperature: 0.0, top_p: 1.0, top_k: 0, seed: 0 };
    let prompt = engine.render_chat(&[user(&text)])?;
    let mut events = engine.generate(Request::new("bench", prompt, weights, sampling, TOKENS_CHECKED))?;
    let mut ids = Vec::new();
    while let Some(event) = events.recv().await {
        if let Event::Token(token) = event {
            ids.push(token.id);
        }
    }
    Ok(ids)
}
