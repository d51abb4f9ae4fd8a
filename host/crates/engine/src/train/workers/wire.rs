//! Frames between two workers: a kind, a length and so many bytes.
//! Every wait is bounded and looks for cancellation; a frame of another kind or of another length than expected ends
//! the connection. A peer that reports why it failed is quoted.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::error::EngineError;

/// Bytes of one frame: the files of a large adapter with its moments have room.
pub(super) const FRAME_BYTES_MAX: u64 = 4 << 30;
/// Bytes of a peer's account of its failure.
const FAULT_BYTES_MAX: u64 = 4_096;
/// How often a wait looks for cancellation.
const SLICE: Duration = Duration::from_millis(100);
/// Bytes read at a time, so that a length that was made up takes no memory.
const PIECE_BYTES: usize = 1 << 20;

/// What a frame holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Who a new worker is, as JSON.
    Hello = 1,
    /// What all ranks are to do.
    Call = 2,
    /// Tensors of one rank.
    Part = 3,
    /// Tensors of all ranks, added up.
    Sum = 4,
    /// The bits of the gradient norm that a call ended with.
    Done = 5,
    /// Why a rank failed, as text.
    Fault = 6,
}

/// How long to wait for a frame.
pub(super) struct Patience<'a> {
    /// Longest silence.
    pub silence_max: Duration,
    /// Ends the wait early with its error.
    pub check: &'a dyn Fn() -> Result<(), EngineError>,
}

/// One end of a connection.
#[derive(Debug)]
pub(super) struct Wire {
    stream: TcpStream,
    /// Rank of whoever is at the other end.
    pub peer: usize,
}

impl Wire {
    /// `silence_max`: the longest that the peer may leave what is sent to it unread.
    pub fn new(stream: TcpStream, peer: usize, silence_max: Duration) -> Result<Self, EngineError> {
        let wire = Self { stream, peer };
        let ready = |stream: &TcpStream| {
            stream.set_nonblocking(false)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(SLICE))?;
            stream.set_write_timeout(Some(silence_max))
        };
        ready(&wire.stream).map_err(|error| wire.lost(&error))?;
        Ok(wire)
    }

    /// An error that names the peer.
    pub fn failed(&self, problem: impl Into<String>) -> EngineError {
        EngineError::Worker { rank: self.peer, problem: problem.into() }
    }

    fn lost(&self, error: &std::io::Error) -> EngineError {
        let told = match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => "it does not read what is sent to it".to_owned(),
            _ => format!("the connection was lost ({error}); the log says whether its process died"),
        };
        self.failed(told)
    }

    /// Sends one frame, its bytes in pieces.
    pub fn send(&mut self, kind: Kind, pieces: &[&[u8]]) -> Result<(), EngineError> {
        let length: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        if length > FRAME_BYTES_MAX {
            return Err(self.failed(format!("{length} bytes are too many for one frame; use a smaller adapter")));
        }
        let mut head = [kind as u8; 9];
        head[1..].copy_from_slice(&length.to_le_bytes());
        let stream = &mut self.stream;
        let sent = stream.write_all(&head).and_then(|()| pieces.iter().try_for_each(|piece| stream.write_all(piece)));
        sent.map_err(|error| self.lost(&error))
    }

    /// The bytes of the next frame, which must be of this kind and have at most so many; none when the peer is gone
    /// and said nothing more.
    pub fn receive(
        &mut self,
        wanted: Kind,
        bytes_max: u64,
        patience: &Patience<'_>,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        let Some(head) = self.read(9, patience)? else { return Ok(None) };
        let (kind, length) = head.split_first().ok_or_else(|| self.failed("it sent half a frame"))?;
        let length = <[u8; 8]>::try_from(length).map_err(|_| self.failed("it sent half a frame"))?;
        let length = u64::from_le_bytes(length);
        if *kind == Kind::Fault as u8 && length <= FAULT_BYTES_MAX {
            let told = self.read(length, patience)?.unwrap_or_default();
            return Err(self.failed(String::from_utf8_lossy(&told)));
        }
        if *kind != wanted as u8 || length > bytes_max {
            return Err(self.failed(format!(
                "it sent a frame of kind {kind} and {length} bytes where one of kind {} and at most {bytes_max} is due",
                wanted as u8
            )));
        }
        match self.read(length, patience)? {
            Some(bytes) => Ok(Some(bytes)),
            None => Err(self.failed("it left in the middle of a frame")),
        }
    }

    /// The same of a peer that must not leave.
    pub fn expect(&mut self, wanted: Kind, bytes_max: u64, patience: &Patience<'_>) -> Result<Vec<u8>, EngineError> {
        let frame = self.receive(wanted, bytes_max, patience)?;
        frame.ok_or_else(|| self.failed("it ended in the middle of a step; the log says why its process died"))
    }

    /// So many bytes; none when the connection ended before the first.
    fn read(&mut self, length: u64, patience: &Patience<'_>) -> Result<Option<Vec<u8>>, EngineError> {
        let mut bytes: Vec<u8> = Vec::new();
        let mut piece = vec![0; PIECE_BYTES];
        let mut heard = Instant::now();
        while (bytes.len() as u64) < length {
            (patience.check)()?;
            let left = usize::try_from(length - bytes.len() as u64).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
            let place = piece.get_mut(..left).unwrap_or_default();
            match self.stream.read(place) {
                Ok(0) if bytes.is_empty() => return Ok(None),
                Ok(0) => return Err(self.failed("it left in the middle of a frame")),
                Ok(count) => {
                    bytes.extend_from_slice(place.get(..count).unwrap_or_default());
                    heard = Instant::now();
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if heard.elapsed() > patience.silence_max {
                        let seconds = patience.silence_max.as_secs_f64();
                        return Err(self.failed(format!(
                            "it said nothing for {seconds} s; its machine is overloaded, or it hangs"
                        )));
                    }
                }
                Err(error) => return Err(self.lost(&error)),
            }
        }
        Ok(Some(bytes))
    }

    /// Tells the peer why this end gives up, and ends the connection. Whatever fails here changes nothing.
    pub fn close(&mut self, why: &str) {
        let told: String = why.chars().take(FAULT_BYTES_MAX as usize / 4).collect();
        let _ = self.stream.set_write_timeout(Some(SLICE));
        let _ = self.send(Kind::Fault, &[told.as_bytes()]);
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}
