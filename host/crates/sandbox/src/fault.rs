//! How a call ends badly: one kind per way, whose doing it is, and whether to try again.
//! Also the one place that reads wasmtime's errors.

use std::fmt;

use rustc_demangle::demangle;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use wasmtime::{OutOfMemory, PoolConcurrencyLimitError, Trap, WasmBacktrace};

use crate::Capability;
use crate::text::clean;

/// Characters of a fault's message.
const MESSAGE_CHARS_MAX: usize = 500;
/// Guest functions that a message names, innermost first.
const FRAMES_MAX: usize = 3;
/// Characters of such a name.
const NAME_CHARS_MAX: usize = 120;

/// What went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// The fuel of the call is used up.
    OutOfFuel,
    /// The guest time of the call is used up.
    Deadline,
    /// The guest wanted more memory than the budget.
    OutOfMemory,
    /// The guest's stack is used up.
    StackOverflow,
    /// The guest trapped.
    Trap,
    /// The guest kept calling a capability far beyond its budget.
    HostLimit(Capability),
    /// The guest handed over more bytes than the budget.
    TooMuchOutput,
    /// The guest's answer breaks a rule.
    InvalidOutput,
    /// The call lacks something that the recipe was granted.
    MissingCapability,
    /// Too many calls at once.
    Overloaded,
    /// The call was cancelled.
    Cancelled,
    /// The guest gave up in an orderly way and said why.
    Declined,
    /// The host broke one of its own rules.
    HostBug,
}

/// Whose doing a fault is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Blame {
    /// The author of the recipe.
    Recipe,
    /// The configuration or the requests of the tenant.
    Tenant,
    /// The operator's host.
    Host,
}

/// The end of a call without a value. Nothing of the call is applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// What went wrong.
    pub kind: FaultKind,
    /// One line for people.
    pub message: String,
}

impl Fault {
    pub(crate) fn new(kind: FaultKind, message: impl AsRef<str>) -> Self {
        Self { kind, message: clean(message.as_ref(), MESSAGE_CHARS_MAX) }
    }

    /// Whose doing it is.
    pub fn blame(&self) -> Blame {
        match self.kind {
            FaultKind::OutOfFuel
            | FaultKind::Deadline
            | FaultKind::OutOfMemory
            | FaultKind::StackOverflow
            | FaultKind::Trap
            | FaultKind::HostLimit(_)
            | FaultKind::TooMuchOutput
            | FaultKind::InvalidOutput => Blame::Recipe,
            FaultKind::Cancelled | FaultKind::Declined => Blame::Tenant,
            FaultKind::MissingCapability | FaultKind::Overloaded | FaultKind::HostBug => Blame::Host,
        }
    }

    /// Reads the error of a guest call. Anything that is neither a trap nor a limit is a value that could not be read.
    pub(crate) fn from_guest(error: &wasmtime::Error) -> Self {
        if let Some(fault) = error.downcast_ref::<Self>() {
            return fault.clone();
        }
        let root = error.root_cause().to_string();
        let place = frames(error);
        if let Some(trap) = error.downcast_ref::<Trap>() {
            return Self::new(trap_kind(*trap), format!("{root}{place}"));
        }
        if error.downcast_ref::<PoolConcurrencyLimitError>().is_some() {
            return Self::new(FaultKind::Overloaded, root);
        }
        // wasmtime keeps this error's type to itself.
        if root.contains("fuel allocated for hostcalls") {
            return Self::new(FaultKind::TooMuchOutput, format!("the guest hands over too many bytes at once{place}"));
        }
        Self::new(FaultKind::InvalidOutput, format!("{root}{place}"))
    }

    /// Reads the error of an instantiation, which runs start functions of the guest: what is neither the pool's nor
    /// the machine's is the recipe's doing.
    pub(crate) fn from_instantiation(error: &wasmtime::Error) -> Self {
        let known = Self::from_guest(error);
        if known.kind != FaultKind::InvalidOutput {
            return known;
        }
        // wasmtime keeps the types of these to itself.
        let limits = ["memory limits", "table limits", "resource limit exceeded"];
        let kind = if limits.iter().any(|limit| known.message.contains(limit)) {
            FaultKind::OutOfMemory
        } else if machine(error) {
            FaultKind::HostBug
        } else {
            FaultKind::InvalidOutput
        };
        Self { kind, ..known }
    }
}

/// Did the machine refuse memory or another resource? A guest cannot cause these errors by what it does.
fn machine(error: &wasmtime::Error) -> bool {
    let mut causes = error.chain();
    causes.any(|cause| cause.is::<std::io::Error>() || cause.is::<Errno>() || cause.is::<OutOfMemory>())
}

fn trap_kind(trap: Trap) -> FaultKind {
    match trap {
        Trap::OutOfFuel => FaultKind::OutOfFuel,
        Trap::Interrupt => FaultKind::Deadline,
        Trap::StackOverflow => FaultKind::StackOverflow,
        Trap::AllocationTooLarge => FaultKind::OutOfMemory,
        Trap::InvalidChar
        | Trap::StringOutOfBounds
        | Trap::ListOutOfBounds
        | Trap::InvalidDiscriminant
        | Trap::UnalignedPointer => FaultKind::InvalidOutput,
        _ => FaultKind::Trap,
    }
}

/// ` in a ← b ← c`: the innermost guest functions that have names.
fn frames(error: &wasmtime::Error) -> String {
    let Some(trace) = error.downcast_ref::<WasmBacktrace>() else { return String::new() };
    let names = trace.frames().iter().filter_map(|frame| frame.func_name());
    let names: Vec<String> = names.take(FRAMES_MAX).map(readable).collect();
    if names.is_empty() { String::new() } else { format!(" in {}", names.join(" ← ")) }
}

/// The name that the author gave the function, without the compiler's hash.
fn readable(name: &str) -> String {
    clean(&format!("{:#}", demangle(name)), NAME_CHARS_MAX)
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            FaultKind::OutOfFuel => "out of fuel",
            FaultKind::Deadline => "out of time",
            FaultKind::OutOfMemory => "out of memory",
            FaultKind::StackOverflow => "stack overflow",
            FaultKind::Trap => "trap",
            FaultKind::HostLimit(capability) => return write!(f, "too many calls to {capability}: {}", self.message),
            FaultKind::TooMuchOutput => "too much output",
            FaultKind::InvalidOutput => "invalid output",
            FaultKind::MissingCapability => "missing capability",
            FaultKind::Overloaded => "overloaded",
            FaultKind::Cancelled => "cancelled",
            FaultKind::Declined => "declined",
            FaultKind::HostBug => "host error",
        };
        write!(f, "{kind}: {}", self.message)
    }
}

impl std::error::Error for Fault {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_machine_and_the_pool_excuse_an_instantiation() {
        let read = |error: wasmtime::Error| Fault::from_instantiation(&error).kind;
        assert_eq!(read(wasmtime::Error::msg("unknown handle index 7")), FaultKind::InvalidOutput);
        assert_eq!(read(wasmtime::Error::new(Trap::UnreachableCodeReached)), FaultKind::Trap);
        assert_eq!(read(wasmtime::Error::msg("memory minimum size exceeds memory limits")), FaultKind::OutOfMemory);
        assert_eq!(read(wasmtime::Error::new(Errno::NOMEM).context("mmap failed")), FaultKind::HostBug);
        assert_eq!(read(wasmtime::Error::new(std::io::Error::other("no pages"))), FaultKind::HostBug);
        assert_eq!(read(wasmtime::Error::new(OutOfMemory::new(1))), FaultKind::HostBug);
    }

    #[test]
    fn names_of_functions_are_readable() {
        assert_eq!(readable("_ZN4core9panicking5panic17h0123456789abcdefE"), "core::panicking::panic");
        assert_eq!(readable("_RNvCs1234_7mycrate3foo"), "mycrate::foo");
        assert_eq!(readable("cabi_realloc"), "cabi_realloc");
        assert!(readable(&"x".repeat(1_000)).chars().count() < 200);
    }
}
