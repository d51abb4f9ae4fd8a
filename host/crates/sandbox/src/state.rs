//! Capability `state`: the key-value bucket of (tenant, scenario, recipe).
//! Reads see the writes of the same call; writes are staged and leave with the outcome, or not at all.

use std::collections::BTreeMap;

use crate::Capability;
use crate::call_state::{CallState, denied_becomes};
use crate::text::clean;

/// Bytes of a key.
const KEY_BYTES_MAX: usize = 256;
/// Bytes of a value.
const VALUE_BYTES_MAX: usize = 64 * 1024;

/// Why the bucket refuses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StateError {
    #[error("{0}")]
    TooLarge(String),
    #[error("{0}")]
    Budget(String),
    #[error("{0}")]
    Other(String),
}
denied_becomes!(StateError);

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
        check_entry(&key, &value).map_err(StateError::TooLarge)?;
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

    /// Every key, sorted.
    fn keys(&self) -> Vec<String> {
        let kept = self.base.keys().filter(|key| !self.staged.contains_key(*key));
        let staged = self.staged.iter().filter(|(_, value)| value.is_some()).map(|(key, _)| key);
        let mut keys: Vec<String> = kept.chain(staged).cloned().collect();
        keys.sort_unstable();
        keys
    }

    /// The bucket as the call found it, and the bytes that it may hold.
    pub(crate) fn found(&self) -> (&BTreeMap<String, Vec<u8>>, u64) {
        (&self.base, self.bytes_max)
    }

    /// Staged writes in key order; `None` deletes.
    pub(crate) fn into_writes(self) -> Vec<(String, Option<Vec<u8>>)> {
        self.staged.into_iter().collect()
    }
}

/// The limits of one entry. The error is a sentence.
pub(crate) fn check_entry(key: &str, value: &[u8]) -> Result<(), String> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return Err(format!("a key has 1 to {KEY_BYTES_MAX} bytes and this one has {}", key.len()));
    }
    if value.len() > VALUE_BYTES_MAX {
        let (shown, bytes) = (clean(key, 64), value.len());
        return Err(format!("the value of '{shown}' has {bytes} bytes and at most {VALUE_BYTES_MAX} are kept"));
    }
    Ok(())
}

/// Bytes that an entry counts.
pub(crate) fn entry_bytes(key: &str, value: &[u8]) -> u64 {
    (key.len() as u64).saturating_add(value.len() as u64)
}

impl CallState {
    pub(crate) fn state_get(&mut self, key: &str) -> Result<Option<Vec<u8>>, StateError> {
        self.admit(Capability::State, &key)?;
        Ok(self.bucket.get(key).cloned())
    }

    pub(crate) fn state_set(&mut self, key: String, value: Vec<u8>) -> Result<(), StateError> {
        self.admit(Capability::State, &(&key, &value))?;
        self.bucket.set(key, value)
    }

    pub(crate) fn state_delete(&mut self, key: &str) -> Result<(), StateError> {
        self.admit(Capability::State, &key)?;
        self.bucket.delete(key);
        Ok(())
    }

    pub(crate) fn state_keys(&mut self) -> Result<Vec<String>, StateError> {
        self.admit(Capability::State, &())?;
        Ok(self.bucket.keys())
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
        assert_eq!(bucket.keys(), ["a", "b"]);
        bucket.delete("a");
        assert_eq!(bucket.keys(), ["b"]);
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
