//! The inner loop over integers in AVX-512 with VNNI: one instruction multiplies a pair of columns of a whole tile and
//! adds it to the sums. `integer.rs` calls it in blocks where the processor has it; the sums are those of
//! `avx2/integer.rs` bit for bit.
#![expect(unsafe_code, reason = "vector instructions read and write through pointers; callers vouch for their lengths")]

use std::arch::x86_64::*;

use crate::avx2::integer::{Row, ScalesAt, Weights};
use crate::matrix::{GROUP, TILE};

/// Does this processor have all that is used here?
pub(crate) fn available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vnni")
        && crate::avx2::available()
}

/// See `avx2::integer::product`.
///
/// # Safety
/// Tiles and vectors have these columns, which are whole groups, and `out` has room for `T · M · 16`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(crate) unsafe fn product<W: Weights, const T: usize, const M: usize>(
    weights: [(W, ScalesAt); T],
    (from, to): (usize, usize),
    x: [Row; M],
    out: *mut f32,
) {
    let width = weights[0].1.width();
    let mut column = from;
    while column < to {
        let mut sums = [[_mm512_setzero_si512(); M]; T];
        for four in column / 4..(column + width) / 4 {
            for t in 0..T {
                // SAFETY: the caller's word.
                unsafe {
                    for (pair, weights) in weights[t].0.four_wide(four).into_iter().enumerate() {
                        for m in 0..M {
                            let x = _mm512_set1_epi32(x[m].pairs.add(four * 2 + pair).read().cast_signed());
                            sums[t][m] = _mm512_dpwssd_epi32(sums[t][m], weights, x);
                        }
                    }
                }
            }
        }
        let group = column / width;
        for t in 0..T {
            // SAFETY: the caller's word.
            unsafe {
                let d = weights[t].1.load_wide(group, 0);
                let offset = weights[t].1.offsets().then(|| weights[t].1.load_wide(group, TILE));
                for m in 0..M {
                    let out = out.add((t * M + m) * TILE);
                    let before = if column == 0 { _mm512_setzero_ps() } else { _mm512_loadu_ps(out) };
                    let scale = _mm512_set1_ps(f32::from_bits(x[m].scales.add(column / GROUP).read()));
                    let mut sum = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sums[t][m]), scale), d, before);
                    if let Some(offset) = offset {
                        let x = _mm512_set1_ps(f32::from_bits(x[m].sums.add(group).read()));
                        sum = _mm512_fmadd_ps(offset, x, sum);
                    }
                    _mm512_storeu_ps(out, sum);
                }
            }
        }
        column += width;
    }
}

/// See `avx2::integer::unpack`.
///
/// # Safety
/// The tile has these columns, whose number is a multiple of four, and `out` has room.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(crate) unsafe fn unpack<W: Weights>(tile: W, (from, to): (usize, usize), out: *mut i16) {
    for four in from / 4..to / 4 {
        // SAFETY: the caller's word.
        unsafe {
            let out: *mut __m512i = out.add((four * 4 - from) * TILE).cast();
            for (index, pair) in tile.four_wide(four).into_iter().enumerate() {
                _mm512_storeu_si512(out.add(index), pair);
            }
        }
    }
}
