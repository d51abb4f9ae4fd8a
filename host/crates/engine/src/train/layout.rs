//! Token sequences of a pass side by side, in which a beginning that all of them share counts once.
//! Batches measure with it what fits into a pass, and cut their rows into it; it knows no sample.
//!
//! Legend: `b` rows, `t` padded positions, `n` response tokens of a micro-batch, observations included.

use tch::{Device, Tensor};

use crate::error::EngineError;
use crate::model::Sequences;

/// Keys and values that the rows of one pass may attend to together: a shared beginning is computed once, but its keys
/// and values are laid out for each row, in 90 MB at this number with the default model.
const ATTENDED_TOKENS: usize = 2_048;

/// The same where it is more: for each position of the budget.
const ATTENDED_PER_POSITION: usize = 8;

/// A shared beginning of fewer tokens is not worth the more operations.
const PREFIX_TOKENS_MIN: usize = 8;

/// A prompt and its response.
pub(super) type Sequence<'s> = (&'s [u32], &'s [u32]);

/// What a pass over some sequences takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    rows: usize,
    /// Tokens of the longest.
    width: usize,
    /// Tokens that all begin with, as far as the shortest leaves one of its own.
    prefix: usize,
}

impl Size {
    pub fn of(sequence: Sequence<'_>) -> Self {
        let width = length(&sequence);
        Self { rows: 1, width, prefix: width.saturating_sub(1) }
    }

    /// With one more; `first` is any that is in already.
    pub fn take(&mut self, first: Sequence<'_>, more: Sequence<'_>) {
        self.rows += 1;
        self.width = self.width.max(length(&more));
        let most = self.prefix.min(length(&more).saturating_sub(1));
        self.prefix = tokens(first).zip(tokens(more)).take(most).take_while(|(a, b)| a == b).count();
    }

    pub fn of_all(sequences: &[Sequence<'_>]) -> Option<Self> {
        let (first, others) = sequences.split_first()?;
        let mut size = Self::of(*first);
        others.iter().for_each(|more| size.take(*first, *more));
        Some(size)
    }

    /// The tokens that are computed once for all rows.
    fn shared(self) -> usize {
        if self.rows > 1 && self.prefix >= PREFIX_TOKENS_MIN { self.prefix } else { 0 }
    }

    pub fn fits(self, budget: usize) -> bool {
        let shared = self.shared();
        let attended = ATTENDED_TOKENS.max(ATTENDED_PER_POSITION * budget);
        shared + self.rows * (self.width - shared) <= budget && self.rows * self.width <= attended
    }
}

/// Token sequences side by side.
#[derive(Debug)]
pub(super) struct Layout {
    /// Their ids, a shared beginning once.
    pub sequences: Sequences,
    /// Index into the positions of a pass whose hidden state predicts each response token, int64 [n].
    pub positions_n: Tensor,
}

impl Layout {
    /// Of prompts, none of them empty, and their responses.
    pub fn new(sequences: &[Sequence<'_>], device: Device) -> Result<Self, EngineError> {
        let size =
            Size::of_all(sequences).ok_or_else(|| EngineError::Invalid("items: the list is empty".to_owned()))?;
        let (shared, own) = (size.shared(), size.width - size.shared());
        let prefix: Vec<i64> =
            sequences.iter().take(1).flat_map(|first| tokens(*first)).take(shared).map(i64::from).collect();
        let mut rest: Vec<i64> = Vec::with_capacity(sequences.len() * own);
        let mut positions = Vec::new();
        for (index, sequence) in sequences.iter().enumerate() {
            let (prompt, response) = sequence;
            let first = prompt.len().saturating_sub(1);
            rest.extend(tokens(*sequence).skip(shared).map(i64::from));
            rest.extend(std::iter::repeat_n(0, size.width - length(sequence)));
            // A position of the beginning is the same for all; the others lie row by row after it.
            let place = |position: usize| if position < shared { position } else { position + index * own };
            positions.extend((first..first + response.len()).map(|position| place(position) as i64));
        }
        let there = |ids: &[i64]| Tensor::f_from_slice(ids)?.f_to_device(device);
        let rest_bs = there(&rest)?.f_view([sequences.len() as i64, own as i64])?;
        Ok(Self { sequences: Sequences { prefix_p: there(&prefix)?, rest_bs }, positions_n: there(&positions)? })
    }
}

fn length((prompt, response): &Sequence<'_>) -> usize {
    prompt.len() + response.len()
}

fn tokens<'s>((prompt, response): Sequence<'s>) -> impl Iterator<Item = u32> + 's {
    prompt.iter().chain(response).copied()
}
