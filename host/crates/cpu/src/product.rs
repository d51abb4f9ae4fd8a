//! Tiles of a matrix of f32 or halves times several vectors; `integer.rs` has those of integers.
//! Linear layers and attention call it. Few vectors are multiplied with weights as they are stored; for more, a
//! tile is first written out as f32. Both add in the order of the columns, so a sum is the same bit for bit.
#![expect(unsafe_code, reason = "the vector loops take pointers; lengths are asserted before each call")]

use half::f16;

use crate::matrix::{Form, Matrix, TILE};
use crate::pool::room;

/// Vectors of one inner loop: their sums, two weights and a number fill the 16 registers.
const BLOCK: usize = 6;
/// Columns of a tile that are written out together: 16 kB, half of the first cache.
const PANEL: usize = 256;
/// Vectors that are multiplied with them before the next tile: they stay in the second cache.
const VECTORS: usize = 128;

/// Vectors of equal length, at equal distances in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vectors<'a> {
    data: &'a [f32],
    stride: usize,
    count: usize,
    length: usize,
}

impl<'a> Vectors<'a> {
    /// `count` vectors of `length` numbers, each `stride` behind the one before it.
    pub fn new(data: &'a [f32], count: usize, stride: usize, length: usize) -> Self {
        assert!(count == 0 || (count - 1) * stride + length <= data.len(), "vectors outside of their memory");
        Self { data, stride, count, length }
    }

    pub fn count(&self) -> usize {
        self.count
    }

    pub fn length(&self) -> usize {
        self.length
    }

    /// `count` of them, from `first` on.
    pub fn part(&self, first: usize, count: usize) -> Self {
        assert!(first + count <= self.count, "there are {} vectors", self.count);
        Self { data: &self.data[(first * self.stride).min(self.data.len())..], count, ..*self }
    }

    /// `length` numbers of each, from `first` on.
    pub fn columns(&self, first: usize, length: usize) -> Self {
        assert!(first + length <= self.length, "vectors have {} numbers", self.length);
        Self { data: &self.data[first.min(self.data.len())..], length, ..*self }
    }

    pub fn at(&self, index: usize) -> &'a [f32] {
        &self.data[index * self.stride..][..self.length]
    }

    /// Pointers to `M` vectors from `first` on.
    #[cfg(target_arch = "x86_64")]
    fn pointers<const M: usize>(&self, first: usize) -> [*const f32; M] {
        std::array::from_fn(|m| self.at(first + m).as_ptr())
    }
}

/// `count` tiles from `first` on times `x`; `out[tile][vector][16]`.
pub(crate) fn tiles_times(
    matrix: &Matrix,
    (first, count): (usize, usize),
    x: Vectors<'_>,
    panel: &mut Vec<f32>,
    out: &mut [f32],
) {
    assert!(first + count <= matrix.tiles() && x.length == matrix.columns() && out.len() >= count * x.count * TILE);
    #[cfg(target_arch = "x86_64")]
    if crate::avx2::available() {
        use crate::avx2::{F32, Half};
        let columns = matrix.columns();
        let start = |tile: usize| tile * columns * TILE;
        return match matrix.form() {
            Form::F32(values) => all((first, count), x, panel, out, |tile| F32(values[start(tile)..].as_ptr())),
            Form::F16(values) => {
                all((first, count), x, panel, out, |tile| Half::<false>(values[start(tile)..].as_ptr()))
            }
            Form::Bf16(values) => {
                all((first, count), x, panel, out, |tile| Half::<true>(values[start(tile)..].as_ptr()))
            }
            // Layers of integers go to `integer.rs`; here they would lose nothing but time.
            Form::Eight(..) | Form::Four(..) => portable(matrix, (first, count), x, out),
        };
    }
    portable(matrix, (first, count), x, out);
}

/// Weights that need no scales: f32, or halves as their bits.
pub(crate) trait Plain: Copy {
    /// What the loops read them through.
    #[cfg(target_arch = "x86_64")]
    type Tile: crate::avx2::Tile;

    #[cfg(target_arch = "x86_64")]
    fn tile(at: *const Self) -> Self::Tile;

    fn value(self) -> f32;
}

impl Plain for f32 {
    #[cfg(target_arch = "x86_64")]
    type Tile = crate::avx2::F32;

    #[cfg(target_arch = "x86_64")]
    fn tile(at: *const Self) -> Self::Tile {
        crate::avx2::F32(at)
    }

    fn value(self) -> f32 {
        self
    }
}

impl Plain for u16 {
    #[cfg(target_arch = "x86_64")]
    type Tile = crate::avx2::Half<false>;

    #[cfg(target_arch = "x86_64")]
    fn tile(at: *const Self) -> Self::Tile {
        crate::avx2::Half(at)
    }

    fn value(self) -> f32 {
        f16::from_bits(self).to_f32()
    }
}

/// All tiles `[tile][column][16]` times `x`; `out[tile][vector][16]`.
pub(crate) fn single_times<N: Plain>(tiles: &[N], x: Vectors<'_>, out: &mut [f32]) {
    let (size, wide) = (x.length * TILE, x.count * TILE);
    let count = tiles.len() / size.max(1);
    assert!(out.len() >= count * wide);
    #[cfg(target_arch = "x86_64")]
    if crate::avx2::available() {
        let tile = |index: usize| N::tile(tiles[index * size..].as_ptr());
        let mut done = 0;
        while done < count {
            let out = &mut out[done * wide..];
            // SAFETY: lengths are asserted above and `Vectors` keeps its own.
            unsafe {
                // One vector alone: four tiles at once hide the time that an addition takes.
                if x.count == 1 && done + 4 <= count {
                    block::<_, 4>(std::array::from_fn(|t| tile(done + t)), x, 0, (out, false));
                    done += 4;
                    continue;
                }
                let mut rows = 0;
                while rows < x.count {
                    rows += block::<_, 1>([tile(done)], x, rows, (&mut out[rows * TILE..], false));
                }
            }
            done += 1;
        }
        return;
    }
    for (tile, out) in tiles.chunks_exact(size).zip(out.chunks_exact_mut(wide)) {
        for (m, sums) in out.chunks_exact_mut(TILE).enumerate() {
            sums.fill(0.0);
            for (column, x) in tile.chunks_exact(TILE).zip(x.at(m)) {
                sums.iter_mut().zip(column).for_each(|(sum, weight)| *sum += weight.value() * x);
            }
        }
    }
}

/// Runs of f32 columns, one after the other, weighted by `x`: `out[vector][16]`.
pub(crate) fn weighted(runs: &[&[f32]], x: Vectors<'_>, out: &mut [f32]) {
    let columns: usize = runs.iter().map(|run| run.len() / TILE).sum();
    assert!(columns == x.length && out.len() >= x.count * TILE);
    #[cfg(target_arch = "x86_64")]
    if crate::avx2::available() {
        let runs: Vec<(*const f32, usize)> = runs.iter().map(|run| (run.as_ptr(), run.len() / TILE)).collect();
        let mut done = 0;
        while done < x.count {
            let out = out[done * TILE..].as_mut_ptr();
            // SAFETY: lengths are asserted above and `Vectors` keeps its own.
            unsafe {
                use crate::avx2::weighted;
                match (x.count - done).min(BLOCK) {
                    1 => weighted(&runs, x.pointers::<1>(done), out),
                    2 => weighted(&runs, x.pointers::<2>(done), out),
                    3 => weighted(&runs, x.pointers::<3>(done), out),
                    4 => weighted(&runs, x.pointers::<4>(done), out),
                    5 => weighted(&runs, x.pointers::<5>(done), out),
                    _ => weighted(&runs, x.pointers::<BLOCK>(done), out),
                }
            }
            done += (x.count - done).min(BLOCK);
        }
        return;
    }
    for m in 0..x.count {
        let sums = &mut out[m * TILE..][..TILE];
        sums.fill(0.0);
        for (column, x) in runs.iter().flat_map(|run| run.chunks_exact(TILE)).zip(x.at(m)) {
            sums.iter_mut().zip(column).for_each(|(sum, weight)| *sum += weight * x);
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn all<W: crate::avx2::Tile>(
    (first, count): (usize, usize),
    x: Vectors<'_>,
    panel: &mut Vec<f32>,
    out: &mut [f32],
    tile: impl Fn(usize) -> W,
) {
    let (columns, wide) = (x.length, x.count * TILE);
    if x.count < BLOCK {
        let mut done = 0;
        while done < count {
            let out = &mut out[done * wide..];
            // SAFETY: the caller asserted that the matrix has the tiles and `out` the room.
            unsafe {
                if x.count <= 2 && done + 2 <= count {
                    block::<_, 2>([tile(first + done), tile(first + done + 1)], x, 0, (out, false));
                    done += 2;
                } else {
                    block::<_, 1>([tile(first + done)], x, 0, (out, false));
                    done += 1;
                }
            }
        }
        return;
    }
    let panel = room(panel, PANEL * TILE);
    for from in (0..x.count).step_by(VECTORS) {
        let many = VECTORS.min(x.count - from);
        for index in 0..count {
            let out = &mut out[index * wide + from * TILE..][..many * TILE];
            for start in (0..columns).step_by(PANEL) {
                let end = columns.min(start + PANEL);
                // SAFETY: the panel has room for these columns of a tile.
                unsafe { crate::avx2::unpack(tile(first + index), start, end, panel.as_mut_ptr()) }
                let x = x.part(from, many).columns(start, end - start);
                let mut done = 0;
                while done < many {
                    // SAFETY: as above; a block of one tile is contiguous in `out`.
                    done += unsafe {
                        let tile = [crate::avx2::F32(panel.as_ptr())];
                        block::<_, 1>(tile, x, done, (&mut out[done * TILE..], start > 0))
                    };
                }
            }
        }
    }
}

/// Up to `BLOCK` vectors from `first` on; how many it took. What is left is cut evenly, for a full last block.
///
/// # Safety
/// Each tile has as many columns as the vectors are long.
#[cfg(target_arch = "x86_64")]
unsafe fn block<W: crate::avx2::Tile, const T: usize>(
    tiles: [W; T],
    x: Vectors<'_>,
    first: usize,
    (out, more): (&mut [f32], bool),
) -> usize {
    use crate::avx2::product;
    let left = x.count - first;
    let rows = left.div_ceil(left.div_ceil(BLOCK).max(1));
    assert!(out.len() >= T * rows * TILE);
    let (columns, out) = (x.length, (out.as_mut_ptr(), more));
    // SAFETY: the caller's word on the tiles; the rest is asserted.
    unsafe {
        match rows {
            0 => {}
            1 => product::<W, T, 1>(tiles, columns, x.pointers(first), out),
            2 => product::<W, T, 2>(tiles, columns, x.pointers(first), out),
            3 => product::<W, T, 3>(tiles, columns, x.pointers(first), out),
            4 => product::<W, T, 4>(tiles, columns, x.pointers(first), out),
            5 => product::<W, T, 5>(tiles, columns, x.pointers(first), out),
            _ => product::<W, T, BLOCK>(tiles, columns, x.pointers(first), out),
        }
    }
    rows
}

/// The reference: the same sums in plain code.
fn portable(matrix: &Matrix, (first, count): (usize, usize), x: Vectors<'_>, out: &mut [f32]) {
    for tile in 0..count {
        for m in 0..x.count {
            let sums = &mut out[(tile * x.count + m) * TILE..][..TILE];
            for (lane, sum) in sums.iter_mut().enumerate() {
                let products =
                    x.at(m).iter().enumerate().map(|(column, x)| matrix.weight(first + tile, lane, column) * x);
                *sum = products.sum();
            }
        }
    }
}

/// values ← exp(scale · (values − shift)); the sum of the results.
pub fn exp_of(values: &mut [f32], scale: f32, shift: f32) -> f64 {
    #[cfg(target_arch = "x86_64")]
    if crate::avx2::available() {
        // SAFETY: the instructions are there.
        return unsafe { crate::avx2::exp_of(values, scale, shift) };
    }
    values.iter_mut().for_each(|value| *value = (scale * (*value - shift)).exp());
    values.iter().map(|value| f64::from(*value)).sum()
}

/// The largest value; NaN is passed over.
pub fn largest(values: &[f32]) -> f32 {
    let (eights, rest) = values.as_chunks::<8>();
    let mut lanes = [f32::NEG_INFINITY; 8];
    for eight in eights {
        lanes.iter_mut().zip(eight).for_each(|(lane, value)| *lane = if *value > *lane { *value } else { *lane });
    }
    lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max)
}

/// gate ← silu(gate) · up.
pub(crate) fn gated(gate: &mut [f32; TILE], up: &[f32; TILE]) {
    #[cfg(target_arch = "x86_64")]
    if crate::avx2::available() {
        // SAFETY: the instructions are there.
        return unsafe { crate::avx2::gated(gate, up) };
    }
    gate.iter_mut().zip(up).for_each(|(gate, up)| *gate = *gate / (1.0 + (-*gate).exp()) * up);
}

#[cfg(test)]
mod tests {
    use rand::rngs::ChaCha12Rng;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::matrix::Rows;

    fn random(seed: u64, count: usize) -> Vec<f32> {
        let mut generator = ChaCha12Rng::seed_from_u64(seed);
        (0..count).map(|_| generator.random::<f32>() - 0.5).collect()
    }

    fn halves(seed: u64, count: usize) -> Vec<u16> {
        random(seed, count).iter().map(|value| half::f16::from_f32(*value).to_bits()).collect()
    }

    /// Every way to store weights that are no integers.
    fn forms(rows: usize, columns: usize) -> Vec<Matrix> {
        let count = rows * columns;
        let mut sources = vec![Rows::F32(random(1, count)), Rows::F16(halves(1, count))];
        sources.push(Rows::Bf16(random(1, count).iter().map(|x| (x.to_bits() >> 16) as u16).collect()));
        sources.iter().map(|source| Matrix::pack(source, rows, columns).expect("fits")).collect()
    }

    #[test]
    fn vector_instructions_give_the_sums_of_plain_code() {
        let (rows, columns) = (72, 96);
        for matrix in forms(rows, columns) {
            for count in [1, 2, 3, 4, 5, 6, 7, 11, 13] {
                let data = random(9, count * 100);
                let x = Vectors::new(&data, count, 100, columns);
                let size = matrix.tiles() * count * TILE;
                let (mut fast, mut plain) = (vec![f32::NAN; size], vec![f32::NAN; size]);
                tiles_times(&matrix, (0, matrix.tiles()), x, &mut Vec::new(), &mut fast);
                portable(&matrix, (0, matrix.tiles()), x, &mut plain);
                for (index, (fast, plain)) in fast.iter().zip(&plain).enumerate() {
                    assert!(
                        (fast - plain).abs() <= 1e-3 * (1.0 + plain.abs()),
                        "{index} of {matrix:?}: {fast} {plain}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_sum_does_not_depend_on_how_many_are_made_at_once() {
        for matrix in forms(64, 64) {
            let data = random(4, 20 * 64);
            let run = |first: usize, count: usize| {
                let x = Vectors::new(&data[first * 64..], count, 64, 64);
                let mut out = vec![0f32; matrix.tiles() * count * TILE];
                tiles_times(&matrix, (0, matrix.tiles()), x, &mut Vec::new(), &mut out);
                out
            };
            let all = run(0, 20);
            for count in 1..8 {
                let some = run(3, count);
                for tile in 0..matrix.tiles() {
                    let wanted = &all[(tile * 20 + 3) * TILE..][..count * TILE];
                    assert_eq!(&some[tile * count * TILE..][..count * TILE], wanted, "{count}");
                }
            }
        }
    }

    #[test]
    fn weighted_runs_are_one_long_product() {
        let (data, weights) = (random(1, 40 * TILE), random(2, 7 * 40));
        let x = Vectors::new(&weights, 7, 40, 40);
        let (mut whole, mut cut) = (vec![0f32; 7 * TILE], vec![0f32; 7 * TILE]);
        single_times(&data, x, &mut whole);
        weighted(&[&data[..16 * TILE], &data[16 * TILE..32 * TILE], &data[32 * TILE..]], x, &mut cut);
        assert_eq!(whole, cut);
    }

    #[test]
    fn exponentials_and_gates_are_those_of_the_standard_library() {
        let values: Vec<f32> = (-900..=880).map(|i| i as f32 / 10.0).chain([f32::NEG_INFINITY, -1e30, 0.0]).collect();
        let mut made = values.clone();
        let sum = exp_of(&mut made, 1.0, 0.0);
        for (value, made) in values.iter().zip(&made) {
            let wanted = if *value < -87.3 { 0.0 } else { value.exp() };
            assert!((made - wanted).abs() <= wanted * 1e-6, "exp({value}) = {made}");
        }
        assert!((sum / made.iter().map(|x| f64::from(*x)).sum::<f64>() - 1.0).abs() < 1e-12);
        assert!(exp_of(&mut [f32::NAN, 1.0], 1.0, 0.0).is_nan());
        for start in [-100.0f32, -3.0, 0.0, 50.0] {
            let mut gate: [f32; TILE] = std::array::from_fn(|i| start + i as f32 / 3.0);
            let (before, up) = (gate, std::array::from_fn(|i| i as f32 - 8.0));
            gated(&mut gate, &up);
            for i in 0..TILE {
                let wanted = before[i] / (1.0 + (-before[i]).exp()) * up[i];
                assert!((gate[i] - wanted).abs() <= 1e-5 * (1.0 + wanted.abs()), "{} {wanted}", gate[i]);
            }
        }
    }
}
