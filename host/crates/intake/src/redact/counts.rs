//! What was taken out, by kind.

use std::collections::BTreeMap;
use std::fmt;

/// Kinds that a line names; of more it says how many.
const KINDS_SHOWN_MAX: usize = 8;

/// How many secrets of which kind were taken out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts(BTreeMap<String, u64>);

impl Counts {
    /// Nothing was taken out.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All kinds together.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Each kind and how often.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(kind, count)| (kind.as_str(), *count))
    }

    pub(super) fn add(&mut self, kind: &str, count: u64) {
        match self.0.get_mut(kind) {
            Some(before) => *before += count,
            None => drop(self.0.insert(kind.to_owned(), count)),
        }
    }

    /// Adds what was found elsewhere.
    pub fn merge(&mut self, other: &Self) {
        other.iter().for_each(|(kind, count)| self.add(kind, count));
    }
}

/// `github-token 2, jwt 1`.
impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (kind, count)) in self.iter().take(KINDS_SHOWN_MAX).enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(f, "{comma}{kind} {count}")?;
        }
        match self.0.len().checked_sub(KINDS_SHOWN_MAX) {
            Some(more) if more > 0 => write!(f, ", {more} more kinds"),
            _ => Ok(()),
        }
    }
}
