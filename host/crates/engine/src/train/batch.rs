//! The samples of one trainer call, checked once and put in an order of their own.
//! Columns come and go in the caller's order and are worked on in row order, which depends only on the
//! samples themselves, so that a result never depends on how a caller listed them.
//! Rows are cut into micro-batches of equal size, in which a beginning that all rows share counts once; nothing here
//! runs a model.
//!
//! Legend: `b` rows, `t` padded positions, `n` response tokens of a micro-batch, observations included.

use std::ops::Range;

use reef_core::{ReleaseId, Sample};
use tch::{Device, Kind, Tensor};

use super::layout::{Layout, Sequence, Size};
use crate::engine::ModelInfo;
use crate::error::EngineError;
use crate::sampler::stated_temperature;

/// Positions of the first micro-batch: the trainer runs it twice, to compare with the start weights.
const FIRST_TOKENS_MAX: usize = 128;

/// What the model can read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Token ids are below this.
    pub vocabulary: i64,
    /// Tokens of one sample.
    pub context: usize,
    /// Where the model computes.
    pub device: Device,
    /// Positions of a micro-batch.
    pub micro_batch_tokens: usize,
}

/// One sample and where its response tokens lie.
#[derive(Debug)]
pub(super) struct Row<'a> {
    pub sample: &'a Sample,
    /// Its place among the caller's items.
    pub item: usize,
    /// In the caller's concatenated columns.
    column: Range<usize>,
    /// First of them in columns in row order.
    start: usize,
    /// Its log-probs are those of the release that the trainer was opened on.
    own: bool,
}

impl Row<'_> {
    fn prompt_and_response(&self) -> Sequence<'_> {
        let trajectory = &self.sample.trajectory;
        trajectory.tokens.split_at(trajectory.prompt_length.min(trajectory.tokens.len()))
    }
}

/// Checked samples in row order.
#[derive(Debug)]
pub(super) struct Batch<'a> {
    pub rows: Vec<Row<'a>>,
    pub bounds: Bounds,
    /// Response tokens of all rows.
    pub response_tokens: usize,
}

impl<'a> Batch<'a> {
    /// Checks every sample; the error names the item and the column.
    pub fn new(items: &[&'a Sample], bounds: Bounds) -> Result<Self, EngineError> {
        if items.is_empty() {
            return Err(EngineError::Invalid("items: the list is empty".to_owned()));
        }
        let mut rows = Vec::with_capacity(items.len());
        let mut response_tokens = 0;
        for (index, &sample) in items.iter().enumerate() {
            check(sample, (bounds.vocabulary, bounds.context))
                .map_err(|problem| EngineError::Invalid(format!("items[{index}]: {problem}")))?;
            let end = response_tokens + sample.trajectory.mask.len();
            rows.push(Row { sample, item: index, column: response_tokens..end, start: 0, own: false });
            response_tokens = end;
        }
        // Equal lengths side by side need no padding; the rest of the key makes the order total, also of samples
        // that are one sample with other prompts or responses.
        fn key<'k>(row: &'k Row<'_>) -> (usize, i64, &'k str, usize, &'k [u32]) {
            let (sample, trajectory) = (row.sample, &row.sample.trajectory);
            let length = trajectory.tokens.len();
            (length, sample.sequence, sample.report.as_str(), trajectory.prompt_length, &trajectory.tokens)
        }
        rows.sort_by(|a, b| key(a).cmp(&key(b)));
        let mut start = 0;
        for row in &mut rows {
            row.start = start;
            start += row.column.len();
        }
        Ok(Self { rows, bounds, response_tokens })
    }

    /// Marks the rows whose log-probs `release` recorded: those of records that it sampled.
    pub fn mark_own(mut self, release: Option<&ReleaseId>) -> Self {
        for row in &mut self.rows {
            row.own = !row.sample.records.is_empty() && Some(&row.sample.release) == release;
        }
        self
    }

    /// Contiguous runs of rows within the token budget, in row order; the first is small.
    pub fn micro_batches(&self) -> Vec<&[Row<'a>]> {
        let mut runs = Vec::new();
        let mut budget = FIRST_TOKENS_MAX.min(self.bounds.micro_batch_tokens);
        let mut rest = self.rows.as_slice();
        while let Some((first, others)) = rest.split_first() {
            let mut size = Size::of(first.prompt_and_response());
            let fits = |row: &&Row<'_>| {
                size.take(first.prompt_and_response(), row.prompt_and_response());
                size.fits(budget)
            };
            let (run, after) = rest.split_at(1 + others.iter().take_while(fits).count());
            runs.push(run);
            rest = after;
            budget = self.bounds.micro_batch_tokens;
        }
        runs
    }

    /// A column of the caller in row order.
    pub fn to_rows(&self, column: &[f32], name: &str) -> Result<Vec<f32>, EngineError> {
        let invalid = |problem: String| Err(EngineError::Invalid(format!("{name}: {problem}")));
        if column.len() != self.response_tokens {
            return invalid(format!("{} numbers for {} response tokens", column.len(), self.response_tokens));
        }
        if let Some(index) = column.iter().position(|x| !x.is_finite()) {
            return invalid(format!("number {index} is not finite"));
        }
        Ok(self.rows.iter().flat_map(|row| column.get(row.column.clone()).unwrap_or_default()).copied().collect())
    }

    /// A column in row order in the caller's order.
    pub fn to_items(&self, column: &[f32]) -> Vec<f32> {
        let mut items = vec![0.0; self.response_tokens];
        let mut rest = column;
        for row in &self.rows {
            let (part, after) = rest.split_at(row.column.len().min(rest.len()));
            if let Some(place) = items.get_mut(row.column.clone()).filter(|place| place.len() == part.len()) {
                place.copy_from_slice(part);
            }
            rest = after;
        }
        items
    }

    /// Checks prompts that stand for those of the items, one for each: what is wrong goes on after their name.
    pub fn check_prompts(&self, prompts: &[Vec<u32>]) -> Result<(), String> {
        if prompts.len() != self.rows.len() {
            return Err(format!(": {} of them for {} items", prompts.len(), self.rows.len()));
        }
        let Bounds { vocabulary, context, .. } = self.bounds;
        for row in &self.rows {
            let prompt = prompts.get(row.item).map_or(&[][..], Vec::as_slice);
            let length = prompt.len() + row.column.len();
            let problem = match prompt.iter().find(|&&token| i64::from(token) >= vocabulary) {
                Some(token) => format!("token {token} is outside the vocabulary of {vocabulary}"),
                None if prompt.is_empty() => "it has no tokens".to_owned(),
                None if length > context => {
                    format!("its {length} tokens with the response exceed the context of {context}; shorten it")
                }
                None => continue,
            };
            return Err(format!("[{}]: {problem}", row.item));
        }
        Ok(())
    }

    /// Alternatives that were recorded of every token of every item.
    pub fn alternatives(&self) -> Result<usize, String> {
        let mut fewest = usize::MAX;
        for row in &self.rows {
            let k = row.sample.trajectory.alternatives.k as usize;
            if k == 0 {
                return Err(format!(
                    "items[{}] has no recorded alternatives; set top-k in the manifest of the recipe, and leave out what was sampled before",
                    row.item
                ));
            }
            fewest = fewest.min(k);
        }
        Ok(fewest)
    }

    /// Masks in row order.
    pub fn masks(&self) -> Vec<&'a [u8]> {
        self.rows.iter().map(|row| row.sample.trajectory.mask.as_slice()).collect()
    }
}

/// Would the trainer take the sample? The error says what is wrong with it.
pub fn check_sample(sample: &Sample, info: &ModelInfo) -> Result<(), String> {
    let vocabulary = i64::try_from(info.vocabulary).unwrap_or(i64::MAX);
    check(sample, (vocabulary, info.context_length))
}

fn check(sample: &Sample, (vocabulary, context): (i64, usize)) -> Result<(), String> {
    let trajectory = &sample.trajectory;
    let (length, response) = (trajectory.tokens.len(), trajectory.mask.len());
    if response == 0 || trajectory.prompt_length == 0 {
        return Err("it has no response tokens or no prompt".to_owned());
    }
    if trajectory.logprobs.len() != response || trajectory.prompt_length + response != length {
        return Err(format!(
            "{length} tokens, a prompt of {}, {response} masks and {} log-probs do not fit together",
            trajectory.prompt_length,
            trajectory.logprobs.len()
        ));
    }
    if length > context {
        return Err(format!("its {length} tokens exceed the context of {context}"));
    }
    if let Some(token) = trajectory.tokens.iter().find(|&&token| i64::from(token) >= vocabulary) {
        return Err(format!("token {token} is outside the vocabulary of {vocabulary}"));
    }
    if trajectory.mask.iter().any(|&mask| mask > 1) || trajectory.logprobs.iter().any(|logprob| !logprob.is_finite()) {
        return Err("a mask is neither 0 nor 1 or a log-prob is not finite".to_owned());
    }
    let (k, alternatives) = (trajectory.alternatives.k as usize, &trajectory.alternatives);
    if [alternatives.ids.len(), alternatives.logprobs.len()] != [response * k; 2] {
        return Err(format!("its alternatives are not {k} for each of {response} tokens"));
    }
    if alternatives.ids.iter().any(|&id| i64::from(id) >= vocabulary)
        || alternatives.logprobs.iter().any(|logprob| !logprob.is_finite())
    {
        return Err("an alternative is outside the vocabulary or its log-prob is not finite".to_owned());
    }
    if !(sample.temperature.is_finite() && sample.temperature > 0.0) {
        return Err(format!("temperature {} is not above 0", sample.temperature));
    }
    Ok(())
}

/// The tensors of a micro-batch.
#[derive(Debug)]
pub(super) struct Columns<'a> {
    pub rows: &'a [Row<'a>],
    bounds: Bounds,
    pub layout: Layout,
    /// The response tokens, int64 [n].
    pub targets_n: Tensor,
    /// Sampling temperature of each response token, f32 [n].
    pub temperature_n: Tensor,
    /// True on action tokens, bool [n].
    pub mask_n: Tensor,
    /// True on those that the release itself sampled, bool [n].
    pub own_n: Tensor,
    /// Recorded log-probs, f32 [n].
    pub logp_old_n: Tensor,
}

impl<'a> Columns<'a> {
    pub fn new(rows: &'a [Row<'a>], bounds: Bounds) -> Result<Self, EngineError> {
        let device = bounds.device;
        let sequences: Vec<_> = rows.iter().map(Row::prompt_and_response).collect();
        let (mut targets, mut temperature) = (Vec::new(), Vec::new());
        let (mut mask, mut own, mut logp_old) = (Vec::new(), Vec::new(), Vec::new());
        for (row, (_, response)) in rows.iter().zip(&sequences) {
            targets.extend(response.iter().map(|&token| i64::from(token)));
            temperature.extend(std::iter::repeat_n(stated_temperature(row.sample.temperature), response.len()));
            mask.extend_from_slice(&row.sample.trajectory.mask);
            own.extend(row.sample.trajectory.mask.iter().map(|&action| if row.own { action } else { 0 }));
            logp_old.extend_from_slice(&row.sample.trajectory.logprobs);
        }
        Ok(Self {
            rows,
            bounds,
            layout: Layout::new(&sequences, device)?,
            targets_n: Tensor::f_from_slice(&targets)?.f_to_device(device)?,
            temperature_n: Tensor::f_from_slice(&temperature)?.f_to_device(device)?,
            mask_n: Tensor::f_from_slice(&mask)?.f_to_device(device)?.f_to_kind(Kind::Bool)?,
            own_n: Tensor::f_from_slice(&own)?.f_to_device(device)?.f_to_kind(Kind::Bool)?,
            logp_old_n: Tensor::f_from_slice(&logp_old)?.f_to_device(device)?,
        })
    }

    /// The same responses after other prompts, one per item of the caller, in passes within the token budget.
    pub fn after(&self, prompts: &[Vec<u32>]) -> Result<Vec<Layout>, EngineError> {
        let (mut layouts, mut run, mut size) = (Vec::new(), Vec::<Sequence<'_>>::new(), None::<Size>);
        for row in self.rows {
            let (own, response) = row.prompt_and_response();
            let sequence = (prompts.get(row.item).map_or(own, Vec::as_slice), response);
            let larger = size.zip(run.first()).map(|(mut size, first)| {
                size.take(*first, sequence);
                size
            });
            if larger.is_some_and(|size| !size.fits(self.bounds.micro_batch_tokens)) {
                layouts.push(Layout::new(&std::mem::take(&mut run), self.device())?);
            }
            size = larger.filter(|_| !run.is_empty()).or_else(|| Some(Size::of(sequence)));
            run.push(sequence);
        }
        layouts.push(Layout::new(&run, self.device())?);
        Ok(layouts)
    }

    /// Ids, int64 [n, k], and log-probs, f32 [n, k], of the `k` most likely recorded alternatives. There are as many.
    pub fn alternatives(&self, k: usize) -> Result<(Tensor, Tensor), EngineError> {
        let (mut ids, mut logprobs) = (Vec::new(), Vec::new());
        for row in self.rows {
            let recorded = &row.sample.trajectory.alternatives;
            let each = recorded.k.max(1) as usize;
            ids.extend(recorded.ids.chunks(each).flat_map(|ids| ids.iter().take(k)).map(|&id| i64::from(id)));
            logprobs.extend(recorded.logprobs.chunks(each).flat_map(|logprobs| logprobs.iter().take(k)));
        }
        let shape = [self.len() as i64, k as i64];
        let (ids_nk, logprobs_nk) = (Tensor::f_from_slice(&ids)?, Tensor::f_from_slice::<f32>(&logprobs)?);
        let place = |column: Tensor| column.f_to_device(self.device())?.f_view(shape);
        Ok((place(ids_nk)?, place(logprobs_nk)?))
    }

    /// The part [n] of a column in row order that belongs to this micro-batch.
    pub fn part<'c, T>(&self, column: &'c [T]) -> &'c [T] {
        let start = self.rows.first().map_or(0, |row| row.start);
        column.get(start..start + self.len()).unwrap_or_default()
    }

    /// The same of a column of numbers, f32 [n].
    pub fn tensor(&self, column: &[f32]) -> Result<Tensor, EngineError> {
        Ok(Tensor::f_from_slice(self.part(column))?.f_to_device(self.device())?)
    }

    /// Where its tensors are.
    pub fn device(&self) -> Device {
        self.bounds.device
    }

    /// Response tokens.
    pub fn len(&self) -> usize {
        self.targets_n.numel()
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::sample;
    use super::*;

    const BOUNDS: Bounds = Bounds { vocabulary: 100, context: 1_000, device: Device::Cpu, micro_batch_tokens: 256 };

    #[test]
    fn columns_survive_the_way_to_rows_and_back() {
        let items = [sample(1, &[1, 2, 3, 4, 5], 2), sample(2, &[1, 2], 1), sample(3, &[9, 9, 9], 1)];
        let items: Vec<&Sample> = items.iter().collect();
        let batch = Batch::new(&items, BOUNDS).expect("valid");
        let column = [0.0, 1.0, 2.0, 3.0];
        let rows = batch.to_rows(&column, "column").expect("fits");
        assert_eq!(rows, [2.0, 3.0, 0.0, 1.0]);
        assert_eq!(batch.to_items(&rows), column);
        assert!(batch.to_rows(&column[1..], "column").is_err());
        assert!(batch.to_rows(&[f32::NAN; 4], "column").is_err());
    }

    #[test]
    fn micro_batches_cover_every_row_once_within_the_budget() {
        let items: Vec<Sample> = (0..40)
            .map(|n| sample(n, &vec![n as u32; 20 + n as usize], 3))
            .chain([sample(99, &[99; 900], 3)])
            .collect();
        let items: Vec<&Sample> = items.iter().collect();
        let batch = Batch::new(&items, BOUNDS).expect("valid");
        let runs = batch.micro_batches();
        let sizes: Vec<usize> =
            runs.iter().map(|run| run.len() * run.last().expect("not empty").sample.trajectory.tokens.len()).collect();
        assert_eq!(runs.iter().map(|run| run.len()).sum::<usize>(), 41);
        assert!(sizes.iter().filter(|&&size| size > BOUNDS.micro_batch_tokens).count() == 1, "{sizes:?}");
        assert!(sizes[0] <= FIRST_TOKENS_MAX, "{sizes:?}");
    }

    #[test]
    fn positions_point_at_the_state_before_each_response_token() {
        let items = [sample(1, &[1, 2, 3], 2), sample(2, &[4, 5, 6, 7], 1)];
        let items: Vec<&Sample> = items.iter().collect();
        let batch = Batch::new(&items, BOUNDS).expect("valid");
        let columns = Columns::new(&batch.rows, BOUNDS).expect("columns");
        let read = |tensor: &Tensor| Vec::<i64>::try_from(tensor).expect("i64");
        assert_eq!(read(&columns.layout.sequences.prefix_p), [0i64; 0]);
        assert_eq!(read(&columns.layout.sequences.rest_bs.flatten(0, 1)), [1, 2, 3, 0, 4, 5, 6, 7]);
        assert_eq!(read(&columns.layout.positions_n), [0, 1, 6]);
        assert_eq!(read(&columns.targets_n), [2, 3, 7]);
    }

    #[test]
    fn a_beginning_that_rows_share_is_computed_once() {
        let begin: Vec<u32> = (10..19).collect();
        let with = |own: &[u32]| [&begin, own].concat();
        // The first response token of the first row is predicted by the end of the beginning.
        let items = [sample(1, &with(&[1, 2]), 2), sample(2, &with(&[3, 4, 5]), 1), sample(3, &with(&[6, 4, 5]), 2)];
        let items: Vec<&Sample> = items.iter().collect();
        let batch = Batch::new(&items, BOUNDS).expect("valid");
        assert_eq!(batch.micro_batches().len(), 1);
        let layout = Columns::new(&batch.rows, BOUNDS).expect("columns").layout;
        let read = |tensor: &Tensor| Vec::<i64>::try_from(tensor).expect("i64");
        assert_eq!(read(&layout.sequences.prefix_p), (10..19).collect::<Vec<i64>>());
        assert_eq!(read(&layout.sequences.rest_bs.flatten(0, 1)), [1, 2, 0, 3, 4, 5, 6, 4, 5]);
        assert_eq!(read(&layout.positions_n), [8, 9, 13, 15, 16]);
    }

    #[test]
    fn equal_rows_share_all_but_their_last_token_and_a_run_ends_at_what_its_rows_attend_to() {
        let items: Vec<Sample> = (0..40).map(|n| sample(n, &[7; 100], 3)).collect();
        let items: Vec<&Sample> = items.iter().collect();
        let batch = Batch::new(&items, BOUNDS).expect("valid");
        let runs: Vec<usize> = batch.micro_batches().iter().map(|run| run.len()).collect();
        assert_eq!(runs, [20, 20], "2,048 keys are 20 rows of 100");
        let layout = Columns::new(&batch.rows, BOUNDS).expect("columns").layout;
        assert_eq!((layout.sequences.prefix_p.size(), layout.sequences.rest_bs.size()), (vec![99], vec![40, 1]));
    }

    #[test]
    fn wrong_samples_are_refused_with_their_index() {
        let refusal = |change: fn(&mut Sample)| {
            let good = sample(1, &[1, 2, 3], 1);
            let mut bad = good.clone();
            change(&mut bad);
            Batch::new(&[&good, &bad], BOUNDS).expect_err("refused").to_string()
        };
        let cases: [fn(&mut Sample); 7] = [
            |s| s.trajectory.tokens[2] = 100,
            |s| s.trajectory.mask.clear(),
            |s| s.trajectory.mask[0] = 2,
            |s| s.trajectory.logprobs[0] = f32::NAN,
            |s| s.trajectory.prompt_length = 0,
            |s| s.temperature = 0.0,
            |s| s.trajectory.tokens = vec![1; 1_001],
        ];
        for case in cases {
            let message = refusal(case);
            assert!(message.contains("items[1]"), "{message}");
        }
        assert!(Batch::new(&[], BOUNDS).is_err());
    }
}
