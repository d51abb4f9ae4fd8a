//! Mutations of bytes: flips, cuts, splices, sections in another order, and the numbers where decoders go wrong.

use crate::binary::{COMPONENT, leb, section, sections};
use crate::rounds::Random;

/// Numbers around the edges of what a length, a count or an index may be.
pub const EDGES: [u64; 16] =
    [0, 1, 2, 63, 64, 127, 128, 255, 256, 65_535, 65_536, 100_000, 0x7fff_ffff, 0x8000_0000, 0xffff_fff8, 0xffff_ffff];
/// LEB128 numbers that are no numbers of 32 bits, or are longer than they need to be.
const BAD_LEBS: [&[u8]; 5] = [
    &[0x80, 0x80, 0x80, 0x80, 0x00],
    &[0xff, 0xff, 0xff, 0xff, 0x7f],
    &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
    &[0x80],
    &[0xff, 0xff, 0xff, 0xff, 0x0f],
];
/// Bytes of an input at most.
const INPUT_BYTES_MAX: usize = 256 * 1024;

/// One to eight mutations; `other` lends pieces.
pub fn mutated(random: &mut Random, bytes: &[u8], other: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=random.below(8) {
        mutate(random, &mut bytes, other);
        bytes.truncate(INPUT_BYTES_MAX);
    }
    bytes
}

fn mutate(random: &mut Random, bytes: &mut Vec<u8>, other: &[u8]) {
    // The header is known to be checked: most mutations leave it alone.
    let low = if random.once_in(50) { 0 } else { COMPONENT.len().min(bytes.len()) };
    let at = low + random.below(bytes.len().saturating_sub(low));
    match random.below(10) {
        0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
        1 if at < bytes.len() => bytes[at] = random.next() as u8,
        2 => bytes.truncate(at),
        3 => {
            let length = random.below(64);
            let end = (at + length).min(bytes.len());
            bytes.drain(at..end);
        }
        4 => {
            let number = if random.once_in(2) { leb(random.pick(&EDGES)) } else { random.pick(&BAD_LEBS).to_vec() };
            replace(bytes, at, &number);
        }
        5 => insert(bytes, at, &leb(random.pick(&EDGES))),
        6 => {
            let from = random.below(other.len());
            let end = (from + random.below(256)).min(other.len());
            insert(bytes, at, &other[from..end]);
        }
        7 => {
            let end = (at + random.below(128)).min(bytes.len());
            let piece = bytes[at..end].to_vec();
            insert(bytes, at, &piece);
        }
        _ => shuffle(random, bytes, other),
    }
}

fn replace(bytes: &mut Vec<u8>, at: usize, with: &[u8]) {
    let end = (at + with.len()).min(bytes.len());
    bytes.splice(at..end, with.iter().copied());
}

fn insert(bytes: &mut Vec<u8>, at: usize, piece: &[u8]) {
    bytes.splice(at..at, piece.iter().copied());
}

/// Swaps, repeats, drops, borrows or rewrites whole sections, whose sizes stay right.
fn shuffle(random: &mut Random, bytes: &mut Vec<u8>, other: &[u8]) {
    let mut parts: Vec<Vec<u8>> = sections(bytes).into_iter().map(|(_, range)| bytes[range].to_vec()).collect();
    if parts.is_empty() {
        return;
    }
    let (one, two) = (random.below(parts.len()), random.below(parts.len()));
    match random.below(5) {
        0 => parts.swap(one, two),
        1 => parts.insert(two, parts[one].clone()),
        2 => drop(parts.remove(one)),
        3 => {
            let lent = sections(other);
            if !lent.is_empty() {
                let (_, range) = lent[random.below(lent.len())].clone();
                parts.insert(one, other[range].to_vec());
            }
        }
        // A change inside of a section, with the size made right again.
        _ => {
            let whole = [COMPONENT, &parts[one][..]].concat();
            let inner = sections(&whole).pop();
            if let Some((id, range)) = inner {
                let bytes = &whole[range];
                let size = bytes[1..].iter().take_while(|byte| **byte & 0x80 != 0).count() + 1;
                let mut body = bytes.get(1 + size..).unwrap_or_default().to_vec();
                let at = random.below(body.len());
                replace(&mut body, at, &leb(random.pick(&EDGES)));
                parts[one] = section(id, &body);
            }
        }
    }
    *bytes = [COMPONENT.to_vec(), parts.concat()].concat();
}
