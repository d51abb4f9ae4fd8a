//! The values a guest returns, turned into types that hold only what is allowed.
//! A broken rule is a [`FaultKind::InvalidOutput`] that names the place; nothing of the value is kept.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::call_state::CallState;
use crate::harness::check_changes;
use crate::raw;
use crate::text::{clean, is_metric_name};
use crate::{Fault, FaultKind, HarnessChange, Surface};

/// Characters of a reason.
const REASON_CHARS_MAX: usize = 500;
/// Bytes of a group's name.
const GROUP_NAME_BYTES_MAX: usize = 128;
/// Measurements of a verdict.
const MEASUREMENTS_MAX: usize = 64;

/// Samples that belong together, slot by slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Group {
    /// Letters, digits, `.`, `_`, `:` and `-`.
    pub name: String,
    /// Samples, never empty.
    pub slots: Vec<u32>,
}

/// What to do with the pool now. Samples are of the batch and named once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Choice {
    /// Not yet, and why.
    Wait(String),
    /// Train on these, in this order; never empty.
    Train(Vec<u32>),
    /// Train on these groups, in this order; never empty.
    TrainGroups(Vec<Group>),
}

/// The answer of `select-samples`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Selection {
    /// What to do.
    pub choice: Choice,
    /// Samples that are never used, and why; disjoint from the choice.
    pub retire: Vec<(u32, String)>,
}

/// The answer of `propose-update`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Proposal {
    /// A checkpoint of this call.
    Weights(u32),
    /// Changes of the harness, in their order; never empty.
    Harness(Vec<HarnessChange>),
    /// Nothing to release, and why.
    Skip(String),
}

/// What the recipe says of a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Release it.
    Promote,
    /// Let a person decide.
    Hold,
    /// Drop it.
    Reject,
}

/// The answer of `evaluate`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// What it says.
    pub decision: Decision,
    /// Why.
    pub reason: String,
    /// Finite numbers by name.
    pub measurements: BTreeMap<String, f64>,
}

fn invalid(told: impl AsRef<str>) -> Fault {
    Fault::new(FaultKind::InvalidOutput, told)
}

fn reason(text: &str) -> String {
    clean(text, REASON_CHARS_MAX)
}

/// Takes each sample of the batch at most once.
struct Once<'a> {
    state: &'a CallState,
    taken: BTreeSet<u32>,
}

impl Once<'_> {
    fn take(&mut self, place: &str, sample: u32) -> Result<(), Fault> {
        if self.state.sample(sample).is_none() {
            return Err(invalid(format!("{place} names sample {sample}, which is not in the batch")));
        }
        if !self.taken.insert(sample) {
            return Err(invalid(format!("{place} names sample {sample} a second time")));
        }
        Ok(())
    }

    fn take_all(&mut self, place: &str, samples: &[u32]) -> Result<(), Fault> {
        if samples.is_empty() {
            return Err(invalid(format!("{place} names no samples")));
        }
        samples.iter().try_for_each(|sample| self.take(place, *sample))
    }
}

pub(crate) fn failure(raw: raw::Failure) -> Fault {
    let told = match raw {
        raw::Failure::InvalidConfig(told) => format!("invalid configuration: {told}"),
        raw::Failure::Capability(told) => format!("a capability refused: {told}"),
        raw::Failure::Other(told) => told,
    };
    Fault::new(FaultKind::Declined, if told.is_empty() { "the recipe gave no reason" } else { &told })
}

pub(crate) fn selection(raw: raw::Selection, state: &CallState) -> Result<Selection, Fault> {
    let mut once = Once { state, taken: BTreeSet::new() };
    let choice = match raw.choice {
        raw::Choice::Wait(why) => Choice::Wait(reason(&why)),
        raw::Choice::Train(samples) => {
            once.take_all("train", &samples)?;
            Choice::Train(samples)
        }
        raw::Choice::TrainGroups(groups) => Choice::TrainGroups(train_groups(groups, &mut once)?),
    };
    let retire = raw.retire.into_iter().map(|(sample, why)| {
        once.take("retire", sample)?;
        Ok((sample, reason(&why)))
    });
    let retire = retire.collect::<Result<_, Fault>>()?;
    Ok(Selection { choice, retire })
}

fn train_groups(raw: Vec<raw::Group>, once: &mut Once<'_>) -> Result<Vec<Group>, Fault> {
    if raw.is_empty() {
        return Err(invalid("train-groups names no groups"));
    }
    let mut names = BTreeSet::new();
    for group in &raw {
        let shown = clean(&group.name, 64);
        if !is_group_name(&group.name) {
            return Err(invalid(format!(
                "group name '{shown}' is not 1 to {GROUP_NAME_BYTES_MAX} letters, digits, '.', '_', ':' and '-'"
            )));
        }
        if !names.insert(group.name.as_str()) {
            return Err(invalid(format!("group '{shown}' is given twice")));
        }
        once.take_all(&format!("group '{shown}'"), &group.slots)?;
    }
    Ok(raw.into_iter().map(|group| Group { name: group.name, slots: group.slots }).collect())
}

fn is_group_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= GROUP_NAME_BYTES_MAX
        && !name.contains("..")
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:-".contains(&b))
}

pub(crate) fn proposal(raw: raw::Proposal, state: &CallState) -> Result<Proposal, Fault> {
    match raw {
        raw::Proposal::Weights(candidate) if state.training.candidates.contains(&candidate) => {
            Ok(Proposal::Weights(candidate))
        }
        raw::Proposal::Weights(candidate) => {
            Err(invalid(format!("candidate {candidate} is not a checkpoint of this call")))
        }
        raw::Proposal::Mutations(changes) if evolves_harness(state) => {
            check_changes(&changes).map_err(|told| invalid(format!("the proposal: {told}")))?;
            Ok(Proposal::Harness(changes))
        }
        raw::Proposal::Mutations(changes) => Err(other_surface("mutations", changes.len(), "harness")),
        raw::Proposal::Router(count) => Err(other_surface("router", count, "router")),
        raw::Proposal::Skip(why) => Ok(Proposal::Skip(reason(&why))),
    }
}

fn evolves_harness(state: &CallState) -> bool {
    state.manifest.as_ref().is_some_and(|manifest| manifest.surface == Surface::Harness)
}

fn other_surface(what: &str, count: usize, surface: &str) -> Fault {
    invalid(format!("the proposal '{what}' ({count} of them) changes the {surface}, which is not the recipe's surface"))
}

pub(crate) fn verdict(raw: raw::Verdict) -> Result<Verdict, Fault> {
    if raw.measurements.len() > MEASUREMENTS_MAX {
        return Err(invalid(format!(
            "{} measurements and at most {MEASUREMENTS_MAX} are kept",
            raw.measurements.len()
        )));
    }
    let mut measurements = BTreeMap::new();
    for (name, value) in raw.measurements {
        let shown = clean(&name, 64);
        if !is_metric_name(&name) {
            return Err(invalid(format!("measurement name '{shown}' does not match [a-z][a-z0-9_/]{{0,63}}")));
        }
        if !value.is_finite() {
            return Err(invalid(format!("measurement '{shown}' is {value}")));
        }
        if measurements.insert(name, value).is_some() {
            return Err(invalid(format!("measurement '{shown}' is given twice")));
        }
    }
    Ok(Verdict { decision: raw.decision, reason: reason(&raw.reason), measurements })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::call::testing;
    use crate::{HarnessKind, Manifest};

    fn selected(choice: raw::Choice, retire: &[u32]) -> Result<Selection, String> {
        let state = testing::state(4, vec![0, 2, 3]);
        let retire = retire.iter().map(|sample| (*sample, "old\n".into())).collect();
        selection(raw::Selection { choice, retire }, &state).map_err(|fault| {
            assert_eq!(fault.kind, FaultKind::InvalidOutput);
            fault.message
        })
    }

    #[test]
    fn a_selection_names_samples_of_the_batch_once() {
        let good = selected(raw::Choice::Train(vec![3, 0]), &[2]).expect("valid");
        assert_eq!(good, Selection { choice: Choice::Train(vec![3, 0]), retire: vec![(2, "old\\n".into())] });
        assert!(
            selected(raw::Choice::Train(vec![1]), &[])
                .expect_err("not in batch")
                .contains("sample 1, which is not in the batch")
        );
        assert!(selected(raw::Choice::Train(vec![u32::MAX]), &[]).is_err());
        assert!(selected(raw::Choice::Train(vec![0, 0]), &[]).expect_err("twice").contains("a second time"));
        assert!(selected(raw::Choice::Train(vec![0]), &[0]).expect_err("both").contains("retire names sample 0"));
        assert!(selected(raw::Choice::Train(vec![]), &[]).expect_err("empty").contains("no samples"));
        assert!(selected(raw::Choice::Wait("x".repeat(9_000)), &[3, 3]).is_err());
    }

    #[test]
    fn groups_have_plain_unique_names_and_disjoint_slots() {
        let groups = |groups: &[(&str, &[u32])]| {
            let raw = groups.iter().map(|(name, slots)| raw::Group { name: (*name).to_owned(), slots: slots.to_vec() });
            selected(raw::Choice::TrainGroups(raw.collect()), &[])
        };
        assert!(groups(&[("a", &[0, 2]), ("b", &[3])]).is_ok());
        assert!(groups(&[("a", &[0]), ("a", &[2])]).expect_err("name").contains("twice"));
        assert!(groups(&[("a", &[0]), ("b", &[0])]).expect_err("slot").contains("a second time"));
        assert!(groups(&[("../etc", &[0])]).expect_err("path").contains("group name"));
        assert!(groups(&[("a", &[])]).is_err() && groups(&[]).is_err());
    }

    #[test]
    fn verdicts_hold_finite_numbers_under_plain_unique_names() {
        let given = |measurements: &[(&str, f64)]| {
            let measurements = measurements.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
            verdict(raw::Verdict { decision: Decision::Hold, reason: "\u{1b}[31m".repeat(900), measurements })
        };
        let good = given(&[("score", 0.5)]).expect("valid");
        assert!(!good.reason.contains('\u{1b}') && good.measurements["score"] == 0.5);
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(given(&[("score", value)]).expect_err("not finite").message.contains("'score' is"));
        }
        assert!(given(&[("score", 1.0), ("score", 1.0)]).is_err());
        assert!(given(&[("a b", 1.0)]).is_err());
    }

    #[test]
    fn a_proposal_names_a_checkpoint_of_the_call() {
        let mut state = testing::state(0, vec![]);
        state.training.candidates.push(5);
        assert_eq!(proposal(raw::Proposal::Weights(5), &state), Ok(Proposal::Weights(5)));
        assert!(proposal(raw::Proposal::Weights(6), &state).is_err());
        let removal = vec![HarnessChange::Remove(HarnessKind::Skill, "ropes".into())];
        for other in [raw::Proposal::Mutations(removal.clone()), raw::Proposal::Router(0)] {
            let fault = proposal(other, &state).expect_err("another surface");
            assert!(fault.message.contains("not the recipe's surface"), "{fault}");
            assert_eq!(fault.kind, FaultKind::InvalidOutput);
        }
        state.manifest = Some(Arc::new(Manifest { surface: Surface::Harness, ..testing::manifest() }));
        assert_eq!(proposal(raw::Proposal::Mutations(removal.clone()), &state), Ok(Proposal::Harness(removal)));
        for wrong in [vec![], vec![HarnessChange::Remove(HarnessKind::Skill, "../x".into())]] {
            let fault = proposal(raw::Proposal::Mutations(wrong), &state).expect_err("broken");
            assert_eq!(fault.kind, FaultKind::InvalidOutput);
        }
        assert_eq!(proposal(raw::Proposal::Skip("warm\u{7}".into()), &state), Ok(Proposal::Skip("warm\\u{7}".into())));
    }
}
