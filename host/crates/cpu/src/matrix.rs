//! Weights of linear layers in the order in which the kernels read them.
//! The engine makes a `Matrix` from rows as a checkpoint has them; `product.rs` multiplies with it. Rows stand in
//! tiles of 16 and within a tile by column, so that one load gives the same column of 16 rows.

use std::ops::Range;

use half::{bf16, f16};

use crate::memory;

/// Rows of a tile.
pub const TILE: usize = 16;
/// Columns of the groups that vectors of integers have, see `integer.rs`.
pub(crate) const GROUP: usize = 32;

/// Rows of weights as a checkpoint has them.
#[derive(Debug)]
pub enum Rows {
    /// 32-bit.
    F32(Vec<f32>),
    /// IEEE half.
    F16(Vec<u16>),
    /// The upper half of f32.
    Bf16(Vec<u16>),
    /// Integers with a scale and an offset per group of a row: w = d·q + m.
    Groups(Groups),
}

impl Rows {
    /// The same rows in another order: row i is what row `order[i]` was.
    pub fn reordered(self, order: &[usize]) -> Self {
        match self {
            Self::F32(values) => Self::F32(reorder(&values, order)),
            Self::F16(values) => Self::F16(reorder(&values, order)),
            Self::Bf16(values) => Self::Bf16(reorder(&values, order)),
            Self::Groups(groups) => Self::Groups(Groups {
                quants: reorder(&groups.quants, order),
                d: reorder(&groups.d, order),
                m: reorder(&groups.m, order),
                ..groups
            }),
        }
    }

    /// The values as f32.
    pub fn values(&self) -> Vec<f32> {
        match self {
            Self::F32(values) => values.clone(),
            Self::F16(values) => values.iter().map(|bits| f16::from_bits(*bits).to_f32()).collect(),
            Self::Bf16(values) => values.iter().map(|bits| bf16::from_bits(*bits).to_f32()).collect(),
            Self::Groups(groups) => {
                let value = |(index, quant): (usize, &i8)| {
                    let group = index / groups.width;
                    f32::from(*quant).mul_add(groups.d[group], groups.m.get(group).copied().unwrap_or(0.0))
                };
                groups.quants.iter().enumerate().map(value).collect()
            }
        }
    }

    /// The same in `bits` (4 or 8) per weight, in groups of 32 with scales that are halves.
    pub fn quantised(&self, bits: u8) -> Self {
        let mut groups = Groups { bits, width: 32, quants: Vec::new(), d: Vec::new(), m: Vec::new() };
        for values in self.values().chunks(groups.width) {
            let low = values.iter().copied().fold(f32::INFINITY, f32::min);
            let high = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            // 8 bits are symmetric, 4 bits cover the group's range.
            let (d, m, largest) = if bits == 8 {
                (low.abs().max(high.abs()) / 127.0, 0.0, 127.0)
            } else {
                ((high - low) / 15.0, low, 15.0)
            };
            let half = |value: f32| f16::from_f32(value).to_f32();
            let (d, m) = (half(d), half(m));
            let smallest = if bits == 8 { -127.0 } else { 0.0 };
            let quant =
                |value: &f32| if d > 0.0 { ((value - m) / d).round().clamp(smallest, largest) as i8 } else { 0 };
            groups.quants.extend(values.iter().map(quant));
            groups.d.push(d);
            if bits != 8 {
                groups.m.push(m);
            }
        }
        Self::Groups(groups)
    }
}

fn reorder<T: Copy>(values: &[T], order: &[usize]) -> Vec<T> {
    let width = values.len() / order.len().max(1);
    order.iter().flat_map(|row| &values[row * width..(row + 1) * width]).copied().collect()
}

/// See `Rows::Groups`. Everything is row-major.
#[derive(Debug)]
pub struct Groups {
    /// 4 (0..=15) or 8 (−128..=127).
    pub bits: u8,
    /// Columns of a group: 16 or 32, and rows are whole groups of 32.
    pub width: usize,
    /// One per weight.
    pub quants: Vec<i8>,
    /// One per group.
    pub d: Vec<f32>,
    /// One per group; empty: all zero.
    pub m: Vec<f32>,
}

/// A matrix `[rows, columns]`; see the module.
#[derive(Debug)]
pub struct Matrix {
    rows: usize,
    columns: usize,
    form: Form,
}

/// What a matrix is stored as; the tile index is slowest, then the column, then the row of the tile. Of integers two
/// columns stand side by side, as one instruction multiplies and adds them.
#[derive(Debug)]
pub(crate) enum Form {
    F32(Vec<f32>),
    F16(Vec<u16>),
    Bf16(Vec<u16>),
    /// One byte per weight: `[tile][pair of columns][16 rows][2]`.
    Eight(Vec<i8>, Scales),
    /// `[tile][four columns][16 rows][2]` bytes: the first two columns in the low nibbles, the others in the high ones.
    Four(Vec<u8>, Scales),
}

/// Scales of a quantised matrix: for each tile and group 16 of d, then 16 of m where there are any.
#[derive(Debug)]
pub(crate) struct Scales {
    /// Columns of a group.
    pub width: usize,
    /// There are offsets.
    pub offsets: bool,
    pub values: ScaleValues,
}

/// Halves where that loses nothing.
#[derive(Debug)]
pub(crate) enum ScaleValues {
    F16(Vec<u16>),
    F32(Vec<f32>),
}

impl Matrix {
    /// Packs `rows`; missing rows of the last tile are zero. `None` if the numbers do not fit the shape.
    pub fn pack(source: &Rows, rows: usize, columns: usize) -> Option<Self> {
        let count = rows.checked_mul(columns).filter(|count| *count > 0)?;
        let form = match source {
            Rows::F32(values) => Form::F32(tiles(values, rows, columns, count)?),
            Rows::F16(values) => Form::F16(tiles(values, rows, columns, count)?),
            Rows::Bf16(values) => Form::Bf16(tiles(values, rows, columns, count)?),
            Rows::Groups(groups) => {
                let scales = scales(groups, rows, columns)?;
                let quants = pairs(&tiles(&groups.quants, rows, columns, count)?);
                match groups.bits {
                    8 => Form::Eight(quants, scales),
                    4 => Form::Four(nibbles(&quants), scales),
                    _ => return None,
                }
            }
        };
        Some(Self { rows, columns, form })
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Tiles.
    pub(crate) fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE)
    }

    pub(crate) fn form(&self) -> &Form {
        &self.form
    }

    /// Where the weights and their scales are.
    pub(crate) fn memory(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let of = |scales: &Scales| match &scales.values {
            ScaleValues::F16(values) => memory::range(values),
            ScaleValues::F32(values) => memory::range(values),
        };
        let (weights, scales) = match &self.form {
            Form::F32(values) => (memory::range(values), None),
            Form::F16(values) | Form::Bf16(values) => (memory::range(values), None),
            Form::Eight(quants, scales) => (memory::range(quants), Some(of(scales))),
            Form::Four(quants, scales) => (memory::range(quants), Some(of(scales))),
        };
        std::iter::once(weights).chain(scales)
    }

    /// Bytes of the weights.
    pub fn bytes(&self) -> usize {
        self.memory().map(|range| range.len()).sum()
    }

    /// One row as f32, into `out`, which has a place for each column.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        let (tile, lane) = (row / TILE, row % TILE);
        for (column, out) in out.iter_mut().enumerate().take(self.columns) {
            *out = self.weight(tile, lane, column);
        }
    }

    /// The weight in column `column` of row `lane` of tile `tile`.
    pub(crate) fn weight(&self, tile: usize, lane: usize, column: usize) -> f32 {
        let at = (tile * self.columns + column) * TILE + lane;
        match &self.form {
            Form::F32(values) => values[at],
            Form::F16(values) => f16::from_bits(values[at]).to_f32(),
            Form::Bf16(values) => bf16::from_bits(values[at]).to_f32(),
            Form::Eight(_, scales) | Form::Four(_, scales) => {
                let (d, m) = scales.of(tile, lane, column, self.columns);
                f32::from(self.quant(tile, lane, column)).mul_add(d, m)
            }
        }
    }

    /// The integer in this place; 0 where there are none.
    pub(crate) fn quant(&self, tile: usize, lane: usize, column: usize) -> i8 {
        let before = tile * self.columns + column;
        match &self.form {
            Form::Eight(quants, _) => quants[(before / 2 * TILE + lane) * 2 + column % 2],
            Form::Four(quants, _) => {
                let byte = quants[(before / 4 * TILE + lane) * 2 + column % 2];
                (if column % 4 < 2 { byte & 15 } else { byte >> 4 }).cast_signed()
            }
            Form::F32(_) | Form::F16(_) | Form::Bf16(_) => 0,
        }
    }

    /// The scales, if the weights are integers.
    pub(crate) fn scales(&self) -> Option<&Scales> {
        match &self.form {
            Form::Eight(_, scales) | Form::Four(_, scales) => Some(scales),
            Form::F32(_) | Form::F16(_) | Form::Bf16(_) => None,
        }
    }
}

impl Scales {
    /// Numbers per tile and group.
    pub fn stride(&self) -> usize {
        if self.offsets { 2 * TILE } else { TILE }
    }

    /// (d, m) of a weight.
    pub fn of(&self, tile: usize, lane: usize, column: usize, columns: usize) -> (f32, f32) {
        let at = (tile * columns / self.width + column / self.width) * self.stride() + lane;
        let value = |at: usize| match &self.values {
            ScaleValues::F16(values) => f16::from_bits(values[at]).to_f32(),
            ScaleValues::F32(values) => values[at],
        };
        (value(at), if self.offsets { value(at + TILE) } else { 0.0 })
    }
}

/// `[rows, columns]` to `[tile][column][row of the tile]`.
fn tiles<T: Copy + Default>(values: &[T], rows: usize, columns: usize, count: usize) -> Option<Vec<T>> {
    if values.len() != count {
        return None;
    }
    let mut out = vec![T::default(); rows.div_ceil(TILE) * TILE * columns];
    for (row, source) in values.chunks_exact(columns).enumerate() {
        let start = (row / TILE) * TILE * columns + row % TILE;
        for (column, value) in source.iter().enumerate() {
            out[start + column * TILE] = *value;
        }
    }
    Some(out)
}

/// `[tile][column][16]` to `[tile][pair of columns][16][2]`.
fn pairs(quants: &[i8]) -> Vec<i8> {
    let (pairs, _) = quants.as_chunks::<{ 2 * TILE }>();
    pairs.iter().flat_map(|pair| (0..2 * TILE).map(move |at| pair[at % 2 * TILE + at / 2])).collect()
}

/// Every second pair into the high nibbles of the one before it.
fn nibbles(pairs: &[i8]) -> Vec<u8> {
    let byte = |low: i8, high: i8| (low.cast_unsigned() & 15) | (high.cast_unsigned() << 4);
    let (fours, _) = pairs.as_chunks::<{ 4 * TILE }>();
    fours.iter().flat_map(|four| (0..2 * TILE).map(move |at| byte(four[at], four[at + 2 * TILE]))).collect()
}

fn scales(groups: &Groups, rows: usize, columns: usize) -> Option<Scales> {
    let per_row = columns / groups.width.max(1);
    let offsets = !groups.m.is_empty();
    let whole = [GROUP / 2, GROUP].contains(&groups.width) && columns.is_multiple_of(GROUP);
    if !whole || groups.d.len() != rows * per_row || (offsets && groups.m.len() != groups.d.len()) {
        return None;
    }
    let stride = if offsets { 2 * TILE } else { TILE };
    let mut values = vec![0f32; rows.div_ceil(TILE) * per_row * stride];
    for row in 0..rows {
        for group in 0..per_row {
            let at = ((row / TILE) * per_row + group) * stride + row % TILE;
            values[at] = groups.d[row * per_row + group];
            if offsets {
                values[at + TILE] = groups.m[row * per_row + group];
            }
        }
    }
    let exact = values.iter().all(|value| f16::from_f32(*value).to_f32().to_bits() == value.to_bits());
    let values = if exact {
        ScaleValues::F16(values.iter().map(|value| f16::from_f32(*value).to_bits()).collect())
    } else {
        ScaleValues::F32(values)
    };
    Some(Scales { width: groups.width, offsets, values })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_bits_stay_within_half_a_step() {
        let values: Vec<f32> = (0..320).map(|i| ((i * 37 % 101) as f32 - 30.0) / 17.0).collect();
        for (bits, steps) in [(8, 254.0), (4, 15.0)] {
            let few = Rows::F32(values.clone()).quantised(bits);
            for (values, few) in values.chunks(32).zip(few.values().chunks(32)) {
                let low = values.iter().copied().fold(f32::INFINITY, f32::min);
                let high = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let span = if bits == 8 { 2.0 * high.abs().max(low.abs()) } else { high - low };
                // Scales are halves: a part in 2,048 more.
                let bound = span / steps * 0.5 + span / 2048.0;
                assert!(values.iter().zip(few).all(|(value, few)| (value - few).abs() <= bound), "{bits} {few:?}");
            }
        }
        assert_eq!(Rows::F32(vec![0.0; 32]).quantised(4).values(), vec![0.0; 32]);
    }

    #[test]
    fn rows_change_places_with_their_scales() {
        let groups =
            Groups { bits: 4, width: 2, quants: vec![1, 2, 3, 4, 5, 6], d: vec![1.0, 2.0, 3.0], m: vec![0.5; 3] };
        let turned = Rows::Groups(groups).reordered(&[2, 0, 1]);
        assert_eq!(turned.values(), [15.5, 18.5, 1.5, 2.5, 6.5, 8.5]);
        assert_eq!(Rows::F32(vec![1.0, 2.0, 3.0, 4.0]).reordered(&[1, 0]).values(), [3.0, 4.0, 1.0, 2.0]);
    }

    #[test]
    fn a_packed_matrix_gives_its_rows_back() {
        let values: Vec<f32> = (0..20 * 7).map(|i| i as f32).collect();
        let matrix = Matrix::pack(&Rows::F32(values.clone()), 20, 7).expect("fits");
        let mut row = [0.0; 7];
        for index in 0..20 {
            matrix.row(index, &mut row);
            assert_eq!(row, values[index * 7..][..7]);
        }
        for bits in [4, 8] {
            let few = Rows::F32((0..20 * 64).map(|i| (i * 37 % 101) as f32).collect()).quantised(bits);
            let (matrix, wanted) = (Matrix::pack(&few, 20, 64).expect("fits"), few.values());
            let mut row = [0.0; 64];
            for index in 0..20 {
                matrix.row(index, &mut row);
                assert_eq!(row, wanted[index * 64..][..64]);
            }
            assert!(Matrix::pack(&few, 40, 32).is_some() && Matrix::pack(&few, 80, 16).is_none());
        }
        assert!(matrix.bytes() == 32 * 7 * 4 && Matrix::pack(&Rows::F16(vec![0; 3]), 2, 2).is_none());
    }
}
