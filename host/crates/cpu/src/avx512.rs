//! The inner loop over integers in AVX-512 with VNNI: one instruction multiplies a pair of columns of a whole tile and
//! adds it to the sums. `integer.rs` calls it in blocks where the processor has it; the sums are those of
//! `avx2/integer.rs` bit for bit.
#![expect(unsafe_code, reason = "vector instructions read and write through pointers; callers vouch for their lengths")]

use std::arch::asm;
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
    // SAFETY: the caller's word on the room.
    let before = |t: usize, m: usize| unsafe { _mm512_loadu_ps(out.add((t * M + m) * TILE)) };
    let mut totals = [[_mm512_setzero_ps(); M]; T];
    if from > 0 {
        totals = std::array::from_fn(|t| std::array::from_fn(|m| before(t, m)));
    }
    for group in from / width..to / width {
        let mut sums = [[_mm512_setzero_si512(); M]; T];
        for four in group * width / 4..(group + 1) * width / 4 {
            for t in 0..T {
                // SAFETY: the caller's word.
                unsafe {
                    for (pair, weights) in weights[t].0.four_wide(four).into_iter().enumerate() {
                        for m in 0..M {
                            sums[t][m] = add_products(sums[t][m], weights, x[m].pairs.add(four * 2 + pair));
                        }
                    }
                }
            }
        }
        for t in 0..T {
            // SAFETY: the caller's word.
            unsafe {
                let d = weights[t].1.load_wide(group, 0);
                for m in 0..M {
                    let scale = _mm512_set1_ps(f32::from_bits(x[m].scales.add(group * width / GROUP).read()));
                    let sum = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[t][m]), scale);
                    totals[t][m] = _mm512_fmadd_ps(sum, d, totals[t][m]);
                }
                if weights[t].1.offsets() {
                    let offset = weights[t].1.load_wide(group, TILE);
                    for m in 0..M {
                        let x = _mm512_set1_ps(f32::from_bits(x[m].sums.add(group).read()));
                        totals[t][m] = _mm512_fmadd_ps(offset, x, totals[t][m]);
                    }
                }
            }
        }
    }
    for (index, total) in totals.into_iter().flatten().enumerate() {
        // SAFETY: the caller's word on the room.
        unsafe { _mm512_storeu_ps(out.add(index * TILE), total) }
    }
}

/// sums + weights · (the pair of numbers at `x`), for each lane of two.
///
/// # Safety
/// `x` may be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn add_products(sums: __m512i, weights: __m512i, x: *const u32) -> __m512i {
    let mut sums = sums;
    // As an intrinsic, the compiler makes two instructions of it to shorten chains that nothing here waits for.
    // SAFETY: reads what the caller vouches for, and changes `sums` alone.
    unsafe {
        asm!(
            "vpdpwssd {sums}, {weights}, dword ptr [{x}]{{1to16}}",
            sums = inout(zmm_reg) sums,
            weights = in(zmm_reg) weights,
            x = in(reg) x,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    sums
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
