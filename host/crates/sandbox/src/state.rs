//! Capability `state`: the key-value bucket of (tenant, scenario, recipe).
//! Reads see the writes of the same call; writes are staged and leave with the outcome, or not at all.

use std::collections::BTreeMap;

use crate::Capability;
use crate::bindings::reef::recipe::state::{Host, StateError};
use crate::call_state::CallState;
use crate::text::clean;

/// Bytes of a key.
const KEY_BYTES_MAX: usize = 256;
/// Bytes of a value.
const VALUE_BYTES_MAX: usize = 64 * 1024;

/// The bucket as one call sees it.
#[derive(Debug, Default)]
pub(crate) struct Bucket {
    base: BTreeMap<String, Vec<u8>>,
    staged: BTreeMap<String, Option<Vec<u8>>>,
    bytes: u64,
    bytes_max: u64,
}

impl Bucket {
    pub(crate) fn new(base: BTreeMap<String, Vec<u8>>, bytes_max: u64) -> Self {
        let bytes = base.iter().map(|(key, value)| entry_bytes(key, value)).sum();
        Self { base, staged: BTreeMap::new(), bytes, bytes_max }
    }

    fn get(&self, key: &str) -> Option<&Vec<u8>> {
        match self.staged.get(key) {
            Some(staged) => staged.as_ref(),
            None => self.base.get(key),
        }
    }

    fn set(&mut self, key: String, value: Vec<u8>) -> Result<(), StateError> {
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(StateError::TooLarge(format!(
                "a key has 1 to {KEY_BYTES_MAX} bytes and this one has {}",
                key.len()
            )));
        }
        if value.len() > VALUE_BYTES_MAX {
            let told = format!(
                "the value of '{}' has {} bytes and at most {VALUE_BYTES_MAX} are kept",
                clean(&key, 64),
                value.len()
            );
            return Err(StateError::TooLarge(told));
        }
        let old = self.get(&key).map_or(0, |old| entry_bytes(&key, old));
        let bytes = self.bytes.saturating_sub(old).saturating_add(entry_bytes(&key, &value));
        if bytes > self.bytes_max {
            return Err(StateError::TooLarge(format!(
                "the bucket would hold {bytes} bytes and at most {} are kept",
                self.bytes_max
            )));
        }
        self.bytes = bytes;
        self.staged.insert(key, Some(value));
        Ok(())
    }

    fn delete(&mut self, key: &str) {
        let Some(old) = self.get(key).map(|old| entry_bytes(key, old)) else { return };
        self.bytes = self.bytes.saturating_sub(old);
        if self.base.contains_key(key) {
            self.staged.insert(key.to_owned(), None);
        } else {
            self.staged.remove(key);
        }
    }

    /// Staged writes in key order; `None` deletes.
    pub(crate) fn into_writes(self) -> Vec<(String, Option<Vec<u8>>)> {
        self.staged.into_iter().collect()
    }
}

fn entry_bytes(key: &str, value: &[u8]) -> u64 {
    (key.len() as u64).saturating_add(value.len() as u64)
}

impl Host for CallState {
    fn get(&mut self, key: String) -> Result<Option<Vec<u8>>, StateError> {
        self.admit(Capability::State).map_err(StateError::Budget)?;
        Ok(self.bucket.get(&key).cloned())
    }

    fn set(&mut self, key: String, value: Vec<u8>) -> Result<(), StateError> {
        self.admit(Capability::State).map_err(StateError::Budget)?;
        self.bucket.set(key, value)
    }

    fn delete(&mut self, key: String) -> Result<(), StateError> {
        self.admit(Capability::State).map_err(StateError::Budget)?;
        self.bucket.delete(&key);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket() -> Bucket {
        Bucket::new(BTreeMap::from([("a".to_owned(), vec![1])]), 10)
    }

    #[test]
    fn reads_see_staged_writes_and_deletes() {
        let mut bucket = bucket();
        bucket.set("b".into(), vec![2]).expect("fits");
        bucket.delete("a");
        assert_eq!((bucket.get("a"), bucket.get("b")), (None, Some(&vec![2])));
        assert_eq!(bucket.into_writes(), [("a".to_owned(), None), ("b".to_owned(), Some(vec![2]))]);
    }

    #[test]
    fn the_bucket_never_outgrows_its_size() {
        let mut bucket = bucket();
        assert!(matches!(bucket.set("b".into(), vec![0; 8]), Err(StateError::TooLarge(_))));
        bucket.set("b".into(), vec![0; 7]).expect("exactly full");
        assert!(bucket.set("c".into(), vec![]).is_err());
        bucket.delete("b");
        bucket.set("c".into(), vec![0; 7]).expect("room again");
        assert_eq!(bucket.bytes, 10);
    }

    #[test]
    fn keys_and_values_have_limits() {
        let mut bucket = Bucket::new(BTreeMap::new(), u64::MAX);
        assert!(bucket.set(String::new(), vec![]).is_err());
        assert!(bucket.set("k".repeat(257), vec![]).is_err());
        assert!(bucket.set("k".into(), vec![0; VALUE_BYTES_MAX + 1]).is_err());
        bucket.delete("missing");
        assert!(bucket.into_writes().is_empty());
    }
}
