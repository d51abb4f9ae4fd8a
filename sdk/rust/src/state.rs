//! What survives a call: key-value pairs of (tenant, scenario, recipe), committed together with the step and
//! dropped when the call fails. Values are little-endian numbers without any framing.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::host::{self, Host};
use crate::{Failure, Result};

/// A type that state can hold: `u32`, `f64`, `Vec<f64>`, `Vec<u8>`.
pub trait Stored: Sized {
    /// Encodes; at most 64 KiB.
    fn to_bytes(&self) -> Vec<u8>;
    /// Decodes; `None` if the bytes are not of this type.
    fn from_bytes(bytes: &[u8]) -> Option<Self>;
}

impl Stored for u32 {
    fn to_bytes(&self) -> Vec<u8> {
        self.to_le_bytes().to_vec()
    }
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self::from_le_bytes)
    }
}

impl Stored for f64 {
    fn to_bytes(&self) -> Vec<u8> {
        self.to_le_bytes().to_vec()
    }
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self::from_le_bytes)
    }
}

impl Stored for Vec<f64> {
    fn to_bytes(&self) -> Vec<u8> {
        self.iter().flat_map(|number| number.to_le_bytes()).collect()
    }
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (numbers, rest) = bytes.as_chunks::<8>();
        rest.is_empty().then(|| numbers.iter().map(|&number| f64::from_le_bytes(number)).collect())
    }
}

impl Stored for Vec<u8> {
    fn to_bytes(&self) -> Vec<u8> {
        self.clone()
    }
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(bytes.to_vec())
    }
}

/// The value of `key`, as it will be after the writes of this call.
///
/// # Errors
/// The host's refusal, or `other` when the bytes are of another type.
pub fn get<T: Stored>(key: &str) -> Result<Option<T>> {
    let Some(bytes) = host::call(|host| Host::state_get(host, key))? else {
        return Ok(None);
    };
    match T::from_bytes(&bytes) {
        Some(value) => Ok(Some(value)),
        None => Err(Failure::other(format!("state {key}: its {} bytes are of another type", bytes.len()))),
    }
}

/// Writes `key` when the call succeeds.
///
/// # Errors
/// The host's refusal, e.g. of a value that is too large.
pub fn set<T: Stored>(key: &str, value: &T) -> Result<()> {
    host::call(|host| Host::state_set(host, key, &value.to_bytes()))
}

/// Deletes `key` when the call succeeds.
///
/// # Errors
/// The host's refusal.
pub fn delete(key: &str) -> Result<()> {
    host::call(|host| Host::state_delete(host, key))
}

/// Every key, sorted, as it will be after the writes of this call.
///
/// # Errors
/// The host's refusal.
pub fn keys() -> Result<Vec<String>> {
    host::call(Host::state_keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_bit_for_bit() {
        assert_eq!(u32::from_bytes(&7u32.to_bytes()), Some(7));
        assert_eq!(f64::from_bytes(&(-0.1f64).to_bytes()), Some(-0.1));
        let list = alloc::vec![1.5, f64::MIN_POSITIVE];
        assert_eq!(Vec::<f64>::from_bytes(&list.to_bytes()), Some(list));
    }

    #[test]
    fn bytes_of_another_type_are_refused() {
        assert_eq!(u32::from_bytes(&[1, 2, 3]), None);
        assert_eq!(Vec::<f64>::from_bytes(&[0; 9]), None);
    }
}
