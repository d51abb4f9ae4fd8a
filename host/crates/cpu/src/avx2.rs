//! The inner loops in AVX2, FMA and F16C instructions.
//! `product.rs` calls them where the processor has these, and its portable loops elsewhere. Every sum runs over
//! the columns in order, whatever the number of rows at once: an answer does not depend on its batch.
#![expect(unsafe_code, reason = "vector instructions read and write through pointers; callers vouch for their lengths")]

pub(crate) mod integer;

use std::arch::x86_64::*;

use crate::matrix::TILE;

/// Does this processor have all that is used here?
pub(crate) fn available() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

/// 16 numbers.
type Pair = [__m256; 2];

/// Weights of one tile, column by column.
pub(crate) trait Tile: Copy {
    /// # Safety
    /// The tile has the column.
    unsafe fn column(&self, column: usize) -> Pair;
}

/// f32 weights.
#[derive(Clone, Copy)]
pub(crate) struct F32(pub *const f32);

impl Tile for F32 {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn column(&self, column: usize) -> Pair {
        // SAFETY: the caller's word.
        unsafe {
            let at = self.0.add(column * TILE);
            [_mm256_loadu_ps(at), _mm256_loadu_ps(at.add(8))]
        }
    }
}

/// Half-precision weights; `BF` if they are the upper half of f32.
#[derive(Clone, Copy)]
pub(crate) struct Half<const BF: bool>(pub *const u16);

impl<const BF: bool> Tile for Half<BF> {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn column(&self, column: usize) -> Pair {
        // SAFETY: the caller's word.
        unsafe {
            let at = self.0.add(column * TILE);
            [halves::<BF>(at), halves::<BF>(at.add(8))]
        }
    }
}

/// Eight halves as f32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn halves<const BF: bool>(at: *const u16) -> __m256 {
    // SAFETY: the caller's word: eight numbers.
    let eight = unsafe { _mm_loadu_si128(at.cast()) };
    if BF { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(eight))) } else { _mm256_cvtph_ps(eight) }
}

/// `T` tiles of `columns` columns times `M` vectors: `out[t][m]` gets 16 sums each, or goes on from those that are
/// there if `more`.
///
/// # Safety
/// Every tile has `columns` columns, every vector as many numbers, and `out` has `T · M · 16`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn product<W: Tile, const T: usize, const M: usize>(
    tiles: [W; T],
    columns: usize,
    x: [*const f32; M],
    (out, more): (*mut f32, bool),
) {
    let mut sums = [[[_mm256_setzero_ps(); 2]; M]; T];
    if more {
        for (index, sums) in sums.as_flattened_mut().iter_mut().enumerate() {
            // SAFETY: the caller's word on `out`.
            *sums = unsafe { [_mm256_loadu_ps(out.add(index * TILE)), _mm256_loadu_ps(out.add(index * TILE + 8))] };
        }
    }
    for column in 0..columns {
        for t in 0..T {
            // SAFETY: every column below `columns` exists, in tiles and vectors.
            unsafe {
                let [low, high] = tiles[t].column(column);
                for m in 0..M {
                    let x = _mm256_broadcast_ss(&*x[m].add(column));
                    sums[t][m][0] = _mm256_fmadd_ps(low, x, sums[t][m][0]);
                    sums[t][m][1] = _mm256_fmadd_ps(high, x, sums[t][m][1]);
                }
            }
        }
    }
    for (index, sums) in sums.as_flattened().iter().enumerate() {
        // SAFETY: the caller's word on `out`.
        unsafe {
            _mm256_storeu_ps(out.add(index * TILE), sums[0]);
            _mm256_storeu_ps(out.add(index * TILE + 8), sums[1]);
        }
    }
}

/// Several runs of f32 columns, one after the other, times `M` weightings: the sum goes on over the runs.
///
/// # Safety
/// Each run has as many columns as it says; `x[m]` has a number for each column of all runs, in order; `out` has
/// room for `M · 16`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn weighted<const M: usize>(runs: &[(*const f32, usize)], x: [*const f32; M], out: *mut f32) {
    let mut sums = [[_mm256_setzero_ps(); 2]; M];
    let mut at = 0;
    for (start, columns) in runs {
        for column in 0..*columns {
            // SAFETY: the caller's word.
            unsafe {
                let [low, high] = F32(*start).column(column);
                for m in 0..M {
                    let x = _mm256_broadcast_ss(&*x[m].add(at));
                    sums[m][0] = _mm256_fmadd_ps(low, x, sums[m][0]);
                    sums[m][1] = _mm256_fmadd_ps(high, x, sums[m][1]);
                }
            }
            at += 1;
        }
    }
    for (m, sums) in sums.iter().enumerate() {
        // SAFETY: the caller's word on `out`.
        unsafe {
            _mm256_storeu_ps(out.add(m * TILE), sums[0]);
            _mm256_storeu_ps(out.add(m * TILE + 8), sums[1]);
        }
    }
}

/// The weights of columns `from..to` of a tile as f32, 16 numbers each.
///
/// # Safety
/// The tile has these columns, and `out` has room.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn unpack<W: Tile>(tile: W, from: usize, to: usize, out: *mut f32) {
    for column in from..to {
        // SAFETY: the caller's word.
        unsafe {
            let [low, high] = tile.column(column);
            let out = out.add((column - from) * TILE);
            _mm256_storeu_ps(out, low);
            _mm256_storeu_ps(out.add(8), high);
        }
    }
}

/// exp of eight numbers, relative error below 3e-7; 0 below −87 and for −∞, NaN stays.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn exp(x: __m256) -> __m256 {
    // exp(x) = 2^n · exp(r), |r| ≤ ln 2 / 2, the polynomial of Cephes' expf.
    let n = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(_mm256_mul_ps(
        _mm256_min_ps(_mm256_set1_ps(88.0), _mm256_max_ps(_mm256_set1_ps(-87.3), x)),
        _mm256_set1_ps(std::f32::consts::LOG2_E),
    ));
    let clamped = _mm256_min_ps(_mm256_set1_ps(88.0), _mm256_max_ps(_mm256_set1_ps(-87.3), x));
    let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693_359_4), clamped);
    let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.121_944_4e-4), r);
    let mut p = _mm256_set1_ps(1.987_569_2e-4);
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(c));
    }
    let p = _mm256_add_ps(_mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r), _mm256_set1_ps(1.0));
    let power = _mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)));
    let value = _mm256_mul_ps(p, _mm256_castsi256_ps(power));
    let small = _mm256_cmp_ps::<_CMP_LT_OQ>(x, _mm256_set1_ps(-87.3));
    let value = _mm256_andnot_ps(small, value);
    _mm256_blendv_ps(value, x, _mm256_cmp_ps::<_CMP_UNORD_Q>(x, x))
}

/// values ← exp(scale · (values − shift)); the sum of the results.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn exp_of(values: &mut [f32], scale: f32, shift: f32) -> f64 {
    let (s, by) = (_mm256_set1_ps(scale), _mm256_set1_ps(shift));
    let mut sum = [_mm256_setzero_pd(); 2];
    let (eights, rest) = values.as_chunks_mut::<8>();
    for eight in eights {
        // SAFETY: eight numbers are read and written.
        let value = unsafe {
            let value = exp(_mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(eight.as_ptr()), by), s));
            _mm256_storeu_ps(eight.as_mut_ptr(), value);
            value
        };
        sum[0] = _mm256_add_pd(sum[0], _mm256_cvtps_pd(_mm256_castps256_ps128(value)));
        sum[1] = _mm256_add_pd(sum[1], _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(value)));
    }
    let mut out = [0f64; 4];
    // SAFETY: four numbers.
    unsafe { _mm256_storeu_pd(out.as_mut_ptr(), _mm256_add_pd(sum[0], sum[1])) };
    let mut padded = [f32::NEG_INFINITY; 8];
    padded[..rest.len()].copy_from_slice(rest);
    if !rest.is_empty() {
        out[0] += exp_of(&mut padded, scale, shift);
        rest.copy_from_slice(&padded[..rest.len()]);
    }
    out.iter().sum()
}

/// gate ← gate · up / (1 + exp(−gate)), for 16 numbers.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn gated(gate: &mut [f32; TILE], up: &[f32; TILE]) {
    let one = _mm256_set1_ps(1.0);
    for half in [0, 8] {
        // SAFETY: eight of sixteen numbers.
        unsafe {
            let g = _mm256_loadu_ps(gate.as_ptr().add(half));
            let bottom = _mm256_add_ps(one, exp(_mm256_sub_ps(_mm256_setzero_ps(), g)));
            let value = _mm256_mul_ps(_mm256_div_ps(g, bottom), _mm256_loadu_ps(up.as_ptr().add(half)));
            _mm256_storeu_ps(gate.as_mut_ptr().add(half), value);
        }
    }
}
