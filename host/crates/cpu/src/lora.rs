//! LoRA adapters in the form that serves: for each linear layer the stacked first factors of its projections, and
//! their second factors in tiles. `network.rs` computes the vectors between the factors for all adapters of a step
//! in one job; `linear.rs` adds the rest where the layer's own products are made.
#![expect(unsafe_code, reason = "items of one job write disjoint columns of the same buffer")]

use std::ops::Range;

use crate::linear::{Delta, DeltaUp};
use crate::matrix::{Matrix, Rows, TILE};
use crate::pool::{Pool, room};
use crate::product::{Vectors, tiles_times};

/// The factors of one projection: W + B · A, the scale inside of B.
#[derive(Debug, Clone)]
pub struct Factors {
    /// Rank.
    pub rank: usize,
    /// `[rank, input]`.
    pub a: Vec<f32>,
    /// `[output, rank]`.
    pub b: Vec<f32>,
}

/// The factors of all projections of one linear layer.
#[derive(Debug)]
pub(crate) struct LowRank {
    /// `[Σ rank, input]`, each rank filled up to a multiple of 16; `None`: no projection has factors.
    down: Option<Matrix>,
    up: DeltaUp,
}

impl LowRank {
    /// From the factors of each projection, whose outputs are `outputs` wide. `None` if numbers do not fit.
    pub fn new(factors: &[Option<&Factors>], input: usize, outputs: &[usize]) -> Option<Self> {
        let rank = factors.iter().flatten().map(|f| f.rank).max().unwrap_or(0).next_multiple_of(TILE);
        let (mut stacked, mut offsets, mut tiles) = (Vec::new(), Vec::new(), Vec::new());
        for (factors, output) in factors.iter().zip(outputs) {
            offsets.push(stacked.len() / input.max(1));
            let Some(factors) = factors else {
                tiles.push(Vec::new());
                continue;
            };
            if factors.a.len() != factors.rank * input || factors.b.len() != output * factors.rank {
                return None;
            }
            stacked.extend_from_slice(&factors.a);
            stacked.resize((offsets[offsets.len() - 1] + rank) * input, 0.0);
            tiles.push(second(factors, *output, rank));
        }
        let rows = stacked.len() / input.max(1);
        let down = if rows == 0 { None } else { Some(Matrix::pack(&Rows::F32(stacked), rows, input)?) };
        Some(Self { down, up: DeltaUp { rank, offsets, tiles } })
    }

    fn width(&self) -> usize {
        self.down.as_ref().map_or(0, Matrix::rows)
    }
}

/// `[tile][rank][16]` of B.
fn second(factors: &Factors, output: usize, rank: usize) -> Vec<f32> {
    let mut tiles = vec![0.0; output.div_ceil(TILE) * TILE * rank];
    for (row, numbers) in factors.b.chunks_exact(factors.rank.max(1)).enumerate() {
        for (column, number) in numbers.iter().enumerate() {
            tiles[((row / TILE) * rank + column) * TILE + row % TILE] = *number;
        }
    }
    tiles
}

struct Low(*mut f32, usize);

// SAFETY: items write disjoint places (see `deltas`), and the owner waits for the job.
unsafe impl Sync for Low {}

/// The deltas of a linear layer on its input `x`, for tokens that have adapters; the vectors between the factors
/// are kept in `low`.
pub(crate) fn deltas<'a>(
    pool: &mut Pool,
    adapted: &[(Range<usize>, &'a LowRank)],
    x: Vectors<'_>,
    low: &'a mut Vec<f32>,
) -> Vec<Delta<'a>> {
    let stride = adapted.iter().map(|(_, factors)| factors.width()).max().unwrap_or(0);
    let mut items = Vec::new();
    for (tokens, factors) in adapted {
        let Some(down) = &factors.down else { continue };
        items.extend((0..down.tiles()).map(|tile| (tokens.clone(), down, tile)));
    }
    let buffer = room(low, x.count() * stride);
    let start = Low(buffer.as_mut_ptr(), buffer.len());
    pool.run(items.len(), &|item, scratch| {
        let (tokens, down, tile) = &items[item];
        let start = &start;
        let sums = room(&mut scratch.tile, tokens.len() * TILE);
        tiles_times(down, (*tile, 1), x.part(tokens.start, tokens.len()), &mut scratch.panel, sums);
        for (token, sums) in tokens.clone().zip(sums.chunks_exact(TILE)) {
            let at = token * stride + tile * TILE;
            assert!(at + TILE <= start.1, "outside of the buffer");
            // SAFETY: inside of the buffer; only this item has these tokens and this tile.
            unsafe { std::slice::from_raw_parts_mut(start.0.add(at), TILE) }.copy_from_slice(sums);
        }
    });
    let low: &'a [f32] = low;
    let with = adapted.iter().filter(|(_, factors)| factors.down.is_some());
    with.map(|(tokens, factors)| Delta {
        low: Vectors::new(&low[tokens.start * stride..], tokens.len(), stride, factors.width()),
        tokens: tokens.clone(),
        up: &factors.up,
    })
    .collect()
}
