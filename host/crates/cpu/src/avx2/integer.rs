//! The inner loops over integers: 16-bit products in pairs, 32-bit sums over a group, f32 from there on.
//! `integer.rs` calls them in blocks. A pair of columns of eight rows is one instruction; no sum can overflow: 32
//! products of 8 and 16 bits have 28.

use super::*;
use crate::integer::{Parts, scale};
use crate::matrix::{GROUP, ScaleValues, Scales};

/// Weights of one tile, four columns at a time.
pub(crate) trait Weights: Copy {
    /// Two pairs of columns; of each, rows 0..8 and rows 8..16, the two columns of a row side by side.
    ///
    /// # Safety
    /// The tile has the columns, and the processor AVX2.
    unsafe fn four(&self, four: usize) -> [[__m256i; 2]; 2];

    /// The same with all rows of a pair in one.
    ///
    /// # Safety
    /// The tile has the columns, and the processor AVX-512.
    unsafe fn four_wide(&self, four: usize) -> [__m512i; 2];
}

/// 8-bit weights.
#[derive(Clone, Copy)]
pub(crate) struct Eight(pub *const i8);

impl Weights for Eight {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn four(&self, four: usize) -> [[__m256i; 2]; 2] {
        // SAFETY: the caller's word.
        unsafe {
            let at: *const __m128i = self.0.add(four * 4 * TILE).cast();
            let sixteen = |index| _mm256_cvtepi8_epi16(_mm_loadu_si128(at.add(index)));
            [[sixteen(0), sixteen(1)], [sixteen(2), sixteen(3)]]
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn four_wide(&self, four: usize) -> [__m512i; 2] {
        // SAFETY: the caller's word.
        unsafe {
            let at: *const __m256i = self.0.add(four * 4 * TILE).cast();
            [_mm512_cvtepi8_epi16(_mm256_loadu_si256(at)), _mm512_cvtepi8_epi16(_mm256_loadu_si256(at.add(1)))]
        }
    }
}

/// 4-bit weights.
#[derive(Clone, Copy)]
pub(crate) struct Four(pub *const u8);

impl Weights for Four {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn four(&self, four: usize) -> [[__m256i; 2]; 2] {
        // SAFETY: the caller's word.
        let both = unsafe {
            let at: *const __m128i = self.0.add(four * 2 * TILE).cast();
            [_mm256_cvtepu8_epi16(_mm_loadu_si128(at)), _mm256_cvtepu8_epi16(_mm_loadu_si128(at.add(1)))]
        };
        let low = _mm256_set1_epi16(15);
        [both.map(|both| _mm256_and_si256(both, low)), both.map(|both| _mm256_srli_epi16::<4>(both))]
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn four_wide(&self, four: usize) -> [__m512i; 2] {
        // SAFETY: the caller's word.
        let both = unsafe { _mm512_cvtepu8_epi16(_mm256_loadu_si256(self.0.add(four * 2 * TILE).cast())) };
        [_mm512_and_si512(both, _mm512_set1_epi16(15)), _mm512_srli_epi16::<4>(both)]
    }
}

/// Weights that were written out, and the column that they begin with.
#[derive(Clone, Copy)]
pub(crate) struct Panel(pub *const i16, pub usize);

impl Weights for Panel {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn four(&self, four: usize) -> [[__m256i; 2]; 2] {
        // SAFETY: the caller's word.
        unsafe {
            let at: *const __m256i = self.0.add((four * 4 - self.1) * TILE).cast();
            let sixteen = |index| _mm256_loadu_si256(at.add(index));
            [[sixteen(0), sixteen(1)], [sixteen(2), sixteen(3)]]
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn four_wide(&self, four: usize) -> [__m512i; 2] {
        // SAFETY: the caller's word.
        unsafe {
            let at: *const __m512i = self.0.add((four * 4 - self.1) * TILE).cast();
            [_mm512_loadu_si512(at), _mm512_loadu_si512(at.add(1))]
        }
    }
}

/// Where a tile's scales are.
#[derive(Clone, Copy)]
pub(crate) struct ScalesAt {
    width: usize,
    stride: usize,
    offsets: bool,
    halves: *const u16,
    singles: *const f32,
}

impl ScalesAt {
    /// Those of tile `tile` of a matrix of `columns` columns.
    pub fn new(scales: &Scales, tile: usize, columns: usize) -> Self {
        let start = tile * (columns / scales.width) * scales.stride();
        let (halves, singles) = match &scales.values {
            ScaleValues::F16(values) => (values[start..].as_ptr(), std::ptr::null()),
            ScaleValues::F32(values) => (std::ptr::null(), values[start..].as_ptr()),
        };
        Self { width: scales.width, stride: scales.stride(), offsets: scales.offsets, halves, singles }
    }

    /// Columns of a group.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Groups have an m.
    pub fn offsets(&self) -> bool {
        self.offsets
    }

    /// 16 of d (`offset` 0) or of m (`offset` 16) of a group.
    ///
    /// # Safety
    /// The tile has the group, an m if that is asked for, and the processor AVX-512.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    pub unsafe fn load_wide(&self, group: usize, offset: usize) -> __m512 {
        let at = group * self.stride + offset;
        // SAFETY: the caller's word: the tile has the group, so its scales are there.
        unsafe {
            if self.halves.is_null() {
                _mm512_loadu_ps(self.singles.add(at))
            } else {
                _mm512_cvtph_ps(_mm256_loadu_si256(self.halves.add(at).cast()))
            }
        }
    }

    /// The same in two.
    ///
    /// # Safety
    /// The tile has the group, an m if that is asked for, and the processor AVX2.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn load(&self, group: usize, offset: usize) -> Pair {
        let at = group * self.stride + offset;
        // SAFETY: the caller's word: the tile has the group, so its scales are there.
        unsafe {
            if self.halves.is_null() {
                [_mm256_loadu_ps(self.singles.add(at)), _mm256_loadu_ps(self.singles.add(at + 8))]
            } else {
                [halves::<false>(self.halves.add(at)), halves::<false>(self.halves.add(at + 8))]
            }
        }
    }
}

/// Where the parts of a vector are; its sums are those of groups as wide as the weights'.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub pairs: *const u32,
    pub scales: *const u32,
    pub sums: *const u32,
}

/// `T` tiles times `M` vectors over columns `from..to`: `out[t][m]` gets 16 sums each, which go on from those that are
/// there if `from` is not 0.
///
/// # Safety
/// Tiles and vectors have these columns, which are whole groups, and `out` has room for `T · M · 16`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn product<W: Weights, const T: usize, const M: usize>(
    weights: [(W, ScalesAt); T],
    (from, to): (usize, usize),
    x: [Row; M],
    out: *mut f32,
) {
    let width = weights[0].1.width;
    let mut column = from;
    while column < to {
        let mut sums = [[[_mm256_setzero_si256(); 2]; M]; T];
        for four in column / 4..(column + width) / 4 {
            for t in 0..T {
                // SAFETY: the caller's word.
                unsafe {
                    for (pair, [low, high]) in weights[t].0.four(four).into_iter().enumerate() {
                        for m in 0..M {
                            let x = _mm256_set1_epi32(x[m].pairs.add(four * 2 + pair).read().cast_signed());
                            sums[t][m][0] = _mm256_add_epi32(sums[t][m][0], _mm256_madd_epi16(low, x));
                            sums[t][m][1] = _mm256_add_epi32(sums[t][m][1], _mm256_madd_epi16(high, x));
                        }
                    }
                }
            }
        }
        let group = column / width;
        for t in 0..T {
            // SAFETY: the caller's word.
            unsafe {
                let d = weights[t].1.load(group, 0);
                let offset = weights[t].1.offsets.then(|| weights[t].1.load(group, TILE));
                for m in 0..M {
                    let scale = _mm256_broadcast_ss(&*x[m].scales.add(column / GROUP).cast());
                    for half in 0..2 {
                        let out = out.add((t * M + m) * TILE + half * 8);
                        let before = if column == 0 { _mm256_setzero_ps() } else { _mm256_loadu_ps(out) };
                        let scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(sums[t][m][half]), scale);
                        let mut sum = _mm256_fmadd_ps(scaled, d[half], before);
                        if let Some(offset) = offset {
                            let x = _mm256_broadcast_ss(&*x[m].sums.add(group).cast());
                            sum = _mm256_fmadd_ps(offset[half], x, sum);
                        }
                        _mm256_storeu_ps(out, sum);
                    }
                }
            }
        }
        column += width;
    }
}

/// The weights of columns `from..to` of a tile as 16-bit integers.
///
/// # Safety
/// The tile has these columns, whose number is a multiple of four, and `out` has room.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn unpack<W: Weights>(tile: W, (from, to): (usize, usize), out: *mut i16) {
    for four in from / 4..to / 4 {
        // SAFETY: the caller's word.
        unsafe {
            let out: *mut __m256i = out.add((four * 4 - from) * TILE).cast();
            for (index, half) in tile.four(four).as_flattened().iter().enumerate() {
                _mm256_storeu_si256(out.add(index), *half);
            }
        }
    }
}

/// Numbers as a row of `Integers`.
///
/// # Safety
/// The processor has AVX2.
pub(crate) unsafe fn quantise(x: &[f32], row: &mut [u32]) {
    let parts = Parts::of(x.len());
    assert!(row.len() >= parts.end);
    for (group, numbers) in x.as_chunks::<GROUP>().0.iter().enumerate() {
        let Some((pairs, _)) = row[group * GROUP / 2..].split_first_chunk_mut::<{ GROUP / 2 }>() else { return };
        // SAFETY: the caller's word on the instructions.
        let (scale, sums) = unsafe { quantise_group(numbers, pairs) };
        row[parts.scales + group] = scale.to_bits();
        row[parts.sums + group] = ((sums[0] + sums[1]) as f32 * scale).to_bits();
        row[parts.half_sums + 2 * group] = (sums[0] as f32 * scale).to_bits();
        row[parts.half_sums + 2 * group + 1] = (sums[1] as f32 * scale).to_bits();
    }
}

/// The scale, and the sums of the integers of each half.
#[target_feature(enable = "avx2,fma,f16c")]
fn quantise_group(numbers: &[f32; GROUP], pairs: &mut [u32; GROUP / 2]) -> (f32, [i32; 2]) {
    // SAFETY: 32 numbers are read and 32 integers written.
    unsafe {
        let x: [__m256; 4] = std::array::from_fn(|i| _mm256_loadu_ps(numbers.as_ptr().add(8 * i)));
        let sign = _mm256_set1_ps(-0.0);
        let size = x.map(|x| _mm256_andnot_ps(sign, x));
        let largest = _mm256_max_ps(_mm256_max_ps(size[0], size[1]), _mm256_max_ps(size[2], size[3]));
        let odd = x.map(|x| _mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
        let odd = _mm256_or_ps(_mm256_or_ps(odd[0], odd[1]), _mm256_or_ps(odd[2], odd[3]));
        let four = _mm_max_ps(_mm256_castps256_ps128(largest), _mm256_extractf128_ps::<1>(largest));
        let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        let one = _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)));
        let (scale, inverse) = scale(if _mm256_movemask_ps(odd) == 0 { one } else { f32::INFINITY });
        let x = if inverse == 0.0 { [_mm256_setzero_ps(); 4] } else { x };
        let integers = x.map(|x| _mm256_cvtps_epi32(_mm256_mul_ps(x, _mm256_set1_ps(inverse))));
        let mut sums = [0i32; 2];
        for half in 0..2 {
            // Packing keeps the lanes of 128 bits apart.
            let packed = _mm256_packs_epi32(integers[2 * half], integers[2 * half + 1]);
            let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(packed);
            _mm256_storeu_si256(pairs.as_mut_ptr().add(8 * half).cast(), packed);
            let eight = _mm256_madd_epi16(packed, _mm256_set1_epi16(1));
            let four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256::<1>(eight));
            let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
            sums[half] = _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two)));
        }
        (scale, sums)
    }
}
