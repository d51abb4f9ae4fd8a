//! Gradient checkpointing (Chen et al. 2016, arXiv:1604.06174): of a forward pass only what entered each block is kept,
//! and the backward pass computes one block at a time again. The gradient is the same bit for bit; a pass takes a third
//! more time and the memory of one block instead of all.

use tch::{Kind, Tensor, no_grad};

use super::{Model, Rope, Sequences, Spans, rms_norm};
use crate::adapter::Lora;
use crate::error::EngineError;

/// What a backward pass begins from.
#[derive(Debug)]
pub struct Kept {
    spans: Spans,
    rope: Rope,
    /// What entered each block, in order.
    entered: Vec<Tensor>,
    /// What entered the final norm.
    last_nd: Tensor,
}

impl Model {
    /// The hidden states of `hidden`, without a graph, and what `backward` needs.
    pub fn hidden_kept(&self, sequences: &Sequences, adapter: &Lora) -> Result<(Tensor, Kept), EngineError> {
        no_grad(|| {
            let (spans, rope, mut x_nd) = self.enter(sequences)?;
            let mut entered = Vec::with_capacity(self.layers.len());
            for index in 0..self.layers.len() {
                let after_nd = self.block(index, (&spans, &rope), &x_nd, Some(adapter))?;
                entered.push(std::mem::replace(&mut x_nd, after_nd));
            }
            let hidden_nd = rms_norm(&x_nd, &self.norm, self.config.norm_eps)?;
            Ok((hidden_nd, Kept { spans, rope, entered, last_nd: x_nd }))
        })
    }

    /// Adds to the tensors of `adapter` the gradient of a loss whose gradient by the hidden states is `gradient_nd`.
    pub fn backward(&self, kept: Kept, adapter: &Lora, gradient_nd: &Tensor) -> Result<(), EngineError> {
        let Kept { spans, rope, mut entered, last_nd } = kept;
        let norm = |x_nd: &Tensor| rms_norm(x_nd, &self.norm, self.config.norm_eps);
        let mut gradient_nd = through(&last_nd, gradient_nd, norm)?;
        drop(last_nd);
        // What entered a block is let go once its gradient is known.
        while let Some(x_nd) = entered.pop() {
            let index = entered.len();
            let block = |x_nd: &Tensor| self.block(index, (&spans, &rope), x_nd, Some(adapter));
            gradient_nd = through(&x_nd, &gradient_nd, block)?;
        }
        Ok(())
    }
}

/// The gradient by `x_nd` of what has the gradient `gradient_nd` by `run(x_nd)`.
fn through(
    x_nd: &Tensor,
    gradient_nd: &Tensor,
    run: impl FnOnce(&Tensor) -> Result<Tensor, EngineError>,
) -> Result<Tensor, EngineError> {
    let leaf_nd = x_nd.f_detach()?.f_set_requires_grad(true)?;
    run(&leaf_nd)?.f_mul(gradient_nd)?.f_sum(Kind::Float)?.f_backward()?;
    Ok(leaf_nd.f_grad()?)
}
