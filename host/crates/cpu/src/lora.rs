//! LoRA adapters in the form that serves: for each linear layer the stacked first factors of its projections, and
//! their second factors in tiles. `network.rs` computes the vectors between the factors for all adapters of a step
//! in one job; `linear.rs` adds the rest where the layer's own products are made.
//! Factors are kept as halves, since a step of few tokens takes as long as its memory: each is multiplied with a power
//! of two that brings it to where halves are exact to 11 bits, and the vectors between them with the inverse.
#![expect(unsafe_code, reason = "items of one job write disjoint columns of the same buffer")]

use std::ops::Range;

use half::f16;

use crate::linear::{Delta, DeltaUp};
use crate::matrix::{Matrix, Rows, TILE};
use crate::memory;
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
    /// For each tile of `down`, what its sums are multiplied with.
    scales: Vec<f32>,
    up: DeltaUp,
}

impl LowRank {
    /// From the factors of each projection, whose outputs are `outputs` wide. `None` if numbers do not fit.
    pub fn new(factors: &[Option<&Factors>], input: usize, outputs: &[usize]) -> Option<Self> {
        let rank = factors.iter().flatten().map(|f| f.rank).max().unwrap_or(0).next_multiple_of(TILE);
        let (mut stacked, mut scales, mut offsets, mut tiles) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (factors, output) in factors.iter().zip(outputs) {
            offsets.push(stacked.len() / input.max(1));
            let Some(Factors { rank: own, a, b }) = factors else {
                tiles.push(Vec::new());
                continue;
            };
            if a.len() != own * input || b.len() != output * own {
                return None;
            }
            let (a_power, b_power) = (power(a), power(b));
            stacked.extend(a.iter().map(|number| f16::from_f32(number * a_power).to_bits()));
            stacked.resize((offsets[offsets.len() - 1] + rank) * input, 0);
            scales.resize(scales.len() + rank / TILE, 1.0 / a_power / b_power);
            tiles.push(second((b, *own), *output, (rank, b_power)));
        }
        let rows = stacked.len() / input.max(1);
        let down = if rows == 0 { None } else { Some(Matrix::pack(&Rows::F16(stacked), rows, input)?) };
        Some(Self { down, scales, up: DeltaUp { rank, offsets, tiles } })
    }

    /// Where its numbers are.
    pub fn memory(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.down.iter().flat_map(Matrix::memory).chain(self.up.tiles.iter().map(|tiles| memory::range(tiles)))
    }

    fn width(&self) -> usize {
        self.down.as_ref().map_or(0, Matrix::rows)
    }
}

/// The power of two that brings the largest of these numbers to 2¹⁴ or a little above: halves reach from 2⁻¹⁴ to 2¹⁶.
fn power(numbers: &[f32]) -> f32 {
    let largest = numbers.iter().fold(0f32, |largest, number| largest.max(number.abs()));
    // Powers that f32 cannot hold, or their inverse, are never needed: such numbers do not change anything.
    let exponent = if largest > 0.0 { 14 - largest.log2().floor() as i32 } else { 0 };
    2f32.powi(exponent.clamp(-60, 60))
}

/// `[tile][rank][16]` of B, whose rows have `own` numbers.
fn second((b, own): (&[f32], usize), output: usize, (rank, power): (usize, f32)) -> Vec<u16> {
    let mut tiles = vec![0; output.div_ceil(TILE) * TILE * rank];
    for (row, numbers) in b.chunks_exact(own.max(1)).enumerate() {
        for (column, number) in numbers.iter().enumerate() {
            tiles[((row / TILE) * rank + column) * TILE + row % TILE] = f16::from_f32(number * power).to_bits();
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
        items.extend(factors.scales.iter().enumerate().map(|(tile, scale)| (tokens.clone(), down, tile, *scale)));
    }
    let buffer = room(low, x.count() * stride);
    let start = Low(buffer.as_mut_ptr(), buffer.len());
    pool.run(items.len(), &|item, scratch| {
        let (tokens, down, tile, scale) = &items[item];
        let start = &start;
        let sums = room(&mut scratch.tile, tokens.len() * TILE);
        tiles_times(down, (*tile, 1), x.part(tokens.start, tokens.len()), &mut scratch.panel, sums);
        for (token, sums) in tokens.clone().zip(sums.chunks_exact(TILE)) {
            let at = token * stride + tile * TILE;
            assert!(at + TILE <= start.1, "outside of the buffer");
            // SAFETY: inside of the buffer; only this item has these tokens and this tile.
            let place = unsafe { std::slice::from_raw_parts_mut(start.0.add(at), TILE) };
            place.iter_mut().zip(sums).for_each(|(place, sum)| *place = sum * scale);
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
