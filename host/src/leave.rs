//! How the process ends: at once, without the destructors of its libraries.
//! `main` calls it last. libtorch destroys its tables of kernels when a process ends in the usual way, and a thread that
//! still computes, of a step that was cut off, then reads what is gone: the process would die of a signal instead of
//! ending with its exit code.
#![expect(unsafe_code, reason = "the standard library knows no end without destructors")]

use std::io::Write;

unsafe extern "C" {
    /// POSIX: ends the process with the low eight bits of `status`, and nothing else.
    fn _exit(status: i32) -> !;
}

/// Ends the process with this exit code. What was printed is out; what must be durable is so already.
pub fn leave(code: u8) -> ! {
    // Nobody is left to hear of what cannot be written.
    let _ = std::io::stdout().flush();
    let _ = std::io::stderr().flush();
    // SAFETY: `_exit` takes any status, may be called from any thread at any time, and does not return.
    unsafe { _exit(i32::from(code)) }
}
