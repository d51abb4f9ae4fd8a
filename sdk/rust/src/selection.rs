//! Short ways to say a decision: what to train on, what to propose, what to make of a candidate.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::{
    Candidate, Choice, Decision, Group, Measurement, Mutation, Proposal, Retirement, Route, Sample, Selection, Verdict,
};

impl Selection {
    /// Not yet; the reason is shown in the status.
    pub fn wait(reason: impl Into<String>) -> Self {
        Self { choice: Choice::Wait(reason.into()), retire: Vec::new() }
    }

    /// Train on these, in this order.
    pub fn train(samples: Vec<Sample>) -> Self {
        Self { choice: Choice::Train(samples), retire: Vec::new() }
    }

    /// Train on these groups, in this order.
    pub fn train_groups(groups: Vec<Group>) -> Self {
        Self { choice: Choice::TrainGroups(groups), retire: Vec::new() }
    }

    /// Gives up samples that will never be used.
    #[must_use]
    pub fn retire(mut self, retirements: impl IntoIterator<Item = Retirement>) -> Self {
        self.retire.extend(retirements);
        self
    }
}

impl Retirement {
    /// `reason`: one short clause, shown to people.
    pub fn new(sample: Sample, reason: impl Into<String>) -> Self {
        Self { sample, reason: reason.into() }
    }
}

impl Proposal {
    /// The batch is consumed and nothing is released. Of a checkpoint made in the call, the critic stays.
    pub fn skip(reason: impl Into<String>) -> Self {
        Self::Skip(reason.into())
    }
}

impl From<Vec<Mutation>> for Proposal {
    fn from(changes: Vec<Mutation>) -> Self {
        Self::Mutations(changes)
    }
}

impl From<Vec<Route>> for Proposal {
    fn from(rules: Vec<Route>) -> Self {
        Self::Router(rules)
    }
}

impl From<Candidate> for Proposal {
    fn from(candidate: Candidate) -> Self {
        Self::Weights(candidate.handle())
    }
}

impl Verdict {
    /// Release it, if the operator's gate agrees.
    pub fn promote(reason: impl Into<String>) -> Self {
        Self::new(Decision::Promote, reason)
    }

    /// Keep it for a person to look at.
    pub fn hold(reason: impl Into<String>) -> Self {
        Self::new(Decision::Hold, reason)
    }

    /// Drop it.
    pub fn reject(reason: impl Into<String>) -> Self {
        Self::new(Decision::Reject, reason)
    }

    /// A decision and the sentence that explains it.
    pub fn new(decision: Decision, reason: impl Into<String>) -> Self {
        Self { decision, reason: reason.into(), measurements: Vec::new() }
    }

    /// Adds a number to the record of the decision; it must be finite.
    #[must_use]
    pub fn measure(mut self, name: &str, value: f64) -> Self {
        self.measurements.push(Measurement { name: name.to_string(), value });
        self
    }
}
