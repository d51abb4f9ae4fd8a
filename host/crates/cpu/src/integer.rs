//! Tiles of low-bit integers times several vectors, which become 16-bit integers first.
//! `linear.rs` calls it where a matrix is stored in few bits. Each 32 numbers of a vector share a scale, so that the
//! largest is ±32,767: a product keeps 15 bits of it, more than halves do. The sums over a group of weights are exact
//! integers; they are scaled and added in the order of the groups, so a sum is the same bit for bit in every batch.

use crate::matrix::{GROUP, Matrix, Scales, TILE};
use crate::pool::{Pool, room};
use crate::product::Vectors;

/// What the largest number of a group becomes.
pub(crate) const LARGEST: f32 = 32_767.0;
/// Groups whose largest number is smaller are zero: the inverse of their scale has no place in f32.
pub(crate) const SMALLEST: f32 = 1e-33;

/// Vectors of equal length as integers. Each is one row of words: pairs of neighbours, for each 32 numbers their scale
/// and their sum, and for each 16 their sum; the latter three are the bits of f32.
#[derive(Debug, Default)]
pub(crate) struct Integers {
    words: Vec<u32>,
    columns: usize,
    count: usize,
}

/// Where the parts of a row begin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parts {
    pub scales: usize,
    /// Of 32 numbers.
    pub sums: usize,
    /// Of 16 numbers.
    pub half_sums: usize,
    pub end: usize,
}

impl Parts {
    pub fn of(columns: usize) -> Self {
        let (scales, groups) = (columns / 2, columns / GROUP);
        let sums = scales + groups;
        Self { scales, sums, half_sums: sums + groups, end: sums + 3 * groups }
    }
}

impl Integers {
    /// Takes over `x`, whose vectors are whole groups of 32.
    pub fn fill(&mut self, pool: &mut Pool, x: Vectors<'_>) {
        (self.columns, self.count) = (x.length(), x.count());
        let end = Parts::of(self.columns).end;
        let words = room(&mut self.words, self.count * end);
        pool.rows(words, end, &|index, row| quantise(x.at(index), row));
    }

    fn row(&self, index: usize) -> &[u32] {
        let end = Parts::of(self.columns).end;
        &self.words[index * end..][..end]
    }
}

/// `count` tiles from `first` on times `x`; `out[tile][vector][16]`.
pub(crate) fn tiles_times(
    (matrix, scales): (&Matrix, &Scales),
    (first, count): (usize, usize),
    x: &Integers,
    panel: &mut Vec<i16>,
    out: &mut [f32],
) {
    assert!(first + count <= matrix.tiles() && x.columns == matrix.columns() && out.len() >= count * x.count * TILE);
    #[cfg(target_arch = "x86_64")]
    if let Some(kernel) = fast::Kernel::here() {
        return kernel.tiles_times((matrix, scales), (first, count), x, (panel, out));
    }
    portable((matrix, scales), (first, count), x, out);
}

/// One row of words.
fn quantise(x: &[f32], row: &mut [u32]) {
    #[cfg(target_arch = "x86_64")]
    if let Some(kernel) = fast::Kernel::here() {
        return kernel.quantise(x, row);
    }
    quantise_portable(x, row);
}

/// (scale, its inverse) of numbers whose largest is this. What is not finite makes everything that it touches NaN.
pub(crate) fn scale(largest: f32) -> (f32, f32) {
    match largest {
        largest if !largest.is_finite() => (f32::NAN, 0.0),
        largest if largest < SMALLEST => (0.0, 0.0),
        largest => (largest / LARGEST, LARGEST / largest),
    }
}

/// The reference: the same words in plain code.
fn quantise_portable(x: &[f32], row: &mut [u32]) {
    let parts = Parts::of(x.len());
    for (group, numbers) in x.chunks_exact(GROUP).enumerate() {
        let larger = |a: f32, b: &f32| if b.is_nan() { f32::INFINITY } else { a.max(b.abs()) };
        let (scale, inverse) = scale(numbers.iter().fold(0.0, larger));
        let integer = |x: &f32| (x * inverse).round_ties_even().clamp(-LARGEST, LARGEST) as i16;
        let mut sums = [0i32; 2];
        for (pair, two) in numbers.chunks_exact(2).enumerate() {
            let (low, high) = (integer(&two[0]), integer(&two[1]));
            row[group * GROUP / 2 + pair] = u32::from(low.cast_unsigned()) | u32::from(high.cast_unsigned()) << 16;
            sums[pair / (GROUP / 4)] += i32::from(low) + i32::from(high);
        }
        row[parts.scales + group] = scale.to_bits();
        row[parts.sums + group] = ((sums[0] + sums[1]) as f32 * scale).to_bits();
        row[parts.half_sums + 2 * group] = (sums[0] as f32 * scale).to_bits();
        row[parts.half_sums + 2 * group + 1] = (sums[1] as f32 * scale).to_bits();
    }
}

/// The reference: the same sums in plain code.
fn portable((matrix, scales): (&Matrix, &Scales), (first, count): (usize, usize), x: &Integers, out: &mut [f32]) {
    let (parts, width) = (Parts::of(x.columns), scales.width);
    let sums_at = if width == GROUP { parts.sums } else { parts.half_sums };
    let vectors = (0..count).flat_map(|tile| (0..x.count).map(move |vector| (tile, vector)));
    for ((tile, vector), out) in vectors.zip(out.chunks_exact_mut(TILE)) {
        let row = x.row(vector);
        for (lane, out) in out.iter_mut().enumerate() {
            *out = 0.0;
            for group in 0..x.columns / width {
                let product = |column: usize| {
                    let number = (row[column / 2] >> (column % 2 * 16)) as u16;
                    i32::from(matrix.quant(first + tile, lane, column)) * i32::from(number.cast_signed())
                };
                let sum: i32 = (group * width..(group + 1) * width).map(product).sum();
                let (d, m) = scales.of(first + tile, lane, group * width, x.columns);
                let scale = f32::from_bits(row[parts.scales + group * width / GROUP]);
                *out = (sum as f32 * scale).mul_add(d, *out);
                if scales.offsets {
                    *out = m.mul_add(f32::from_bits(row[sums_at + group]), *out);
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod fast;

#[cfg(test)]
mod tests {
    use rand::rngs::ChaCha12Rng;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::matrix::{Groups, Rows};

    fn random(seed: u64, count: usize) -> Vec<f32> {
        let mut generator = ChaCha12Rng::seed_from_u64(seed);
        (0..count).map(|_| generator.random::<f32>() - 0.5).collect()
    }

    /// Every way to store integers.
    fn forms(rows: usize, columns: usize) -> Vec<Matrix> {
        let mut forms = Vec::new();
        for (bits, low, span) in [(4, 0.0, 16.0), (8, -128.0, 256.0)] {
            for (width, offsets, exact) in [(32, true, true), (32, false, true), (16, true, false), (16, false, true)] {
                let quants = random(1, rows * columns).iter().map(|x| ((x + 0.5) * span + low).floor() as i8).collect();
                let scale = |seed| -> Vec<f32> {
                    let round = |x: &f32| if exact { half::f16::from_f32(*x).to_f32() } else { *x };
                    random(seed, rows * columns / width).iter().map(round).collect()
                };
                let m = if offsets { scale(3) } else { Vec::new() };
                let groups = Groups { bits, width, quants, d: scale(2), m };
                forms.push(Matrix::pack(&Rows::Groups(groups), rows, columns).expect("fits"));
            }
        }
        forms
    }

    fn integers(data: &[f32], columns: usize) -> Integers {
        let mut integers = Integers::default();
        let x = Vectors::new(data, data.len() / columns, columns, columns);
        integers.fill(&mut Pool::new(2).expect("threads"), x);
        integers
    }

    fn times(matrix: &Matrix, x: &Integers) -> Vec<f32> {
        let scales = matrix.scales().expect("integers");
        let mut out = vec![f32::NAN; matrix.tiles() * x.count * TILE];
        tiles_times((matrix, scales), (0, matrix.tiles()), x, &mut Vec::new(), &mut out);
        out
    }

    #[test]
    fn vector_instructions_give_the_sums_of_plain_code() {
        let (rows, columns) = (72, 352);
        for matrix in forms(rows, columns) {
            for (first, count) in [(0, 1), (1, 2), (0, 3), (2, 5), (0, 6), (3, 7), (0, 13), (0, 16), (1, 17), (4, 260)]
            {
                let x = integers(&random(9, count * columns), columns);
                let scales = matrix.scales().expect("integers");
                let of = (first, matrix.tiles() - first);
                let mut plain = vec![f32::NAN; of.1 * count * TILE];
                portable((&matrix, scales), of, &x, &mut plain);
                #[cfg(target_arch = "x86_64")]
                for kernel in fast::Kernel::all_here() {
                    let mut out = vec![f32::NAN; plain.len()];
                    kernel.tiles_times((&matrix, scales), of, &x, (&mut Vec::new(), &mut out));
                    assert_eq!(out, plain, "{count} {kernel:?}");
                }
            }
        }
    }

    #[test]
    fn the_largest_products_do_not_overflow_and_what_is_no_number_stays_none() {
        let groups = |width: usize| Groups {
            bits: 8,
            width,
            quants: vec![-128; 16 * 64],
            d: vec![1.0; 16 * 64 / width],
            m: Vec::new(),
        };
        for width in [16, 32] {
            let matrix = Matrix::pack(&Rows::Groups(groups(width)), 16, 64).expect("fits");
            let made = times(&matrix, &integers(&[3.0; 64], 64));
            assert!(made.iter().all(|sum| (sum + 128.0 * 3.0 * 64.0).abs() < 1.0), "{made:?}");
            let mut odd = [1.0; 64];
            odd[40] = f32::NAN;
            assert!(times(&matrix, &integers(&odd, 64)).iter().all(|sum| sum.is_nan()));
        }
    }

    #[test]
    fn products_are_those_of_the_numbers_to_15_bits() {
        let (rows, columns) = (48, 96);
        for matrix in forms(rows, columns) {
            let data = random(9, columns);
            let made = times(&matrix, &integers(&data, columns));
            for (row, made) in made.iter().enumerate() {
                let products = |size: &dyn Fn(f64) -> f64| -> f64 {
                    let weight = |column| f64::from(matrix.weight(row / TILE, row % TILE, column));
                    data.iter().enumerate().map(|(column, x)| size(weight(column) * f64::from(*x))).sum()
                };
                let (wanted, magnitude) = (products(&|product| product), products(&f64::abs));
                assert!((f64::from(*made) - wanted).abs() <= magnitude / 16_384.0, "{row}: {made} {wanted}");
            }
        }
    }

    #[test]
    fn a_sum_does_not_depend_on_how_many_are_made_at_once() {
        for matrix in forms(64, 288) {
            let data = random(4, 20 * 288);
            let all = times(&matrix, &integers(&data, 288));
            for count in 1..9 {
                let some = times(&matrix, &integers(&data[3 * 288..][..count * 288], 288));
                for tile in 0..matrix.tiles() {
                    let wanted = &all[(tile * 20 + 3) * TILE..][..count * TILE];
                    assert_eq!(&some[tile * count * TILE..][..count * TILE], wanted, "{count}");
                }
            }
        }
    }

    #[test]
    fn numbers_become_the_same_words_in_both_ways() {
        let mut odd = random(5, 64);
        odd.extend(random(6, 32).iter().map(|x| x * 1e-36));
        odd.extend(random(7, 32).iter().map(|x| x * 1e37));
        odd.extend([0.0; 32]);
        odd.extend([1.0; 32]);
        odd.extend((0..32).map(|i| if i == 7 { f32::NAN } else { 1.0 }));
        odd.extend((0..32).map(|i| if i == 30 { f32::NEG_INFINITY } else { 1.0 }));
        let mut words = [vec![0; Parts::of(odd.len()).end], vec![0; Parts::of(odd.len()).end]];
        quantise(&odd, &mut words[0]);
        quantise_portable(&odd, &mut words[1]);
        let parts = Parts::of(odd.len());
        let scale = |group: usize| f32::from_bits(words[0][parts.scales + group]);
        assert!(scale(6).is_nan() && scale(7).is_nan() && scale(2) == 0.0 && scale(5) == 1.0 / LARGEST);
        for (at, (fast, plain)) in words[0].iter().zip(&words[1]).enumerate() {
            let nan = at >= parts.scales && f32::from_bits(*plain).is_nan();
            assert!(fast == plain || (nan && f32::from_bits(*fast).is_nan()), "{at}: {fast:x} {plain:x}");
        }
    }
}
