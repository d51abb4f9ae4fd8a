//! Weights in huge pages: a step reads all of them, and with small pages it also waits for the processor's page tables.
//! `network.rs` names the memory once it is filled. Nothing of its content changes, and a system that has no huge pages
//! is left as it is.
#![expect(unsafe_code, reason = "advice on memory takes addresses; it changes no content")]

use std::ops::Range;

/// Gaps between weights that are not worth a second call.
const GAP: usize = 2 << 20;
/// Memory that is smaller has no huge page.
const LEAST: usize = 2 << 20;

/// The addresses of some numbers.
pub(crate) fn range<T>(numbers: &[T]) -> Range<usize> {
    let start = numbers.as_ptr() as usize;
    start..start + std::mem::size_of_val(numbers)
}

/// Asks for huge pages where these weights are.
pub(crate) fn use_huge_pages(memory: impl Iterator<Item = Range<usize>>) {
    let mut ranges: Vec<Range<usize>> = memory.filter(|range| !range.is_empty()).collect();
    ranges.sort_by_key(|range| range.start);
    let mut merged: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end + GAP => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged.into_iter().filter(|range| range.len() >= LEAST).for_each(advise);
}

#[cfg(target_os = "linux")]
fn advise(range: Range<usize>) {
    // SAFETY: a call without pointers.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096).max(1);
    let start = range.start / page * page;
    for advice in [libc::MADV_HUGEPAGE, libc::MADV_COLLAPSE] {
        // SAFETY: neither changes what the memory holds; a range that is not mapped throughout is refused.
        let refused = unsafe { libc::madvise(start as *mut libc::c_void, range.end - start, advice) } != 0;
        if refused && advice == libc::MADV_HUGEPAGE {
            return;
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn advise(_: Range<usize>) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_leaves_the_numbers_as_they_are() {
        let (first, second): (Vec<u32>, Vec<u32>) = ((0..3_000_000).collect(), (5..2_000_000).collect());
        use_huge_pages([range(&second), range(&first), range::<u8>(&[]), 4096..8192].into_iter());
        assert!(first.iter().zip(0..).all(|(number, wanted)| *number == wanted));
        assert!(second.iter().zip(5..).all(|(number, wanted)| *number == wanted));
    }
}
