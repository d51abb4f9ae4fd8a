//! The trainer's gradient: what its calls have added up since the last step.
//! It lives in the gradients of the parameters, where the optimizer reads it. A call that fails leaves it as it
//! was, bit for bit, and a gradient that is not finite never becomes part of it.

use tch::{Kind, Tensor, no_grad};

use super::optimizer::{gradient_norm, zero_gradients};
use crate::error::EngineError;

/// Gradients of a fixed list of parameters.
#[derive(Debug)]
pub(super) struct Gradient {
    /// Share storage and gradients with the tensors of the adapter.
    parameters: Vec<Tensor>,
}

/// What one call added.
#[derive(Debug, Clone, Copy)]
pub(super) struct Norms {
    /// L2 norm of the gradient of the call alone.
    pub added: f64,
    /// L2 norm of everything since the last step.
    pub sum: f64,
}

impl Gradient {
    /// A gradient of 0.
    pub fn new(parameters: Vec<Tensor>) -> Self {
        Self { parameters }
    }

    /// L2 norm of everything since the last step.
    pub fn norm(&self) -> Result<f64, EngineError> {
        gradient_norm(&self.parameters)
    }

    /// Forgets it.
    pub fn clear(&mut self) -> Result<(), EngineError> {
        zero_gradients(&self.parameters)
    }

    /// Gives every parameter a gradient, if only of 0: those of several workers are added up one by one.
    pub fn make_whole(&mut self) -> Result<(), EngineError> {
        for parameter in &self.parameters {
            if !parameter.f_grad()?.defined() {
                parameter.f_mul_scalar(0.0)?.f_sum(Kind::Float)?.f_backward()?;
            }
        }
        self.clear()
    }

    /// Adds what `pass` accumulates in the parameters.
    pub fn add<T>(
        &mut self,
        pass: impl FnOnce(&[Tensor]) -> Result<T, EngineError>,
    ) -> Result<(T, Norms), EngineError> {
        self.apart(|gradient, before| {
            let value = pass(&gradient.parameters)?;
            let added = gradient.finite_norm()?;
            for (mut sum, before) in gradient.tensors()?.into_iter().zip(before) {
                if before.defined() && sum.defined() {
                    let _ = no_grad(|| sum.f_add_(before))?;
                }
            }
            Ok((value, Norms { added, sum: gradient.finite_norm()? }))
        })
    }

    /// Steps on what `pass` accumulates, from a gradient of 0 and to a gradient of 0; with its norm, which `step`
    /// gets too. No step is taken on a gradient of exactly 0.
    pub fn step_on<T>(
        &mut self,
        pass: impl FnOnce(&[Tensor]) -> Result<T, EngineError>,
        step: impl FnOnce(&[Tensor], f64) -> Result<(), EngineError>,
    ) -> Result<(T, f64), EngineError> {
        self.apart(|gradient, _| {
            let value = pass(&gradient.parameters)?;
            Ok((value, gradient.step(step)?))
        })
    }

    /// Steps on everything since the last step; the gradient is then 0. The norm before.
    pub fn step(&mut self, step: impl FnOnce(&[Tensor], f64) -> Result<(), EngineError>) -> Result<f64, EngineError> {
        let norm = self.finite_norm()?;
        if norm > 0.0 {
            step(&self.parameters, norm)?;
        }
        self.clear()?;
        Ok(norm)
    }

    /// Runs `work` on a gradient of 0, beside copies of what it was before, which come back if `work` fails.
    fn apart<T>(
        &mut self,
        work: impl FnOnce(&mut Self, &[Tensor]) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let copy = |gradient: Tensor| if gradient.defined() { gradient.f_detach_copy() } else { Ok(Tensor::new()) };
        let before = self.tensors()?.into_iter().map(copy).collect::<Result<Vec<_>, _>>()?;
        self.clear()?;
        let outcome = work(self, &before);
        if outcome.is_err() {
            self.clear()?;
            for (mut gradient, before) in self.tensors()?.into_iter().zip(&before) {
                if before.defined() {
                    no_grad(|| gradient.f_copy_(before))?;
                }
            }
        }
        outcome
    }

    fn finite_norm(&self) -> Result<f64, EngineError> {
        match self.norm()? {
            norm if norm.is_finite() => Ok(norm),
            norm => Err(EngineError::Invalid(format!(
                "gradient: its norm is {norm}; lower the advantages or factors, or bound the ratio"
            ))),
        }
    }

    /// The gradient of each parameter; undefined before the first pass that reaches it.
    fn tensors(&self) -> Result<Vec<Tensor>, EngineError> {
        Ok(self.parameters.iter().map(Tensor::f_grad).collect::<Result<_, _>>()?)
    }

    /// The gradient, all parameters side by side.
    #[cfg(test)]
    pub fn flat(&self) -> Vec<f32> {
        let read = |parameter: &Tensor| match parameter.grad() {
            gradient if gradient.defined() => gradient.flatten(0, -1),
            _ => parameter.detach().zeros_like().flatten(0, -1),
        };
        let flat: Vec<Tensor> = self.parameters.iter().map(read).collect();
        Vec::<f32>::try_from(Tensor::cat(&flat, 0)).expect("f32")
    }
}
