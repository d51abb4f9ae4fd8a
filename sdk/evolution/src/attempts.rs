//! What was proposed and what became of it, in the state of the recipe: the next proposer reads why the last ones were
//! turned down, and which tasks a change broke or repaired.

use reef_recipe::Mutation;
use reef_recipe::prelude::*;
use serde_json::{Value, json};

use crate::edits::{Edits, kind_name};
use crate::memory;
use crate::trials::Trials;
use crate::untrusted::{quoted, shortened};

/// Key of the proposal that is being judged.
const PROPOSED: &str = "proposed";
/// Key of the proposals that were turned down.
const REJECTED: &str = "rejected";
/// Key of what the last comparison says of the tasks.
const FAILURES: &str = "failures";
/// Proposals that are remembered.
const REJECTED_MAX: usize = 25;
/// Characters of one of them.
const ATTEMPT_CHARS_MAX: usize = 600;
/// Tasks of a list.
const TASKS_MAX: usize = 50;

/// Remembers what is proposed, for the judgement.
///
/// # Errors
/// The host's refusal.
pub fn proposed(edits: &Edits) -> Result<()> {
    let changes: Vec<String> = edits.changes.iter().map(told).collect();
    let told = shortened(&format!("{} ({})", edits.notes, changes.join(", ")), ATTEMPT_CHARS_MAX);
    memory::write(PROPOSED, &json!(told))
}

fn told(change: &Mutation) -> String {
    match change {
        Mutation::Put(entry) => format!("put {}/{}", kind_name(entry.kind), entry.id),
        Mutation::Remove(name) => format!("remove {}/{}", kind_name(name.kind), name.id),
    }
}

/// Remembers that an answer could not be used.
///
/// # Errors
/// The host's refusal.
pub fn unusable(reason: &str) -> Result<()> {
    memory::remember(
        REJECTED,
        json!({ "what": "an answer", "why": shortened(reason, ATTEMPT_CHARS_MAX) }),
        REJECTED_MAX,
    )
}

/// Remembers what became of the proposal; what is not promoted is told to the next proposer.
///
/// # Errors
/// The host's refusal.
pub fn judged(verdict: &Verdict) -> Result<()> {
    let what = memory::read(PROPOSED)?;
    state::delete(PROPOSED)?;
    match what {
        Some(what) if verdict.decision != reef_recipe::Decision::Promote => {
            let why = shortened(&verdict.reason, ATTEMPT_CHARS_MAX);
            memory::remember(REJECTED, json!({ "what": what, "why": why }), REJECTED_MAX)
        }
        _ => Ok(()),
    }
}

/// Remembers which tasks fail with the candidate only, with both, and with the incumbent only.
///
/// # Errors
/// The host's refusal.
pub fn compared(trials: &Trials) -> Result<()> {
    let (new, old) = (&trials.failing_candidate, &trials.failing_incumbent);
    let without = |from: &[String], other: &[String]| -> Vec<String> {
        from.iter().filter(|task| !other.contains(task)).take(TASKS_MAX).cloned().collect()
    };
    let both: Vec<&String> = new.iter().filter(|task| old.contains(task)).take(TASKS_MAX).collect();
    memory::write(FAILURES, &json!({ "new": without(new, old), "persisting": both, "fixed": without(old, new) }))
}

/// What a proposer reads of all this; empty at the beginning.
///
/// # Errors
/// The host's refusal.
pub fn shown() -> Result<String> {
    let mut parts = Vec::new();
    if let Some(failures) = memory::read(FAILURES)? {
        let names = |list: &str| -> Vec<&str> {
            failures.get(list).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
        };
        let lines = ["new", "persisting", "fixed"].map(|list| format!("{list}: {}", names(list).join(", ")));
        parts.push(format!(
            "Tasks that failed in the last comparison:\n{}",
            quoted("failures", &lines.join("\n"), 4_000)
        ));
    }
    let text = |item: &Value, name: &str| item.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let rejected: Vec<String> =
        memory::list(REJECTED)?.iter().map(|item| format!("- {}: {}", text(item, "what"), text(item, "why"))).collect();
    if !rejected.is_empty() {
        let rejected = quoted("rejected", &rejected.join("\n"), 16_000);
        parts.push(format!("Proposals that were turned down; do not repeat them:\n{rejected}"));
    }
    Ok(parts.join("\n\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use reef_recipe::EntryKind;
    use reef_recipe::testing::FakeHost;

    fn edits(notes: &str) -> Edits {
        Edits { changes: vec![Mutation::remove(EntryKind::Rules, "style")], notes: notes.into() }
    }

    #[test]
    fn what_was_turned_down_is_told_and_what_was_promoted_is_not() {
        let mut host = FakeHost::default();
        let shown = host.call(|| {
            proposed(&edits("shorter"))?;
            judged(&Verdict::reject("0 wins"))?;
            proposed(&edits("longer"))?;
            judged(&Verdict::promote("2 wins"))?;
            unusable("no JSON")?;
            shown()
        });
        let told = "Proposals that were turned down; do not repeat them:\n<rejected>\n- shorter (remove rules/style): 0 wins\n- an answer: no JSON\n</rejected>";
        assert_eq!(shown, Ok(told.into()));
        assert_eq!(host.state.keys().collect::<Vec<_>>(), ["rejected"]);
    }

    #[test]
    fn tasks_that_fail_are_new_persisting_or_fixed() {
        let mut trials = Trials::default();
        for (task, new, old) in [("a", 0.0, 1.0), ("b", 0.0, 0.0), ("c", 1.0, 0.0), ("d", 1.0, 1.0)] {
            trials.add(task, Some(new), Some(old));
        }
        let shown = FakeHost::default().call(|| compared(&trials).and_then(|()| shown())).expect("shows");
        assert!(shown.contains("new: a\npersisting: b\nfixed: c\n"), "{shown}");
    }
}
