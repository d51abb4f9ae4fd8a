//! Mutations: what a recipe or a person proposes to change. A list is applied as a whole or not at all, and says how to
//! undo it. Whether a tree should take it is decided elsewhere (`admission`).

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::entry::Entry;
use crate::error::{Problem, TreeError};
use crate::name::EntryName;
use crate::tree::Tree;

/// Mutations of one list.
pub const MUTATIONS_MAX: usize = 256;

/// One change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Mutation {
    /// Adds an entry that is not there.
    Create(Change),
    /// Changes fields of one that is there; null removes a field, an object changes fields within it.
    Update(Change),
    /// Adds an entry, or replaces the one of that name.
    Put(Change),
    /// Removes an entry that is there.
    Remove(EntryName),
}

/// An entry and its fields, not checked yet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// Which entry.
    #[serde(flatten)]
    pub name: EntryName,
    /// Its fields.
    #[serde(alias = "options")]
    pub config: Map<String, Value>,
}

impl Mutation {
    /// The entry that it changes.
    pub fn name(&self) -> &EntryName {
        match self {
            Self::Create(change) | Self::Update(change) | Self::Put(change) => &change.name,
            Self::Remove(name) => name,
        }
    }
}

/// A list of mutations that cannot be applied; the tree stays as it was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MutationError {
    /// The list is too long.
    #[error("{count} mutations are over the limit of {MUTATIONS_MAX}; propose fewer")]
    TooMany {
        /// Their number.
        count: usize,
    },
    /// Create, but the entry is there.
    #[error("mutation {at}: {name}: the entry exists; update it, or choose another id")]
    Exists {
        /// Position in the list, from 0.
        at: usize,
        /// The entry.
        name: EntryName,
    },
    /// Update or remove, but there is no such entry.
    #[error("mutation {at}: {name}: there is no such entry; create it, or name one that exists")]
    Missing {
        /// Position in the list, from 0.
        at: usize,
        /// The entry.
        name: EntryName,
    },
    /// The entry that would result breaks a rule.
    #[error("mutation {at}: {error}")]
    Entry {
        /// Position in the list, from 0.
        at: usize,
        /// Which rule.
        error: TreeError,
    },
    /// The tree that would result breaks a rule.
    #[error(transparent)]
    Tree(TreeError),
}

/// What a list of mutations made.
#[derive(Debug, Clone, PartialEq)]
pub struct Applied {
    /// The new tree.
    pub tree: Tree,
    /// Applied to it, these give the old one.
    pub inverse: Vec<Mutation>,
}

impl Tree {
    /// Applies the mutations in their order, all or none.
    pub fn apply(&self, mutations: &[Mutation]) -> Result<Applied, MutationError> {
        if mutations.len() > MUTATIONS_MAX {
            return Err(MutationError::TooMany { count: mutations.len() });
        }
        let mut entries = self.map().clone();
        let mut inverse = Vec::with_capacity(mutations.len());
        for (at, mutation) in mutations.iter().enumerate() {
            let before = change(&mut entries, at, mutation)?;
            inverse.push(match before {
                Some(entry) => Mutation::Put(Change { name: entry.name().clone(), config: object(entry.config()) }),
                None => Mutation::Remove(mutation.name().clone()),
            });
        }
        inverse.reverse();
        let tree = Tree::checked(entries).map_err(MutationError::Tree)?;
        Ok(Applied { tree, inverse })
    }
}

/// Changes one entry; answers with what was there.
fn change(
    entries: &mut BTreeMap<EntryName, Arc<Entry>>,
    at: usize,
    mutation: &Mutation,
) -> Result<Option<Arc<Entry>>, MutationError> {
    let name = mutation.name();
    let config = match (mutation, entries.get(name)) {
        (Mutation::Create(_), Some(_)) => return Err(MutationError::Exists { at, name: name.clone() }),
        (Mutation::Update(_) | Mutation::Remove(_), None) => {
            return Err(MutationError::Missing { at, name: name.clone() });
        }
        (Mutation::Remove(_), Some(_)) => return Ok(entries.remove(name)),
        (Mutation::Update(change), Some(entry)) => {
            let mut config = object(entry.config());
            merge(&mut config, &change.config);
            config
        }
        (Mutation::Create(change) | Mutation::Put(change), _) => change.config.clone(),
    };
    let entry = Entry::parse(name.clone(), &Value::Object(config));
    let entry = entry.map_err(|error| MutationError::Entry { at, error })?;
    Ok(entries.insert(name.clone(), Arc::new(entry)))
}

/// JSON merge patch (RFC 7396).
fn merge(into: &mut Map<String, Value>, patch: &Map<String, Value>) {
    for (key, value) in patch {
        match (into.get_mut(key), value) {
            (_, Value::Null) => {
                into.remove(key);
            }
            (Some(Value::Object(old)), Value::Object(new)) => merge(old, new),
            (_, Value::Object(new)) => {
                let mut fresh = Map::new();
                merge(&mut fresh, new);
                into.insert(key.clone(), Value::Object(fresh));
            }
            (_, value) => {
                into.insert(key.clone(), value.clone());
            }
        }
    }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// Reads a list of mutations as it comes over HTTP or from a recipe.
pub fn read_mutations(value: &Value) -> Result<Vec<Mutation>, TreeError> {
    let told = |told: String| TreeError::new("mutations", Problem::Fields { told });
    let items = value.as_array().ok_or_else(|| told("they are not a list; send one".to_owned()))?;
    let read = |(at, item): (usize, &Value)| {
        let mutation = Mutation::deserialize(item);
        mutation.map_err(|error| {
            TreeError::new(
                format_args!("mutation {at}"),
                Problem::Fields { told: format!("{error}; send {{op: create|update|put|remove, kind, id, config}}") },
            )
        })
    };
    items.iter().enumerate().map(read).collect()
}

#[cfg(test)]
#[path = "mutation_tests.rs"]
mod tests;
