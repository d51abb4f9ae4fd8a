//! Workers: processes that compute parts of each batch beside the first rank, which is the one that owns the step.
//! Whoever trains holds a `Workers` and opens trainers with it; they are started when a trainer is opened first, on this
//! machine, and again after one has failed. A failed worker fails the call that it was needed for, and nothing else.

mod call;
mod link;
mod member;
mod wire;

use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tch::Device;

use super::control::TrainControl;
use super::nccl::{self, Nccl};
use super::reduce::Reduce;
use crate::compute::Compute;
use crate::device::TrainingDevice;
use crate::engine::Engine;
use crate::error::EngineError;
use link::SILENCE_MAX;
use member::{Hello, Instructions};
use wire::{Kind, Patience, Wire};

pub(super) use call::{Call, bare};
pub(super) use link::Link;
pub use member::work;

/// Ranks of one machine; more would only wait for each other's memory.
pub const WORKERS_MAX: usize = 64;

/// Time that a worker has from its start until it has read the model and connected.
const START_MAX: Duration = Duration::from_secs(600);
/// Time that a connection has to say who it is.
const HELLO_MAX: Duration = Duration::from_secs(5);
/// Bytes of that.
const HELLO_BYTES_MAX: u64 = 4_096;
/// How often a new worker is looked for.
const LOOK: Duration = Duration::from_millis(20);
/// Bytes of a secret.
const SECRET_BYTES: usize = 32;

/// How a worker's process is started; it must call `work`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

/// How gradients travel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Over TCP on this machine.
    #[default]
    Tcp,
    /// By NCCL, between GPUs.
    Nccl,
}

/// The workers of one owner of steps.
#[derive(Debug)]
pub struct Workers {
    launch: Launch,
    world: usize,
    transport: Transport,
    crew: Option<Crew>,
}

/// Workers that run.
#[derive(Debug)]
struct Crew {
    link: Link,
    group: Option<Arc<Mutex<Nccl>>>,
    children: Vec<Child>,
    /// Trainers that were opened.
    opened: u32,
}

impl Crew {
    /// Itself, while nobody was given up and all processes run.
    fn alive(mut self) -> Option<Self> {
        let run = self.children.iter_mut().all(|child| matches!(child.try_wait(), Ok(None)));
        (run && self.link.check().is_ok()).then_some(self)
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for child in &mut self.children {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Workers {
    /// `world` ranks, this process included, joined by `transport`; none of them is started yet.
    ///
    /// # Errors
    /// `Invalid` for less than two or more than `WORKERS_MAX`.
    pub fn new(launch: Launch, world: usize, transport: Transport) -> Result<Self, EngineError> {
        if !(2..=WORKERS_MAX).contains(&world) {
            return Err(EngineError::Invalid(format!("{world} training workers; use 2 to {WORKERS_MAX}")));
        }
        Ok(Self { launch, world, transport, crew: None })
    }

    /// Threads of a pass of each rank, when `all` are to be shared.
    pub(super) fn threads(&self, all: usize) -> i32 {
        i32::try_from((all / self.world).max(1)).unwrap_or(i32::MAX)
    }

    /// What joins the next trainer to workers with the model of `engine`, which are started if none run.
    pub(super) fn join(&mut self, engine: &Engine, control: &TrainControl) -> Result<Reduce, EngineError> {
        let (info, threads) = (engine.info(), self.threads(engine.threads()));
        let (model, sha256, context) = (engine.model_path().to_owned(), info.sha256.clone(), info.context_length);
        let here = engine.model()?;
        let device = match here.device() {
            Device::Cuda(index) => TrainingDevice::Cuda(index),
            _ => TrainingDevice::Cpu,
        };
        let compute = Compute { device, ..here.compute() };
        self.join_with(
            |instructions| Instructions { model, sha256, context, threads, compute, ..instructions },
            control,
        )
    }

    /// The same with what `complete` makes of the instructions.
    fn join_with(
        &mut self,
        complete: impl FnOnce(Instructions) -> Instructions,
        control: &TrainControl,
    ) -> Result<Reduce, EngineError> {
        let crew = match self.crew.take().and_then(Crew::alive) {
            Some(crew) => crew,
            None => self.start(complete, control)?,
        };
        let crew = self.crew.insert(crew);
        crew.opened += 1;
        Ok(Reduce::over(crew.link.clone(), crew.opened, crew.group.clone()))
    }

    fn start(
        &self,
        complete: impl FnOnce(Instructions) -> Instructions,
        control: &TrainControl,
    ) -> Result<Crew, EngineError> {
        let here = |error: std::io::Error| failed(0, format!("it cannot listen for others on this machine: {error}"));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(here)?;
        listener.set_nonblocking(true).map_err(here)?;
        let instructions = complete(Instructions {
            address: listener.local_addr().map_err(here)?,
            secret: secret().map_err(here)?,
            rank: 0,
            world: self.world,
            threads: 1,
            compute: Compute::default(),
            model: PathBuf::new(),
            sha256: String::new(),
            context: 0,
        });
        // What is missing is told before anything is started.
        let group = match self.transport {
            Transport::Nccl => Some(nccl::new_id()?),
            Transport::Tcp => None,
        };
        let link = Link::new((0, self.world), Vec::new(), SILENCE_MAX);
        // Whatever fails below ends the processes that were started before.
        let mut crew = Crew { link, group: None, children: Vec::new(), opened: 0 };
        for rank in 1..self.world {
            let device = instructions.compute.device.of_rank(rank);
            let compute = Compute { device, ..instructions.compute };
            crew.children.push(self.spawn(&Instructions { rank, compute, ..instructions.clone() })?);
        }
        let wires = accept(&listener, (&instructions, &mut crew.children), control)?;
        crew.link = Link::new((0, self.world), wires, SILENCE_MAX);
        if let Some(id) = group {
            let device = instructions.compute.device.ready()?;
            crew.link.announce(|| Call::Group { id: id.clone() }, &[])?;
            crew.group = Some(Arc::new(Mutex::new(Nccl::join(&id, (0, self.world), device)?)));
            crew.link.settle(0.0, control)?;
        }
        Ok(crew)
    }

    fn spawn(&self, instructions: &Instructions) -> Result<Child, EngineError> {
        let Launch { program, arguments } = &self.launch;
        let wrong = |error: std::io::Error| {
            failed(instructions.rank, format!("its program {} cannot be started: {error}", program.display()))
        };
        let mut child =
            Command::new(program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().map_err(wrong)?;
        let mut line = serde_json::to_vec(instructions).map_err(|error| EngineError::Invalid(error.to_string()))?;
        line.push(b'\n');
        if let Some(stdin) = &mut child.stdin
            && let Err(error) = stdin.write_all(&line)
        {
            let _ = child.kill();
            let _ = child.wait();
            return Err(wrong(error));
        }
        Ok(child)
    }
}

/// Takes the connections of all workers, in the order of their ranks.
fn accept(
    listener: &TcpListener,
    (instructions, children): (&Instructions, &mut [Child]),
    control: &TrainControl,
) -> Result<Vec<Wire>, EngineError> {
    let mut wires: Vec<Option<Wire>> = children.iter().map(|_| None).collect();
    let began = Instant::now();
    while let Some(missing) = wires.iter().position(Option::is_none) {
        control.check()?;
        match listener.accept() {
            Ok((stream, _)) => {
                // Whoever is no worker is turned away, and not waited for again.
                if let Some(wire) = welcome(stream, instructions)
                    && let Some(place) = wires.get_mut(wire.peer - 1)
                {
                    *place = Some(wire);
                }
                continue;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(failed(0, format!("it cannot take a connection: {error}"))),
        }
        for (rank, child) in (1..).zip(children.iter_mut()) {
            if let Ok(Some(status)) = child.try_wait() {
                return Err(failed(rank, format!("it ended ({status}) before it was ready; the log says why")));
            }
        }
        if began.elapsed() > START_MAX {
            let seconds = START_MAX.as_secs();
            return Err(failed(
                missing + 1,
                format!("it was not ready within {seconds} s; use fewer training.workers"),
            ));
        }
        std::thread::sleep(LOOK);
    }
    Ok(wires.into_iter().flatten().collect())
}

/// The connection of a worker that knows the secret and is of this build.
fn welcome(stream: TcpStream, instructions: &Instructions) -> Option<Wire> {
    let patience = Patience { silence_max: HELLO_MAX, check: &|| Ok(()) };
    let mut wire = Wire::new(stream, 0, SILENCE_MAX).ok()?;
    let hello = wire.expect(Kind::Hello, HELLO_BYTES_MAX, &patience).ok()?;
    let hello: Hello = serde_json::from_slice(&hello).ok()?;
    wire.peer = hello.rank;
    let known = hello.secret == instructions.secret && (1..instructions.world).contains(&hello.rank);
    (known && hello.version == env!("CARGO_PKG_VERSION")).then_some(wire)
}

fn secret() -> std::io::Result<String> {
    let mut bytes = [0; SECRET_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn failed(rank: usize, problem: String) -> EngineError {
    EngineError::Worker { rank, problem }
}

#[cfg(test)]
pub(super) mod testing {
    //! What tests reach into.

    use std::net::TcpStream;
    use std::sync::Arc;
    use std::time::Duration;

    use super::super::control::TrainControl;
    use super::super::reduce::Reduce;
    use super::super::trainer::Setting;
    use super::member::{Instructions, join, read_instructions};
    use super::wire::Wire;
    use super::{Link, Workers};
    use crate::error::EngineError;
    use crate::model::Model;

    /// What `work` does, with a model that needs no file.
    pub(crate) fn member(model: Arc<Model>) -> Result<(), EngineError> {
        join(&read_instructions()?, model)
    }

    /// Connections to workers whose model needs no file.
    pub(crate) fn star(workers: &mut Workers, threads: i32, control: &TrainControl) -> Result<Reduce, EngineError> {
        workers.join_with(|instructions| Instructions { threads, ..instructions }, control)
    }

    pub(crate) fn threads_of(setting: &Setting) -> i32 {
        setting.threads
    }

    /// The first of two ranks over a connection that a test makes.
    pub(crate) fn leader(stream: TcpStream, silence_max: Duration) -> Result<Link, EngineError> {
        Ok(Link::new((0, 2), vec![Wire::new(stream, 1, silence_max)?], silence_max))
    }

    impl Workers {
        /// Ends the processes and waits until they are gone.
        pub(crate) fn kill(&mut self) {
            for child in self.crew.iter_mut().flat_map(|crew| &mut crew.children) {
                child.kill().expect("killed");
                child.wait().expect("gone");
            }
        }
    }
}
