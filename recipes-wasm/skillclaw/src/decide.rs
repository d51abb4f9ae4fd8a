//! What to do about the skills: a model's decision on one group of sessions, and several decisions on one skill merged.
//! Nothing is ever removed; what cannot be read changes nothing. Pure.

use reef_evolution::edits::{field, line, object};
use reef_evolution::untrusted::WARNING;
use reef_recipe::prelude::*;
use reef_recipe::{Entry, EntryKind};

/// Characters of a description; what agent programs take.
const DESCRIPTION_CHARS_MAX: usize = 1_024;
/// Bytes of the text of a skill.
const TEXT_BYTES_MAX: usize = 24 * 1024;

/// A skill as it shall be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Its id.
    pub id: String,
    /// When to use it.
    pub description: String,
    /// Its body.
    pub text: String,
}

/// What the model that decides is told.
pub fn instruction() -> String {
    format!(
        "You keep the skills of an AI agent. You are given a skill, or none, and summaries of sessions that used it, or that \
used no skill, each with its grade from 0 to 1. Decide: improve_skill if its text misled the agent or lacked what it \
needed; optimize_description if it was used at the wrong time; create_skill if sessions need a way of working that no \
skill holds; skip if nothing is to be learned. Write what holds in general, never a task or an answer. Answer with one \
JSON object and nothing else: {{\"action\": \"...\", \"skill\": \"lower-case-id\", \"description\": \"when to use it\", \
\"text\": \"the whole text\"}}. {WARNING}"
    )
}

/// What the model that merges is told.
pub fn merging() -> String {
    format!(
        "Several versions of one skill of an AI agent were written from different sessions. Write one that holds what is \
true in all of them. Answer with one JSON object and nothing else: {{\"description\": \"when to use it\", \"text\": \"the \
whole text\"}}. {WARNING}"
    )
}

/// The skill that a decision wants; `None` = nothing, and so of an answer that cannot be read.
///
/// Of a group of one skill, `own`, only that skill is improved. A skill that is created under a name that exists
/// improves it.
pub fn wanted(answer: &str, own: Option<&str>, skills: &[Entry]) -> Option<Wanted> {
    let object = object(answer).ok()?;
    let text = |name: &str| object.get(name).and_then(|value| value.as_str()).unwrap_or_default().trim().to_owned();
    let known = |id: &str| skills.iter().find(|entry| entry.kind == EntryKind::Skill && entry.id == id);
    let (action, named) = (text("action"), line(&object, "skill"));
    let id = own.filter(|_| action != "create_skill").map_or(named, str::to_owned);
    let old = known(&id);
    let (old_description, old_text) =
        old.map(|entry| (field(entry, "description"), field(entry, "text"))).unwrap_or_default();
    let wanted = match (action.as_str(), old) {
        ("improve_skill", Some(_)) | ("create_skill", _) => {
            let description = Some(line(&object, "description")).filter(|new| !new.is_empty());
            Wanted { id, description: description.unwrap_or(old_description), text: text("text") }
        }
        ("optimize_description", Some(_)) => Wanted { id, description: line(&object, "description"), text: old_text },
        _ => return None,
    };
    sound(wanted).filter(|wanted| !same(wanted, old))
}

/// The merged skill of an answer; `None` if it cannot be read.
pub fn merged(answer: &str, id: &str, old: Option<&Entry>) -> Option<Wanted> {
    let object = object(answer).ok()?;
    let text = object.get("text").and_then(|value| value.as_str()).unwrap_or_default().trim().to_owned();
    let wanted = Wanted { id: id.to_owned(), description: line(&object, "description"), text };
    sound(wanted).filter(|wanted| !same(wanted, old))
}

fn sound(wanted: Wanted) -> Option<Wanted> {
    let inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let named = wanted.id.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && wanted.id.len() <= 64
        && wanted.id.chars().all(inside);
    let described = (1..=DESCRIPTION_CHARS_MAX).contains(&wanted.description.chars().count());
    let written = (1..=TEXT_BYTES_MAX).contains(&wanted.text.len());
    (named && described && written).then_some(wanted)
}

fn same(wanted: &Wanted, old: Option<&Entry>) -> bool {
    old.is_some_and(|entry| field(entry, "description") == wanted.description && field(entry, "text") == wanted.text)
}
