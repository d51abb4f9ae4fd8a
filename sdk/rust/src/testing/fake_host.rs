//! How the test double answers each import.

use super::{CANDIDATE, Call, FIRST_SAMPLE, FakeHost, FakeSample, Level, TRAINER, sample};
use crate::host::Host;
use crate::{CriticOptimizer, Failure, Measurement, Message, Objective, Optimizer, Policy, Result, Sample, Sampling};

impl FakeHost {
    fn find(&self, handle: Sample) -> Result<&FakeSample> {
        handle
            .checked_sub(FIRST_SAMPLE)
            .and_then(|index| self.samples.get(index as usize))
            .ok_or_else(|| Failure::capability(format!("experience: {handle} is not a sample of this call")))
    }

    fn column<T>(&self, items: &[Sample], of: impl Fn(&FakeSample) -> T) -> Result<Vec<T>> {
        items.iter().map(|&handle| self.find(handle).map(&of)).collect()
    }

    fn per_token(&self, items: &[Sample], of: impl Fn(&FakeSample) -> Vec<f32>) -> Result<Vec<f32>> {
        let mut column = Vec::new();
        for &handle in items {
            let (sample, t) = (self.find(handle)?, self.find(handle)?.mask.len());
            let part = of(sample);
            same_length("a scripted column", part.len(), t)?;
            column.extend(part);
        }
        Ok(column)
    }

    fn check_column(&self, what: &str, items: &[Sample], column: &[f32]) -> Result<()> {
        let tokens = self.column(items, |sample| sample.mask.len())?.iter().sum();
        same_length(what, column.len(), tokens)?;
        match column.iter().position(|number| !number.is_finite()) {
            Some(index) => Err(Failure::capability(format!("training: {what}[{index}] is not finite"))),
            None => Ok(()),
        }
    }
}

fn same_length(what: &str, found: usize, wanted: usize) -> Result<()> {
    if found == wanted {
        return Ok(());
    }
    Err(Failure::capability(format!("training: {what} has {found} numbers for {wanted} tokens")))
}

fn check_trainer(handle: u32) -> Result<()> {
    if handle == TRAINER {
        return Ok(());
    }
    Err(Failure::capability(format!("training: {handle} is not a trainer of this call")))
}

fn mean(logprobs: &[f32], mask: &[u8]) -> f64 {
    let sampled: Vec<f64> =
        logprobs.iter().zip(mask).filter(|&(_, &bit)| bit == 1).map(|(&logprob, _)| f64::from(logprob)).collect();
    crate::maths::mean(&sampled)
}

impl Host for FakeHost {
    fn scores(&mut self, items: &[Sample]) -> Result<Vec<f64>> {
        self.column(items, |sample| sample.score)
    }
    fn lags(&mut self, items: &[Sample]) -> Result<Vec<u32>> {
        self.column(items, |sample| sample.lag)
    }
    fn reference_counts(&mut self, items: &[Sample]) -> Result<Vec<u32>> {
        self.column(items, |sample| sample.references)
    }
    fn prompt_lengths(&mut self, items: &[Sample]) -> Result<Vec<u32>> {
        self.column(items, |_| sample::PROMPT_LENGTH)
    }
    fn response_lengths(&mut self, items: &[Sample]) -> Result<Vec<u32>> {
        self.column(items, |sample| sample.mask.len() as u32)
    }
    fn mean_logprobs(&mut self, items: &[Sample]) -> Result<Vec<f64>> {
        self.column(items, |sample| mean(&sample.logprobs, &sample.mask))
    }
    fn record_ids(&mut self, items: &[Sample]) -> Result<Vec<String>> {
        items.iter().map(|&handle| self.find(handle).map(|_| format!("record-{handle}"))).collect()
    }
    fn prompt_keys(&mut self, items: &[Sample]) -> Result<Vec<String>> {
        self.column(items, |sample| sample.prompt.clone())
    }
    fn mask(&mut self, item: Sample) -> Result<Vec<u8>> {
        Ok(self.find(item)?.mask.clone())
    }
    fn tokens(&mut self, item: Sample) -> Result<Vec<u32>> {
        Ok(self.find(item)?.tokens.clone())
    }
    fn logprobs(&mut self, item: Sample) -> Result<Vec<f32>> {
        Ok(self.find(item)?.logprobs.clone())
    }
    fn report_field(&mut self, item: Sample, name: &str) -> Result<Option<String>> {
        Ok(self.find(item)?.metadata.get(name).cloned())
    }

    fn open(&mut self) -> Result<u32> {
        self.calls.push(Call::Open);
        Ok(TRAINER)
    }
    fn forward(&mut self, on: u32, which: Policy, items: &[Sample]) -> Result<Vec<f32>> {
        check_trainer(on)?;
        self.calls.push(Call::Forward { which, items: items.to_vec() });
        self.per_token(items, |sample| {
            let scripted = match which {
                Policy::Current => &sample.current,
                Policy::Base => &sample.base,
            };
            scripted.as_ref().unwrap_or(&sample.logprobs).clone()
        })
    }
    fn train(&mut self, on: u32, items: &[Sample], what: &Objective, how: Optimizer) -> Result<Vec<Measurement>> {
        check_trainer(on)?;
        if let Objective::PolicyGradient(objective) = what {
            self.check_column("advantages", items, &objective.advantages)?;
        }
        self.calls.push(Call::Train { items: items.to_vec(), objective: what.clone(), optimizer: how });
        Ok(self.train_measurements.clone())
    }
    fn values(&mut self, on: u32, items: &[Sample]) -> Result<Vec<f32>> {
        check_trainer(on)?;
        self.calls.push(Call::Values(items.to_vec()));
        self.per_token(items, |sample| sample.values.clone())
    }
    fn fit_values(
        &mut self,
        on: u32,
        items: &[Sample],
        returns: &[f32],
        how: CriticOptimizer,
    ) -> Result<Vec<Measurement>> {
        check_trainer(on)?;
        self.check_column("returns", items, returns)?;
        self.calls.push(Call::FitValues { items: items.to_vec(), returns: returns.to_vec(), optimizer: how });
        Ok(self.fit_measurements.clone())
    }
    fn checkpoint(&mut self, on: u32) -> Result<u32> {
        check_trainer(on)?;
        self.calls.push(Call::Checkpoint);
        Ok(CANDIDATE)
    }

    fn chat(&mut self, binding: &str, messages: &[Message], _: Sampling) -> Result<String> {
        let last = messages.last().map(|message| message.content.clone()).unwrap_or_default();
        self.calls.push(Call::Chat(binding.to_owned(), last));
        let answer = self.answers.get(binding).cloned();
        answer.ok_or_else(|| Failure::capability(format!("models: no binding '{binding}' in this call")))
    }
    fn held_out_count(&mut self) -> Result<u32> {
        Ok(self.held_out.values().map(Vec::len).min().unwrap_or(0) as u32)
    }
    fn held_out_scores(&mut self, binding: &str, first: u32, count: u32) -> Result<Vec<f64>> {
        self.calls.push(Call::HeldOut(binding.to_owned(), first, count));
        let scores = self.held_out.get(binding);
        let range = first as usize..first.saturating_add(count) as usize;
        let part = scores.and_then(|scores| scores.get(range)).map(<[f64]>::to_vec);
        part.ok_or_else(|| Failure::capability(format!("models: no tasks {first} + {count} on '{binding}'")))
    }

    fn state_get(&mut self, key: &str) -> Result<Option<Vec<u8>>> {
        Ok(self.state.get(key).cloned())
    }
    fn state_set(&mut self, key: &str, value: &[u8]) -> Result<()> {
        self.state.insert(key.to_owned(), value.to_vec());
        Ok(())
    }
    fn state_delete(&mut self, key: &str) -> Result<()> {
        self.state.remove(key);
        Ok(())
    }
    fn config(&mut self, key: &str) -> Result<Option<String>> {
        Ok(self.config.get(key).cloned())
    }
    fn log(&mut self, level: Level, message: &str) -> Result<()> {
        self.logs.push((level, message.to_owned()));
        Ok(())
    }
    fn gauge(&mut self, name: &str, value: f64) -> Result<()> {
        self.metrics.insert(name.to_owned(), value);
        Ok(())
    }
}
