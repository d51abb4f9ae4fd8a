//! What a component without the standard library must bring along: a heap and an end for panics.
//! Called by the compiler only.

use alloc::alloc::{GlobalAlloc, Layout, alloc, realloc};
use core::arch::wasm32::unreachable;
use core::cell::Cell;
use core::fmt::Write;
use core::panic::PanicInfo;

use crate::bindings::reef::recipe::log::{Level, log};

// The C library that comes with this target: its heap, and `memcmp` and its kin, which the compiler calls.
#[expect(unsafe_code, reason = "functions of another language")]
#[link(name = "c")]
unsafe extern "C" {
    fn aligned_alloc(align: usize, length: usize) -> *mut u8;
    fn calloc(count: usize, length: usize) -> *mut u8;
    fn free(place: *mut u8);
    fn malloc(length: usize) -> *mut u8;
    #[link_name = "realloc"]
    fn resize(place: *mut u8, length: usize) -> *mut u8;
}

/// The heap of the C library. It begins in the memory that the guest starts with, and a call that needs no more
/// is a tenth shorter: growing a memory changes page protections.
struct Heap;

/// Alignment of every block of `malloc`.
const ALIGN: usize = 16;

#[global_allocator]
static HEAP: Heap = Heap;

#[expect(unsafe_code, reason = "a heap hands out raw memory")]
// SAFETY: the C library keeps the contract; a larger alignment is a power of two, and the length that
// `aligned_alloc` gets is a multiple of it.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (align, padded) = (layout.align(), layout.pad_to_align().size());
        // SAFETY: see above.
        unsafe { if align <= ALIGN { malloc(layout.size()) } else { aligned_alloc(align, padded) } }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= ALIGN {
            // SAFETY: see above; fresh pages are not written once more.
            return unsafe { calloc(1, layout.size()) };
        }
        // SAFETY: the caller's layout; the block has its length.
        unsafe {
            let place = self.alloc(layout);
            if !place.is_null() {
                place.write_bytes(0, layout.size());
            }
            place
        }
    }

    unsafe fn dealloc(&self, place: *mut u8, _: Layout) {
        // SAFETY: it came from this heap.
        unsafe { free(place) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, length: usize) -> *mut u8 {
        if layout.align() <= ALIGN {
            // SAFETY: it came from this heap.
            return unsafe { resize(place, length) };
        }
        // SAFETY: the caller's layout and length are valid; the blocks do not overlap.
        unsafe {
            let larger = self.alloc(Layout::from_size_align_unchecked(length, layout.align()));
            if !larger.is_null() {
                larger.copy_from_nonoverlapping(place, layout.size().min(length));
                self.dealloc(place, layout);
            }
            larger
        }
    }
}

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
