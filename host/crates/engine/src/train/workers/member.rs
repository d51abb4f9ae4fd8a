//! A worker of rank 1 or more: a process that makes the calls of the first rank and computes its part of each.
//! It is started with instructions on standard input, reads the model, connects, and ends when the first rank does. It
//! serves nobody and keeps nothing.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::control::TrainControl;
use super::super::nccl::Nccl;
use super::super::reduce::Reduce;
use super::super::trainer::{Setting, Trainer};
use super::call::{Call, Files};
use super::link::{Link, SILENCE_MAX};
use super::wire::{Kind, Wire};
use crate::checkpoint::{Checkpoint, unsupported};
use crate::compute::Compute;
use crate::engine::ServingLoad;
use crate::error::EngineError;
use crate::model::Model;

/// Bytes of the instructions.
const INSTRUCTIONS_BYTES_MAX: u64 = 65_536;
/// Time that the first rank has to take a connection on this machine.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// What a worker is told when it starts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Instructions {
    /// Where the first rank listens.
    pub address: SocketAddr,
    /// What proves that a connection is this worker's.
    pub secret: String,
    pub rank: usize,
    pub world: usize,
    /// Threads of a pass; all ranks have as many, because sums depend on it.
    pub threads: i32,
    /// How it computes.
    pub compute: Compute,
    /// The base model, its SHA-256 and the tokens it may read at once.
    pub model: PathBuf,
    pub sha256: String,
    pub context: usize,
}

/// The first frame of a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub secret: String,
    pub rank: usize,
    pub version: String,
}

/// Works until the first rank ends; what a process that is started as a worker does.
///
/// # Errors
/// The instructions or the model cannot be read, or the first rank cannot be reached.
pub fn work() -> Result<(), EngineError> {
    let instructions = read_instructions()?;
    let checkpoint = Checkpoint::open(&instructions.model)?;
    if checkpoint.sha256() != instructions.sha256 {
        return Err(unsupported(&instructions.model, "it was replaced while the server ran; restart the server"));
    }
    let mut shape = checkpoint.config().clone();
    shape.context_length = shape.context_length.min(instructions.context);
    join(&instructions, Arc::new(Model::load(&checkpoint, shape, instructions.compute)?))
}

/// The line on standard input.
pub(super) fn read_instructions() -> Result<Instructions, EngineError> {
    let wrong = |problem: String| {
        EngineError::Invalid(format!(
            "instructions of a training worker: {problem}; `reef serve` starts workers itself"
        ))
    };
    let mut line = String::new();
    let read = std::io::Read::take(std::io::stdin().lock(), INSTRUCTIONS_BYTES_MAX).read_line(&mut line);
    read.map_err(|error| wrong(error.to_string()))?;
    serde_json::from_str(&line).map_err(|error| wrong(error.to_string()))
}

/// Connects with a model that was read, and works until the first rank ends.
pub(super) fn join(instructions: &Instructions, model: Arc<Model>) -> Result<(), EngineError> {
    let Instructions { rank, world, threads, .. } = *instructions;
    let unreachable = |error| EngineError::Worker { rank: 0, problem: format!("it cannot be reached: {error}") };
    let stream = TcpStream::connect_timeout(&instructions.address, CONNECT_MAX).map_err(unreachable)?;
    let mut wire = Wire::new(stream, 0, SILENCE_MAX)?;
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let hello = serde_json::to_vec(&Hello { secret: instructions.secret.clone(), rank, version });
    wire.send(Kind::Hello, &[&hello.map_err(|error| EngineError::Invalid(error.to_string()))?])?;
    let link = Link::new((rank, world), vec![wire], SILENCE_MAX);
    let mut member = Member { model, threads, link, group: None, trainers: BTreeMap::new() };
    while let Some((call, files)) = member.link.next_call()? {
        if let Err(error) = member.make(call, &files) {
            member.link.part(&error);
            return Err(error);
        }
    }
    Ok(())
}

struct Member {
    model: Arc<Model>,
    threads: i32,
    link: Link,
    group: Option<Arc<Mutex<Nccl>>>,
    trainers: BTreeMap<u32, Trainer>,
}

impl Member {
    fn make(&mut self, call: Call, files: &Files) -> Result<(), EngineError> {
        match call {
            Call::Group { id } => {
                let group = Nccl::join(&id, self.link.place(), self.model.device())?;
                self.group = Some(Arc::new(Mutex::new(group)));
                self.link.settle(0.0, &TrainControl::default())?;
            }
            Call::Open { trainer, fresh, release } => {
                let reduce = Reduce::over(self.link.clone(), trainer, self.group.clone());
                let (serving, control) = (Arc::new(ServingLoad::default()), TrainControl::default());
                let setting = Setting { serving, threads: self.threads, release, reduce, control };
                self.trainers.insert(trainer, Trainer::over(Arc::clone(&self.model), setting, &fresh, files)?);
            }
            Call::Policy { trainer } => {
                self.trainer(trainer)?.add_policy(files)?;
            }
            Call::Terms { trainer, items, terms, optimizer } => {
                let items: Vec<_> = items.iter().collect();
                let trainer = self.trainer(trainer)?;
                match optimizer {
                    Some(optimizer) => trainer.train(&items, &terms, &optimizer)?,
                    None => trainer.forward_backward(&items, &terms)?,
                };
            }
            Call::Backward { trainer, items, gradients } => {
                let items: Vec<_> = items.iter().collect();
                self.trainer(trainer)?.backward(&items, &gradients)?;
            }
            Call::Step { trainer, optimizer } => {
                self.trainer(trainer)?.optimizer_step(&optimizer)?;
            }
            Call::Ema { trainer, rate } => self.trainer(trainer)?.update_ema(rate)?,
            Call::Close { trainer } => drop(self.trainers.remove(&trainer)),
        }
        Ok(())
    }

    fn trainer(&mut self, trainer: u32) -> Result<&mut Trainer, EngineError> {
        let unknown = || EngineError::Invalid(format!("trainer {trainer} was not opened in this worker"));
        self.trainers.get_mut(&trainer).ok_or_else(unknown)
    }
}
