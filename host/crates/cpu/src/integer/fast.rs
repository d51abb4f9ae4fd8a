//! Blocks of tiles and vectors for the inner loops, and which of these the processor has.
#![expect(unsafe_code, reason = "the vector loops take pointers; lengths are asserted before each call")]

use super::{GROUP, Integers, Matrix, Parts, Scales, TILE, room};
use crate::avx2::integer::{Eight, Four, Panel, Row, ScalesAt, Weights};
use crate::matrix::Form;
use crate::{avx2, avx512};

/// Columns of a tile that are written out together for many vectors, at most: 10 kB.
const COLUMNS: usize = 320;
/// Blocks of vectors for which reading the weights as they are stored takes no longer than writing them out once.
const BLOCKS_AS_STORED: usize = 3;
/// Vectors that are multiplied with them before the next tile: they stay in the second cache.
const VECTORS: usize = 256;

/// An inner loop that this processor has: there are no others.
#[derive(Debug, Clone, Copy)]
pub struct Kernel(Loops);

#[derive(Debug, Clone, Copy)]
enum Loops {
    Avx2,
    Avx512,
}

impl Kernel {
    /// The fastest.
    pub fn here() -> Option<Self> {
        Self::all_here().next()
    }

    /// All of them, the fastest first.
    pub fn all_here() -> impl Iterator<Item = Self> {
        let wide = avx512::available().then_some(Self(Loops::Avx512));
        wide.into_iter().chain(avx2::available().then_some(Self(Loops::Avx2)))
    }

    /// See `integer::tiles_times`.
    pub fn tiles_times(
        self,
        (matrix, scales): (&Matrix, &Scales),
        (first, count): (usize, usize),
        x: &Integers,
        (panel, out): (&mut Vec<i16>, &mut [f32]),
    ) {
        assert!(first + count <= matrix.tiles() && x.columns == matrix.columns());
        assert!(out.len() >= count * x.count * TILE);
        let start = |tile: usize| tile * x.columns * TILE;
        let shape = (scales, (first, count), x);
        // SAFETY: the matrix has these tiles, and each has all its columns, whole groups of them, and its scales.
        match matrix.form() {
            Form::Eight(quants, _) => unsafe {
                all(self, shape, panel, out, |tile| Eight(quants[start(tile)..].as_ptr()))
            },
            Form::Four(quants, _) => unsafe {
                all(self, shape, panel, out, |tile| Four(quants[start(tile) / 2..].as_ptr()))
            },
            Form::F32(_) | Form::F16(_) | Form::Bf16(_) => {
                super::portable((matrix, scales), (first, count), x, out);
            }
        }
    }

    /// See `integer::quantise`.
    pub fn quantise(self, x: &[f32], row: &mut [u32]) {
        // SAFETY: both kernels have these instructions.
        unsafe { avx2::integer::quantise(x, row) }
    }

    /// Vectors of one inner loop: the sums of a group, weights and a number fill 16 registers; of 32, the sums of all
    /// groups as well.
    fn block(self) -> usize {
        match self.0 {
            Loops::Avx2 => 6,
            Loops::Avx512 => 12,
        }
    }

    /// # Safety
    /// See `avx2::integer::product`.
    unsafe fn product<W: Weights, const T: usize, const M: usize>(
        self,
        weights: [(W, ScalesAt); T],
        columns: (usize, usize),
        x: [Row; M],
        out: *mut f32,
    ) {
        // SAFETY: the caller's word.
        match self.0 {
            Loops::Avx2 => unsafe { avx2::integer::product(weights, columns, x, out) },
            Loops::Avx512 => unsafe { avx512::product(weights, columns, x, out) },
        }
    }

    /// # Safety
    /// See `avx2::integer::unpack`.
    unsafe fn unpack<W: Weights>(self, tile: W, columns: (usize, usize), out: *mut i16) {
        // SAFETY: the caller's word.
        match self.0 {
            Loops::Avx2 => unsafe { avx2::integer::unpack(tile, columns, out) },
            Loops::Avx512 => unsafe { avx512::unpack(tile, columns, out) },
        }
    }
}

/// `count` tiles from `first` on times `x`.
///
/// # Safety
/// `tile` gives tiles with as many columns as `x`, whole groups of them, and `scales` has theirs.
unsafe fn all<W: Weights>(
    kernel: Kernel,
    (scales, (first, count), x): (&Scales, (usize, usize), &Integers),
    panel: &mut Vec<i16>,
    out: &mut [f32],
    tile: impl Fn(usize) -> W,
) {
    let wide = x.count * TILE;
    let weights = |index: usize| (tile(first + index), ScalesAt::new(scales, first + index, x.columns));
    let whole = (0, x.columns);
    if x.count <= kernel.block() * BLOCKS_AS_STORED {
        let mut done = 0;
        while done < count {
            let out = &mut out[done * wide..];
            // Few vectors: several tiles at once hide the time that an instruction takes.
            done += match (x.count, count - done) {
                // SAFETY: the caller's word on the tiles.
                (1, 4..) => unsafe { few::<W, 4, 1>(kernel, std::array::from_fn(|t| weights(done + t)), x, out) },
                (1, 2..) => unsafe { few::<W, 2, 1>(kernel, std::array::from_fn(|t| weights(done + t)), x, out) },
                (2, 2..) => unsafe { few::<W, 2, 2>(kernel, std::array::from_fn(|t| weights(done + t)), x, out) },
                _ => {
                    let mut vectors = 0;
                    while vectors < x.count {
                        let out = &mut out[vectors * TILE..];
                        vectors += unsafe { block(kernel, (weights(done), whole), (x, vectors, x.count), out) };
                    }
                    1
                }
            };
        }
        return;
    }
    let panel = room(panel, COLUMNS * TILE);
    let groups = x.columns / GROUP;
    let step = groups.div_ceil(x.columns.div_ceil(COLUMNS)) * GROUP;
    for from in (0..x.count).step_by(VECTORS) {
        let to = x.count.min(from + VECTORS);
        for index in 0..count {
            let (tile, scales) = weights(index);
            for start in (0..x.columns).step_by(step) {
                let columns = (start, x.columns.min(start + step));
                // SAFETY: the panel has room for these columns of a tile.
                unsafe { kernel.unpack(tile, columns, panel.as_mut_ptr()) }
                let weights = (Panel(panel.as_ptr(), start), scales);
                let mut done = from;
                while done < to {
                    let out = &mut out[index * wide + done * TILE..];
                    // SAFETY: the panel holds these columns, and the caller's word on the scales.
                    done += unsafe { block(kernel, (weights, columns), (x, done, to), out) };
                }
            }
        }
    }
}

/// All vectors, `M` of them, times `T` tiles; how many tiles.
///
/// # Safety
/// See `all`.
unsafe fn few<W: Weights, const T: usize, const M: usize>(
    kernel: Kernel,
    weights: [(W, ScalesAt); T],
    x: &Integers,
    out: &mut [f32],
) -> usize {
    assert!(x.count == M && out.len() >= T * M * TILE);
    let row = rows(x, weights[0].1.width());
    // SAFETY: the tiles have these columns, which are whole groups, and so have the vectors; the room is asserted.
    unsafe { kernel.product::<W, T, M>(weights, (0, x.columns), std::array::from_fn(row), out.as_mut_ptr()) }
    T
}

/// Up to a block of the vectors `from..to`; how many it took. What is left is cut evenly, for a full last block. Sums
/// go on from those in `out` unless the columns are the first.
///
/// # Safety
/// The tile has these columns, whole groups of them, and their scales.
unsafe fn block<W: Weights>(
    kernel: Kernel,
    (weights, columns): ((W, ScalesAt), (usize, usize)),
    (x, from, to): (&Integers, usize, usize),
    out: &mut [f32],
) -> usize {
    let left = to - from;
    let count = left.div_ceil(left.div_ceil(kernel.block()).max(1));
    assert!(out.len() >= count * TILE && columns.1 <= x.columns && to <= x.count);
    let row = rows(x, weights.1.width());
    macro_rules! of {
        ($($count:literal)*) => {
            match count {
                $($count => {
                    let x: [Row; $count] = std::array::from_fn(|index| row(from + index));
                    // SAFETY: the tile has these columns, which are whole groups, and so have the vectors; the room
                    // is asserted.
                    unsafe { kernel.product::<W, 1, $count>([weights], columns, x, out.as_mut_ptr()) }
                })*
                _ => {}
            }
        };
    }
    of!(1 2 3 4 5 6 7 8 9 10 11 12);
    count
}

/// Where the vectors are, for weights with groups of this width.
fn rows(x: &Integers, width: usize) -> impl Fn(usize) -> Row + '_ {
    let parts = Parts::of(x.columns);
    let sums = if width == GROUP { parts.sums } else { parts.half_sums };
    move |index| {
        let words = x.row(index);
        Row { pairs: words.as_ptr(), scales: words[parts.scales..].as_ptr(), sums: words[sums..].as_ptr() }
    }
}
