//! The adapters that one trainer knows: as it is now, as it was when the trainer opened, their moving average, and
//! those that the caller added to compare with.
//! The trainer moves the first through its optimizer; the passes read all of them. The moving average is a file of
//! its own in the checkpoint, there only once it was updated; added adapters are no part of a checkpoint.

use serde::{Deserialize, Serialize};
use tch::{Tensor, no_grad};

use super::state;
use crate::adapter::Lora;
use crate::error::EngineError;

/// Whose distribution a forward pass reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Policy {
    /// The trainer's adapter as it is now.
    Current,
    /// The frozen base model.
    Base,
    /// The exponential moving average of the trainer's adapter; before its first update the adapter at `open`.
    Ema,
    /// The trainer's adapter as it was at `open`.
    Start,
    /// What `Trainer::add_policy` added, counted from 0.
    Added(usize),
}

/// The adapters behind `Policy`.
#[derive(Debug)]
pub(super) struct Policies {
    /// The adapter that learns; its tensors carry the gradients.
    pub current: Lora,
    /// The adapter as it was when the trainer was opened.
    pub start: Lora,
    /// None before the first update: then it equals `start`.
    ema: Option<Lora>,
    /// None: the base model.
    added: Vec<Option<Lora>>,
}

impl Policies {
    /// Starts from an adapter and from the bytes of `ema.safetensors`, if there are any.
    pub fn new(start: Lora, ema: Option<&[u8]>) -> Result<Self, EngineError> {
        let ema = match ema {
            Some(bytes) => {
                let ema = start.duplicate()?;
                state::read_ema(bytes, &ema)?;
                Some(ema)
            }
            None => None,
        };
        Ok(Self { current: start.duplicate()?, start, ema, added: Vec::new() })
    }

    /// Every tensor that learns, in its fixed order, ready for gradients. They share storage with `current`.
    pub fn parameters(&self) -> Result<Vec<Tensor>, EngineError> {
        let ready = |parameter: &Tensor| Ok(parameter.f_set_requires_grad(true)?);
        self.current.parameters().into_iter().map(ready).collect()
    }

    /// What `which` adds to the base model.
    ///
    /// # Errors
    /// `Invalid` for a policy that was never added: it is not the base model.
    pub fn adapter(&self, which: Policy) -> Result<Option<&Lora>, EngineError> {
        Ok(match which {
            Policy::Current => Some(&self.current),
            Policy::Base => None,
            Policy::Ema => Some(self.ema.as_ref().unwrap_or(&self.start)),
            Policy::Start => Some(&self.start),
            Policy::Added(index) => {
                let unknown = || EngineError::Invalid(format!("policy {index} was not added to this trainer"));
                self.added.get(index).ok_or_else(unknown)?.as_ref()
            }
        })
    }

    /// Keeps an adapter to compare with; none is the base model.
    pub fn add(&mut self, adapter: Option<Lora>) -> Policy {
        self.added.push(adapter);
        Policy::Added(self.added.len() - 1)
    }

    /// ema ← (1 − rate)·ema + rate·current, in f32.
    ///
    /// # Errors
    /// `Invalid` for a rate outside [0, 1]; the average is then as it was.
    pub fn update_ema(&mut self, rate: f64) -> Result<(), EngineError> {
        check_rate(rate)?;
        let moved = self.ema.as_ref().unwrap_or(&self.start).duplicate()?;
        no_grad(|| {
            for (ema, current) in moved.parameters().into_iter().zip(self.current.parameters()) {
                let mut ema = ema.shallow_clone();
                let _ = ema.f_mul_scalar_(1.0 - rate)?.f_add_(&current.f_mul_scalar(rate)?)?;
            }
            Ok::<(), EngineError>(())
        })?;
        self.ema = Some(moved);
        Ok(())
    }

    /// The bytes of `ema.safetensors`, if the average was ever updated.
    pub fn ema_file(&self) -> Result<Option<Vec<u8>>, EngineError> {
        self.ema.as_ref().map(state::write_ema).transpose()
    }
}

/// Refuses a rate outside [0, 1].
pub(super) fn check_rate(rate: f64) -> Result<(), EngineError> {
    if (0.0..=1.0).contains(&rate) {
        Ok(())
    } else {
        Err(EngineError::Invalid(format!("rate {rate}: it must be in [0, 1]")))
    }
}
