//! Values of the exports, between the generated types and the crate's own.

use super::bindings::exports::reef::recipe::{live, migration, requests};
use super::bindings::reef::recipe::types as wit;
use super::verifier::reef::recipe::verify;
use crate::generation::{Returned, message};
use crate::hooks::{Exchange, RequestView};
use crate::verify::Check;
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
        minimum: key.minimum,
        maximum: key.maximum,
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
        re_evaluate_every: raw.re_evaluate_every,
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
        wit::Proposal::Mutations(changes) => {
            raw::Proposal::Mutations(changes.into_iter().map(super::harness::change).collect())
        }
        wit::Proposal::Router(rules) => raw::Proposal::Router(rules.len()),
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

pub(super) fn wit_message(message: reef_core::Message) -> wit::Message {
    wit::Message { role: message.role, content: message.content }
}

pub(super) fn own_messages(messages: Vec<wit::Message>) -> Vec<reef_core::Message> {
    messages.into_iter().map(|raw| message(raw.role, raw.content)).collect()
}

pub(super) fn entry((key, value): (String, Vec<u8>)) -> migration::StateEntry {
    migration::StateEntry { key, value }
}

pub(super) fn migrated(answer: Result<Vec<migration::StateEntry>, wit::Failure>) -> Returned {
    let entries =
        |entries: Vec<migration::StateEntry>| entries.into_iter().map(|entry| (entry.key, entry.value)).collect();
    Returned::Migrated(answer.map(entries).map_err(failure))
}

pub(super) fn exchange(exchange: Exchange) -> live::Exchange {
    live::Exchange {
        id: exchange.id.to_string(),
        release: exchange.release.to_string(),
        at_ms: exchange.at_ms as f64,
        session: exchange.session,
        tags: exchange.tags,
        messages: exchange.messages.into_iter().map(wit_message).collect(),
        answer: exchange.answer,
        tools: exchange.tools,
        prompt_tokens: exchange.prompt_tokens,
        answer_tokens: exchange.answer_tokens,
    }
}

pub(super) fn judgements(answer: Result<Vec<live::Judgement>, wit::Failure>) -> Returned {
    let judgement =
        |raw: live::Judgement| raw::Judgement { receipt: raw.receipt, score: raw.score, metadata_json: raw.metadata };
    let judgements = |raw: Vec<live::Judgement>| raw.into_iter().map(judgement).collect();
    Returned::Judgements(answer.map(judgements).map_err(failure))
}

pub(super) fn request(request: RequestView) -> requests::Request {
    requests::Request {
        messages: request.messages.into_iter().map(wit_message).collect(),
        session: request.session,
        tags: request.tags,
    }
}

pub(super) fn transformed(answer: Option<Vec<wit::Message>>) -> Returned {
    Returned::Transformed(answer.map(own_messages))
}

pub(super) fn check(outcome: verify::Outcome) -> Check {
    Check { score: outcome.score, passed: outcome.passed, detail: outcome.detail }
}
