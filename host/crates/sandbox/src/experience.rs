//! Capability `experience`: columns of the samples of a call, and the records behind them.
//! Handles are checked one by one, and a call names at most as many samples as its batch has, so that an answer
//! is never larger than the batch itself. Samples that the call derived have tokens and no records.

use std::borrow::Cow;

use reef_core::{Alternatives, AssemblyError, Message, RecordId};

use crate::call::PoolSample;
use crate::call_state::{CallState, denied_becomes};
use crate::offload::{Lost, NO_THREAD};
use crate::traffic::Bytes;
use crate::{Capability, FaultKind};

/// Bytes of a report field's JSON that a guest gets.
const FIELD_BYTES_MAX: usize = 64 * 1024;
/// Bytes of a conversation or a text that a guest gets.
const TEXT_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// What a guest may read of one inference record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordView {
    /// The conversation that was sent.
    pub messages: Vec<Message>,
    /// Tags of the request.
    pub tags: Vec<(String, String)>,
    /// Session of the request.
    pub session: Option<String>,
    /// Text of the answer.
    pub answer: String,
}

/// The records behind the samples of a call. Methods may block.
pub trait Records: Send + Sync {
    /// The record; `None` when it is not kept. The error is a sentence.
    fn record(&self, id: &RecordId) -> Result<Option<RecordView>, String>;
}

/// Why a column is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ExperienceError {
    #[error("there is no sample {0} in this call")]
    UnknownSample(u32),
    #[error("{0}")]
    Budget(String),
    #[error("{0}")]
    Absent(String),
    #[error("{0}")]
    Other(String),
}
denied_becomes!(ExperienceError);

/// One record of a trajectory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TurnView {
    pub(crate) id: String,
    pub(crate) release: String,
    pub(crate) start: u32,
    pub(crate) length: u32,
}

impl Bytes for AssemblyError {
    const EACH: Option<u64> = Some(size_of::<u32>() as u64);

    fn bytes(&self) -> u64 {
        size_of::<u32>() as u64
    }
}

impl Bytes for Alternatives {
    fn bytes(&self) -> u64 {
        (self.k, &self.ids, &self.logprobs).bytes()
    }
}

impl Bytes for TurnView {
    fn bytes(&self) -> u64 {
        (&self.id, &self.release, (self.start, self.length)).bytes()
    }
}

/// Tokens of an item: a sample's own, or what the call derived from it.
pub(crate) struct Parts<'a> {
    pub(crate) prompt: &'a [u32],
    pub(crate) response: &'a [u32],
    pub(crate) mask: Cow<'a, [u8]>,
    pub(crate) logprobs: Cow<'a, [f32]>,
    /// What else the sampler recorded; none for a derived response.
    pub(crate) alternatives: Option<&'a Alternatives>,
}

/// Which record of a sample.
#[derive(Clone, Copy)]
enum Place {
    First,
    Last,
}

impl CallState {
    /// Tokens of a sample of this call or of one that it derived.
    pub(crate) fn parts(&self, item: u32) -> Option<Parts<'_>> {
        let derived = self.training.derived(item);
        let sample = self.sample(derived.map_or(item, |derived| derived.source))?;
        let trajectory = &sample.sample.trajectory;
        let (prompt, response) = trajectory.tokens.split_at_checked(trajectory.prompt_length).unwrap_or_default();
        let mut parts = Parts {
            prompt,
            response,
            mask: Cow::Borrowed(&trajectory.mask),
            logprobs: Cow::Borrowed(&trajectory.logprobs),
            alternatives: Some(&trajectory.alternatives).filter(|alternatives| !alternatives.is_none()),
        };
        if let Some(prompt) = derived.and_then(|derived| derived.prompt.as_deref()) {
            parts.prompt = prompt;
        }
        if let Some(response) = derived.and_then(|derived| derived.response.as_deref()) {
            parts.response = response;
            parts.mask = Cow::Owned(vec![1; response.len()]);
            parts.logprobs = Cow::Owned(vec![0.0; response.len()]);
            parts.alternatives = None;
        }
        Some(parts)
    }

    /// A sample with a record; derived ones have none.
    fn recorded(&self, item: u32) -> Result<&PoolSample, ExperienceError> {
        match self.sample(item) {
            Some(sample) => Ok(sample),
            None if self.training.derived(item).is_some() => {
                Err(ExperienceError::Absent(format!("sample {item} was derived in this call and has no record")))
            }
            None => Err(ExperienceError::UnknownSample(item)),
        }
    }

    fn admit_column(&mut self, items: &[u32]) -> Result<(), ExperienceError> {
        self.admit(Capability::Experience, &items)?;
        let known = self.batch.len().saturating_add(self.training.derived_count());
        if items.len() > known {
            let told = format!("{} samples asked for and the call has {known}", items.len());
            return Err(ExperienceError::Budget(told));
        }
        Ok(())
    }

    fn column<T>(&mut self, items: &[u32], read: impl Fn(&PoolSample) -> T) -> Result<Vec<T>, ExperienceError> {
        self.admit_column(items)?;
        items.iter().map(|item| self.recorded(*item).map(&read)).collect()
    }

    fn token_column<T>(&mut self, items: &[u32], read: impl Fn(Parts<'_>) -> T) -> Result<Vec<T>, ExperienceError> {
        self.admit_column(items)?;
        items.iter().map(|item| self.parts(*item).map(&read).ok_or(ExperienceError::UnknownSample(*item))).collect()
    }

    fn cell<T>(&mut self, item: u32, read: impl Fn(&PoolSample) -> T) -> Result<T, ExperienceError> {
        self.admit(Capability::Experience, &item)?;
        self.recorded(item).map(read)
    }

    fn token_cell<T>(&mut self, item: u32, read: impl Fn(Parts<'_>) -> T) -> Result<T, ExperienceError> {
        self.admit(Capability::Experience, &item)?;
        self.parts(item).map(read).ok_or(ExperienceError::UnknownSample(item))
    }

    pub(crate) fn scores(&mut self, items: &[u32]) -> Result<Vec<f64>, ExperienceError> {
        self.column(items, |item| item.sample.score.unwrap_or(f64::NAN))
    }

    pub(crate) fn lags(&mut self, items: &[u32]) -> Result<Vec<u32>, ExperienceError> {
        self.column(items, |item| item.lag)
    }

    pub(crate) fn releases(&mut self, items: &[u32]) -> Result<Vec<String>, ExperienceError> {
        self.column(items, |item| item.sample.release.to_string())
    }

    pub(crate) fn reference_counts(&mut self, items: &[u32]) -> Result<Vec<u32>, ExperienceError> {
        self.column(items, |item| length(item.sample.records.len()))
    }

    pub(crate) fn prompt_lengths(&mut self, items: &[u32]) -> Result<Vec<u32>, ExperienceError> {
        self.token_column(items, |parts| length(parts.prompt.len()))
    }

    pub(crate) fn response_lengths(&mut self, items: &[u32]) -> Result<Vec<u32>, ExperienceError> {
        self.token_column(items, |parts| length(parts.response.len()))
    }

    pub(crate) fn action_counts(&mut self, items: &[u32]) -> Result<Vec<u32>, ExperienceError> {
        self.token_column(items, |parts| length(parts.mask.iter().filter(|mask| **mask == 1).count()))
    }

    pub(crate) fn mean_logprobs(&mut self, items: &[u32]) -> Result<Vec<f64>, ExperienceError> {
        self.column(items, mean_logprob)
    }

    pub(crate) fn record_ids(&mut self, items: &[u32]) -> Result<Vec<String>, ExperienceError> {
        self.column(items, |item| item.sample.records.last().unwrap_or(&item.sample.report).to_string())
    }

    pub(crate) fn prompt_keys(&mut self, items: &[u32]) -> Result<Vec<String>, ExperienceError> {
        self.column(items, |item| item.sample.prompt_key.clone())
    }

    pub(crate) fn mask(&mut self, item: u32) -> Result<Vec<u8>, ExperienceError> {
        self.token_cell(item, |parts| parts.mask.into_owned())
    }

    pub(crate) fn prompt_tokens(&mut self, item: u32) -> Result<Vec<u32>, ExperienceError> {
        self.token_cell(item, |parts| parts.prompt.to_vec())
    }

    pub(crate) fn tokens(&mut self, item: u32) -> Result<Vec<u32>, ExperienceError> {
        self.token_cell(item, |parts| parts.response.to_vec())
    }

    pub(crate) fn logprobs(&mut self, item: u32) -> Result<Vec<f32>, ExperienceError> {
        self.token_cell(item, |parts| parts.logprobs.into_owned())
    }

    pub(crate) fn top_k(&mut self, item: u32) -> Result<Alternatives, ExperienceError> {
        self.token_cell(item, |parts| parts.alternatives.cloned())?.ok_or_else(|| {
            ExperienceError::Absent(format!("the records of sample {item} hold no alternatives of their tokens"))
        })
    }

    pub(crate) fn turns(&mut self, item: u32) -> Result<Vec<TurnView>, ExperienceError> {
        self.cell(item, turns)?
            .ok_or_else(|| ExperienceError::Absent(format!("where the turns of sample {item} lie is not recorded")))
    }

    pub(crate) fn report_field(&mut self, item: u32, name: &str) -> Result<Option<String>, ExperienceError> {
        self.traffic.took(Bytes::bytes(name));
        let field = self.cell(item, |item| item.sample.metadata.get(name).map(ToString::to_string))?;
        match field {
            Some(json) if json.len() > FIELD_BYTES_MAX => Err(ExperienceError::Budget(format!(
                "the field has {} bytes and at most {FIELD_BYTES_MAX} are given out",
                json.len()
            ))),
            other => Ok(other),
        }
    }

    pub(crate) fn unusable(&mut self) -> Result<Vec<(String, AssemblyError)>, ExperienceError> {
        self.admit(Capability::Experience, &())?;
        Ok(self.unusable.iter().map(|(report, why)| (report.to_string(), *why)).collect())
    }

    pub(crate) async fn messages(&mut self, item: u32) -> Result<Vec<Message>, ExperienceError> {
        // Without tokens the sample is no trajectory: its last exchange holds the whole conversation.
        let place = if self.has_tokens(item) { Place::First } else { Place::Last };
        let messages = self.record(item, place).await?.messages;
        bounded(messages, item)
    }

    pub(crate) async fn tags(&mut self, item: u32) -> Result<Vec<(String, String)>, ExperienceError> {
        let tags = self.record(item, Place::Last).await?.tags;
        bounded(tags, item)
    }

    pub(crate) async fn session(&mut self, item: u32) -> Result<Option<String>, ExperienceError> {
        Ok(self.record(item, Place::Last).await?.session)
    }

    pub(crate) async fn response_text(&mut self, item: u32) -> Result<String, ExperienceError> {
        if !self.has_tokens(item) {
            let answer = self.record(item, Place::Last).await?.answer;
            return bounded(answer, item);
        }
        let ids = self.token_cell(item, |parts| parts.response.to_vec())?;
        let text = self.blocking(self.tokens.clone(), move |tokens| tokens.decode(&ids)).await;
        let text = self.found(text, "the tokenizer")?;
        bounded(text, item)
    }

    /// True also for a sample that is not there, which is then told by what was asked of it.
    fn has_tokens(&mut self, item: u32) -> bool {
        self.recorded(item).map_or(true, |item| !item.sample.trajectory.tokens.is_empty())
    }

    async fn record(&mut self, item: u32, place: Place) -> Result<RecordView, ExperienceError> {
        let id = self.cell(item, |item| match place {
            Place::First => item.sample.records.first().cloned(),
            Place::Last => item.sample.records.last().cloned(),
        })?;
        let Some(id) = id else {
            return Err(ExperienceError::Absent(format!("sample {item} names no inference record")));
        };
        let looked_up = self.blocking(self.records.clone(), move |records| records.record(&id)).await;
        self.found(looked_up, "the records")?
            .ok_or_else(|| ExperienceError::Absent(format!("the record of sample {item} is not kept")))
    }

    fn found<T>(&mut self, answer: Result<Result<T, String>, Lost>, what: &str) -> Result<T, ExperienceError> {
        match answer {
            Ok(answer) => answer.map_err(ExperienceError::Other),
            Err(Lost::Absent) => Err(ExperienceError::Other(format!("{what} cannot be read in this call"))),
            Err(Lost::Cancelled) => Err(ExperienceError::Other("the step was cancelled".to_owned())),
            Err(Lost::NoThread) => Err(ExperienceError::Other(NO_THREAD.to_owned())),
            Err(Lost::Panicked) => {
                let told = format!("reading {what} panicked");
                self.cut(FaultKind::HostBug, &told);
                Err(ExperienceError::Other(told))
            }
        }
    }
}

fn bounded<T: Bytes>(value: T, item: u32) -> Result<T, ExperienceError> {
    let bytes = value.bytes();
    if bytes <= TEXT_BYTES_MAX {
        return Ok(value);
    }
    Err(ExperienceError::Budget(format!("sample {item}: {bytes} bytes and at most {TEXT_BYTES_MAX} are given out")))
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

/// One turn per record, or nothing where the spans do not fit the records.
fn turns(item: &PoolSample) -> Option<Vec<TurnView>> {
    let (sample, spans) = (&item.sample, &item.sample.trajectory.turns);
    if spans.is_empty() || spans.len() != sample.records.len() {
        return None;
    }
    let views = sample.records.iter().zip(spans).map(|(id, span)| TurnView {
        id: id.to_string(),
        release: sample.release.to_string(),
        start: span.start,
        length: span.length,
    });
    Some(views.collect())
}

#[cfg(test)]
#[path = "experience_tests.rs"]
mod tests;
