//! The cost of one sandboxed call: instantiate, select nothing from an empty pool, drop.

use std::time::Instant;

use reef_sandbox::{Call, Context, Sandbox};

use super::median;
use crate::config::Config;
use crate::error::StartError;
use crate::host::load_recipe;

/// Calls of one run.
const CALLS: usize = 500;

/// Median microseconds of a fresh call.
pub async fn call_us(config: &Config, runs: usize) -> Result<Option<f64>, StartError> {
    let Some(path) = &config.recipe else { return Ok(None) };
    let sandbox = Sandbox::new(config.sandbox.clone()).map_err(|error| StartError::Recipe(error.to_string()))?;
    let recipe = load_recipe(&sandbox, path, config).await?;
    let mut calls = Vec::with_capacity(runs * CALLS);
    for _ in 0..runs * CALLS {
        let call = empty_call();
        let began = Instant::now();
        let outcome = recipe.select_samples(call).await;
        calls.push(began.elapsed().as_secs_f64() * 1e6);
        outcome.result.map_err(|fault| StartError::Recipe(fault.to_string()))?;
    }
    Ok(Some(median(calls)))
}

fn empty_call() -> Call {
    Call::new(Context {
        tenant: "bench".to_owned(),
        scenario: "bench".to_owned(),
        step: 1,
        now_ms: 0,
        seed: 0,
        head: String::new(),
        max_staleness: 4,
    })
}
