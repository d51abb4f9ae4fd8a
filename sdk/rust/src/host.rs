//! Everything that a recipe may ask of the host, as one trait with two implementations: the imports of the
//! component on `wasm32`, and [`crate::testing::FakeHost`] natively. The other modules call it through
//! `call`; recipes use those modules and never this one.
//! On `wasm32` the calls are static, so an import that nobody calls is linked out of the component.

use alloc::string::String;
use alloc::vec::Vec;

use crate::experience::{Alternatives, Turn, UnusableReport};
use crate::harness::{Episode, Tree};
use crate::log::Level;
use crate::{
    ChatRequest, Completion, CriticOptimizer, Entry, Measurement, Message, Mutation, Optimizer, Outcome, Policy,
    Result, Sample, Term, Usage,
};

/// The imports of `reef:recipe`, with every refusal already a [`crate::Failure`]. Units and shapes: the WIT.
pub trait Host {
    /// `experience.scores`
    fn scores(&mut self, items: &[Sample]) -> Result<Vec<f64>>;
    /// `experience.lags`
    fn lags(&mut self, items: &[Sample]) -> Result<Vec<u32>>;
    /// `experience.releases`
    fn releases(&mut self, items: &[Sample]) -> Result<Vec<String>>;
    /// `experience.reference-counts`
    fn reference_counts(&mut self, items: &[Sample]) -> Result<Vec<u32>>;
    /// `experience.prompt-lengths`
    fn prompt_lengths(&mut self, items: &[Sample]) -> Result<Vec<u32>>;
    /// `experience.response-lengths`
    fn response_lengths(&mut self, items: &[Sample]) -> Result<Vec<u32>>;
    /// `experience.action-counts`
    fn action_counts(&mut self, items: &[Sample]) -> Result<Vec<u32>>;
    /// `experience.mean-logprobs`
    fn mean_logprobs(&mut self, items: &[Sample]) -> Result<Vec<f64>>;
    /// `experience.record-ids`
    fn record_ids(&mut self, items: &[Sample]) -> Result<Vec<String>>;
    /// `experience.prompt-keys`
    fn prompt_keys(&mut self, items: &[Sample]) -> Result<Vec<String>>;
    /// `experience.mask`
    fn mask(&mut self, item: Sample) -> Result<Vec<u8>>;
    /// `experience.prompt-tokens`
    fn prompt_tokens(&mut self, item: Sample) -> Result<Vec<u32>>;
    /// `experience.tokens`
    fn tokens(&mut self, item: Sample) -> Result<Vec<u32>>;
    /// `experience.logprobs`
    fn logprobs(&mut self, item: Sample) -> Result<Vec<f32>>;
    /// `experience.top-k`
    fn top_k(&mut self, item: Sample) -> Result<Alternatives>;
    /// `experience.turns`
    fn turns(&mut self, item: Sample) -> Result<Vec<Turn>>;
    /// `experience.messages`
    fn messages(&mut self, item: Sample) -> Result<Vec<Message>>;
    /// `experience.response-text`
    fn response_text(&mut self, item: Sample) -> Result<String>;
    /// `experience.tags`
    fn tags(&mut self, item: Sample) -> Result<Vec<(String, String)>>;
    /// `experience.session`
    fn session(&mut self, item: Sample) -> Result<Option<String>>;
    /// `experience.report-field`
    fn report_field(&mut self, item: Sample, name: &str) -> Result<Option<String>>;
    /// `experience.unusable`
    fn unusable(&mut self) -> Result<Vec<UnusableReport>>;

    /// `training.open`
    fn open(&mut self) -> Result<u32>;
    /// `training.derive`
    fn derive(&mut self, item: Sample, prompt: Option<&[u32]>, response: Option<&[u32]>) -> Result<Sample>;
    /// `training.forward`
    fn forward(&mut self, on: u32, which: &Policy, items: &[Sample]) -> Result<Vec<f32>>;
    /// `training.train`
    fn train(&mut self, on: u32, items: &[Sample], what: &[Term], how: Optimizer) -> Result<Vec<Measurement>>;
    /// `training.forward-backward`
    fn forward_backward(&mut self, on: u32, items: &[Sample], what: &[Term]) -> Result<Vec<Measurement>>;
    /// `training.backward`
    fn backward(&mut self, on: u32, items: &[Sample], gradients: &[f32]) -> Result<Vec<Measurement>>;
    /// `training.optimizer-step`
    fn optimizer_step(&mut self, on: u32, how: Optimizer) -> Result<Vec<Measurement>>;
    /// `training.update-ema`
    fn update_ema(&mut self, on: u32, rate: f64) -> Result<()>;
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

    /// `models.bindings`
    fn bindings(&mut self) -> Result<Vec<String>>;
    /// `models.chat`
    fn chat(&mut self, binding: &str, requests: &[ChatRequest]) -> Result<Vec<Vec<Completion>>>;
    /// `models.score`
    fn score(&mut self, binding: &str, messages: &[Message], answer: &str) -> Result<Vec<f32>>;
    /// `models.spent`
    fn spent(&mut self) -> Result<Usage>;
    /// `models.held-out-count`
    fn held_out_count(&mut self) -> Result<u32>;
    /// `models.held-out-scores`
    fn held_out_scores(&mut self, binding: &str, first: u32, count: u32) -> Result<Vec<f64>>;

    /// `harness.entries`
    fn entries(&mut self) -> Result<Vec<Entry>>;
    /// `harness.check`
    fn check_changes(&mut self, changes: &[Mutation]) -> Result<()>;
    /// `harness.tasks`
    fn tasks(&mut self) -> Result<Vec<String>>;
    /// `harness.run-episode`
    fn run_episode(&mut self, on: &Tree, task: &str, seed: u32) -> Result<Episode>;

    /// `verify.verifiers`
    fn verifiers(&mut self) -> Result<Vec<String>>;
    /// `verify.check`
    fn check_answer(&mut self, verifier: &str, task: &str, answer: &str) -> Result<Outcome>;

    /// `tokens.encode`
    fn encode(&mut self, text: &str) -> Result<Vec<u32>>;
    /// `tokens.decode`
    fn decode(&mut self, ids: &[u32]) -> Result<String>;
    /// `tokens.render`
    fn render(&mut self, messages: &[Message]) -> Result<Vec<u32>>;

    /// `state.get`
    fn state_get(&mut self, key: &str) -> Result<Option<Vec<u8>>>;
    /// `state.set`
    fn state_set(&mut self, key: &str, value: &[u8]) -> Result<()>;
    /// `state.delete`
    fn state_delete(&mut self, key: &str) -> Result<()>;
    /// `state.keys`
    fn state_keys(&mut self) -> Result<Vec<String>>;
    /// `config.get`
    fn config(&mut self, key: &str) -> Result<Option<String>>;
    /// `config.get-all`
    fn config_all(&mut self) -> Result<Vec<(String, String)>>;
    /// `log.log`
    fn log(&mut self, level: Level, context: &str, message: &str) -> Result<()>;
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
