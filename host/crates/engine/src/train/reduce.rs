//! How the gradient of a step becomes the sum of what several workers computed, each on its part of the batch.
//! The trainer calls it once a pass. All ranks hold the same adapter and optimizer and take the same step on the same
//! sum, so nothing but gradients travels between them. Alone, it does nothing.

use tch::Tensor;

use super::control::TrainControl;
use super::workers::{Call, Link};
use crate::error::EngineError;

/// What joins a trainer to its equals in other workers.
#[derive(Debug)]
pub(super) enum Reduce {
    /// Nobody.
    Alone,
    /// Connections over TCP on this machine: the first rank adds up in the order of the ranks and sends the sum back.
    Loopback {
        /// To the others.
        link: Link,
        /// Number of this trainer in all of them.
        trainer: u32,
    },
}

impl Reduce {
    /// Rank of this worker, and how many there are.
    pub fn place(&self) -> (usize, usize) {
        match self {
            Self::Alone => (0, 1),
            Self::Loopback { link, .. } => link.place(),
        }
    }

    /// Makes each tensor the sum of all workers' tensors at its place; equal in all of them, bit for bit.
    ///
    /// # Errors
    /// `Worker` when another one ended, was silent for too long or sent what cannot be; `Cancelled`. The tensors are
    /// then of no use.
    pub fn sum(&mut self, tensors: &mut [Tensor], control: &TrainControl) -> Result<(), EngineError> {
        match self {
            Self::Alone => Ok(()),
            Self::Loopback { link, .. } => link.sum(tensors, control),
        }
    }

    /// The first rank tells the others what it is about to do; they do the same.
    pub fn announce(&self, call: impl FnOnce(u32) -> Call, files: &[(String, Vec<u8>)]) -> Result<(), EngineError> {
        match self {
            Self::Alone => Ok(()),
            Self::Loopback { link, trainer } => link.announce(|| call(*trainer), files),
        }
    }

    /// Ends a call: all ranks must have got the same gradient norm, bit for bit.
    pub fn settle(&self, norm: f64, control: &TrainControl) -> Result<(), EngineError> {
        match self {
            Self::Alone => Ok(()),
            Self::Loopback { link, .. } => link.settle(norm, control),
        }
    }

    /// Gives up the others after a failure: whether they are in step is not known any more.
    pub fn part(&self, why: &EngineError) {
        match self {
            Self::Alone => {}
            Self::Loopback { link, .. } => link.part(why),
        }
    }

    /// Refuses when the others were given up.
    pub fn check(&self) -> Result<(), EngineError> {
        match self {
            Self::Alone => Ok(()),
            Self::Loopback { link, .. } => link.check(),
        }
    }
}
