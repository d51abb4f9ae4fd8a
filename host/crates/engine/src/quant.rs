//! Encodings of weights and how they become f32.
//! `gguf.rs` asks for sizes, `checkpoint.rs` for values. Blocks follow ggml-org/ggml, src/ggml-common.h; every
//! value is exactly what the reference computes in f32.

use half::f16;
use reef_cpu::{Groups, Rows};

/// How the numbers of a tensor are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quant {
    F32,
    F16,
    Bf16,
    /// 32 values: d, 4-bit; w = d·(q − 8).
    Q4_0,
    /// 32 values: d, m, 4-bit; w = d·q + m.
    Q4_1,
    /// 32 values: d, 8-bit; w = d·q.
    Q8_0,
    /// 256 values in 8 groups with 6-bit scales and minima.
    Q4K,
    /// The same with 5-bit values.
    Q5K,
    /// 256 values in 16 groups with 8-bit scales.
    Q6K,
    /// Not known here; the ggml code.
    Other(u32),
}

/// What `Quant` decodes, for messages.
pub(crate) const SUPPORTED: &str = "F32, F16, BF16, Q4_0, Q4_1, Q8_0, Q4_K, Q5_K and Q6_K";

impl Quant {
    /// From ggml's type code.
    pub fn from_code(code: u32) -> Self {
        match code {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            8 => Self::Q8_0,
            12 => Self::Q4K,
            13 => Self::Q5K,
            14 => Self::Q6K,
            30 => Self::Bf16,
            other => Self::Other(other),
        }
    }

    /// Values and bytes of one block.
    fn block(self) -> (u64, u64) {
        match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::Bf16 => (1, 2),
            Self::Q4_0 => (32, 18),
            Self::Q4_1 => (32, 20),
            Self::Q8_0 => (32, 34),
            Self::Q4K => (256, 144),
            Self::Q5K => (256, 176),
            Self::Q6K => (256, 210),
            Self::Other(_) => (1, 0),
        }
    }

    /// Bytes of `elements` values; `None` if they are no whole number of blocks or too many.
    pub fn bytes(self, elements: u64) -> Option<u64> {
        let (values, bytes) = self.block();
        if elements.is_multiple_of(values) { (elements / values).checked_mul(bytes) } else { None }
    }

    /// The values; `None` for an encoding that is not known here.
    pub fn decode(self, bytes: &[u8]) -> Option<Vec<f32>> {
        self.rows(bytes).map(|rows| match rows {
            Rows::F32(values) => values,
            packed => packed.values(),
        })
    }

    /// The values as they are stored, row by row; `None` for an encoding that is not known here.
    ///
    /// d·q + m with one rounding is exactly the reference's value: its products are exact in f32, or there is no m.
    pub fn rows(self, bytes: &[u8]) -> Option<Rows> {
        let halves = || bytes.as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b)).collect();
        let mut packed = Packed::default();
        match self {
            Self::F32 => {
                return Some(Rows::F32(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()));
            }
            Self::F16 => return Some(Rows::F16(halves())),
            Self::Bf16 => return Some(Rows::Bf16(halves())),
            Self::Q4_0 => bytes.as_chunks::<18>().0.iter().for_each(|block| q4_0(block, &mut packed)),
            Self::Q4_1 => bytes.as_chunks::<20>().0.iter().for_each(|block| q4_1(block, &mut packed)),
            Self::Q8_0 => bytes.as_chunks::<34>().0.iter().for_each(|block| q8_0(block, &mut packed)),
            Self::Q4K => bytes.as_chunks::<144>().0.iter().for_each(|block| q4_k(block, &mut packed)),
            Self::Q5K => bytes.as_chunks::<176>().0.iter().for_each(|block| q5_k(block, &mut packed)),
            Self::Q6K => bytes.as_chunks::<210>().0.iter().for_each(|block| q6_k(block, &mut packed)),
            Self::Other(_) => return None,
        }
        let four_bits = matches!(self, Self::Q4_0 | Self::Q4_1 | Self::Q4K);
        let Packed { quants, d, m } = packed;
        let (bits, width) = (if four_bits { 4 } else { 8 }, if self == Self::Q6K { 16 } else { 32 });
        Some(Rows::Groups(Groups { bits, width, quants, d, m }))
    }
}

/// Blocks taken apart.
#[derive(Default)]
struct Packed {
    quants: Vec<i8>,
    d: Vec<f32>,
    m: Vec<f32>,
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Low nibbles are the first half of a block, high nibbles the second.
fn nibbles(bytes: &[u8]) -> impl Iterator<Item = u8> + '_ {
    bytes.iter().map(|byte| byte & 15).chain(bytes.iter().map(|byte| byte >> 4))
}

fn q4_0(block: &[u8; 18], out: &mut Packed) {
    let d = half_at(block, 0);
    out.quants.extend(nibbles(&block[2..]).map(u8::cast_signed));
    out.d.push(d);
    out.m.push(-8.0 * d);
}

fn q4_1(block: &[u8; 20], out: &mut Packed) {
    out.quants.extend(nibbles(&block[4..]).map(u8::cast_signed));
    out.d.push(half_at(block, 0));
    out.m.push(half_at(block, 2));
}

fn q8_0(block: &[u8; 34], out: &mut Packed) {
    out.quants.extend(block[2..].iter().copied().map(u8::cast_signed));
    out.d.push(half_at(block, 0));
}

/// Scale and minimum of group `j` of 8, packed as 6 bits each into 12 bytes.
fn scale_and_min(packed: &[u8], j: usize) -> (f32, f32) {
    let (scale, min) = if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        ((packed[j + 4] & 15) | ((packed[j - 4] >> 6) << 4), (packed[j + 4] >> 4) | ((packed[j] >> 6) << 4))
    };
    (f32::from(scale), f32::from(min))
}

fn push_scales(block: &[u8], out: &mut Packed) {
    let (d, d_min) = (half_at(block, 0), half_at(block, 2));
    for group in 0..8 {
        let (scale, min) = scale_and_min(&block[4..16], group);
        out.d.push(d * scale);
        out.m.push(-(d_min * min));
    }
}

fn q4_k(block: &[u8; 144], out: &mut Packed) {
    push_scales(block, out);
    for quants in block[16..].as_chunks::<32>().0 {
        out.quants.extend(nibbles(quants).map(u8::cast_signed));
    }
}

fn q5_k(block: &[u8; 176], out: &mut Packed) {
    push_scales(block, out);
    let high = &block[16..48];
    for (pair, quants) in block[48..].as_chunks::<32>().0.iter().enumerate() {
        let fifth = |group: usize| high.iter().map(move |byte| ((byte >> group) & 1) << 4);
        let fifths = fifth(2 * pair).chain(fifth(2 * pair + 1));
        out.quants.extend(nibbles(quants).zip(fifths).map(|(low, fifth)| (low | fifth).cast_signed()));
    }
}

fn q6_k(block: &[u8; 210], out: &mut Packed) {
    let d = half_at(block, 208);
    out.d.extend(block[192..208].iter().map(|scale| d * f32::from(scale.cast_signed())));
    for part in 0..2 {
        let (low, high) = (&block[64 * part..][..64], &block[128 + 32 * part..][..32]);
        for quarter in 0..4 {
            for l in 0..32 {
                let nibble = (low[l + 32 * (quarter % 2)] >> (4 * (quarter / 2))) & 15;
                out.quants.push((nibble | (((high[l] >> (2 * quarter)) & 3) << 4)).cast_signed() - 32);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_bit_blocks_put_low_nibbles_first() {
        let mut block = vec![0u8; 20];
        block[..2].copy_from_slice(&f16::from_f32(0.5).to_le_bytes());
        block[2..4].copy_from_slice(&f16::from_f32(-1.0).to_le_bytes());
        block[4] = 0x2f;
        let values = Quant::Q4_1.decode(&block).expect("known");
        assert_eq!((values.len(), values[0], values[16], values[1]), (32, 6.5, 0.0, -1.0));
        let values = Quant::Q4_0.decode(&[&block[..2], &block[4..]].concat()).expect("known");
        assert_eq!((values[0], values[16], values[1]), (3.5, -3.0, -4.0));
    }

    #[test]
    fn eight_bit_blocks_are_signed() {
        let mut block = vec![0u8; 34];
        block[..2].copy_from_slice(&f16::from_f32(0.25).to_le_bytes());
        block[2] = 0x80;
        assert_eq!(Quant::Q8_0.decode(&block).expect("known")[..2], [-32.0, 0.0]);
    }

    #[test]
    fn k_blocks_unpack_their_scales() {
        let mut block = vec![0u8; 144];
        block[..2].copy_from_slice(&f16::from_f32(1.0).to_le_bytes());
        block[2..4].copy_from_slice(&f16::from_f32(1.0).to_le_bytes());
        // Group 0: scale 3, minimum 2; group 4: scale 1 | 2 << 4 = 33, minimum 0.
        block[4] = 3 | (2 << 6);
        block[8] = 2;
        block[12] = 1;
        block[16] = 5;
        block[16 + 64] = 7;
        let values = Quant::Q4K.decode(&block).expect("known");
        assert_eq!((values.len(), values[0], values[1], values[128]), (256, 13.0, -2.0, 231.0));
        // Group 1 of 5 bits: the fifth bit of its first value is bit 1 of the first byte of high bits.
        let mut block = vec![0u8; 176];
        block[..2].copy_from_slice(&f16::from_f32(2.0).to_le_bytes());
        block[5] = 1;
        block[16] = 2;
        block[48] = 0x30;
        let values = Quant::Q5K.decode(&block).expect("known");
        assert_eq!((values.len(), values[0], values[32], values[33]), (256, 0.0, 38.0, 0.0));
        let mut block = vec![0u8; 210];
        block[208..].copy_from_slice(&f16::from_f32(0.5).to_le_bytes());
        block[192] = 2;
        block[193] = 0xff;
        block[0] = 1;
        block[128] = 2;
        let values = Quant::Q6K.decode(&block).expect("known");
        assert_eq!((values.len(), values[0], values[1], values[16]), (256, 1.0, -32.0, 16.0));
    }

    #[test]
    fn partial_blocks_have_no_size() {
        assert_eq!((Quant::Q4_1.bytes(64), Quant::Q4_1.bytes(33)), (Some(40), None));
        assert_eq!(Quant::Other(99).decode(&[]), None);
    }
}
