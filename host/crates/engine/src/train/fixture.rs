//! Samples, a tiny model and trainers for tests.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use reef_core::{RecordId, ReleaseId, Sample, Trajectory};
use serde_json::Map;

use super::control::TrainControl;
use super::reduce::Reduce;
use super::trainer::{Setting, Trainer};
use crate::engine::ServingLoad;
use crate::error::EngineError;
use crate::lora_config::LoraConfig;
use crate::model::{Architecture, Model, ModelConfig};

/// A sample whose last `response` tokens were sampled at temperature 1 with log-prob −1, numbered `sequence`.
pub(crate) fn sample(sequence: i64, tokens: &[u32], response: usize) -> Sample {
    let id = RecordId::parse(format!("report-{sequence}")).expect("id");
    Sample {
        report: id.clone(),
        records: vec![id],
        score: None,
        metadata: Map::new(),
        trajectory: Trajectory {
            tokens: tokens.to_vec(),
            prompt_length: tokens.len() - response,
            mask: vec![1; response],
            logprobs: vec![-1.0; response],
            turns: Vec::new(),
            alternatives: reef_core::Alternatives::default(),
        },
        temperature: 1.0,
        release: ReleaseId::parse("0".repeat(40)).expect("id"),
        release_sequence: 0,
        prompt_key: String::new(),
        sequence,
    }
}

/// Equal in every process for equal files.
pub(crate) fn digest(files: &[(String, Vec<u8>)]) -> u64 {
    let mut hasher = DefaultHasher::new();
    files.hash(&mut hasher);
    hasher.finish()
}

/// A seeded model of two small blocks with a vocabulary of 50.
pub(super) fn tiny_model() -> Arc<Model> {
    let config = ModelConfig {
        name: "tiny".to_owned(),
        hidden_size: 16,
        layers: 2,
        vocabulary: 50,
        context_length: 256,
        heads: 4,
        heads_kv: 2,
        head_width: 4,
        ffn_width: 32,
        rope_base: 10_000.0,
        rope_factors: Vec::new(),
        architecture: Architecture::Llama,
        norm_eps: 1e-5,
        tied: true,
    };
    Arc::new(Model::random(config, 3))
}

/// A trainer over `model` beside the given load of serving.
pub(super) fn open(
    model: &Arc<Model>,
    serving: Arc<ServingLoad>,
    files: Option<&[(String, Vec<u8>)]>,
) -> Result<Trainer, EngineError> {
    let fresh = LoraConfig { rank: 4, alpha: 8.0, seed: 1, ..LoraConfig::default() };
    Trainer::over(Arc::clone(model), alone(serving), &fresh, files.unwrap_or_default())
}

/// Two threads, no other worker.
pub(super) fn alone(serving: Arc<ServingLoad>) -> Setting {
    Setting { serving, threads: 2, release: None, reduce: Reduce::Alone, control: TrainControl::default() }
}

/// A trainer over `model` that nobody serves from.
pub(super) fn trainer_over(model: &Arc<Model>, files: Option<&[(String, Vec<u8>)]>) -> Trainer {
    open(model, Arc::new(ServingLoad::default()), files).expect("trainer")
}
