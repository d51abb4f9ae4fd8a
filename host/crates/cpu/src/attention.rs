//! Attention of new tokens over the pages of their request.
//! `network.rs` calls `attend` once per layer. An item is some tokens of one request and one key-value head; its
//! query heads read the same keys, so they are multiplied together. Positions behind a token weigh nothing and are
//! never read as values.
#![expect(unsafe_code, reason = "items of one job write disjoint rows and columns of the same output")]

use std::sync::Arc;

use crate::kv::{PAGE, Page};
use crate::matrix::TILE;
use crate::pool::{Pool, Scratch, room};
use crate::product::{Vectors, exp_of, largest, single_times, weighted};

/// Query vectors of one item, about.
const QUERIES: usize = 24;

/// New tokens of one request; they stand one after the other in the step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach<'a> {
    /// Index of the first token in the step.
    pub first: usize,
    pub count: usize,
    /// Position of the first token.
    pub start: usize,
    pub pages: &'a [Arc<Page>],
}

/// Sizes of the heads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heads {
    pub layer: usize,
    pub queries: usize,
    pub keys: usize,
    pub width: usize,
}

#[derive(Clone, Copy)]
struct Output(*mut f32, usize);

// SAFETY: items write disjoint places (see `attend`), and the owner waits for the job.
unsafe impl Sync for Output {}

/// softmax(q · Kᵀ / √c) · V for all new tokens: `q` is `[tokens][heads · c]` with distance `stride`, `out` the same
/// without gaps.
pub(crate) fn attend(
    pool: &mut Pool,
    heads: Heads,
    reaches: &[Reach<'_>],
    (q, stride): (&[f32], usize),
    out: &mut [f32],
) {
    let share = heads.queries / heads.keys;
    let block = (QUERIES / share).max(1);
    let mut items = Vec::new();
    for reach in reaches {
        for from in (0..reach.count).step_by(block) {
            items.extend((0..heads.keys).map(|head| (*reach, from, block.min(reach.count - from), head)));
        }
    }
    // The longest begin first: the last items even out the threads.
    items.sort_by_key(|(reach, from, count, _)| std::cmp::Reverse((reach.start + from + count) * count));
    let output = Output(out.as_mut_ptr(), out.len());
    pool.run(items.len(), &|item, scratch| {
        let (reach, from, count, head) = items[item];
        let first = (reach.first + from) * stride + head * share * heads.width;
        let part = Part { heads, reach, from, count, head, q: &q[first..], stride };
        // SAFETY: an item is the only one with these tokens and this head.
        unsafe { part.attend(output, scratch) }
    });
}

struct Part<'a> {
    heads: Heads,
    reach: Reach<'a>,
    /// Tokens of the reach.
    from: usize,
    count: usize,
    head: usize,
    q: &'a [f32],
    stride: usize,
}

impl Part<'_> {
    /// # Safety
    /// No other thread writes the places of these tokens and this head.
    unsafe fn attend(&self, output: Output, scratch: &mut Scratch) {
        let Heads { layer, width, .. } = self.heads;
        let share = self.heads.queries / self.heads.keys;
        let longest = self.reach.start + self.from + self.count;
        let wide = longest.next_multiple_of(PAGE);
        let pages = &self.reach.pages[..wide / PAGE];
        let rows = self.count * share;
        // Rows: for each token its query heads, gathered so that they are multiplied together.
        let queries = room(&mut scratch.panel, rows * width);
        for (token, queries) in queries.chunks_exact_mut(share * width).enumerate().take(self.count) {
            queries.copy_from_slice(&self.q[token * self.stride..][..share * width]);
        }
        let queries = Vectors::new(queries, rows, width, width);
        let scores = room(&mut scratch.scores, rows * wide);
        let sums = room(&mut scratch.tile, rows * TILE);
        for (index, page) in pages.iter().enumerate() {
            single_times(page.keys(layer, self.head), queries, sums);
            for (row, sums) in sums.chunks_exact(TILE).enumerate().take(rows) {
                scores[row * wide + index * PAGE..][..PAGE].copy_from_slice(sums);
            }
        }
        let scale = 1.0 / (width as f32).sqrt();
        for (row, scores) in scores.chunks_exact_mut(wide).take(rows).enumerate() {
            softmax(scores, self.reach.start + self.from + row / share + 1, scale);
        }
        let mut runs: Vec<&[f32]> = Vec::with_capacity(pages.len());
        for tile in 0..width.div_ceil(TILE) {
            runs.clear();
            for (index, page) in pages.iter().enumerate() {
                let positions = PAGE.min(longest - index * PAGE);
                runs.push(&page.values(layer, self.head, tile)[..positions * TILE]);
            }
            weighted(&runs, Vectors::new(scores, rows, wide, longest), sums);
            for row in 0..rows {
                let head = self.head * share + row % share;
                let token = self.reach.first + self.from + row / share;
                let at = (token * self.heads.queries + head) * width + tile * TILE;
                let count = TILE.min(width - tile * TILE);
                assert!(at + count <= output.1, "outside of the output");
                // SAFETY: inside of the output, and the caller's word.
                let place = unsafe { std::slice::from_raw_parts_mut(output.0.add(at), count) };
                place.copy_from_slice(&sums[row * TILE..][..count]);
            }
        }
    }
}

/// Weights of the first `length` scores; those behind become 0.
fn softmax(scores: &mut [f32], length: usize, scale: f32) {
    let (reached, behind) = scores.split_at_mut(length);
    behind.fill(0.0);
    let total = exp_of(reached, scale, largest(reached));
    let factor = (1.0 / total) as f32;
    reached.iter_mut().for_each(|score| *score *= factor);
}
