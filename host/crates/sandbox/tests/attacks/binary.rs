//! Components byte by byte: LEB128 numbers, sections, and sections that no compiler would write.

use std::ops::Range;

/// Magic, version and layer of a component.
pub const COMPONENT: &[u8] = b"\0asm\x0d\0\x01\0";
/// Section of one core module.
pub const CORE_MODULE: u8 = 1;
/// Section of core instances.
pub const CORE_INSTANCES: u8 = 2;
/// Section of one component.
pub const INNER_COMPONENT: u8 = 4;
/// Section of component types.
pub const TYPES: u8 = 7;

/// An unsigned number.
pub fn leb(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = (number & 0x7f) as u8;
        number >>= 7;
        bytes.push(if number == 0 { low } else { low | 0x80 });
        if number == 0 {
            return bytes;
        }
    }
}

/// A section with its size.
pub fn section(id: u8, body: &[u8]) -> Vec<u8> {
    [&[id], &leb(body.len() as u64)[..], body].concat()
}

/// The sections of a component with their headers; stops at the first that does not fit.
pub fn sections(component: &[u8]) -> Vec<(u8, Range<usize>)> {
    let (mut found, mut at) = (Vec::new(), COMPONENT.len());
    while let Some(id) = component.get(at) {
        let (mut length, mut shift, mut body) = (0_u64, 0, at + 1);
        while let Some(byte) = component.get(body).filter(|_| shift < 35) {
            length |= u64::from(byte & 0x7f) << shift;
            (shift, body) = (shift + 7, body + 1);
            if byte & 0x80 == 0 {
                break;
            }
        }
        let end = body.saturating_add(usize::try_from(length).unwrap_or(usize::MAX));
        if end > component.len() {
            break;
        }
        found.push((*id, at..end));
        at = end;
    }
    found
}

/// The component with one more core module, instantiated so often.
pub fn with_instances(mut component: Vec<u8>, module: &str, count: u32) -> Vec<u8> {
    let index = sections(&component).iter().filter(|(id, _)| *id == CORE_MODULE).count();
    component.extend(section(CORE_MODULE, &wat::parse_str(module).expect("valid text")));
    // "Instantiate this module without arguments."
    let instance = [&[0], &leb(index as u64)[..], &[0]].concat();
    component.extend(section(CORE_INSTANCES, &[leb(u64::from(count)), instance.repeat(count as usize)].concat()));
    component
}

/// Components in components.
pub fn nested(levels: u32) -> Vec<u8> {
    (0..levels).fold(COMPONENT.to_vec(), |inner, _| [COMPONENT, &section(INNER_COMPONENT, &inner)[..]].concat())
}

/// A component with a list of lists of lists.
pub fn deep_type(levels: u32) -> Vec<u8> {
    let mut types = vec![0x70, 0x79];
    for index in 0..levels - 1 {
        types.push(0x70);
        // An index of a type is a signed number: one bit less in each last byte.
        let mut bytes = leb(u64::from(index));
        if bytes.last().is_some_and(|last| last & 0x40 != 0) {
            let last = bytes.pop().unwrap_or_default();
            bytes.extend([last | 0x80, 0]);
        }
        types.extend(bytes);
    }
    [COMPONENT, &section(TYPES, &[leb(u64::from(levels)), types].concat())[..]].concat()
}
