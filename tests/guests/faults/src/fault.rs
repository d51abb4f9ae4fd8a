//! The ways to misbehave. Each is cut off by a different limit of the host.

use core::hint::black_box;

use reef_recipe::prelude::*;

/// A handle that the host never gave out.
pub(crate) const FORGED: u32 = 4_000_000_000;

/// Bytes that one turn of the memory hog takes.
const BITE: usize = 1 << 20;
/// Host calls of a flood: far over any budget, and yet an end if there were none.
const FLOOD: u32 = 100_000;
/// Log lines of a chatter: 100 MB.
const CHATTER: u32 = 100_000;
/// State keys of a hoard, with the largest value that one key may have.
const HOARD: u32 = 10_000;
const HOARDED_BYTES: usize = 64 << 10;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Loops for ever: fuel or deadline.
    Spin,
    /// Allocates for ever: memory.
    Hog,
    /// Panics, with a message that the host logs: trap.
    Trap,
    /// Recurses for ever: stack.
    Overflow,
    /// Answers with handles and names that do not exist: invalid output.
    Lie,
    /// Answers with numbers that are none: invalid output, or a refusal.
    Nan,
    /// Calls the state for ever: budget of calls, as a refusal.
    Flood,
    /// Asks for a column of samples for ever.
    FloodSamples,
    /// Runs forward passes for ever.
    FloodTraining,
    /// Asks the served model for ever.
    FloodModels,
    /// Logs for ever: budget of the log, without an error.
    Chatter,
    /// Fills the state: its size, as a refusal.
    Hoard,
    /// Gives up the call: a failure in good order.
    Fail,
}

impl Fault {
    /// # Errors
    /// `invalid-config` for a name that is none.
    pub fn named(name: &str) -> Result<Option<Self>> {
        Ok(Some(match name {
            "none" => return Ok(None),
            "spin" => Self::Spin,
            "hog" => Self::Hog,
            "trap" => Self::Trap,
            "overflow" => Self::Overflow,
            "lie" => Self::Lie,
            "nan" => Self::Nan,
            "flood" => Self::Flood,
            "flood_samples" => Self::FloodSamples,
            "flood_training" => Self::FloodTraining,
            "flood_models" => Self::FloodModels,
            "chatter" => Self::Chatter,
            "hoard" => Self::Hoard,
            "fail" => Self::Fail,
            other => return Err(Failure::config("fault", &format!("'{other}' is no fault"))),
        }))
    }

    /// Does it, with these samples at hand. Returns only from what the host bounds without ending the call.
    ///
    /// # Errors
    /// The first refusal of the host.
    pub fn happen(self, samples: &Samples) -> Result<()> {
        match self {
            Self::Spin => spin(),
            Self::Hog => hog(),
            Self::Trap => trap(),
            Self::Overflow => {
                black_box(recurse(0));
                Ok(())
            }
            // In `select` a number that is none can only be a gauge; the other calls answer with theirs.
            Self::Nan => {
                metrics::gauge("nan", f64::NAN);
                metrics::gauge("Not A Name", 1.0);
                Ok(())
            }
            Self::Lie => Ok(()),
            Self::Flood => flood(|| state::get::<Vec<u8>>("key").map(drop)),
            Self::FloodSamples => flood(|| samples.scores().map(drop)),
            Self::FloodTraining => {
                let trainer = Trainer::open()?;
                flood(|| trainer.forward(Policy::Current, samples).map(drop))
            }
            Self::FloodModels => {
                flood(|| models::ask(models::SERVED, &[Message::user("again")], Sampling::greedy(1)).map(drop))
            }
            Self::Chatter => {
                (0..CHATTER).for_each(|_| log::write(log::Level::Info, "chatter", &"chatter ".repeat(128)));
                Ok(())
            }
            Self::Hoard => (0..HOARD).try_for_each(|key| state::set(&key.to_string(), &vec![7u8; HOARDED_BYTES])),
            Self::Fail => Err(Failure::other("gives up as configured")),
        }
    }
}

/// A sample twice, and one that does not exist.
pub(crate) fn forged_selection(pool: &Pool) -> Selection {
    let first = pool.handles().first().copied().unwrap_or(FORGED);
    Selection::train(vec![first, first, FORGED])
}

fn spin() -> ! {
    let mut turns = 0u64;
    loop {
        turns = black_box(turns.wrapping_add(1));
    }
}

fn hog() -> ! {
    let mut eaten: Vec<Vec<u8>> = Vec::new();
    loop {
        eaten.push(black_box(vec![1; BITE]));
    }
}

#[expect(clippy::panic, reason = "to panic is what it is for")]
fn trap() -> ! {
    panic!("panicked as configured")
}

// The frames are small, so that the call stack ends before the memory that Rust uses as its own stack does.
#[expect(unconditional_recursion, reason = "to overflow the stack is what it is for")]
fn recurse(depth: u32) -> u32 {
    black_box(recurse(black_box(depth.wrapping_add(1)))) ^ depth
}

/// Keeps calling after the first refusal, as a recipe that ignores errors would.
fn flood(mut once: impl FnMut() -> Result<()>) -> Result<()> {
    let mut outcome = Ok(());
    for _ in 0..FLOOD {
        outcome = outcome.and(once());
    }
    outcome
}
