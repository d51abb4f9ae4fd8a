//! The connections of one rank to the others, and the star over them: the first rank adds up, the others get the sum.
//! All trainers of a process share one; calls go through it one at a time, in the order in which the first rank makes
//! them. After any failure it is given up for good, because nobody knows any more who has done what.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tch::{Device, TchError, Tensor, no_grad};

use super::super::control::TrainControl;
use super::call::{Call, Files, decode, encode};
use super::wire::{FRAME_BYTES_MAX, Kind, Patience, Wire};
use crate::error::EngineError;

/// Longest silence of a worker within a call: as long as a step may take by default.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(1_800);

/// Clones share the connections.
#[derive(Debug, Clone)]
pub(in super::super) struct Link {
    rank: usize,
    world: usize,
    silence_max: Duration,
    wires: Arc<Mutex<State>>,
}

#[derive(Debug)]
enum State {
    /// The first rank's are to all others, in the order of their ranks; the others' is to the first.
    Open(Vec<Wire>),
    /// Why nothing goes on.
    Given(String),
}

impl Link {
    /// Over connections that are ready.
    pub(super) fn new((rank, world): (usize, usize), wires: Vec<Wire>, silence_max: Duration) -> Self {
        Self { rank, world, silence_max, wires: Arc::new(Mutex::new(State::Open(wires))) }
    }

    /// Rank and number of ranks.
    pub fn place(&self) -> (usize, usize) {
        (self.rank, self.world)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.wires.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` on the connections, which must be open.
    fn on<T>(&self, work: impl FnOnce(&mut Vec<Wire>) -> Result<T, EngineError>) -> Result<T, EngineError> {
        match &mut *self.state() {
            State::Open(wires) => work(wires),
            State::Given(why) => {
                let problem = format!("it was given up ({why}); open another trainer to go on");
                Err(EngineError::Worker { rank: self.rank, problem })
            }
        }
    }

    /// Refuses when the others were given up.
    pub fn check(&self) -> Result<(), EngineError> {
        self.on(|_| Ok(()))
    }

    /// Gives up the others, and tells them why.
    pub fn part(&self, why: &EngineError) {
        let mut state = self.state();
        if let State::Open(wires) = &mut *state {
            wires.iter_mut().for_each(|wire| wire.close(&why.to_string()));
            *state = State::Given(why.to_string());
        }
    }

    /// The first rank tells the others of a call; to these it is nothing to tell.
    pub fn announce(&self, call: impl FnOnce() -> Call, files: &[(String, Vec<u8>)]) -> Result<(), EngineError> {
        if self.rank > 0 {
            return self.check();
        }
        let (length, header) = encode(&call(), files)?;
        let mut pieces = vec![length.as_slice(), header.as_slice()];
        pieces.extend(files.iter().map(|(_, bytes)| bytes.as_slice()));
        self.on(|wires| wires.iter_mut().try_for_each(|wire| wire.send(Kind::Call, &pieces)))
    }

    /// What the first rank tells next; none when it is gone. Waits for as long as it lives.
    pub fn next_call(&self) -> Result<Option<(Call, Files)>, EngineError> {
        let patience = Patience { silence_max: Duration::MAX, check: &|| Ok(()) };
        self.on(|wires| {
            let Some(wire) = wires.first_mut() else { return Ok(None) };
            let Some(frame) = wire.receive(Kind::Call, FRAME_BYTES_MAX, &patience)? else { return Ok(None) };
            decode(&frame).map(Some).map_err(|problem| wire.failed(problem))
        })
    }

    /// See `Reduce::sum`.
    pub fn sum(&self, tensors: &mut [Tensor], control: &TrainControl) -> Result<(), EngineError> {
        let patience = Patience { silence_max: self.silence_max, check: &|| control.check() };
        let bytes_max = tensors.iter().map(|tensor| bytes_of(tensor) as u64).sum();
        self.on(|wires| {
            if self.rank > 0 {
                let part = to_bytes(tensors)?;
                return wires.iter_mut().try_for_each(|wire| {
                    wire.send(Kind::Part, &[&part])?;
                    let sum = wire.expect(Kind::Sum, bytes_max, &patience)?;
                    each_part(wire, tensors, &sum, |tensor, sum| tensor.f_copy_(sum))
                });
            }
            for wire in wires.iter_mut() {
                let part = wire.expect(Kind::Part, bytes_max, &patience)?;
                each_part(wire, tensors, &part, |tensor, part| tensor.f_add_(part).map(drop))?;
            }
            let sum = to_bytes(tensors)?;
            wires.iter_mut().try_for_each(|wire| wire.send(Kind::Sum, &[&sum]))
        })
    }

    /// See `Reduce::settle`.
    pub fn settle(&self, norm: f64, control: &TrainControl) -> Result<(), EngineError> {
        let patience = Patience { silence_max: self.silence_max, check: &|| control.check() };
        let own = norm.to_bits().to_le_bytes();
        self.on(|wires| {
            if self.rank > 0 {
                return wires.iter_mut().try_for_each(|wire| wire.send(Kind::Done, &[&own]));
            }
            for wire in wires.iter_mut() {
                if wire.expect(Kind::Done, own.len() as u64, &patience)? != own {
                    return Err(
                        wire.failed("its gradient is not that of the others; do all machines run the same build?")
                    );
                }
            }
            Ok(())
        })
    }
}

fn bytes_of(tensor: &Tensor) -> usize {
    tensor.numel() * tensor.kind().elt_size_in_bytes()
}

/// The numbers of all tensors, one after the other.
fn to_bytes(tensors: &[Tensor]) -> Result<Vec<u8>, EngineError> {
    let mut bytes = vec![0; tensors.iter().map(bytes_of).sum()];
    let mut rest = bytes.as_mut_slice();
    for tensor in tensors {
        let (place, after) = rest.split_at_mut(bytes_of(tensor));
        tensor.f_detach()?.f_to_device(Device::Cpu)?.f_contiguous()?.f_copy_data_u8(place, tensor.numel())?;
        rest = after;
    }
    Ok(bytes)
}

/// Calls `with` on each tensor and the numbers for it in a peer's frame, which must be finite and as many.
fn each_part(
    wire: &Wire,
    tensors: &mut [Tensor],
    frame: &[u8],
    mut with: impl FnMut(&mut Tensor, &Tensor) -> Result<(), TchError>,
) -> Result<(), EngineError> {
    let due: usize = tensors.iter().map(bytes_of).sum();
    if frame.len() != due {
        return Err(wire.failed(format!("it sent {} bytes of gradient where {due} are due", frame.len())));
    }
    let mut rest = frame;
    for tensor in tensors {
        let (part, after) = rest.split_at_checked(bytes_of(tensor)).unwrap_or_default();
        let part = Tensor::f_from_data_size(part, &tensor.size(), tensor.kind())?.f_to_device(tensor.device())?;
        if !bool::try_from(&part.f_isfinite()?.f_all()?)? {
            return Err(wire.failed("it sent a gradient that is not finite; lower the advantages or factors"));
        }
        no_grad(|| with(tensor, &part))?;
        rest = after;
    }
    Ok(())
}
