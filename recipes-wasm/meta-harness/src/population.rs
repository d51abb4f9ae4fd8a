//! Every harness that was tried, with its parent, its hypothesis and its score, and what it cost. A candidate's id is
//! the hash of its canonical entries, so that the same tree is the same candidate whoever wrote it and in what order.

use core::fmt::Write;

use reef_evolution::edits::{Kinds, kind_name, text_kind};
use reef_evolution::{json, memory};
use reef_recipe::prelude::*;
use reef_recipe::{Entry, EntryName, Mutation};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Key of the counters.
const SPENT: &str = "spent";
/// What the keys of nodes begin with.
const NODE: &str = "node/";
/// Bytes of the entries of one node, so that a full population fits the state.
pub const ENTRIES_BYTES_MAX: usize = 24_000;

/// An entry that a node may differ in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    kind: String,
    id: String,
    config: String,
}

/// One harness that was tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// SHA-256 of the canonical entries, 64 hex digits.
    pub id: String,
    /// What it was made from; empty of one that was found serving.
    pub parent: String,
    /// What its author expected, one line.
    pub hypothesis: String,
    /// Its entries of the kinds that may change.
    pub parts: Vec<Part>,
    /// Number of the attempt, from 0.
    pub number: u32,
    /// Mean score, and that of the incumbent on the same pairs.
    pub means: Option<(f64, f64)>,
    /// What became of it, one line.
    pub outcome: String,
}

/// What the search has used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    /// Candidates that were proposed.
    pub candidates: u32,
    /// Answers that could not be used, or made a harness that was tried before.
    pub attempts: u32,
    /// Episodes on both sides.
    pub episodes: u32,
    /// Nodes so far.
    nodes: u32,
}

/// The entries one a line, by kind and id, fields sorted by name at every depth.
pub fn canonical(entries: &[Entry]) -> String {
    let mut lines: Vec<String> = entries
        .iter()
        .map(|entry| {
            let config = json::from_str(&entry.config).map(|value| sorted(&value)).unwrap_or_default();
            format!("{}\t{}\t{config}\n", kind_name(entry.kind), entry.id)
        })
        .collect();
    lines.sort();
    lines.concat()
}

fn sorted(value: &json::Value) -> String {
    match value {
        json::Value::Object(fields) => {
            let mut fields: Vec<String> = fields
                .iter()
                .map(|(name, value)| format!("{}:{}", json::Value::from(name.as_str()), sorted(value)))
                .collect();
            fields.sort();
            format!("{{{}}}", fields.join(","))
        }
        json::Value::Array(items) => format!("[{}]", items.iter().map(sorted).collect::<Vec<_>>().join(",")),
        plain => plain.to_string(),
    }
}

/// SHA-256 of the canonical entries, 64 hex digits.
pub fn identity(entries: &[Entry]) -> String {
    let mut id = String::new();
    for byte in Sha256::digest(canonical(entries)) {
        // Writing to a string does not fail.
        let _ = write!(id, "{byte:02x}");
    }
    id
}

/// The entries after the changes, in their order.
pub fn applied(entries: &[Entry], changes: &[Mutation]) -> Vec<Entry> {
    let mut entries = entries.to_vec();
    for change in changes {
        let (kind, id) = match change {
            Mutation::Put(entry) => (entry.kind, &entry.id),
            Mutation::Remove(EntryName { kind, id }) => (*kind, id),
        };
        entries.retain(|entry| entry.kind != kind || entry.id != *id);
        if let Mutation::Put(entry) = change {
            entries.push(entry.clone());
        }
    }
    entries
}

/// What makes `wanted` of `entries`.
pub fn difference(entries: &[Entry], wanted: &[Entry]) -> Vec<Mutation> {
    let named =
        |list: &[Entry], entry: &Entry| list.iter().any(|other| other.kind == entry.kind && other.id == entry.id);
    let gone = entries.iter().filter(|entry| !named(wanted, entry));
    let gone = gone.map(|entry| Mutation::remove(entry.kind, entry.id.clone()));
    let put = wanted.iter().filter(|entry| !entries.contains(entry)).cloned().map(Mutation::Put);
    gone.chain(put).collect()
}

impl Node {
    /// The whole tree of this node: its parts, and the entries of other kinds that serve now.
    pub fn entries(&self, incumbent: &[Entry], kinds: &Kinds) -> Vec<Entry> {
        let others = incumbent.iter().filter(|entry| !kinds.holds(entry.kind)).cloned();
        let own = self.parts.iter().filter_map(|part| {
            let kind = text_kind(&part.kind).filter(|&kind| kinds.holds(kind))?;
            Some(Entry { id: part.id.clone(), kind, config: part.config.clone() })
        });
        others.chain(own).collect()
    }
}

/// Every node and what was used.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Population {
    /// In the order in which they were made.
    pub nodes: Vec<Node>,
    /// What was used.
    pub spent: Spent,
}

impl Population {
    /// The population of the state.
    ///
    /// # Errors
    /// The host's refusal, or `other` when the state is of another form.
    pub fn read() -> Result<Self> {
        let spent = stored(SPENT)?.unwrap_or_default();
        let mut nodes: Vec<Node> = Vec::new();
        for key in state::keys()?.into_iter().filter(|key| key.starts_with(NODE)) {
            nodes.extend(stored::<Node>(&key)?);
        }
        nodes.sort_by_key(|node| node.number);
        Ok(Self { nodes, spent })
    }

    /// Writes the counters and one node.
    ///
    /// # Errors
    /// The host's refusal.
    pub fn write(&self, node: Option<&Node>) -> Result<()> {
        store(SPENT, &self.spent)?;
        node.map_or(Ok(()), |node| store(&key(&node.id), node))
    }

    /// The node that a proposer means by the beginning of its id; at least eight digits.
    pub fn named(&self, id: &str) -> Option<&Node> {
        let mut found = self.nodes.iter().filter(|node| id.len() >= 8 && node.id.starts_with(id));
        let node = found.next();
        node.filter(|_| found.next().is_none())
    }

    /// Adds a node; beyond `most` the worst one goes that nobody is made from and that is not in `keep`.
    ///
    /// # Errors
    /// The host's refusal.
    pub fn add(&mut self, mut node: Node, most: usize, keep: &str) -> Result<Node> {
        node.number = self.spent.nodes;
        self.spent.nodes += 1;
        while self.nodes.len() >= most {
            let mean = |node: &Node| node.means.map_or(f64::NEG_INFINITY, |(own, _)| own);
            let spare = self.nodes.iter().filter(|old| old.id != keep && old.id != node.parent);
            let Some(worst) = spare.min_by(|a, b| mean(a).total_cmp(&mean(b))).map(|node| node.id.clone()) else {
                break;
            };
            state::delete(&key(&worst))?;
            self.nodes.retain(|old| old.id != worst);
        }
        self.nodes.push(node.clone());
        self.write(Some(&node))?;
        Ok(node)
    }
}

/// The parts of a tree that a node keeps.
pub fn parts(entries: &[Entry], kinds: &Kinds) -> Vec<Part> {
    let part = |entry: &Entry| Part {
        kind: kind_name(entry.kind).to_owned(),
        id: entry.id.clone(),
        config: entry.config.clone(),
    };
    kinds.of(entries).map(part).collect()
}

/// Bytes that parts take.
pub fn parts_bytes(parts: &[Part]) -> usize {
    json::to_vec(parts).map_or(usize::MAX, |bytes| bytes.len())
}

fn key(id: &str) -> String {
    format!("{NODE}{id}")
}

fn store<T: Serialize>(key: &str, value: &T) -> Result<()> {
    let value =
        json::to_value(value).map_err(|error| Failure::other(format!("state {key}: it cannot be written: {error}")))?;
    memory::write(key, &value)
}

fn stored<T: serde::de::DeserializeOwned>(key: &str) -> Result<Option<T>> {
    let Some(value) = memory::read(key)? else { return Ok(None) };
    json::from_value(value).map(Some).map_err(|error| {
        Failure::other(format!("state {key}: it is not of this version: {error}; delete the state to start anew"))
    })
}
