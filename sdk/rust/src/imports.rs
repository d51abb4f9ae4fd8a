//! The host of a component: its imports. Nothing here decides anything.

use alloc::string::String;
use alloc::vec::Vec;

use crate::bindings::reef::recipe::log::Level;
use crate::bindings::reef::recipe::{config, experience, log, metrics, models, state, training};
use crate::host::Host;
use crate::{CriticOptimizer, Failure, Measurement, Message, Objective, Optimizer, Policy, Result, Sample, Sampling};

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
    fn reference_counts(&mut self, items: &[Sample]) -> Result<Vec<u32>> {
        experience::reference_counts(items).map_err(Failure::from)
    }
    fn prompt_lengths(&mut self, items: &[Sample]) -> Result<Vec<u32>> {
        experience::prompt_lengths(items).map_err(Failure::from)
    }
    fn response_lengths(&mut self, items: &[Sample]) -> Result<Vec<u32>> {
        experience::response_lengths(items).map_err(Failure::from)
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
    fn tokens(&mut self, item: Sample) -> Result<Vec<u32>> {
        experience::tokens(item).map_err(Failure::from)
    }
    fn logprobs(&mut self, item: Sample) -> Result<Vec<f32>> {
        experience::logprobs(item).map_err(Failure::from)
    }
    fn report_field(&mut self, item: Sample, name: &str) -> Result<Option<String>> {
        experience::report_field(item, name).map_err(Failure::from)
    }

    fn open(&mut self) -> Result<u32> {
        training::open().map_err(Failure::from)
    }
    fn forward(&mut self, on: u32, which: Policy, items: &[Sample]) -> Result<Vec<f32>> {
        training::forward(on, which, items).map_err(Failure::from)
    }
    fn train(&mut self, on: u32, items: &[Sample], what: &Objective, how: Optimizer) -> Result<Vec<Measurement>> {
        training::train(on, items, what, how).map_err(Failure::from)
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

    fn chat(&mut self, binding: &str, messages: &[Message], how: Sampling) -> Result<String> {
        models::chat(binding, messages, how).map_err(Failure::from)
    }
    fn held_out_count(&mut self) -> Result<u32> {
        models::held_out_count().map_err(Failure::from)
    }
    fn held_out_scores(&mut self, binding: &str, first: u32, count: u32) -> Result<Vec<f64>> {
        models::held_out_scores(binding, first, count).map_err(Failure::from)
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
    fn config(&mut self, key: &str) -> Result<Option<String>> {
        Ok(config::get(key))
    }
    fn log(&mut self, level: Level, message: &str) -> Result<()> {
        log::log(level, message);
        Ok(())
    }
    fn gauge(&mut self, name: &str, value: f64) -> Result<()> {
        metrics::gauge(name, value);
        Ok(())
    }
}
