//! How the gradient of a step becomes the sum of what several workers computed, each on its part of the batch.
//! The trainer calls it once a pass. All ranks hold the same adapter and optimizer and take the same step on the same
//! sum, so nothing but gradients travels between them. Alone, it does nothing.

use std::sync::{Arc, Mutex, PoisonError};

use tch::Tensor;

use super::control::TrainControl;
use super::nccl::Nccl;
use super::workers::{Call, Link};
use crate::error::EngineError;

/// What joins a trainer to its equals in other workers.
#[derive(Debug, Clone)]
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
    /// The same connections, and NCCL for the sums, between the GPUs of the ranks.
    Nccl {
        /// To the others.
        link: Link,
        /// Number of this trainer in all of them.
        trainer: u32,
        /// All trainers of a process share one.
        group: Arc<Mutex<Nccl>>,
    },
}

impl Reduce {
    /// Over the connections, or by NCCL where there is a group.
    pub fn over(link: Link, trainer: u32, group: Option<Arc<Mutex<Nccl>>>) -> Self {
        match group {
            None => Self::Loopback { link, trainer },
            Some(group) => Self::Nccl { link, trainer, group },
        }
    }

    fn link(&self) -> Option<(&Link, u32)> {
        match self {
            Self::Alone => None,
            Self::Loopback { link, trainer } | Self::Nccl { link, trainer, .. } => Some((link, *trainer)),
        }
    }

    /// Rank of this worker, and how many there are.
    pub fn place(&self) -> (usize, usize) {
        self.link().map_or((0, 1), |(link, _)| link.place())
    }

    /// Makes each tensor the sum of all workers' tensors at its place; equal in all of them, bit for bit.
    ///
    /// # Errors
    /// `Worker` when another one ended, was silent for too long or sent what cannot be; `Cancelled`. The tensors are
    /// then of no use.
    pub fn sum(&self, tensors: &mut [Tensor], control: &TrainControl) -> Result<(), EngineError> {
        match self {
            Self::Alone => Ok(()),
            Self::Loopback { link, .. } => link.sum(tensors, control),
            Self::Nccl { link, group, .. } => {
                // A sum of nothing: all ranks are there and in step, which NCCL would wait for without an end.
                link.sum(&mut [], control)?;
                group.lock().unwrap_or_else(PoisonError::into_inner).sum(tensors)
            }
        }
    }

    /// The first rank tells the others what it is about to do; they do the same.
    pub fn announce(&self, call: impl FnOnce(u32) -> Call, files: &[(String, Vec<u8>)]) -> Result<(), EngineError> {
        self.link().map_or(Ok(()), |(link, trainer)| link.announce(|| call(trainer), files))
    }

    /// Ends a call: all ranks must have got the same gradient norm, bit for bit.
    pub fn settle(&self, norm: f64, control: &TrainControl) -> Result<(), EngineError> {
        self.link().map_or(Ok(()), |(link, _)| link.settle(norm, control))
    }

    /// Gives up the others after a failure: whether they are in step is not known any more.
    pub fn part(&self, why: &EngineError) {
        if let Some((link, _)) = self.link() {
            link.part(why);
        }
    }

    /// Refuses when the others were given up.
    pub fn check(&self) -> Result<(), EngineError> {
        self.link().map_or(Ok(()), |(link, _)| link.check())
    }
}
