//! Bytes that cross the border between host and guest, counted by element size.
//! Arguments of host calls are counted where they are admitted, answers where they are handed over.

use std::collections::BTreeMap;

use reef_core::Message;

/// What one call moved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// From the guest to the host.
    pub(crate) bytes_in: u64,
    /// From the host to the guest.
    pub(crate) bytes_out: u64,
}

impl Traffic {
    pub(crate) fn took(&mut self, bytes: u64) {
        self.bytes_in = self.bytes_in.saturating_add(bytes);
    }

    pub(crate) fn gave(&mut self, bytes: u64) {
        self.bytes_out = self.bytes_out.saturating_add(bytes);
    }
}

/// A value that crosses the border.
pub(crate) trait Bytes {
    /// Bytes of every value of the type, where all have the same.
    const EACH: Option<u64> = None;

    /// Numbers by their size, texts by their length, lists by their elements.
    fn bytes(&self) -> u64;
}

macro_rules! fixed {
    ($($number:ty),*) => {$(
        impl Bytes for $number {
            const EACH: Option<u64> = Some(size_of::<$number>() as u64);
            fn bytes(&self) -> u64 {
                size_of::<$number>() as u64
            }
        }
    )*};
}
fixed!((), u8, u32, f32, f64, bool);

impl Bytes for str {
    fn bytes(&self) -> u64 {
        self.len() as u64
    }
}

impl Bytes for String {
    fn bytes(&self) -> u64 {
        self.len() as u64
    }
}

impl<T: Bytes> Bytes for [T] {
    fn bytes(&self) -> u64 {
        match T::EACH {
            Some(each) => each.saturating_mul(self.len() as u64),
            None => self.iter().map(T::bytes).fold(0, u64::saturating_add),
        }
    }
}

impl<T: Bytes> Bytes for Vec<T> {
    fn bytes(&self) -> u64 {
        self.as_slice().bytes()
    }
}

impl<T: Bytes> Bytes for Option<T> {
    fn bytes(&self) -> u64 {
        self.as_ref().map_or(0, T::bytes)
    }
}

impl<T: Bytes + ?Sized> Bytes for &T {
    fn bytes(&self) -> u64 {
        (**self).bytes()
    }
}

impl<A: Bytes, B: Bytes> Bytes for (A, B) {
    fn bytes(&self) -> u64 {
        self.0.bytes().saturating_add(self.1.bytes())
    }
}

impl<A: Bytes, B: Bytes, C: Bytes> Bytes for (A, B, C) {
    fn bytes(&self) -> u64 {
        (&self.0, &self.1).bytes().saturating_add(self.2.bytes())
    }
}

impl<K: Bytes, V: Bytes> Bytes for BTreeMap<K, V> {
    fn bytes(&self) -> u64 {
        self.iter().map(|(key, value)| (key, value).bytes()).fold(0, u64::saturating_add)
    }
}

impl Bytes for Message {
    fn bytes(&self) -> u64 {
        (&self.role, &self.content).bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_count_by_size_and_texts_by_length() {
        assert_eq!(vec![1_u32, 2, 3].bytes(), 12);
        assert_eq!((vec![1.0_f32], "größe", None::<String>).bytes(), 4 + 7);
        assert_eq!(vec![("a".to_owned(), 1.0_f64)].bytes(), 9);
        assert_eq!([Message { role: "user".into(), content: "hi".into() }].as_slice().bytes(), 6);
    }
}
