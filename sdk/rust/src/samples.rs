//! Samples by handle, and their columns: one value a sample, or one value a response token.
//! A column of samples is one call however many it covers; a column of tokens is one call a sample.

use alloc::string::String;
use alloc::vec::Vec;

use crate::host::{self, Host};
use crate::{Choice, Failure, Result, Retirement, Sample, Selection};

/// Samples that [`Samples::first_checked`] looks at in one selection: the host answers 1,000 calls a capability, and a
/// check may make four.
const CHECKED_MAX: usize = 240;

/// Samples of this call, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Samples {
    handles: Vec<Sample>,
}

/// The unconsumed samples of the scenario, oldest first.
pub type Pool = Samples;
/// The samples of one step, in the order of the selection.
pub type Batch = Samples;

impl From<Vec<Sample>> for Samples {
    fn from(handles: Vec<Sample>) -> Self {
        Self { handles }
    }
}

impl Samples {
    /// The handles.
    pub fn handles(&self) -> &[Sample] {
        &self.handles
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.handles.len()
    }

    /// None at all?
    pub fn is_empty(&self) -> bool {
        self.handles.is_empty()
    }

    /// The first `count` as a batch, or to wait for that many.
    pub fn first(&self, count: u32) -> Selection {
        let choice = match self.handles.get(..count as usize) {
            Some(batch) if count > 0 => Choice::Train(batch.to_vec()),
            _ => Choice::Wait(alloc::format!("{} of {count} samples", self.len())),
        };
        Selection { choice, retire: Vec::<Retirement>::new() }
    }

    /// The first `count` without an objection as a batch; those with one are retired. Nothing is checked while there
    /// are fewer than `count`, and at most 240 in one selection.
    ///
    /// # Errors
    /// That of the check.
    pub fn first_checked(
        &self,
        count: u32,
        mut objection: impl FnMut(Sample) -> Result<Option<String>>,
    ) -> Result<Selection> {
        let (mut batch, mut retired) = (Vec::new(), Vec::new());
        let enough = self.len() >= count as usize;
        for &sample in self.handles.iter().take(if enough { CHECKED_MAX } else { 0 }) {
            if batch.len() == count as usize {
                break;
            }
            match objection(sample)? {
                None => batch.push(sample),
                Some(reason) => retired.push(Retirement::new(sample, reason)),
            }
        }
        let selection = if !enough || count == 0 {
            Selection::wait(alloc::format!("{} of {count} samples", self.len()))
        } else if batch.len() < count as usize {
            Selection::wait(alloc::format!("{} of {count} usable samples", batch.len()))
        } else {
            Selection::train(batch)
        };
        Ok(selection.retire(retired))
    }

    /// Score of the report; NaN where it carries none.
    pub fn scores(&self) -> Result<Vec<f64>> {
        host::call(|host| Host::scores(host, &self.handles))
    }

    /// Releases between the one that sampled and now.
    pub fn lags(&self) -> Result<Vec<u32>> {
        host::call(|host| Host::lags(host, &self.handles))
    }

    /// Release that sampled the tokens.
    pub fn releases(&self) -> Result<Vec<String>> {
        host::call(|host| Host::releases(host, &self.handles))
    }

    /// Inference records that the reports reference.
    pub fn reference_counts(&self) -> Result<Vec<u32>> {
        host::call(|host| Host::reference_counts(host, &self.handles))
    }

    /// Tokens of the prompt.
    pub fn prompt_lengths(&self) -> Result<Vec<u32>> {
        host::call(|host| Host::prompt_lengths(host, &self.handles))
    }

    /// Tokens after the first prompt, observations included: T of every per-token column.
    pub fn response_lengths(&self) -> Result<Vec<u32>> {
        host::call(|host| Host::response_lengths(host, &self.handles))
    }

    /// Tokens that the policy sampled: the ones in the mask.
    pub fn action_counts(&self) -> Result<Vec<u32>> {
        host::call(|host| Host::action_counts(host, &self.handles))
    }

    /// Mean natural-log probability of the sampled tokens.
    pub fn mean_logprobs(&self) -> Result<Vec<f64>> {
        host::call(|host| Host::mean_logprobs(host, &self.handles))
    }

    /// Receipt of the last inference record.
    pub fn record_ids(&self) -> Result<Vec<String>> {
        host::call(|host| Host::record_ids(host, &self.handles))
    }

    /// Equal prompts have equal keys.
    pub fn prompt_keys(&self) -> Result<Vec<String>> {
        host::call(|host| Host::prompt_keys(host, &self.handles))
    }

    /// 1 where the policy sampled, 0 on observations. One call a sample.
    pub fn masks(&self) -> Result<PerToken<u8>> {
        self.handles.iter().map(|&sample| host::call(|host| Host::mask(host, sample))).collect()
    }

    /// Ids of the response tokens. One call a sample.
    pub fn tokens(&self) -> Result<PerToken<u32>> {
        self.handles.iter().map(|&sample| host::call(|host| Host::tokens(host, sample))).collect()
    }

    /// Recorded log-probs at the sampling temperature; 0 on observations. One call a sample.
    pub fn logprobs(&self) -> Result<PerToken<f32>> {
        self.handles.iter().map(|&sample| host::call(|host| Host::logprobs(host, sample))).collect()
    }

    /// Gives every token of a sample that sample's number, e.g. one advantage for a whole answer.
    ///
    /// # Errors
    /// `other` unless there is one number a sample.
    pub fn per_token(&self, per_sample: &[f64]) -> Result<PerToken<f32>> {
        if per_sample.len() != self.len() {
            return Err(Failure::other(alloc::format!("{} numbers for {} samples", per_sample.len(), self.len())));
        }
        let lengths = self.response_lengths()?;
        Ok(per_sample.iter().zip(lengths).map(|(&number, t)| alloc::vec![number as f32; t as usize]).collect())
    }
}

/// One value per response token of several samples: their parts one after the other, as the host wants them.
#[derive(Debug, Clone, PartialEq)]
pub struct PerToken<T> {
    values: Vec<T>,
    lengths: Vec<usize>,
}

impl<T> PerToken<T> {
    /// Cuts a concatenated column into parts of `lengths` tokens.
    ///
    /// # Errors
    /// `other` unless the lengths sum to the number of values.
    pub fn new(values: Vec<T>, lengths: &[u32]) -> Result<Self> {
        let lengths: Vec<usize> = lengths.iter().map(|&length| length as usize).collect();
        if lengths.iter().sum::<usize>() != values.len() {
            return Err(Failure::other("the parts of a column do not make up its length"));
        }
        Ok(Self { values, lengths })
    }

    /// All values, concatenated.
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// All values, concatenated.
    pub fn into_values(self) -> Vec<T> {
        self.values
    }

    /// The part of each sample, in order.
    pub fn parts(&self) -> impl Iterator<Item = &[T]> {
        let mut rest = self.values.as_slice();
        self.lengths.iter().map(move |&length| {
            let (part, after) = rest.split_at_checked(length).unwrap_or((rest, &[]));
            rest = after;
            part
        })
    }
}

impl<T> FromIterator<Vec<T>> for PerToken<T> {
    fn from_iter<I: IntoIterator<Item = Vec<T>>>(parts: I) -> Self {
        let (mut values, mut lengths) = (Vec::new(), Vec::new());
        for mut part in parts {
            lengths.push(part.len());
            values.append(&mut part);
        }
        Self { values, lengths }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_what_was_collected() {
        let column: PerToken<u8> = [alloc::vec![1, 2], alloc::vec![], alloc::vec![3]].into_iter().collect();
        assert_eq!(column.values(), [1, 2, 3]);
        assert_eq!(column.parts().collect::<Vec<_>>(), [&[1u8, 2][..], &[], &[3]]);
        assert_eq!(PerToken::new(alloc::vec![1u8, 2, 3], &[2, 0, 1]), Ok(column));
    }

    #[test]
    fn parts_that_do_not_add_up_are_refused() {
        assert!(PerToken::new(alloc::vec![1.0f32], &[2]).is_err());
    }

    #[test]
    fn the_first_samples_make_a_batch_once_there_are_enough() {
        let pool = Pool::from(alloc::vec![7, 8, 9]);
        assert_eq!(pool.first(2).choice, Choice::Train(alloc::vec![7, 8]));
        assert_eq!(pool.first(4).choice, Choice::Wait("3 of 4 samples".into()));
        assert!(matches!(Pool::default().first(0).choice, Choice::Wait(_)));
    }

    #[test]
    fn samples_with_an_objection_make_room_for_later_ones() {
        let odd = |sample: Sample| Ok((sample % 2 == 1).then(|| "odd".into()));
        let pool = Pool::from(alloc::vec![1, 2, 3, 4, 5]);
        let selection = pool.first_checked(2, odd).expect("selects");
        assert_eq!(selection.choice, Choice::Train(alloc::vec![2, 4]));
        assert_eq!(selection.retire, [Retirement::new(1, "odd"), Retirement::new(3, "odd")]);
        let selection = pool.first_checked(3, odd).expect("selects");
        assert_eq!((selection.choice, selection.retire.len()), (Choice::Wait("2 of 3 usable samples".into()), 3));
    }

    #[test]
    fn nothing_is_checked_while_there_are_too_few() {
        let never = |_: Sample| Err(Failure::other("checked"));
        let selection = Pool::from(alloc::vec![1, 2]).first_checked(3, never).expect("waits");
        assert_eq!(selection, Selection::wait("2 of 3 samples"));
    }
}
