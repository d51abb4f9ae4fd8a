//! `reef bench`: what this machine does, as medians of several runs with the conditions beside them.
//! Every figure is measured here and now; nothing is carried over from elsewhere.

mod engine;
mod sandbox;
mod store;
mod swaps;
mod trainer;

use serde_json::{Value, json};

use crate::config::Config;
use crate::error::StartError;
use crate::host::{engine_config, threads};

pub use sandbox::Guests;
pub use trainer::Shape;

/// Megabytes of keys and values while adapters are exchanged.
const SWAPS_CACHE_MB: usize = 128;

/// The sandbox's measurements, which need no model.
pub async fn sandbox_only(config: &Config, guests: &Guests, runs: usize) -> Result<Value, StartError> {
    let mut figures = sandbox::figures(config, guests, runs).await?;
    figures["conditions"] = conditions(config, runs);
    Ok(figures)
}

/// The store's measurements, which need no model.
pub async fn store_only(config: &Config, runs: usize, records: u32) -> Result<Value, StartError> {
    let mut figures = store::figures(&config.store, runs, records).await?;
    figures["conditions"] = conditions(config, runs);
    Ok(figures)
}

fn conditions(config: &Config, runs: usize) -> Value {
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "wasmtime": env!("REEF_WASMTIME_VERSION"),
        "threads": threads(config.engine.threads),
        "sandbox_threads": config.sandbox.threads,
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "runs": runs,
        "statistic": "median",
    })
}

/// The trainer's measurements on one batch.
pub async fn training_only(config: &Config, shape: Shape, runs: usize) -> Result<Value, StartError> {
    let engine = engine::load(config).await?;
    let mut figures = trainer::figures(&engine, config, shape, runs).await?;
    figures["conditions"] = conditions(config, runs);
    Ok(figures)
}

/// Streams while adapters are exchanged every second, for `seconds`, and for as long without.
pub async fn swaps(config: &Config, seconds: u64) -> Result<Value, StartError> {
    let mut config = config.clone();
    // Full after some seconds, so that memory shows whether anything else grows.
    config.engine.cache_mb_max = SWAPS_CACHE_MB;
    let config = &config;
    let engine = engine::load(config).await?;
    // Two adapters that differ: one after one training step, one after two more.
    let first = trainer::steps(&engine, config, Shape::SHORT, 1).await?.files;
    let second = trainer::steps(&engine, config, Shape::SHORT, 3).await?.files;
    let mut figures = swaps::figures(&engine, engine_config(config), [first, second], seconds).await?;
    figures["conditions"] = conditions(config, 1);
    Ok(figures)
}

/// Runs every measurement `runs` times.
pub async fn run(config: &Config, guests: &Guests, runs: usize) -> Result<Value, StartError> {
    let engine = engine::load(config).await?;
    let trained = trainer::steps(&engine, config, Shape::SHORT, runs).await?;
    let serving = engine::serving(&engine, &trained.files, runs).await?;
    let swap = engine::swap_pause_ms(&engine, &trained.files, runs).await?;
    Ok(json!({
        "decode_tokens_per_second_1_stream": serving.decode_1,
        "decode_tokens_per_second_8_streams": serving.decode_8,
        "decode_tokens_per_second_32_streams": serving.decode_32,
        "decode_tokens_per_second_1_stream_lora": serving.decode_1_lora,
        "decode_tokens_per_second_8_streams_lora": serving.decode_8_lora,
        "decode_tokens_per_second_8_streams_8_adapters": serving.decode_8_adapters,
        "prefill_tokens_per_second": serving.prefill,
        "train_tokens_per_second": trained.tokens_per_second,
        "swap_pause_ms": swap,
        "sandbox": sandbox::figures(config, guests, runs).await?,
        "model": engine.info().name,
        "conditions": conditions(config, runs),
    }))
}

/// Resident memory of this process.
fn rss_mb() -> f64 {
    resident_mb("VmRSS:")
}

/// Resident memory of this process by its name in /proc, VmRSS: now or VmHWM: at its peak; NaN where there is none.
fn resident_mb(name: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kilobytes = status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok());
    kilobytes.map_or(f64::NAN, |kilobytes: f64| kilobytes / 1000.0)
}

/// The value below which this share of the values lies.
fn share(values: &[f64], share: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let place = ((values.len() as f64 * share) as usize).min(values.len().saturating_sub(1));
    values.get(place).copied().unwrap_or(f64::NAN)
}

/// The middle value.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_median_is_the_middle_value() {
        assert_eq!(super::median(vec![3.0, 1.0, 2.0]), 2.0);
    }
}
