//! Capability `experience`: columns of the samples of a call.
//! Handles are checked one by one, and a call names at most as many samples as its batch has, so that an answer
//! is never larger than the batch itself.

use crate::Capability;
use crate::bindings::reef::recipe::experience::{ExperienceError, Host};
use crate::bindings::reef::recipe::types;
use crate::call::PoolSample;
use crate::call_state::CallState;

/// Bytes of a report field's JSON that a guest gets.
const FIELD_BYTES_MAX: usize = 64 * 1024;

impl types::Host for CallState {}

impl CallState {
    fn column<T>(&mut self, items: &[u32], read: impl Fn(&PoolSample) -> T) -> Result<Vec<T>, ExperienceError> {
        self.admit(Capability::Experience).map_err(ExperienceError::Budget)?;
        if items.len() > self.batch.len() {
            let told = format!("{} samples asked for and the call has {}", items.len(), self.batch.len());
            return Err(ExperienceError::Budget(told));
        }
        items.iter().map(|item| self.sample(*item).map(&read).ok_or(ExperienceError::UnknownSample(*item))).collect()
    }

    fn cell<T>(&mut self, item: u32, read: impl Fn(&PoolSample) -> T) -> Result<T, ExperienceError> {
        self.admit(Capability::Experience).map_err(ExperienceError::Budget)?;
        self.sample(item).map(read).ok_or(ExperienceError::UnknownSample(item))
    }
}

fn length(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn mean_logprob(item: &PoolSample) -> f64 {
    let trajectory = &item.sample.trajectory;
    let sampled = trajectory.logprobs.iter().zip(&trajectory.mask).filter(|(_, mask)| **mask == 1);
    let (sum, count) = sampled.fold((0.0, 0_u32), |(sum, count), (logprob, _)| (sum + f64::from(*logprob), count + 1));
    sum / f64::from(count)
}

impl Host for CallState {
    fn scores(&mut self, items: Vec<u32>) -> Result<Vec<f64>, ExperienceError> {
        self.column(&items, |item| item.sample.score.unwrap_or(f64::NAN))
    }

    fn lags(&mut self, items: Vec<u32>) -> Result<Vec<u32>, ExperienceError> {
        self.column(&items, |item| item.lag)
    }

    fn reference_counts(&mut self, items: Vec<u32>) -> Result<Vec<u32>, ExperienceError> {
        self.column(&items, |item| length(item.sample.records.len()))
    }

    fn prompt_lengths(&mut self, items: Vec<u32>) -> Result<Vec<u32>, ExperienceError> {
        self.column(&items, |item| length(item.sample.trajectory.prompt_length))
    }

    fn response_lengths(&mut self, items: Vec<u32>) -> Result<Vec<u32>, ExperienceError> {
        self.column(&items, |item| length(item.sample.trajectory.mask.len()))
    }

    fn mean_logprobs(&mut self, items: Vec<u32>) -> Result<Vec<f64>, ExperienceError> {
        self.column(&items, mean_logprob)
    }

    fn record_ids(&mut self, items: Vec<u32>) -> Result<Vec<String>, ExperienceError> {
        self.column(&items, |item| item.sample.records.last().unwrap_or(&item.sample.report).to_string())
    }

    fn prompt_keys(&mut self, items: Vec<u32>) -> Result<Vec<String>, ExperienceError> {
        self.column(&items, |item| item.sample.prompt_key.clone())
    }

    fn mask(&mut self, item: u32) -> Result<Vec<u8>, ExperienceError> {
        self.cell(item, |item| item.sample.trajectory.mask.clone())
    }

    fn tokens(&mut self, item: u32) -> Result<Vec<u32>, ExperienceError> {
        let response = |item: &PoolSample| {
            let trajectory = &item.sample.trajectory;
            trajectory.tokens.get(trajectory.prompt_length..).unwrap_or_default().to_vec()
        };
        self.cell(item, response)
    }

    fn logprobs(&mut self, item: u32) -> Result<Vec<f32>, ExperienceError> {
        self.cell(item, |item| item.sample.trajectory.logprobs.clone())
    }

    fn report_field(&mut self, item: u32, name: String) -> Result<Option<String>, ExperienceError> {
        let field = self.cell(item, |item| item.sample.metadata.get(&name).map(ToString::to_string))?;
        match field {
            Some(json) if json.len() > FIELD_BYTES_MAX => Err(ExperienceError::Budget(format!(
                "the field has {} bytes and at most {FIELD_BYTES_MAX} are given out",
                json.len()
            ))),
            other => Ok(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::testing;

    #[test]
    fn columns_follow_the_order_of_the_handles() {
        let mut state = testing::state(4, vec![0, 2, 3]);
        assert_eq!(state.scores(vec![3, 0]).expect("scores"), [3.0, 0.0]);
        assert_eq!(state.response_lengths(vec![2]).expect("lengths"), [3]);
        assert_eq!(state.tokens(2).expect("tokens"), [10, 11, 12]);
        assert_eq!(state.mask(2).expect("mask"), [1, 0, 1]);
        assert_eq!(state.mean_logprobs(vec![2]).expect("means"), [-0.5]);
        assert_eq!(state.report_field(2, "task".into()).expect("field"), Some("\"t2\"".into()));
    }

    #[test]
    fn forged_handles_and_oversized_requests_are_errors() {
        let mut state = testing::state(4, vec![0, 2]);
        assert!(matches!(state.scores(vec![0, 1]), Err(ExperienceError::UnknownSample(1))));
        assert!(matches!(state.mask(u32::MAX), Err(ExperienceError::UnknownSample(u32::MAX))));
        assert!(matches!(state.scores(vec![0, 0, 0]), Err(ExperienceError::Budget(_))));
    }

    #[test]
    fn calls_beyond_the_budget_are_errors_and_a_flood_ends_the_call() {
        let mut state = testing::state(1, vec![0]);
        state.host_calls_max = 2;
        assert!(state.lags(vec![0]).is_ok() && state.lags(vec![0]).is_ok());
        assert!(matches!(state.lags(vec![0]), Err(ExperienceError::Budget(_))));
        assert!(state.lags(vec![0]).is_err() && state.cut_off.is_none());
        assert!(state.lags(vec![0]).is_err());
        assert_eq!(state.cut_off.expect("cut off").kind, crate::FaultKind::HostLimit(Capability::Experience));
    }
}
