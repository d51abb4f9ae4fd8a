//! `reef bench`: what this machine does, as medians of several runs with the conditions beside them.
//! Every figure is measured here and now; nothing is carried over from elsewhere.

mod engine;
mod sandbox;

use serde_json::{Value, json};

use crate::config::Config;
use crate::error::StartError;
use crate::host::threads;

pub use sandbox::Guests;

/// The sandbox's measurements, which need no model.
pub async fn sandbox_only(config: &Config, guests: &Guests, runs: usize) -> Result<Value, StartError> {
    let mut figures = sandbox::figures(config, guests, runs).await?;
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

/// Runs every measurement `runs` times.
pub async fn run(config: &Config, guests: &Guests, runs: usize) -> Result<Value, StartError> {
    let engine = engine::load(config).await?;
    let serving = engine::serving(&engine, runs).await?;
    let swap = engine::swap_pause_ms(&engine, config, runs).await?;
    let train = engine::train_tokens_per_second(&engine, config, runs).await?;
    Ok(json!({
        "decode_tokens_per_second_1_stream": serving.decode_1,
        "decode_tokens_per_second_8_streams": serving.decode_8,
        "decode_tokens_per_second_32_streams": serving.decode_32,
        "prefill_tokens_per_second": serving.prefill,
        "train_tokens_per_second": train,
        "swap_pause_ms": swap,
        "sandbox": sandbox::figures(config, guests, runs).await?,
        "model": engine.info().name,
        "conditions": conditions(config, runs),
    }))
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
