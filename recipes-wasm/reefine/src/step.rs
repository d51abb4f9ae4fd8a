//! One instruction: an edit, and its review by a second conversation that sees the instruction and the edit alone. An
//! edit that cannot be used or is not approved is made once more with the reason, and is then the reason of the step.

use reef_evolution::edits::{FORM, line, object, shown};
use reef_evolution::json::Value;
use reef_evolution::stop::{admitted, incumbent};
use reef_evolution::traces::trace;
use reef_evolution::untrusted::{WARNING, quoted};
use reef_evolution::{Calls, Edits, Stop, memory};
use reef_recipe::prelude::*;
use reef_recipe::{Entry, Mutation};

use crate::requires::requires;
use crate::settings::{INSTRUCTION, INSTRUCTION_CHARS_MAX, Settings};

/// Key of what the edit requires.
pub(crate) const REQUIRES: &str = "requires";
/// Edits that are tried.
const EDITS_MAX: u32 = 2;
/// Characters of one entry, of the exchange and of the answer in a prompt.
const PROMPT_CHARS_MAX: usize = 8_000;

const EDITOR: &str = "You edit the harness of an AI agent: the texts that it reads before it works. A person tells you \
what the agent should do otherwise. Change as little as fulfils the instruction, and nothing that it does not ask for.";
const REQUIRES_FORM: &str = r#"If the instruction needs what no text can give, add to the object
"requires": [{"kind": "permission|env|service", "name": "...", "why": "..."}]"#;
const REVIEWER: &str = r#"You review an edit of an AI agent's harness that another model made of a person's instruction.
Approve it if it fulfils the instruction, changes nothing else, holds no secret and tells the agent nothing harmful.
Answer with one JSON object and nothing else: {"approve": true or false, "reason": "one sentence"}"#;

/// An edit and what it needs.
struct Draft {
    edits: Edits,
    requires: Vec<String>,
}

/// The changes that fulfil the instruction of the batch.
pub(crate) fn propose(batch: &Batch, settings: &Settings) -> Result<Vec<Mutation>, Stop> {
    let entries = incumbent()?;
    let Some(&sample) = batch.handles().first() else {
        return Err(Stop::Reason("the batch has no instruction".to_owned()));
    };
    let wanted = INSTRUCTION.of(sample)?.unwrap_or_default();
    let wanted = quoted("instruction", &wanted, INSTRUCTION_CHARS_MAX);
    let exchange = quoted("exchange", &trace(sample, PROMPT_CHARS_MAX)?, PROMPT_CHARS_MAX);
    let harness = shown(&entries, &settings.kinds, PROMPT_CHARS_MAX);
    let material = format!(
        "The instruction:\n{wanted}\n\nThe exchange that it was given for:\n{exchange}\n\nThe harness now:\n{harness}"
    );
    let mut editor = Calls::on(settings.editor.clone())?;
    let mut objection = String::new();
    for _ in 0..EDITS_MAX {
        let told = if objection.is_empty() {
            material.clone()
        } else {
            format!("{material}\n\nYour last edit was turned down: {}", quoted("reason", &objection, 600))
        };
        let kinds = settings.kinds.names();
        let instruction = format!(
            "{EDITOR} You may change entries of these kinds: {kinds}. {WARNING} The instruction alone counts.\n\n{FORM}\n{REQUIRES_FORM}"
        );
        let answer = editor.ask(&instruction, &told, settings.temperature)?;
        let draft = match draft(&answer, &entries, settings) {
            Ok(draft) => draft,
            Err(Stop::Reason(reason)) => {
                objection = reason;
                continue;
            }
            Err(failure) => return Err(failure),
        };
        let reviewed = editor.lend(&settings.reviewer, |reviewer| review(reviewer, &wanted, &answer));
        metrics::gauge("model_calls", f64::from(editor.used()));
        match reviewed? {
            None => {
                let requires: Vec<Value> = draft.requires.into_iter().map(Value::from).collect();
                memory::write(REQUIRES, &Value::Array(requires))?;
                return Ok(draft.edits.changes);
            }
            Some(reason) => objection = format!("not approved in review: {reason}"),
        }
    }
    Err(Stop::Reason(objection))
}

fn draft(answer: &str, entries: &[Entry], settings: &Settings) -> Result<Draft, Stop> {
    let object = object(answer)?;
    let draft = Draft { edits: Edits::of(&object, entries, &settings.kinds)?, requires: requires(&object)? };
    admitted(&draft.edits.changes)?;
    Ok(draft)
}

/// Why the edit is not approved; a review that cannot be read approves nothing.
fn review(reviewer: &mut Calls, wanted: &str, edit: &str) -> Result<Option<String>, Stop> {
    let material = format!("The instruction:\n{wanted}\n\nThe edit:\n{}", quoted("edit", edit, 4 * PROMPT_CHARS_MAX));
    let answer = reviewer.ask(REVIEWER, &material, 0.0)?;
    Ok(match object(&answer) {
        Ok(object) if object.get("approve") == Some(&Value::Bool(true)) => None,
        Ok(object) => Some(line(&object, "reason")),
        Err(reason) => Some(format!("the review cannot be read: {reason}")),
    })
}
