//! The host of a component: its imports. Nothing here decides anything.

use alloc::string::String;
use alloc::vec::Vec;

use crate::bindings::reef::recipe::{
    config, experience, harness, log, metrics, models, state, tokens, training, verify,
};
use crate::experience::{Alternatives, Turn, UnusableReport};
use crate::harness::{Episode, Tree};
use crate::host::Host;
use crate::log::Level;
use crate::{
    ChatRequest, Completion, CriticOptimizer, Entry, Failure, Measurement, Message, Mutation, Optimizer, Outcome,
    Policy, Result, Sample, Term, Usage,
};

/// The imports of this component.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Imports;

impl Host for Imports {
    fn scores(&mut self, items: &[Sample]) -> Result<Vec<f64>> {
        experience::scores(items).map_err(Failure::from)
    }
    fn lags(&mut self, items: &[Sample]) -> Result<Vec<u32>> {
        experience::lags(items).map_err(Failure::from)
    }
    fn releases(&mut self, items: &[Sample]) -> Result<Vec<String>> {
        experience::releases(items).map_err(Failure::from)
    }
    fn reference_counts(&mut self, items: &[Sample]) -> Result<Vec<u32>> {
        experience::reference_counts(items).map_err(Failure::from)
    }
    fn prompt_lengths(&mut self, items: &[Sample]) -> Result<Vec<u32>> {
        experience::prompt_lengths(items).map_err(Failure::from)
    }
    fn response_lengths(&mut self, items: &[Sample]) -> Result<Vec<u32>> {
        experience::response_lengths(items).map_err(Failure::from)
    }
    fn action_counts(&mut self, items: &[Sample]) -> Result<Vec<u32>> {
        experience::action_counts(items).map_err(Failure::from)
    }
    fn mean_logprobs(&mut self, items: &[Sample]) -> Result<Vec<f64>> {
        experience::mean_logprobs(items).map_err(Failure::from)
    }
    fn record_ids(&mut self, items: &[Sample]) -> Result<Vec<String>> {
        experience::record_ids(items).map_err(Failure::from)
    }
    fn prompt_keys(&mut self, items: &[Sample]) -> Result<Vec<String>> {
        experience::prompt_keys(items).map_err(Failure::from)
    }
    fn mask(&mut self, item: Sample) -> Result<Vec<u8>> {
        experience::mask(item).map_err(Failure::from)
    }
    fn prompt_tokens(&mut self, item: Sample) -> Result<Vec<u32>> {
        experience::prompt_tokens(item).map_err(Failure::from)
    }
    fn tokens(&mut self, item: Sample) -> Result<Vec<u32>> {
        experience::tokens(item).map_err(Failure::from)
    }
    fn logprobs(&mut self, item: Sample) -> Result<Vec<f32>> {
        experience::logprobs(item).map_err(Failure::from)
    }
    fn top_k(&mut self, item: Sample) -> Result<Alternatives> {
        experience::top_k(item).map_err(Failure::from)
    }
    fn turns(&mut self, item: Sample) -> Result<Vec<Turn>> {
        experience::turns(item).map_err(Failure::from)
    }
    fn messages(&mut self, item: Sample) -> Result<Vec<Message>> {
        experience::messages(item).map_err(Failure::from)
    }
    fn response_text(&mut self, item: Sample) -> Result<String> {
        experience::response_text(item).map_err(Failure::from)
    }
    fn tags(&mut self, item: Sample) -> Result<Vec<(String, String)>> {
        experience::tags(item).map_err(Failure::from)
    }
    fn session(&mut self, item: Sample) -> Result<Option<String>> {
        experience::session(item).map_err(Failure::from)
    }
    fn report_field(&mut self, item: Sample, name: &str) -> Result<Option<String>> {
        experience::report_field(item, name).map_err(Failure::from)
    }
    fn unusable(&mut self) -> Result<Vec<UnusableReport>> {
        experience::unusable().map_err(Failure::from)
    }

    fn open(&mut self) -> Result<u32> {
        training::open().map_err(Failure::from)
    }
    fn derive(&mut self, item: Sample, prompt: Option<&[u32]>, response: Option<&[u32]>) -> Result<Sample> {
        training::derive(item, prompt, response).map_err(Failure::from)
    }
    fn forward(&mut self, on: u32, which: &Policy, items: &[Sample]) -> Result<Vec<f32>> {
        training::forward(on, which, items).map_err(Failure::from)
    }
    fn train(&mut self, on: u32, items: &[Sample], what: &[Term], how: Optimizer) -> Result<Vec<Measurement>> {
        training::train(on, items, what, how).map_err(Failure::from)
    }
    fn forward_backward(&mut self, on: u32, items: &[Sample], what: &[Term]) -> Result<Vec<Measurement>> {
        training::forward_backward(on, items, what).map_err(Failure::from)
    }
    fn backward(&mut self, on: u32, items: &[Sample], gradients: &[f32]) -> Result<Vec<Measurement>> {
        training::backward(on, items, gradients).map_err(Failure::from)
    }
    fn optimizer_step(&mut self, on: u32, how: Optimizer) -> Result<Vec<Measurement>> {
        training::optimizer_step(on, how).map_err(Failure::from)
    }
    fn update_ema(&mut self, on: u32, rate: f64) -> Result<()> {
        training::update_ema(on, rate).map_err(Failure::from)
    }
    fn values(&mut self, on: u32, items: &[Sample]) -> Result<Vec<f32>> {
        training::values(on, items).map_err(Failure::from)
    }
    fn fit_values(
        &mut self,
        on: u32,
        items: &[Sample],
        returns: &[f32],
        how: CriticOptimizer,
    ) -> Result<Vec<Measurement>> {
        training::fit_values(on, items, returns, how).map_err(Failure::from)
    }
    fn checkpoint(&mut self, on: u32) -> Result<u32> {
        training::checkpoint(on).map_err(Failure::from)
    }

    fn bindings(&mut self) -> Result<Vec<String>> {
        models::bindings().map_err(Failure::from)
    }
    fn chat(&mut self, binding: &str, requests: &[ChatRequest]) -> Result<Vec<Vec<Completion>>> {
        models::chat(binding, requests).map_err(Failure::from)
    }
    fn score(&mut self, binding: &str, messages: &[Message], answer: &str) -> Result<Vec<f32>> {
        models::score(binding, messages, answer).map_err(Failure::from)
    }
    fn spent(&mut self) -> Result<Usage> {
        models::spent().map_err(Failure::from)
    }
    fn held_out_count(&mut self) -> Result<u32> {
        models::held_out_count().map_err(Failure::from)
    }
    fn held_out_scores(&mut self, binding: &str, first: u32, count: u32) -> Result<Vec<f64>> {
        models::held_out_scores(binding, first, count).map_err(Failure::from)
    }

    fn entries(&mut self) -> Result<Vec<Entry>> {
        harness::entries().map_err(Failure::from)
    }
    fn check_changes(&mut self, changes: &[Mutation]) -> Result<()> {
        harness::check(changes).map_err(Failure::from)
    }
    fn tasks(&mut self) -> Result<Vec<String>> {
        harness::tasks().map_err(Failure::from)
    }
    fn run_episode(&mut self, on: &Tree, task: &str, seed: u32) -> Result<Episode> {
        harness::run_episode(on, task, seed).map_err(Failure::from)
    }

    fn verifiers(&mut self) -> Result<Vec<String>> {
        verify::verifiers().map_err(Failure::from)
    }
    fn check_answer(&mut self, verifier: &str, task: &str, answer: &str) -> Result<Outcome> {
        verify::check(verifier, task, answer).map_err(Failure::from)
    }

    fn encode(&mut self, text: &str) -> Result<Vec<u32>> {
        tokens::encode(text).map_err(Failure::from)
    }
    fn decode(&mut self, ids: &[u32]) -> Result<String> {
        tokens::decode(ids).map_err(Failure::from)
    }
    fn render(&mut self, messages: &[Message]) -> Result<Vec<u32>> {
        tokens::render(messages).map_err(Failure::from)
    }

    fn state_get(&mut self, key: &str) -> Result<Option<Vec<u8>>> {
        state::get(key).map_err(Failure::from)
    }
    fn state_set(&mut self, key: &str, value: &[u8]) -> Result<()> {
        state::set(key, value).map_err(Failure::from)
    }
    fn state_delete(&mut self, key: &str) -> Result<()> {
        state::delete(key).map_err(Failure::from)
    }
    fn state_keys(&mut self) -> Result<Vec<String>> {
        state::keys().map_err(Failure::from)
    }
    fn config(&mut self, key: &str) -> Result<Option<String>> {
        Ok(config::get(key))
    }
    fn config_all(&mut self) -> Result<Vec<(String, String)>> {
        Ok(config::get_all())
    }
    fn log(&mut self, level: Level, context: &str, message: &str) -> Result<()> {
        log::log(level, context, message);
        Ok(())
    }
    fn gauge(&mut self, name: &str, value: f64) -> Result<()> {
        metrics::gauge(name, value);
        Ok(())
    }
}
