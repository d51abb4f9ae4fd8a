//! The configuration keys of the recipe, their defaults and ranges.

use reef_evolution::calls::{ANSWER_TOKENS_MAX, MODEL_CALLS_MAX};
use reef_evolution::edits::{KINDS, Kinds};
use reef_evolution::trials::{EPISODE_REPEATS, SIGNIFICANCE};
use reef_recipe::prelude::*;

const BATCH_SIZE: Key<u32> = Key::count("batch_size", 1, "traces that begin a step and are read").within(1.0, 16.0);
const MODE: Key<&'static str> =
    Key::text("mode", "full_history", "what the model reads: full_history, or incumbent_only");
const MAX_CANDIDATES: Key<u32> =
    Key::count("max_candidates", 0, "candidates of the whole search; 0 = no limit").within(0.0, 1e6);
const MAX_TARGET_EPISODES: Key<u32> =
    Key::count("max_target_episodes", 0, "episodes of the whole search, both sides; 0 = no limit").within(0.0, 1e6);
const MAX_NODES: Key<u32> = Key::count("max_nodes", 32, "harnesses that are kept").within(3.0, 32.0);
const PROPOSER: Key<&'static str> = Key::text("proposer_binding", "proposer", "model binding that writes the changes");
const TEMPERATURE: Key<f64> = Key::number("temperature", 0.7, "temperature of that model").within(0.0, 2.0);

/// Declares every key.
pub(crate) fn keys(manifest: Manifest) -> Manifest {
    manifest
        .key(BATCH_SIZE)
        .key(MODE)
        .key(MAX_CANDIDATES)
        .key(MAX_TARGET_EPISODES)
        .key(MAX_NODES)
        .key(EPISODE_REPEATS)
        .key(SIGNIFICANCE)
        .key(KINDS)
        .key(PROPOSER)
        .key(TEMPERATURE)
        .key(MODEL_CALLS_MAX)
        .key(ANSWER_TOKENS_MAX)
}

/// What a step is made with; every value within its range.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub batch_size: u32,
    pub full_history: bool,
    pub candidates_max: Option<u32>,
    pub episodes_max: Option<u32>,
    pub nodes_max: usize,
    pub repeats: u32,
    pub significance: f64,
    pub kinds: Kinds,
    pub proposer: String,
    pub temperature: f32,
}

impl Settings {
    /// # Errors
    /// `invalid-config` naming the first key that is out of range.
    pub fn read() -> Result<Self> {
        let full_history = match MODE.get()?.as_str() {
            "full_history" => true,
            "incumbent_only" => false,
            other => {
                let told = format!("'{other}' is neither full_history nor incumbent_only");
                return Err(Failure::config(MODE.name, &told));
            }
        };
        let limit = |key: &Key<u32>| key.get().map(|most| Some(most).filter(|&most| most > 0));
        Ok(Self {
            batch_size: BATCH_SIZE.get()?,
            full_history,
            candidates_max: limit(&MAX_CANDIDATES)?,
            episodes_max: limit(&MAX_TARGET_EPISODES)?,
            nodes_max: MAX_NODES.get()? as usize,
            repeats: EPISODE_REPEATS.get()?,
            significance: SIGNIFICANCE.get()?,
            kinds: Kinds::read()?,
            proposer: PROPOSER.get()?,
            temperature: TEMPERATURE.get()? as f32,
        })
    }
}
