//! What a component without the standard library must bring along: a heap and an end for panics.
//! Called by the compiler only.

use alloc::alloc::{Layout, alloc, realloc};
use core::arch::wasm32::unreachable;
use core::cell::Cell;
use core::fmt::Write;
use core::panic::PanicInfo;

use crate::bindings::reef::recipe::log::{Level, log};

// The compiler calls `memcmp` and its kin, which on this target live in the C library that comes with it.
#[expect(unsafe_code, reason = "linking a library that declares nothing is written as an unsafe block")]
#[link(name = "c")]
unsafe extern "C" {}

#[global_allocator]
static HEAP: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// Where the host puts the lists and strings that it passes in. The standard library exports this function;
/// without it, the component has to. Traps when the memory is used up: nothing may be called from here.
///
/// # Safety
/// For the canonical ABI only: `old_length` is 0, or `old` has `old_length` bytes aligned to `align`.
#[expect(unsafe_code, reason = "the canonical ABI calls this symbol with raw pointers")]
#[unsafe(no_mangle)]
unsafe extern "C" fn cabi_realloc(old: *mut u8, old_length: usize, align: usize, length: usize) -> *mut u8 {
    if length == 0 {
        return core::ptr::without_provenance_mut(align);
    }
    let Ok(layout) = Layout::from_size_align(old_length.max(length), align) else { unreachable() };
    // SAFETY: the sizes are not 0, and `old` was allocated here with the same alignment.
    let place = unsafe {
        match old_length {
            0 => alloc(layout),
            _ => realloc(old, Layout::from_size_align_unchecked(old_length, align), length),
        }
    };
    if place.is_null() { unreachable() } else { place }
}

/// Where a panic is told. Nowhere until an export of a recipe has run, so that a verifier, which never says so,
/// has no import for it.
struct Sink(Cell<Option<fn(&str)>>);

#[expect(unsafe_code, reason = "a static must be shareable between threads")]
// SAFETY: a component has one thread.
unsafe impl Sync for Sink {}

static SINK: Sink = Sink(Cell::new(None));

/// From now on panics are logged. The exports of a recipe begin with it.
pub fn log_panics() {
    SINK.0.set(Some(|message| log(Level::Error, "panic", message)));
}

/// Bytes of a panic message that are logged.
const PANIC_MESSAGE_MAX: usize = 512;

/// A message on the stack: a panic may mean that the heap is exhausted.
struct Message {
    bytes: [u8; PANIC_MESSAGE_MAX],
    length: usize,
}

impl Write for Message {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let mut buffer = [0; 4];
        for character in text.chars() {
            let encoded = character.encode_utf8(&mut buffer).as_bytes();
            let end = self.length + encoded.len();
            match self.bytes.get_mut(self.length..end) {
                Some(space) => space.copy_from_slice(encoded),
                None => return Err(core::fmt::Error),
            }
            self.length = end;
        }
        Ok(())
    }
}

/// Tells what happened and traps; the host reports the trap as a fault of the recipe.
#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let mut message = Message { bytes: [0; PANIC_MESSAGE_MAX], length: 0 };
    // A message that does not fit is logged cut.
    let _ = write!(message, "{info}");
    let text = message.bytes.get(..message.length).and_then(|bytes| core::str::from_utf8(bytes).ok());
    if let Some(tell) = SINK.0.get() {
        tell(text.unwrap_or("panic"));
    }
    unreachable()
}
