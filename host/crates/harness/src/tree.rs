//! The tree: entries by name, in an order of their own, within limits. A tree is never changed; mutations make another
//! one. It knows no adapter, and reads and writes no file.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::entry::Entry;
use crate::error::{Problem, TreeError};
use crate::name::{EntryKind, EntryName};

/// Entries of one tree; a large one has dozens.
pub const ENTRIES_MAX: usize = 512;
/// Bytes of all entries together; they are held in memory and sent whole to clients.
pub const TREE_BYTES_MAX: usize = 8 << 20;

/// Entries, sorted by kind and id.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Tree {
    entries: BTreeMap<EntryName, Arc<Entry>>,
}

impl Tree {
    /// Checks what one entry alone cannot know: names that differ in case only, and the size of the whole.
    pub fn new(entries: impl IntoIterator<Item = Entry>) -> Result<Self, TreeError> {
        let mut map = BTreeMap::new();
        for entry in entries {
            let name = entry.name().clone();
            if map.insert(name.clone(), Arc::new(entry)).is_some() {
                return Err(TreeError::new(&name, Problem::Duplicate { other: name.to_string() }));
            }
        }
        Self::checked(map)
    }

    pub(crate) fn checked(entries: BTreeMap<EntryName, Arc<Entry>>) -> Result<Self, TreeError> {
        if entries.len() > ENTRIES_MAX {
            let problem = Problem::TooMany { what: "entries", count: entries.len(), most: ENTRIES_MAX };
            return Err(TreeError::new("tree", problem));
        }
        let mut seen: BTreeMap<(EntryKind, String), &EntryName> = BTreeMap::new();
        for name in entries.keys() {
            if let Some(other) = seen.insert((name.kind(), name.id().to_ascii_lowercase()), name) {
                return Err(TreeError::new(name, Problem::Duplicate { other: other.to_string() }));
            }
        }
        let bytes = entries.values().map(|entry| entry.bytes()).sum();
        if bytes > TREE_BYTES_MAX {
            return Err(TreeError::new("tree", Problem::TooLong { bytes, most: TREE_BYTES_MAX }));
        }
        Ok(Self { entries })
    }

    /// The entry of this name.
    pub fn get(&self, name: &EntryName) -> Option<&Entry> {
        self.entries.get(name).map(Arc::as_ref)
    }

    /// All entries, sorted by kind and id.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values().map(Arc::as_ref)
    }

    /// Entries of one kind, sorted by id.
    pub fn of_kind(&self, kind: EntryKind) -> impl Iterator<Item = &Entry> {
        self.entries().filter(move |entry| entry.name().kind() == kind)
    }

    pub(crate) fn map(&self) -> &BTreeMap<EntryName, Arc<Entry>> {
        &self.entries
    }
}
