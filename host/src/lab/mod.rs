//! `reef recipe check` and `reef recipe test`: a component in the real sandbox, on generated experience.
//! Nothing is served, stored or trained: the trainer and the models are doubles with plausible, seeded numbers.
//! What a recipe does with recorded experience is the business of `reef recipe backtest`.

pub mod check;
mod doubles;
mod experience;
pub mod project;
pub mod trial;

use std::sync::Arc;

use reef_sandbox::{Call, Context, Fault, FaultKind, PoolSample};
use serde_json::{Map, Value};

use self::doubles::{GeneratedModels, GeneratedTokens, GeneratedTraining};
pub use self::experience::pool;

/// When the generated steps happen; replies of a recipe must not depend on the day of the test.
const NOW_MS: i64 = 1_767_225_600_000;

fn context(step: u32, seed: u32) -> Context {
    Context {
        tenant: "lab".to_owned(),
        scenario: "lab".to_owned(),
        step,
        now_ms: NOW_MS + i64::from(step) * 1_000,
        seed,
        head: experience::HEAD.to_owned(),
        max_staleness: 4,
    }
}

/// A call of step `step` over `samples` with every double in place.
fn call(step: u32, seed: u32, samples: &Arc<Vec<PoolSample>>, config: &Map<String, Value>) -> Call {
    Call {
        batch: (0..u32::try_from(samples.len()).unwrap_or(0)).collect(),
        samples: Arc::clone(samples),
        config: config.clone(),
        training: Some(Box::new(GeneratedTraining::new(Arc::clone(samples)))),
        models: Some(Box::new(GeneratedModels::default())),
        tokens: Some(Arc::new(GeneratedTokens)),
        records: Some(Arc::new(experience::GeneratedRecords)),
        ..Call::new(context(step, seed))
    }
}

/// A fault in a sentence, with the remedy where the operator has one.
pub(crate) fn told_fault(fault: &Fault) -> String {
    match fault.kind {
        FaultKind::OutOfMemory => {
            format!("{fault}; raise sandbox.memory_bytes_max, or that of the recipe in sandbox.overrides")
        }
        _ => fault.to_string(),
    }
}
