//! A loss that lives in the guest gives the same adapter as the host's kernel: the real model, the real trainer, the
//! recipe `own-loss` in the real sandbox.

use std::sync::Arc;
use std::time::Duration;

use reef::jobs::invariants::Invariants;
use reef::jobs::trainer_thread::{Abort, Files, Start, StepTraining, TrainerThread};
use reef_core::{RecordId, ReleaseId, Sample, Trajectory};
use reef_engine::train::Trainer;
use reef_engine::{Compute, Engine, EngineConfig, LoraConfig, ServedWeights};
use reef_sandbox::{Call, Context, Grants, PoolSample, Proposal, Recipe, Sandbox, SandboxConfig};
use serde_json::json;

use crate::support::{component, model};

/// Largest difference of a weight of the two adapters.
const TOLERANCE: f32 = 1e-6;
const TEXTS: [&str; 4] = [
    "The sea is wide and the ship is small.",
    "Seven stones lie on the river bed.",
    "A word, once said, cannot be caught again.",
    "Rain fell all night on the tin roof.",
];

fn engine() -> Engine {
    let config = EngineConfig {
        model: model(),
        threads: 0,
        batch_max: 4,
        context_max: 256,
        tenants: 1,
        queue_max: 8,
        lora: LoraConfig::default(),
        training: Compute::default(),
        weights: ServedWeights::File,
        cache_bytes_max: 1 << 30,
    };
    Engine::load(config).unwrap()
}

/// Answers whose recorded log-probs lie off the policy, so that ratios and their bounds matter.
fn samples(engine: &Engine) -> Arc<Vec<PoolSample>> {
    let sample = |(index, text): (usize, &&str)| {
        let tokens = engine.encode(text).unwrap();
        let length = tokens.len() - 3;
        let mask: Vec<u8> = (0..length).map(|token| u8::from(token % 4 != 2)).collect();
        let sample = Sample {
            report: RecordId::parse(format!("report-{index}")).unwrap(),
            records: vec![RecordId::parse(format!("record-{index}")).unwrap()],
            score: Some(index as f64 / 3.0),
            metadata: serde_json::Map::new(),
            trajectory: Trajectory {
                tokens,
                prompt_length: 3,
                logprobs: mask.iter().enumerate().map(|(at, m)| f32::from(*m) * -(1.0 + at as f32 / 3.0)).collect(),
                mask,
                turns: Vec::new(),
                alternatives: reef_core::Alternatives::default(),
            },
            temperature: 1.0,
            release: ReleaseId::parse("0".repeat(40)).unwrap(),
            release_sequence: 0,
            prompt_key: index.to_string(),
            sequence: index as i64,
        };
        PoolSample { sample, lag: 0 }
    };
    Arc::new(TEXTS.iter().enumerate().map(sample).collect())
}

/// The files of the candidate that the recipe proposes.
async fn candidate(recipe: &Recipe, engine: &Engine, samples: &Arc<Vec<PoolSample>>, loss: &str) -> Files {
    let checkpoints = Arc::default();
    let start = Start {
        engine: engine.clone(),
        lora: LoraConfig::default(),
        files: Arc::default(),
        share: 1.0,
        held_out: Arc::default(),
        named: Arc::default(),
        release: ReleaseId::parse("0".repeat(40)).unwrap(),
    };
    let training = StepTraining::new(
        TrainerThread::start(None).unwrap(),
        start,
        Arc::clone(samples),
        Abort::default(),
        (Arc::clone(&checkpoints), Invariants::default()),
    );
    let context = Context {
        tenant: "t".into(),
        scenario: "s".into(),
        step: 1,
        now_ms: 0,
        seed: 1,
        head: "0".repeat(40),
        max_staleness: 4,
    };
    // AdamW divides a gradient by its own size; below this epsilon it would turn the last bit of a sum that is nearly 0
    // into a whole step.
    let config = json!({ "loss": loss, "learning_rate": 0.003, "epsilon": 1e-4 });
    let call = Call {
        samples: Arc::clone(samples),
        batch: (0..samples.len() as u32).collect(),
        config: config.as_object().unwrap().clone(),
        training: Some(Box::new(training)),
        ..Call::new(context)
    };
    let outcome = tokio::time::timeout(Duration::from_secs(300), recipe.propose_update(call)).await.expect("it ends");
    match outcome.result {
        Ok(Proposal::Weights(candidate)) => checkpoints.lock().unwrap()[candidate as usize].clone(),
        other => panic!("{other:?}"),
    }
}

fn untrained(engine: &Engine) -> Files {
    Trainer::open(engine, &LoraConfig::default(), None).unwrap().checkpoint().unwrap()
}

/// Every number of a safetensors file of 32-bit floats.
fn numbers(files: &Files) -> Vec<f32> {
    let (_, bytes) = files.iter().find(|(path, _)| path == "adapter_model.safetensors").expect("an adapter");
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[8 + header..].chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_in_the_guest_gives_the_adapter_of_the_host_s_kernel() {
    let engine = engine();
    let samples = samples(&engine);
    let sandbox = Sandbox::new(SandboxConfig::default()).unwrap();
    let bytes = std::fs::read(component("reef_guest_own_loss.wasm")).unwrap();
    let recipe = sandbox.load(bytes, &Grants::all()).await.unwrap();
    let host = numbers(&candidate(&recipe, &engine, &samples, "host").await);
    let guest = numbers(&candidate(&recipe, &engine, &samples, "guest").await);
    assert_eq!(host.len(), guest.len());
    let start = numbers(&untrained(&engine));
    let moved = host.iter().zip(&start).map(|(host, start)| (host - start).abs()).fold(0.0, f32::max);
    assert!(moved > 1e-3 && host.iter().all(|weight| weight.is_finite()), "the step moved the adapter by {moved:e}");
    let apart = host.iter().zip(&guest).map(|(host, guest)| (host - guest).abs()).fold(0.0, f32::max);
    assert!(apart <= TOLERANCE, "the adapters are {apart:e} apart");
}
