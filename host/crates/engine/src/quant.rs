//! Encodings of weights and how they become f32.
//! `gguf.rs` asks for sizes, `checkpoint.rs` for values. Blocks follow ggml-org/ggml, src/ggml-common.h; every
//! value is exactly what the reference computes in f32.

use half::{bf16, f16};

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
    /// 256 values in 16 groups with 8-bit scales.
    Q6K,
    /// Not known here; the ggml code.
    Other(u32),
}

/// What `Quant` decodes, for messages.
pub(crate) const SUPPORTED: &str = "F32, F16, BF16, Q4_0, Q4_1, Q8_0, Q4_K and Q6_K";

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
        let (values, block_bytes) = self.block();
        let mut out = Vec::with_capacity(bytes.len() / block_bytes.max(1) as usize * values as usize);
        match self {
            Self::F32 => out.extend(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b))),
            Self::F16 => out.extend(bytes.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b).to_f32())),
            Self::Bf16 => out.extend(bytes.as_chunks::<2>().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32())),
            Self::Q4_0 => bytes.as_chunks::<18>().0.iter().for_each(|block| q4_0(block, &mut out)),
            Self::Q4_1 => bytes.as_chunks::<20>().0.iter().for_each(|block| q4_1(block, &mut out)),
            Self::Q8_0 => bytes.as_chunks::<34>().0.iter().for_each(|block| q8_0(block, &mut out)),
            Self::Q4K => bytes.as_chunks::<144>().0.iter().for_each(|block| q4_k(block, &mut out)),
            Self::Q6K => bytes.as_chunks::<210>().0.iter().for_each(|block| q6_k(block, &mut out)),
            Self::Other(_) => return None,
        }
        Some(out)
    }
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Low nibbles are the first half of a block, high nibbles the second.
fn nibbles(bytes: &[u8]) -> impl Iterator<Item = u8> + '_ {
    bytes.iter().map(|byte| byte & 15).chain(bytes.iter().map(|byte| byte >> 4))
}

fn q4_0(block: &[u8; 18], out: &mut Vec<f32>) {
    let d = half_at(block, 0);
    out.extend(nibbles(&block[2..]).map(|q| d * (f32::from(q) - 8.0)));
}

fn q4_1(block: &[u8; 20], out: &mut Vec<f32>) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    out.extend(nibbles(&block[4..]).map(|q| d * f32::from(q) + m));
}

fn q8_0(block: &[u8; 34], out: &mut Vec<f32>) {
    let d = half_at(block, 0);
    out.extend(block[2..].iter().map(|q| d * f32::from(*q as i8)));
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

fn q4_k(block: &[u8; 144], out: &mut Vec<f32>) {
    let (d, d_min) = (half_at(block, 0), half_at(block, 2));
    let packed = &block[4..16];
    for (pair, quants) in block[16..].as_chunks::<32>().0.iter().enumerate() {
        let (scale, min) = scale_and_min(packed, 2 * pair);
        out.extend(quants.iter().map(|q| d * scale * f32::from(q & 15) - d_min * min));
        let (scale, min) = scale_and_min(packed, 2 * pair + 1);
        out.extend(quants.iter().map(|q| d * scale * f32::from(q >> 4) - d_min * min));
    }
}

fn q6_k(block: &[u8; 210], out: &mut Vec<f32>) {
    let d = half_at(block, 208);
    for part in 0..2 {
        let (low, high) = (&block[64 * part..][..64], &block[128 + 32 * part..][..32]);
        let scales = &block[192 + 8 * part..][..8];
        for quarter in 0..4 {
            for l in 0..32 {
                let nibble = (low[l + 32 * (quarter % 2)] >> (4 * (quarter / 2))) & 15;
                let q = i32::from(nibble | (((high[l] >> (2 * quarter)) & 3) << 4)) - 32;
                out.push(d * f32::from(scales[l / 16 + 2 * quarter] as i8) * q as f32);
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
