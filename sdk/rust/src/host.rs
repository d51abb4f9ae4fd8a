//! Everything that a recipe may ask of the host, as one trait with two implementations: the imports of the
//! component on `wasm32`, and [`crate::testing::FakeHost`] natively. The other modules call it through
//! `call`; recipes use those modules and never this one.
//! On `wasm32` the calls are static, so an import that nobody calls is linked out of the component.

use alloc::string::String;
use alloc::vec::Vec;

use crate::bindings::reef::recipe::log::Level;
use crate::{CriticOptimizer, Measurement, Message, Objective, Optimizer, Policy, Result, Sample, Sampling};

/// The imports of `reef:recipe`, with every refusal already a [`crate::Failure`]. Units and shapes: the WIT.
pub trait Host {
    /// `experience.scores`
    fn scores(&mut self, items: &[Sample]) -> Result<Vec<f64>>;
    /// `experience.lags`
    fn lags(&mut self, items: &[Sample]) -> Result<Vec<u32>>;
    /// `experience.reference-counts`
    fn reference_counts(&mut self, items: &[Sample]) -> Result<Vec<u32>>;
    /// `experience.prompt-lengths`
    fn prompt_lengths(&mut self, items: &[Sample]) -> Result<Vec<u32>>;
    /// `experience.response-lengths`
    fn response_lengths(&mut self, items: &[Sample]) -> Result<Vec<u32>>;
    /// `experience.mean-logprobs`
    fn mean_logprobs(&mut self, items: &[Sample]) -> Result<Vec<f64>>;
    /// `experience.record-ids`
    fn record_ids(&mut self, items: &[Sample]) -> Result<Vec<String>>;
    /// `experience.prompt-keys`
    fn prompt_keys(&mut self, items: &[Sample]) -> Result<Vec<String>>;
    /// `experience.mask`
    fn mask(&mut self, item: Sample) -> Result<Vec<u8>>;
    /// `experience.tokens`
    fn tokens(&mut self, item: Sample) -> Result<Vec<u32>>;
    /// `experience.logprobs`
    fn logprobs(&mut self, item: Sample) -> Result<Vec<f32>>;
    /// `experience.report-field`
    fn report_field(&mut self, item: Sample, name: &str) -> Result<Option<String>>;

    /// `training.open`
    fn open(&mut self) -> Result<u32>;
    /// `training.forward`
    fn forward(&mut self, on: u32, which: Policy, items: &[Sample]) -> Result<Vec<f32>>;
    /// `training.train`
    fn train(&mut self, on: u32, items: &[Sample], what: &Objective, how: Optimizer) -> Result<Vec<Measurement>>;
    /// `training.values`
    fn values(&mut self, on: u32, items: &[Sample]) -> Result<Vec<f32>>;
    /// `training.fit-values`
    fn fit_values(
        &mut self,
        on: u32,
        items: &[Sample],
        returns: &[f32],
        how: CriticOptimizer,
    ) -> Result<Vec<Measurement>>;
    /// `training.checkpoint`
    fn checkpoint(&mut self, on: u32) -> Result<u32>;

    /// `models.chat`
    fn chat(&mut self, binding: &str, messages: &[Message], how: Sampling) -> Result<String>;
    /// `models.held-out-count`
    fn held_out_count(&mut self) -> Result<u32>;
    /// `models.held-out-scores`
    fn held_out_scores(&mut self, binding: &str, first: u32, count: u32) -> Result<Vec<f64>>;

    /// `state.get`
    fn state_get(&mut self, key: &str) -> Result<Option<Vec<u8>>>;
    /// `state.set`
    fn state_set(&mut self, key: &str, value: &[u8]) -> Result<()>;
    /// `state.delete`
    fn state_delete(&mut self, key: &str) -> Result<()>;
    /// `config.get`
    fn config(&mut self, key: &str) -> Result<Option<String>>;
    /// `log.log`
    fn log(&mut self, level: Level, message: &str) -> Result<()>;
    /// `metrics.gauge`
    fn gauge(&mut self, name: &str, value: f64) -> Result<()>;
}

/// Runs `ask` on the host of this call.
#[cfg(target_arch = "wasm32")]
pub(crate) fn call<R>(ask: impl FnOnce(&mut crate::imports::Imports) -> Result<R>) -> Result<R> {
    ask(&mut crate::imports::Imports)
}

/// Runs `ask` on the host that the test installed in this thread.
#[cfg(not(target_arch = "wasm32"))]
pub(crate) fn call<R>(ask: impl FnOnce(&mut (dyn Host + 'static)) -> Result<R>) -> Result<R> {
    crate::testing::installed(ask)
}
