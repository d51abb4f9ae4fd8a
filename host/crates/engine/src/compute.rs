//! How training computes: where, in which numbers, how many tokens at once, and what it keeps for the backward pass.
//! The engine reads the weights that train accordingly; workers are told the same.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tch::Kind;

use crate::device::TrainingDevice;

/// Tokens of a micro-batch that are accepted.
const MICRO_BATCH_TOKENS: std::ops::RangeInclusive<usize> = 16..=1 << 20;

/// Numbers of the frozen weights and of what is multiplied with them. Adapters, moments, norms, softmax and losses are f32
/// in any case.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32 bits.
    #[default]
    F32,
    /// 16 bits with the range of f32 and 8 bits of mantissa: half the memory, and faster where the processor has it.
    Bf16,
}

impl Precision {
    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::F32 => Kind::Float,
            Self::Bf16 => Kind::BFloat16,
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        })
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = [Self::F32, Self::Bf16].into_iter().find(|known| known.to_string() == text);
        known.ok_or_else(|| format!("'{text}' is no precision; use f32 or bf16"))
    }
}

/// What is set for all passes of training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compute {
    /// Where.
    pub device: TrainingDevice,
    /// In which numbers.
    pub precision: Precision,
    /// Positions of one forward and backward pass, and so of the longest time that serving waits for a core. One longer
    /// sample passes alone.
    pub micro_batch_tokens: usize,
    /// Keep only what enters each block, and compute the block again on the way back.
    pub gradient_checkpointing: bool,
}

impl Default for Compute {
    /// 256 positions fill the matrix kernels of two cores: twice as many took no measurably less time and 0.9 GB more
    /// with the default model.
    fn default() -> Self {
        Self {
            device: TrainingDevice::Cpu,
            precision: Precision::F32,
            micro_batch_tokens: 256,
            gradient_checkpointing: false,
        }
    }
}

impl Compute {
    /// Ranges that types cannot say.
    ///
    /// # Errors
    /// The value and what may stand there.
    pub fn check(&self) -> Result<(), String> {
        if !MICRO_BATCH_TOKENS.contains(&self.micro_batch_tokens) {
            let (least, most) = (MICRO_BATCH_TOKENS.start(), MICRO_BATCH_TOKENS.end());
            return Err(format!(
                "micro_batch_tokens is {}; use a number from {least} to {most}",
                self.micro_batch_tokens
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_named() {
        assert_eq!("bf16".parse(), Ok(Precision::Bf16));
        assert_eq!("f16".parse::<Precision>().expect_err("unknown"), "'f16' is no precision; use f32 or bf16");
        for micro_batch_tokens in [0, 15, usize::MAX] {
            let problem = Compute { micro_batch_tokens, ..Compute::default() }.check().expect_err("out of range");
            assert!(problem.contains("micro_batch_tokens") && problem.contains("16 to 1048576"), "{problem}");
        }
        assert_eq!(Compute::default().check(), Ok(()));
    }
}
