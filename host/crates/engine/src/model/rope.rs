//! Rotary positions (Su et al. 2021, arXiv:2104.09864, by halves): the tables of a model, and the rotation of heads.

use tch::{Device, Kind, Tensor};

use super::ModelConfig;
use crate::error::EngineError;

/// Rotation factors of some positions, `[positions, 1, c]`: broadcast over heads.
#[derive(Debug)]
pub(super) struct Rope {
    pub cos: Tensor,
    pub sin: Tensor,
}

impl Rope {
    /// Rotates `x`, `[.., heads, c]`, whose positions match `cos` and `sin`.
    pub fn rotate(&self, x: &Tensor, head_width: i64) -> Result<Tensor, EngineError> {
        let turned = x.f_roll([head_width / 2], [-1])?.f_mul(&self.sin)?;
        Ok(turned.f_addcmul(x, &self.cos)?)
    }
}

/// (cos, signed sin), each `[context_length, c]`; angles in f64.
pub(super) fn rope_tables(config: &ModelConfig) -> Result<(Tensor, Tensor), EngineError> {
    let positions = Tensor::f_arange(config.context_length as i64, (Kind::Double, Device::Cpu))?;
    let angles = positions.f_outer(&Tensor::f_from_slice(&config.rotations())?)?;
    let (cos, sin) = (angles.f_cos()?.f_to_kind(Kind::Float)?, angles.f_sin()?.f_to_kind(Kind::Float)?);
    Ok((Tensor::f_cat(&[&cos, &cos], 1)?, Tensor::f_cat(&[&sin.f_neg()?, &sin], 1)?))
}
