//! Values of the exports, between the generated types and the crate's own.

use super::bindings::reef::recipe::types as wit;
use crate::generation::Returned;
use crate::{Context, Decision, ReportField, Surface, ValueKind, raw};

pub(super) fn context(context: &Context) -> wit::Context {
    wit::Context {
        tenant: context.tenant.clone(),
        scenario: context.scenario.clone(),
        step: context.step,
        // Milliseconds stay exact in an f64 for the next 285,000 years.
        now_ms: context.now_ms as f64,
        seed: context.seed,
        head: context.head.clone(),
        max_staleness: context.max_staleness,
    }
}

pub(super) fn manifest(raw: wit::Manifest) -> Returned {
    let field = |field: wit::ReportField| ReportField {
        name: field.name,
        kind: kind(field.kind),
        required: field.required,
        doc: field.doc,
    };
    let key = |key: wit::ConfigKey| raw::ConfigKey {
        name: key.name,
        kind: kind(key.kind),
        default_json: key.default_value,
        minimum: None,
        maximum: None,
        doc: key.doc,
    };
    Returned::Manifest(raw::Manifest {
        name: raw.name,
        version: raw.version,
        surface: match raw.surface {
            wit::Surface::Weights => Surface::Weights,
            wit::Surface::Harness => Surface::Harness,
            wit::Surface::Router => Surface::Router,
        },
        needs_score: raw.needs_score,
        report_fields: raw.report_fields.into_iter().map(field).collect(),
        config: raw.config.into_iter().map(key).collect(),
        capabilities: raw.capabilities,
        top_k: raw.top_k,
        re_evaluate_every: 0,
    })
}

fn kind(raw: wit::ValueKind) -> ValueKind {
    match raw {
        wit::ValueKind::Number => ValueKind::Number,
        wit::ValueKind::Text => ValueKind::Text,
        wit::ValueKind::Boolean => ValueKind::Boolean,
    }
}

fn failure(raw: wit::Failure) -> raw::Failure {
    match raw {
        wit::Failure::InvalidConfig(told) => raw::Failure::InvalidConfig(told),
        wit::Failure::Capability(told) => raw::Failure::Capability(told),
        wit::Failure::Other(told) => raw::Failure::Other(told),
    }
}

pub(super) fn selection(answer: Result<wit::Selection, wit::Failure>) -> Returned {
    let group = |group: wit::Group| raw::Group { name: group.name, slots: group.slots };
    let selection = |raw: wit::Selection| raw::Selection {
        choice: match raw.choice {
            wit::Choice::Wait(why) => raw::Choice::Wait(why),
            wit::Choice::Train(samples) => raw::Choice::Train(samples),
            wit::Choice::TrainGroups(groups) => raw::Choice::TrainGroups(groups.into_iter().map(group).collect()),
        },
        retire: raw.retire.into_iter().map(|retired| (retired.sample, retired.reason)).collect(),
    };
    Returned::Selection(answer.map(selection).map_err(failure))
}

pub(super) fn proposal(answer: Result<wit::Proposal, wit::Failure>) -> Returned {
    let proposal = |raw| match raw {
        wit::Proposal::Weights(candidate) => raw::Proposal::Weights(candidate),
        wit::Proposal::Skip(why) => raw::Proposal::Skip(why),
    };
    Returned::Proposal(answer.map(proposal).map_err(failure))
}

pub(super) fn verdict(answer: Result<wit::Verdict, wit::Failure>) -> Returned {
    let verdict = |raw: wit::Verdict| raw::Verdict {
        decision: match raw.decision {
            wit::Decision::Promote => Decision::Promote,
            wit::Decision::Hold => Decision::Hold,
            wit::Decision::Reject => Decision::Reject,
        },
        reason: raw.reason,
        measurements: raw.measurements.into_iter().map(|number| (number.name, number.value)).collect(),
    };
    Returned::Verdict(answer.map(verdict).map_err(failure))
}
