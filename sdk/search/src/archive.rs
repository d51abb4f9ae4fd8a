//! What a search has found: states with values and visits, each under the state that it was built from. Bounded:
//! beyond [`STATES_MAX`] the worst leave, seeds never do, and the children of one that leaves move to its parent, so
//! that every lineage stays a chain of states that are still here.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::error::SearchError;
use crate::puct::{State, priorities};

/// States of an archive, seeds included.
pub const STATES_MAX: usize = 1_000;
/// Bytes of one construction or program.
pub const CONSTRUCTION_BYTES_MAX: usize = 64 * 1024;
/// Children of one expansion that are kept.
const CHILDREN_KEPT: usize = 2;

/// Names a state; never given twice in a search.
pub type NodeId = u64;

/// A construction or program with its value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Its name.
    pub id: NodeId,
    /// The text that was verified; no two states have the same.
    pub construction: String,
    /// Larger is better; finite.
    pub value: f64,
    /// The state that it was built from; none for a seed.
    pub parent: Option<NodeId>,
    /// n: visits of the state and its descendants.
    pub visits: u64,
    /// m: the best value among its children, also of those that were not kept.
    pub best_child: Option<f64>,
}

/// What came of building on one state: one group of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Expansion {
    /// What was built on.
    pub parent: NodeId,
    /// Constructions with their values, in the order of their rollouts.
    pub children: Vec<(String, f64)>,
    /// Rollouts without a value: malformed, refused by the verifier, or no answer.
    pub failures: u64,
}

/// The states of a search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Archive {
    nodes: Vec<Node>,
    /// T: visits of all states.
    visits: u64,
    next_id: NodeId,
}

impl Archive {
    /// Starts from seeds: constructions with their values.
    ///
    /// # Errors
    /// No seed or too many, a value that is not finite, a construction that is too long or given twice.
    pub fn new(seeds: Vec<(String, f64)>) -> Result<Self, SearchError> {
        if seeds.is_empty() || seeds.len() > STATES_MAX {
            return Err(SearchError::Seeds { found: seeds.len(), most: STATES_MAX });
        }
        let node = |(id, (construction, value)): (NodeId, (String, f64))| Node {
            id,
            construction,
            value,
            parent: None,
            visits: 0,
            best_child: None,
        };
        let nodes: Vec<Node> = (0..).zip(seeds).map(node).collect();
        let archive = Self { next_id: nodes.len() as NodeId, nodes, visits: 0 };
        archive.check()?;
        Ok(archive)
    }

    /// What a saved archive must hold: unique names and constructions, finite numbers, parents that are older and here.
    pub(crate) fn check(&self) -> Result<(), SearchError> {
        if self.nodes.is_empty() || self.nodes.len() > STATES_MAX {
            return Err(SearchError::Seeds { found: self.nodes.len(), most: STATES_MAX });
        }
        let (mut ids, mut constructions) = (BTreeSet::new(), BTreeSet::new());
        for (index, node) in self.nodes.iter().enumerate() {
            let in_order = ids.last().is_none_or(|last| *last < node.id) && node.id < self.next_id;
            let problem = if !in_order {
                format!("its name {} does not follow that of the state before it", node.id)
            } else if node.parent.is_some_and(|parent| !ids.contains(&parent)) {
                "its parent does not come before it".to_owned()
            } else if !node.value.is_finite() || node.best_child.is_some_and(|value| !value.is_finite()) {
                format!("its value {} or that of its best child is not finite", node.value)
            } else if node.construction.len() > CONSTRUCTION_BYTES_MAX {
                format!("it has {} bytes and at most {CONSTRUCTION_BYTES_MAX} are kept", node.construction.len())
            } else if !constructions.insert(&node.construction) {
                "another state has the same construction".to_owned()
            } else {
                ids.insert(node.id);
                continue;
            };
            return Err(SearchError::State { index, problem });
        }
        Ok(())
    }

    /// The states, oldest first.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// A state.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.binary_search_by_key(&id, |node| node.id).ok().and_then(|index| self.nodes.get(index))
    }

    /// T.
    pub fn visits(&self) -> u64 {
        self.visits
    }

    /// The state with the best value, the oldest of equals.
    pub fn best(&self) -> Option<&Node> {
        self.nodes.iter().reduce(|best, node| if node.value > best.value { node } else { best })
    }

    /// At most `count` states to build on, highest priority first; of equal priorities the better value, then the
    /// older. A state that was picked blocks its ancestors and descendants, so that the groups of a step differ.
    pub fn select(&self, count: usize, exploration: f64) -> Vec<NodeId> {
        let states: Vec<State> = self.nodes.iter().map(State::from).collect();
        let mut order: Vec<(&Node, f64)> =
            self.nodes.iter().zip(priorities(&states, self.visits, exploration)).map(|(n, p)| (n, p.score)).collect();
        order.sort_by(|(a, first), (b, second)| second.total_cmp(first).then(b.value.total_cmp(&a.value)));
        let mut picked: Vec<NodeId> = Vec::new();
        for (node, _) in order {
            if picked.len() == count {
                break;
            }
            let related = |other: &NodeId| self.descends(node.id, *other) || self.descends(*other, node.id);
            if !picked.iter().any(related) {
                picked.push(node.id);
            }
        }
        picked
    }

    /// The state and its ancestors, youngest first.
    fn lineage(&self, id: NodeId) -> impl Iterator<Item = NodeId> {
        std::iter::successors(Some(id), |id| self.node(*id)?.parent)
    }

    fn descends(&self, id: NodeId, from: NodeId) -> bool {
        self.lineage(id).any(|ancestor| ancestor == from)
    }

    /// Takes in what came of a step. A group counts one visit if any child has a value, and one more for each failed
    /// rollout; visits are of the parent, all of its ancestors and the archive. Of each group the best two children
    /// that are new are kept; the archive shrinks to its bound when all groups are in.
    ///
    /// # Errors
    /// A parent is not in the archive; nothing is changed.
    pub fn update(&mut self, expansions: Vec<Expansion>) -> Result<(), SearchError> {
        if let Some(unknown) = expansions.iter().find(|expansion| self.node(expansion.parent).is_none()) {
            return Err(SearchError::UnknownState(unknown.parent));
        }
        for Expansion { parent, children, failures } in expansions {
            let children: Vec<(String, f64)> = children.into_iter().filter(|(_, value)| value.is_finite()).collect();
            let visits = failures.saturating_add(u64::from(!children.is_empty()));
            self.count(parent, visits, children.iter().map(|(_, value)| *value).reduce(f64::max));
            self.keep_best(parent, children);
        }
        self.shrink();
        Ok(())
    }

    fn count(&mut self, parent: NodeId, visits: u64, best: Option<f64>) {
        let lineage: BTreeSet<NodeId> = self.lineage(parent).collect();
        for node in self.nodes.iter_mut().filter(|node| lineage.contains(&node.id)) {
            node.visits = node.visits.saturating_add(visits);
            if node.id == parent {
                node.best_child = [node.best_child, best].into_iter().flatten().reduce(f64::max);
            }
        }
        self.visits = self.visits.saturating_add(visits);
    }

    fn keep_best(&mut self, parent: NodeId, mut children: Vec<(String, f64)>) {
        children.sort_by(|a, b| b.1.total_cmp(&a.1));
        let mut kept = 0;
        for (construction, value) in children {
            let known = self.nodes.iter().any(|node| node.construction == construction);
            if kept == CHILDREN_KEPT || known || construction.len() > CONSTRUCTION_BYTES_MAX {
                continue;
            }
            kept += 1;
            let (id, parent) = (self.next_id, Some(parent));
            self.next_id += 1;
            self.nodes.push(Node { id, construction, value, parent, visits: 0, best_child: None });
        }
    }

    /// Drops the worst states that are no seeds, the younger of equals first.
    fn shrink(&mut self) {
        let Some(surplus) = self.nodes.len().checked_sub(STATES_MAX) else { return };
        let mut found: Vec<(NodeId, f64)> =
            self.nodes.iter().filter(|node| node.parent.is_some()).map(|node| (node.id, node.value)).collect();
        found.sort_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)));
        let dropped: BTreeSet<NodeId> = found.into_iter().take(surplus).map(|(id, _)| id).collect();
        let parents: BTreeMap<NodeId, Option<NodeId>> = self.nodes.iter().map(|node| (node.id, node.parent)).collect();
        self.nodes.retain(|node| !dropped.contains(&node.id));
        for node in &mut self.nodes {
            while let Some(gone) = node.parent.filter(|parent| dropped.contains(parent)) {
                node.parent = parents.get(&gone).copied().flatten();
            }
        }
    }
}

impl From<&Node> for State {
    fn from(node: &Node) -> Self {
        Self { value: node.value, is_seed: node.parent.is_none(), visits: node.visits, best_child: node.best_child }
    }
}
