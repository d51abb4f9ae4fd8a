//! A linear layer of several projections that read the same input, with the deltas of adapters on top.
//! `network.rs` calls `apply` for all tokens of a step. Threads take tiles of output rows; each item writes only
//! its own columns of the output.
#![expect(unsafe_code, reason = "items of one job write disjoint columns of the same output")]

use std::ops::Range;

use crate::integer::{self, Integers};
use crate::matrix::{Matrix, TILE};
use crate::pool::{Pool, Scratch, room};
use crate::product::{Vectors, gated, single_times, tiles_times};

/// Items per thread: enough to even out threads, few enough to cost nothing.
const ITEMS_PER_THREAD: usize = 6;
/// Tiles of one item, at most: their products stay in the cache.
const TILES_MAX: usize = 16;

/// Projections of the same input.
#[derive(Debug)]
pub struct Linear {
    parts: Vec<Matrix>,
    /// Added to the output; as long as all parts have rows.
    bias: Option<Vec<f32>>,
}

/// The second factor of the deltas of one `Linear`: the first is a `Matrix`.
#[derive(Debug)]
pub(crate) struct DeltaUp {
    /// Columns of each tile.
    pub rank: usize,
    /// For each part, where its numbers begin in the vector between the factors.
    pub offsets: Vec<usize>,
    /// For each part, `[tile][rank][16]`, as halves.
    pub tiles: Vec<Vec<u16>>,
}

/// The deltas of one adapter on some tokens.
#[derive(Clone, Debug)]
pub(crate) struct Delta<'a> {
    pub tokens: Range<usize>,
    /// The vectors between the factors, of these tokens.
    pub low: Vectors<'a>,
    pub up: &'a DeltaUp,
}

/// What becomes of the products.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fate {
    /// They are the output.
    Store,
    /// They are added to it.
    Add,
    /// Two parts of equal rows: the output is silu(first) · second.
    Gate,
}

/// A matrix that the threads of one job write, each its own places.
#[derive(Clone, Copy, Debug)]
struct Output {
    start: *mut f32,
    length: usize,
    stride: usize,
}

// SAFETY: items of one job write disjoint columns (see `Linear::apply`), and the owner waits for the job.
unsafe impl Sync for Output {}

impl Output {
    /// `wide` numbers of row `row` from column `column` on.
    ///
    /// # Safety
    /// No other thread uses these columns.
    #[expect(clippy::mut_from_ref, reason = "the caller vouches that nobody else has these places")]
    unsafe fn place(&self, row: usize, column: usize, wide: usize) -> &mut [f32] {
        let at = row * self.stride + column;
        assert!(column + wide <= self.stride && at + wide <= self.length, "outside of the output");
        // SAFETY: inside of the output, and the caller's word.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), wide) }
    }
}

impl Linear {
    /// `None` if the parts do not read the same input, or if the bias has another length.
    pub fn new(parts: Vec<Matrix>, bias: Option<Vec<f32>>) -> Option<Self> {
        let columns = parts.first()?.columns();
        let rows: usize = parts.iter().map(Matrix::rows).sum();
        let fits =
            parts.iter().all(|part| part.columns() == columns) && bias.as_ref().is_none_or(|bias| bias.len() == rows);
        fits.then_some(Self { parts, bias })
    }

    /// Rows of all parts.
    pub fn rows(&self) -> usize {
        self.parts.iter().map(Matrix::rows).sum()
    }

    /// Columns of each part.
    pub fn columns(&self) -> usize {
        self.parts.first().map_or(0, Matrix::columns)
    }

    /// The parts.
    pub fn parts(&self) -> &[Matrix] {
        &self.parts
    }

    /// x · Wᵀ + bias + deltas into `out`, `[tokens, rows]` (`[tokens, rows / 2]` for `Fate::Gate`).
    pub(crate) fn apply(&self, pool: &mut Pool, x: Vectors<'_>, deltas: &[Delta<'_>], (out, fate): (&mut [f32], Fate)) {
        let gate = matches!(fate, Fate::Gate);
        let stride = if gate { self.parts[0].rows() } else { self.rows() };
        assert!(out.len() >= x.count() * stride, "the output is too small");
        let output = Output { start: out.as_mut_ptr(), length: out.len(), stride };
        let parts = if gate { &self.parts[..1] } else { &self.parts[..] };
        let tiles: usize = parts.iter().map(Matrix::tiles).sum();
        // Pairs of tiles, which the loops like best.
        let size = (tiles / (pool.threads() * ITEMS_PER_THREAD)).next_multiple_of(2).clamp(2, TILES_MAX);
        let mut items = Vec::with_capacity(tiles / size + parts.len());
        for (part, matrix) in parts.iter().enumerate() {
            items
                .extend((0..matrix.tiles()).step_by(size).map(|first| (part, first, size.min(matrix.tiles() - first))));
        }
        let mut integers = std::mem::take(&mut pool.integers);
        if self.parts.iter().any(|part| part.scales().is_some()) {
            integers.fill(pool, x);
        }
        pool.run(items.len(), &|item, scratch| {
            let (part, first, count) = items[item];
            // SAFETY: items have different tiles, so they write different columns.
            unsafe { self.item(Item { part, first, count, x, integers: &integers, deltas, fate }, output, scratch) }
        });
        pool.integers = integers;
    }

    /// # Safety
    /// No other thread writes the columns of the item's tiles.
    unsafe fn item(&self, item: Item<'_>, output: Output, scratch: &mut Scratch) {
        let Item { part, first, count, x, fate, .. } = item;
        let size = count * x.count() * TILE;
        let gate = matches!(fate, Fate::Gate);
        let mut sums = std::mem::take(&mut scratch.tile);
        room(&mut sums, size * 2);
        let (sums_first, sums_second) = sums.split_at_mut(size);
        self.sums(&item, part, scratch, sums_first);
        if gate {
            self.sums(&item, 1, scratch, sums_second);
        }
        let before: usize = if gate { 0 } else { self.parts[..part].iter().map(Matrix::rows).sum() };
        let wide = |tile: usize| TILE.min(self.parts[part].rows() - tile * TILE);
        for tile in 0..count {
            for token in 0..x.count() {
                let at = (tile * x.count() + token) * TILE;
                let Some((sums, _)) = sums_first[at..].split_first_chunk_mut::<TILE>() else { continue };
                // SAFETY: the caller's word.
                let place = unsafe { output.place(token, before + (first + tile) * TILE, wide(first + tile)) };
                if let (Fate::Gate, Some(up)) = (fate, sums_second[at..].first_chunk::<TILE>()) {
                    gated(sums, up);
                }
                put(sums, matches!(fate, Fate::Add), place);
            }
        }
        scratch.tile = sums;
    }

    /// `[tile][token][16]` of the item's tiles, taken from `part`: products, bias and deltas.
    fn sums(&self, item: &Item<'_>, part: usize, scratch: &mut Scratch, out: &mut [f32]) {
        let Item { first, count, x, integers, deltas, .. } = *item;
        match self.parts[part].scales() {
            Some(scales) => {
                integer::tiles_times((&self.parts[part], scales), (first, count), integers, &mut scratch.pairs, out)
            }
            None => tiles_times(&self.parts[part], (first, count), x, &mut scratch.panel, out),
        }
        let wide = x.count() * TILE;
        if let Some(bias) = &self.bias {
            let start = self.parts[..part].iter().map(Matrix::rows).sum::<usize>() + first * TILE;
            for (index, sums) in out[..count * wide].chunks_exact_mut(TILE).enumerate() {
                let bias = &bias[start + index / x.count() * TILE..];
                sums.iter_mut().zip(bias).for_each(|(sum, bias)| *sum += bias);
            }
        }
        for delta in deltas {
            let Some(tiles) = delta.up.tiles.get(part).filter(|tiles| !tiles.is_empty()) else { continue };
            let (size, many) = (delta.up.rank * TILE, delta.tokens.len() * TILE);
            let low = delta.low.columns(delta.up.offsets[part], delta.up.rank);
            let more = room(&mut scratch.panel, count * many);
            single_times(&tiles[first * size..(first + count) * size], low, more);
            for (tile, more) in more.chunks_exact(many).enumerate().take(count) {
                let out = &mut out[tile * wide + delta.tokens.start * TILE..];
                out.iter_mut().zip(more).for_each(|(sum, delta)| *sum += delta);
            }
        }
    }
}

/// place ← sums, or place + sums; the last tile of a part may have fewer places.
fn put(sums: &[f32; TILE], add: bool, place: &mut [f32]) {
    match (place.first_chunk_mut::<TILE>(), add) {
        (Some(place), false) => *place = *sums,
        (Some(place), true) => place.iter_mut().zip(sums).for_each(|(place, sum)| *place += sum),
        (None, false) => place.copy_from_slice(&sums[..place.len()]),
        (None, true) => place.iter_mut().zip(sums).for_each(|(place, sum)| *place += sum),
    }
}

#[derive(Clone, Copy)]
struct Item<'a> {
    part: usize,
    first: usize,
    count: usize,
    x: Vectors<'a>,
    /// The same vectors, where a part needs them so.
    integers: &'a Integers,
    deltas: &'a [Delta<'a>],
    fate: Fate,
}
