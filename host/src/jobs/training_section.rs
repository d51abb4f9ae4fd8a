//! The part of the configuration that says how steps train, and the workers that follow from it.
//! `Config` holds it; the trainer's thread gets what it makes.

use reef_engine::train::{Launch, Transport, WORKERS_MAX, Workers};
use reef_engine::{Compute, Precision, TrainingDevice};
use serde::{Deserialize, Serialize};

use crate::error::StartError;

/// The command of a process that trains with a server.
pub const WORKER_COMMAND: &str = "train-worker";

/// The trainer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainingSection {
    /// Share of wall time that training may use while requests run, in (0, 1].
    pub share: f64,
    /// Where it computes: auto, cpu or cuda:N.
    pub device: TrainingDevice,
    /// Numbers of the frozen weights and of what is multiplied with them: f32 or bf16.
    pub precision: Precision,
    /// Positions of one forward and backward pass.
    pub micro_batch_tokens: usize,
    /// Compute each block again on the way back, instead of keeping what it computed.
    pub gradient_checkpointing: bool,
    /// Processes that compute each batch together, the server's included.
    pub workers: usize,
    /// How their gradients add up: tcp or nccl.
    pub reduce: Transport,
    /// Seconds after which a step is aborted.
    pub step_seconds_max: u64,
    /// Samples that one selection sees.
    pub pool_max: u32,
    /// Steps of the weights between two checks that the head still scores on the held-out tasks what it did when it was
    /// released; 0 = never.
    pub recheck_every: u32,
    /// Roll back when a check shows that it does not; else only alarm.
    pub recheck_rollback: bool,
}

impl Default for TrainingSection {
    fn default() -> Self {
        let Compute { device, precision, micro_batch_tokens, gradient_checkpointing } = Compute::default();
        Self {
            share: 0.5,
            device,
            precision,
            micro_batch_tokens,
            gradient_checkpointing,
            workers: 1,
            reduce: Transport::Tcp,
            step_seconds_max: 1800,
            pool_max: 1024,
            recheck_every: 0,
            recheck_rollback: false,
        }
    }
}

impl TrainingSection {
    /// Ranges that types cannot say.
    pub fn check(&self) -> Result<(), String> {
        if !(self.share > 0.0 && self.share <= 1.0) {
            return Err(format!("training.share is {}; use a number over 0 and up to 1", self.share));
        }
        if !(1..=WORKERS_MAX).contains(&self.workers) {
            return Err(format!("training.workers is {}; use a number from 1 to {WORKERS_MAX}", self.workers));
        }
        if self.reduce == Transport::Nccl && self.device == TrainingDevice::Cpu {
            return Err("training.reduce is nccl and training.device is cpu; use a GPU, cuda:N, or tcp".to_owned());
        }
        self.compute().check().map_err(|problem| format!("training.{problem}"))?;
        if self.pool_max == 0 || self.step_seconds_max == 0 {
            return Err("training.pool_max and training.step_seconds_max must be at least 1".to_owned());
        }
        Ok(())
    }

    /// The engine's part.
    pub fn compute(&self) -> Compute {
        Compute {
            device: self.device,
            precision: self.precision,
            micro_batch_tokens: self.micro_batch_tokens,
            gradient_checkpointing: self.gradient_checkpointing,
        }
    }
}

/// Workers of this program: so many processes in all; none where this one is the only.
pub fn workers(count: usize, transport: Transport) -> Result<Option<Workers>, StartError> {
    if count < 2 {
        return Ok(None);
    }
    let program = std::env::current_exe().map_err(|error| {
        StartError::Other(format!("training.workers: the path of this program is unknown: {error}"))
    })?;
    let launch = Launch { program, arguments: vec![WORKER_COMMAND.into()] };
    Workers::new(launch, count, transport)
        .map(Some)
        .map_err(|error| StartError::Config(format!("training.workers: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_named() {
        let check = |section: TrainingSection| section.check();
        let default = TrainingSection::default;
        assert_eq!(check(default()), Ok(()));
        for (section, told) in [
            (TrainingSection { share: 0.0, ..default() }, "training.share"),
            (TrainingSection { workers: 0, ..default() }, "training.workers"),
            (TrainingSection { workers: WORKERS_MAX + 1, ..default() }, "training.workers"),
            (TrainingSection { reduce: Transport::Nccl, ..default() }, "training.reduce"),
            (TrainingSection { micro_batch_tokens: 0, ..default() }, "training.micro_batch_tokens is 0"),
            (TrainingSection { step_seconds_max: 0, ..default() }, "training.step_seconds_max"),
        ] {
            assert!(check(section).expect_err(told).contains(told), "{told}");
        }
        let nccl = TrainingSection { reduce: Transport::Nccl, device: TrainingDevice::Cuda(1), ..default() };
        assert_eq!(check(nccl), Ok(()));
        assert!(workers(1, Transport::Tcp).expect("alone").is_none());
        assert!(workers(2, Transport::Tcp).expect("two").is_some());
    }
}
