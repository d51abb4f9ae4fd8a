//! The rules of values and errors that leave the sandbox, written down a second time, as a reader of the interface
//! would: what is checked here must hold for every input.

use std::collections::BTreeSet;

use reef_core::Message;
use reef_sandbox::{
    Choice, Fault, FaultKind, Judgement, Manifest, Outcome, Proposal, SandboxError, Selection, ValueKind, Verdict,
};

/// Characters of a message at most, with what is put in front of it.
const TOLD_CHARS_MAX: usize = 6_000;

pub fn ensure(holds: bool, told: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(told()) }
}

/// One line of ordinary characters, not too long.
pub fn harmless(text: &str) -> Result<(), String> {
    ensure(!text.chars().any(char::is_control), || format!("control characters in {text:?}"))?;
    ensure(text.chars().count() <= TOLD_CHARS_MAX, || format!("a text of {} bytes", text.len()))
}

/// No bug of the host, and a harmless message.
pub fn fault(fault: &Fault) -> Result<(), String> {
    harmless(&fault.message)?;
    ensure(!fault.message.is_empty(), || format!("{fault:?} says nothing"))?;
    let ours = matches!(fault.kind, FaultKind::HostBug | FaultKind::MissingCapability | FaultKind::Overloaded);
    ensure(!ours, || format!("a fault of the host: {fault}"))
}

/// A refusal that names something and is nobody's panic.
pub fn refusal(error: &SandboxError) -> Result<(), String> {
    let told = error.to_string();
    harmless(&told)?;
    ensure(!told.contains("broke down") && !told.contains("panicked"), || format!("a panic: {told}"))?;
    match error {
        SandboxError::Describe(described) => fault(described),
        SandboxError::Start(told) => Err(format!("not a matter of the input: {told}")),
        _ => Ok(()),
    }
}

/// The value obeys its rules, or the fault is a typed one and nothing is kept.
pub fn outcome<T>(outcome: &Outcome<T>, check: impl FnOnce(&T) -> Result<(), String>) -> Result<(), String> {
    match &outcome.result {
        Ok(value) => check(value),
        Err(told) => {
            ensure(outcome.state.is_empty(), || "state of a call that failed".to_owned())?;
            fault(told)
        }
    }
}

/// Samples 0 to 2, each once.
pub fn selection(selection: &Selection) -> Result<(), String> {
    let mut taken = BTreeSet::new();
    let mut take = |sample: u32| ensure(sample < 3 && taken.insert(sample), || format!("sample {sample}"));
    match &selection.choice {
        Choice::Wait(why) => harmless(why)?,
        Choice::Train(samples) => {
            ensure(!samples.is_empty(), || "no samples".to_owned())?;
            samples.iter().try_for_each(|sample| take(*sample))?;
        }
        Choice::TrainGroups(groups) => {
            ensure(!groups.is_empty(), || "no groups".to_owned())?;
            let mut names = BTreeSet::new();
            for group in groups {
                let plain = group.name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:-".contains(&b));
                ensure(plain && !group.name.is_empty() && group.name.len() <= 128, || format!("{:?}", group.name))?;
                ensure(!group.slots.is_empty() && names.insert(&group.name), || format!("group {:?}", group.name))?;
                group.slots.iter().try_for_each(|sample| take(*sample))?;
            }
        }
    }
    selection.retire.iter().try_for_each(|(sample, why)| take(*sample).and_then(|()| harmless(why)))
}

/// Of a call that made no checkpoint.
pub fn proposal(proposal: &Proposal) -> Result<(), String> {
    match proposal {
        Proposal::Weights(candidate) => Err(format!("candidate {candidate} out of nothing")),
        Proposal::Harness(changes) => Err(format!("{changes:?} from a recipe of weights")),
        Proposal::Skip(why) => harmless(why),
    }
}

pub fn verdict(verdict: &Verdict) -> Result<(), String> {
    harmless(&verdict.reason)?;
    ensure(verdict.measurements.len() <= 64, || "too many measurements".to_owned())?;
    verdict.measurements.iter().try_for_each(|(name, value)| {
        let plain = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_/".contains(&b));
        ensure(plain && name.len() <= 64 && value.is_finite(), || format!("{name:?} is {value}"))
    })
}

/// Of the exchanges `r1` and `r2`.
pub fn judgements(judgements: &[Judgement]) -> Result<(), String> {
    let mut judged = BTreeSet::new();
    judgements.iter().try_for_each(|judgement| {
        let known = ["r1", "r2"].contains(&judgement.receipt.as_str());
        let once = judged.insert(judgement.receipt.clone());
        ensure(known && once && judgement.score.is_finite(), || format!("{judgement:?}"))
    })
}

pub fn conversation(messages: &[Message]) -> Result<(), String> {
    ensure(!messages.is_empty() && messages.len() <= 4_096, || format!("{} messages", messages.len()))?;
    messages.iter().try_for_each(|message| {
        let known = ["system", "user", "assistant", "tool"].contains(&message.role.as_str());
        ensure(known, || format!("role {:?}", message.role))
    })
}

pub fn manifest(manifest: &Manifest) -> Result<(), String> {
    let name = &manifest.name;
    let plain = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    ensure(plain && (1..=64).contains(&name.len()), || format!("name {name:?}"))?;
    harmless(&manifest.version)?;
    ensure(manifest.version.split('.').count() >= 3, || format!("version {:?}", manifest.version))?;
    ensure(manifest.top_k <= 64, || format!("top-k {}", manifest.top_k))?;
    ensure(manifest.report_fields.len() <= 64 && manifest.config.len() <= 64, || "too many fields".to_owned())?;
    let key = |name: &str| {
        let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b));
        ensure(plain && (1..=64).contains(&name.len()), || format!("key {name:?}"))
    };
    let mut names = BTreeSet::new();
    for field in &manifest.report_fields {
        key(&field.name).and_then(|()| harmless(&field.doc))?;
        ensure(names.insert(&field.name), || format!("field {:?} twice", field.name))?;
    }
    names.clear();
    for declared in &manifest.config {
        key(&declared.name).and_then(|()| harmless(&declared.doc))?;
        ensure(names.insert(&declared.name), || format!("key {:?} twice", declared.name))?;
        let fits = match declared.kind {
            ValueKind::Number => declared.default.is_number(),
            ValueKind::Text => declared.default.is_string(),
            ValueKind::Boolean => declared.default.is_boolean(),
        };
        ensure(fits, || format!("default {} of {:?}", declared.default, declared.name))?;
        let number = declared.default.as_f64();
        let below = number.zip(declared.minimum).is_some_and(|(number, minimum)| number < minimum);
        let above = number.zip(declared.maximum).is_some_and(|(number, maximum)| number > maximum);
        ensure(!below && !above, || format!("default {} out of range", declared.default))?;
    }
    Ok(())
}
