//! Admission: may a list of mutations become the next tree? Every refusal is a value that names the entry, the rule and
//! the remedy, so that a proposer can learn from it. The answer depends on the arguments only: same tree, mutations,
//! policy and corpus, same answer. It tries nothing out; that is the business of an evaluation.

mod capability;

use std::collections::BTreeSet;

pub use capability::{Capability, CapabilityKind, capabilities};

use crate::adapter::Adapter;
use crate::entry::Entry;
use crate::leakage::Corpus;
use crate::mutation::{Applied, Mutation, MutationError};
use crate::name::{EntryKind, EntryName};
use crate::render::{Binding, render};
use crate::tree::Tree;

/// Refusals of one answer; a proposer learns little from more.
const REFUSALS_MAX: usize = 32;

/// What an operator allows.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Kinds that a proposal may touch.
    pub kinds: BTreeSet<EntryKind>,
    /// Entries that no proposal may touch.
    pub protected: BTreeSet<EntryName>,
    /// Capabilities that a proposal may add.
    pub granted: BTreeSet<Capability>,
    /// Kinds of capabilities of which a proposal may add any.
    pub granted_kinds: BTreeSet<CapabilityKind>,
    /// Mutations of one proposal.
    pub mutations_max: usize,
    /// Bytes of the rules and prompts, which are in every request.
    pub always_read_bytes_max: usize,
    /// Bytes of one skill, command or subagent.
    pub entry_bytes_max: usize,
    /// What keeps the form of answers.
    pub contract: FormatContract,
}

impl Default for Policy {
    /// Texts may change, and gain no powers.
    fn default() -> Self {
        Self {
            kinds: [EntryKind::Rules, EntryKind::Prompt, EntryKind::Skill, EntryKind::AgentCommand].into(),
            protected: BTreeSet::new(),
            granted: BTreeSet::new(),
            granted_kinds: BTreeSet::new(),
            mutations_max: 16,
            always_read_bytes_max: 16 << 10,
            entry_bytes_max: 64 << 10,
            contract: FormatContract::default(),
        }
    }
}

/// Phrases on which the form of answers rests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FormatContract {
    /// Each must stand in a rule or a prompt.
    pub required: Vec<String>,
    /// None may stand in a changed text.
    pub forbidden: Vec<String>,
}

/// Why a proposal is not admitted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Nothing is proposed.
    #[error("the proposal has no mutation, or changes nothing; propose a change, or skip with a reason")]
    Empty,
    /// Too much at once.
    #[error("{count} mutations are over the limit of {most}; propose fewer")]
    TooMany {
        /// How many.
        count: usize,
        /// The limit.
        most: usize,
    },
    /// The mutations cannot be applied.
    #[error(transparent)]
    Mutation(#[from] MutationError),
    /// The entry is protected.
    #[error("{entry}: the operator protects this entry; change another one")]
    Protected {
        /// Which.
        entry: EntryName,
    },
    /// The kind may not be touched.
    #[error("{entry}: proposals may not touch this kind; they may touch: {allowed}")]
    Kind {
        /// Which.
        entry: EntryName,
        /// The kinds that may.
        allowed: String,
    },
    /// It would be able to do more than before.
    #[error(
        "{entry}: it would {capability}, which the tree could not do before; leave that out, or ask the operator to grant it"
    )]
    Capability {
        /// Which.
        entry: EntryName,
        /// What.
        capability: Capability,
    },
    /// A cap of bytes.
    #[error("{subject}: {bytes} bytes are over the cap of {most}; shorten it")]
    Size {
        /// What is too large.
        subject: String,
        /// Its bytes.
        bytes: usize,
        /// The cap.
        most: usize,
    },
    /// A phrase of the format contract is gone.
    #[error("no rule and no prompt says '{phrase}' any more; the form of answers rests on it, so put it back")]
    ContractMissing {
        /// The phrase.
        phrase: String,
    },
    /// A phrase that the format contract forbids.
    #[error("{entry}: it says '{phrase}', which would change the form of answers; leave that out")]
    ContractForbidden {
        /// Which.
        entry: EntryName,
        /// The phrase.
        phrase: String,
    },
    /// It repeats what the agent is trained or tested on.
    #[error("{entry}: '{words}' repeats {source_name}; say what holds in general instead")]
    Leak {
        /// Which.
        entry: EntryName,
        /// Name of the known text.
        source_name: String,
        /// The shared words.
        words: String,
    },
    /// An agent program that the scenario serves cannot take it.
    #[error("{told}")]
    Render {
        /// Which program, which entry, why, and what to do.
        told: String,
    },
}

/// What a proposal is checked against.
#[derive(Debug, Clone, Copy)]
pub struct Rules<'a> {
    /// What the operator allows.
    pub policy: &'a Policy,
    /// The agent programs that the scenario serves; the tree must render for each.
    pub adapters: &'a [&'a Adapter],
    /// What the rendering is tried with.
    pub binding: &'a Binding,
    /// Texts and answers that the agent is trained and tested on.
    pub corpus: &'a Corpus,
}

/// Checks a proposal. The refusals are those of all rules, in the order of the rules and then of the entries.
pub fn admit(tree: &Tree, mutations: &[Mutation], rules: &Rules<'_>) -> Result<Applied, Vec<Refusal>> {
    let policy = rules.policy;
    if mutations.len() > policy.mutations_max {
        return Err(vec![Refusal::TooMany { count: mutations.len(), most: policy.mutations_max }]);
    }
    let applied = tree.apply(mutations).map_err(|error| vec![Refusal::Mutation(error)])?;
    if applied.tree == *tree {
        return Err(vec![Refusal::Empty]);
    }
    let touched: BTreeSet<&EntryName> = mutations.iter().map(Mutation::name).collect();
    let changed: Vec<&Entry> = touched
        .iter()
        .filter_map(|name| applied.tree.get(name))
        .filter(|new| tree.get(new.name()) != Some(*new))
        .collect();
    let mut refusals = may_touch(&touched, policy);
    refusals.extend(widened(tree, &changed, rules));
    refusals.extend(sizes(tree, &applied.tree, &changed, policy));
    refusals.extend(contract(&applied.tree, &changed, &policy.contract));
    refusals.extend(leaks(tree, &changed, rules));
    refusals.extend(renders(&applied.tree, tree, rules));
    refusals.truncate(REFUSALS_MAX);
    if refusals.is_empty() { Ok(applied) } else { Err(refusals) }
}

fn may_touch(touched: &BTreeSet<&EntryName>, policy: &Policy) -> Vec<Refusal> {
    let protected = touched.iter().filter(|name| policy.protected.contains(**name));
    let protected = protected.map(|name| Refusal::Protected { entry: (*name).clone() });
    let kinds: Vec<&str> = policy.kinds.iter().map(|kind| kind.as_str()).collect();
    let wrong = touched.iter().filter(|name| !policy.kinds.contains(&name.kind()));
    let wrong = wrong.map(|name| Refusal::Kind { entry: (*name).clone(), allowed: kinds.join(", ") });
    protected.chain(wrong).collect()
}

/// Capabilities may move from entry to entry, and never grow.
fn widened(tree: &Tree, changed: &[&Entry], rules: &Rules<'_>) -> Vec<Refusal> {
    let before: BTreeSet<Capability> = tree.entries().flat_map(|entry| capabilities(entry, rules.adapters)).collect();
    let policy = rules.policy;
    let mut refusals = Vec::new();
    for entry in changed {
        for capability in capabilities(entry, rules.adapters) {
            let granted = policy.granted.contains(&capability) || policy.granted_kinds.contains(&capability.kind());
            if !granted && !before.contains(&capability) {
                refusals.push(Refusal::Capability { entry: entry.name().clone(), capability });
            }
        }
    }
    refusals
}

fn always_read(tree: &Tree) -> impl Iterator<Item = &str> {
    let entries = [EntryKind::Rules, EntryKind::Prompt].into_iter().flat_map(|kind| tree.of_kind(kind));
    entries.flat_map(|entry| entry.texts().into_iter().map(|(_, text)| text))
}

/// A cap refuses growth: a tree that is over it may still shrink.
fn sizes(old: &Tree, new: &Tree, changed: &[&Entry], policy: &Policy) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    let bytes = |tree| always_read(tree).map(str::len).sum::<usize>();
    let (before, after, most) = (bytes(old), bytes(new), policy.always_read_bytes_max);
    if after > most && after > before {
        refusals.push(Refusal::Size { subject: "rules and prompts together".to_owned(), bytes: after, most });
    }
    let own = |entry: &Entry| entry.texts().iter().map(|(_, text)| text.len()).sum::<usize>();
    for entry in changed {
        let (before, after) = (old.get(entry.name()).map_or(0, own), own(entry));
        if after > policy.entry_bytes_max && after > before {
            let subject = entry.name().to_string();
            refusals.push(Refusal::Size { subject, bytes: after, most: policy.entry_bytes_max });
        }
    }
    refusals
}

fn contract(tree: &Tree, changed: &[&Entry], contract: &FormatContract) -> Vec<Refusal> {
    let missing =
        contract.required.iter().filter(|phrase| !always_read(tree).any(|text| text.contains(phrase.as_str())));
    let mut refusals: Vec<Refusal> =
        missing.map(|phrase| Refusal::ContractMissing { phrase: phrase.clone() }).collect();
    for entry in changed {
        let said = |phrase: &&String| entry.texts().iter().any(|(_, text)| text.contains(phrase.as_str()));
        refusals.extend(
            contract
                .forbidden
                .iter()
                .filter(said)
                .map(|phrase| Refusal::ContractForbidden { entry: entry.name().clone(), phrase: phrase.clone() }),
        );
    }
    refusals
}

fn leaks(tree: &Tree, changed: &[&Entry], rules: &Rules<'_>) -> Vec<Refusal> {
    let held = tree.entries().flat_map(Entry::texts).map(|(_, text)| text);
    let exempt = rules.corpus.exempt(held.chain(rules.policy.contract.required.iter().map(String::as_str)));
    let leak = |entry: &&Entry| {
        let leak = entry.texts().into_iter().find_map(|(_, text)| rules.corpus.find(text, &exempt))?;
        Some(Refusal::Leak { entry: entry.name().clone(), source_name: leak.source, words: leak.words })
    };
    changed.iter().filter_map(leak).collect()
}

/// The tree must render for each program, and nothing may be left out that was not before.
fn renders(new: &Tree, old: &Tree, rules: &Rules<'_>) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    for adapter in rules.adapters {
        // The version is the pin: what clients of other versions get is decided when they ask.
        let binding = Binding { version: None, ..rules.binding.clone() };
        let left_out = |tree| render(tree, adapter, &binding).map(|rendering| rendering.left_out);
        let before = left_out(old).unwrap_or_default();
        match left_out(new) {
            Err(error) => refusals.push(Refusal::Render { told: error.to_string() }),
            Ok(after) => {
                let fresh = after.into_iter().filter(|entry| !before.contains(entry));
                refusals.extend(fresh.map(|entry| Refusal::Render {
                    told: format!("{}: {} cannot take it: {}; leave it out", entry.entry, adapter.title, entry.reason),
                }));
            }
        }
    }
    refusals
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
