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
/// Bytes that an entry counts beside its key and its value: what it takes to keep it.
const ENTRY_BYTES: u64 = 64;
/// Entries of a bucket, and changes of one call; the store takes no more in one write.
pub(crate) const ENTRIES_MAX: usize = 10_000;
/// First bytes of the keys of a bucket that belong to the host; guests neither see nor write them.
pub const HOST_STATE_PREFIX: &str = "reef.";

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
    entries: usize,
}

impl Bucket {
    pub(crate) fn new(mut base: BTreeMap<String, Vec<u8>>, bytes_max: u64) -> Self {
        base.retain(|key, _| !is_host_key(key));
        let bytes = base.iter().map(|(key, value)| entry_bytes(key, value)).sum();
        let entries = base.len();
        Self { base, staged: BTreeMap::new(), bytes, bytes_max, entries }
    }

    fn get(&self, key: &str) -> Option<&Vec<u8>> {
        match self.staged.get(key) {
            Some(staged) => staged.as_ref(),
            None => self.base.get(key),
        }
    }

    fn set(&mut self, key: String, value: Vec<u8>) -> Result<(), StateError> {
        check_owner(&key).map_err(StateError::Other)?;
        check_text(&key).map_err(StateError::Other)?;
        check_entry(&key, &value).map_err(StateError::TooLarge)?;
        self.check_changes(&key)?;
        let old = self.get(&key).map(|old| entry_bytes(&key, old));
        let bytes = self.bytes.saturating_sub(old.unwrap_or(0)).saturating_add(entry_bytes(&key, &value));
        // A bucket that a smaller limit found too large may still be made smaller.
        if bytes > self.bytes_max && bytes > self.bytes {
            return Err(StateError::TooLarge(format!(
                "the bucket would hold {bytes} bytes, {ENTRY_BYTES} for each entry included, and at most {} are kept; \
                 delete entries first",
                self.bytes_max
            )));
        }
        if old.is_none() {
            if self.entries >= ENTRIES_MAX {
                let told = format!("the bucket has {} entries and at most {ENTRIES_MAX} are kept", self.entries);
                return Err(StateError::TooLarge(format!("{told}; delete entries first")));
            }
            self.entries = self.entries.saturating_add(1);
        }
        self.bytes = bytes;
        self.staged.insert(key, Some(value));
        Ok(())
    }

    fn delete(&mut self, key: &str) -> Result<(), StateError> {
        check_owner(key).map_err(StateError::Other)?;
        let Some(old) = self.get(key).map(|old| entry_bytes(key, old)) else { return Ok(()) };
        self.check_changes(key)?;
        self.bytes = self.bytes.saturating_sub(old);
        self.entries = self.entries.saturating_sub(1);
        if self.base.contains_key(key) {
            self.staged.insert(key.to_owned(), None);
        } else {
            self.staged.remove(key);
        }
        Ok(())
    }

    /// May this key be changed as well?
    fn check_changes(&self, key: &str) -> Result<(), StateError> {
        if self.staged.len() < ENTRIES_MAX || self.staged.contains_key(key) {
            return Ok(());
        }
        Err(StateError::TooLarge(format!("one call changes at most {ENTRIES_MAX} entries; leave the rest to the next")))
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

/// Does the key belong to the host?
pub(crate) fn is_host_key(key: &str) -> bool {
    key.starts_with(HOST_STATE_PREFIX)
}

/// A guest writes its own keys only. The error is a sentence.
pub(crate) fn check_owner(key: &str) -> Result<(), String> {
    if !is_host_key(key) {
        return Ok(());
    }
    let shown = clean(key, 64);
    Err(format!("the key '{shown}' belongs to the host, as all that start with '{HOST_STATE_PREFIX}'; choose another"))
}

/// Not every database keeps every text, and the one that does not refuses it when the step has been done already. The
/// error is a sentence.
fn check_text(key: &str) -> Result<(), String> {
    if !key.contains(char::is_control) {
        return Ok(());
    }
    Err(format!("the key '{}' has a control character, which not every database keeps; encode it", clean(key, 64)))
}

/// The limits of one entry. The error is a sentence.
pub(crate) fn check_entry(key: &str, value: &[u8]) -> Result<(), String> {
    check_text(key)?;
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
    (key.len() as u64).saturating_add(value.len() as u64).saturating_add(ENTRY_BYTES)
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
        self.bucket.delete(key)
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
        Bucket::new(BTreeMap::from([("a".to_owned(), vec![1])]), 10 + 2 * ENTRY_BYTES)
    }

    #[test]
    fn reads_see_staged_writes_and_deletes() {
        let mut bucket = bucket();
        bucket.set("b".into(), vec![2]).expect("fits");
        assert_eq!(bucket.keys(), ["a", "b"]);
        bucket.delete("a").expect("its own");
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
        bucket.delete("b").expect("its own");
        bucket.set("c".into(), vec![0; 7]).expect("room again");
        assert_eq!((bucket.bytes, bucket.entries), (10 + 2 * ENTRY_BYTES, 2));
    }

    #[test]
    fn empty_entries_fill_a_bucket_too() {
        let mut bucket = Bucket::new(BTreeMap::new(), 3 * (1 + ENTRY_BYTES));
        for key in ["a", "b", "c"] {
            bucket.set(key.into(), vec![]).expect("fits");
        }
        assert!(matches!(bucket.set("d".into(), vec![]), Err(StateError::TooLarge(_))));
    }

    #[test]
    fn a_bucket_that_is_too_large_can_be_made_smaller() {
        let base = BTreeMap::from([("a".to_owned(), vec![0; 9]), ("b".to_owned(), vec![])]);
        let mut bucket = Bucket::new(base, 1);
        bucket.set("a".into(), vec![0; 8]).expect("smaller than before");
        assert!(bucket.set("a".into(), vec![0; 9]).is_err());
        bucket.delete("b").expect("its own");
    }

    #[test]
    fn entries_and_changes_are_counted() {
        let full = || (0..ENTRIES_MAX).map(|index| (index.to_string(), vec![])).collect();
        let mut bucket = Bucket::new(full(), u64::MAX);
        assert!(matches!(bucket.set("one more".into(), vec![]), Err(StateError::TooLarge(_))));
        bucket.set("0".into(), vec![1]).expect("there already");
        for index in 0..ENTRIES_MAX {
            bucket.delete(&index.to_string()).expect("its own");
        }
        let told = bucket.set("one more".into(), vec![]).expect_err("too many changes").to_string();
        assert!(told.contains("changes at most"), "{told}");
        bucket.set("0".into(), vec![2]).expect("changed already");
    }

    #[test]
    fn keys_of_the_host_are_neither_seen_nor_written() {
        let base = BTreeMap::from([("reef.critic".to_owned(), vec![9]), ("reef".to_owned(), vec![1])]);
        let mut bucket = Bucket::new(base, 1_000);
        assert_eq!((bucket.keys(), bucket.get("reef.critic")), (vec!["reef".to_owned()], None));
        for key in ["reef.critic", "reef.", "reef.new"] {
            assert!(matches!(bucket.set(key.into(), vec![1]), Err(StateError::Other(_))), "{key}");
            assert!(matches!(bucket.delete(key), Err(StateError::Other(_))), "{key}");
        }
        bucket.set("reefs".into(), vec![1]).expect("its own");
        assert_eq!(bucket.into_writes().len(), 1);
    }

    #[test]
    fn keys_with_control_characters_are_refused_and_can_be_deleted() {
        let mut bucket = Bucket::new(BTreeMap::from([("old\0".to_owned(), vec![1])]), 1_000);
        for key in ["a\0b", "\n", "tab\t", "\u{7f}", "\u{85}"] {
            let told = bucket.set(key.into(), vec![]).expect_err("refused");
            assert!(matches!(&told, StateError::Other(told) if told.contains("control character")), "{told}");
            assert!(check_entry(key, &[]).is_err(), "nor does a migration bring {key:?}");
        }
        bucket.delete("old\0").expect("kept by an earlier version");
        bucket.set("größe: 1 / ∞".into(), vec![1]).expect("any other text");
        assert_eq!(bucket.into_writes(), [("größe: 1 / ∞".to_owned(), Some(vec![1])), ("old\0".to_owned(), None)]);
    }

    #[test]
    fn keys_and_values_have_limits() {
        let mut bucket = Bucket::new(BTreeMap::new(), u64::MAX);
        assert!(bucket.set(String::new(), vec![]).is_err());
        assert!(bucket.set("k".repeat(257), vec![]).is_err());
        assert!(bucket.set("k".into(), vec![0; VALUE_BYTES_MAX + 1]).is_err());
        bucket.delete("missing").expect("nothing to do");
        assert!(bucket.into_writes().is_empty());
    }
}
