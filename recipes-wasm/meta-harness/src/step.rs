//! One proposal: the model reads the population and writes a child of any node; the changes that make it of what
//! serves are proposed. Answers that cannot be used and children that were tried before are counted as attempts.

use reef_evolution::edits::{FORM, line, object, shown};
use reef_evolution::stop::{admitted, incumbent};
use reef_evolution::traces::trace;
use reef_evolution::untrusted::{WARNING, quoted};
use reef_evolution::{Calls, Edits, Stop, attempts};
use reef_recipe::prelude::*;
use reef_recipe::{Entry, Mutation};

use crate::population::{ENTRIES_BYTES_MAX, Node, Population, applied, difference, identity, parts, parts_bytes};
use crate::settings::Settings;

/// Key of the node that is being judged.
pub(crate) const PROPOSED: &str = "candidate";
/// Characters of one trace, of one entry and of the table in the prompt.
const TRACE_CHARS_MAX: usize = 4_000;
const ENTRY_CHARS_MAX: usize = 6_000;
const TABLE_CHARS_MAX: usize = 24_000;
/// Nodes beside the incumbent whose texts are shown, the best.
const NODES_SHOWN: usize = 3;
/// Digits of an id in the prompt.
const ID_DIGITS: usize = 12;

/// The changes that make the model's child of what serves.
pub(crate) fn propose(batch: &Batch, settings: &Settings) -> Result<Vec<Mutation>, Stop> {
    let entries = incumbent()?;
    let mut population = Population::read()?;
    let served = serving(&mut population, &entries, settings)?;
    let material = material(batch, &population, (&served, &entries), settings)?;
    let mut calls = Calls::on(settings.proposer.clone())?;
    let answer = calls.ask(&instruction(settings), &material, settings.temperature)?;
    let child = match child(&answer, &population, &entries, settings) {
        Ok(child) => child,
        Err(Stop::Reason(reason)) => {
            population.spent.attempts += 1;
            population.write(None)?;
            attempts::unusable(&reason)?;
            return Err(Stop::Reason(reason));
        }
        Err(failure) => return Err(failure),
    };
    population.spent.candidates += 1;
    let changes = difference(&entries, &child.entries(&entries, &settings.kinds));
    let child = population.add(child, settings.nodes_max, &served.id)?;
    state::set(PROPOSED, &child.id.into_bytes())?;
    metrics::gauge("population", population.nodes.len() as f64);
    metrics::gauge("attempts_unused", f64::from(population.spent.attempts));
    Ok(changes)
}

/// The node of what serves; a new one if it is not of this search.
fn serving(population: &mut Population, entries: &[Entry], settings: &Settings) -> Result<Node, Stop> {
    let id = identity(entries);
    if let Some(node) = population.nodes.iter().find(|node| node.id == id) {
        return Ok(node.clone());
    }
    let parts = parts(entries, &settings.kinds);
    let bytes = parts_bytes(&parts);
    if bytes > ENTRIES_BYTES_MAX {
        let told =
            format!("the entries have {bytes} bytes, a node keeps at most {ENTRIES_BYTES_MAX}; list fewer kinds");
        return Err(Stop::Reason(told));
    }
    let (parent, hypothesis, outcome) = (String::new(), "found serving".to_owned(), "serves".to_owned());
    let node = Node { id: id.clone(), parent, hypothesis, parts, number: 0, means: None, outcome };
    Ok(population.add(node, settings.nodes_max, &id)?)
}

fn child(answer: &str, population: &Population, entries: &[Entry], settings: &Settings) -> Result<Node, Stop> {
    let object = object(answer)?;
    let named = line(&object, "parent_id");
    let parent = population.named(&named);
    let parent =
        parent.ok_or_else(|| format!("the answer names the parent '{named}', which is not in the population"))?;
    let tree = parent.entries(entries, &settings.kinds);
    let edits = Edits::of(&object, &tree, &settings.kinds)?;
    let tree = applied(&tree, &edits.changes);
    let id = identity(&tree);
    if let Some(known) = population.nodes.iter().find(|node| node.id == id) {
        return Err(Stop::Reason(format!("the answer makes {} again, which is in the population", short(&known.id))));
    }
    let parts = parts(&tree, &settings.kinds);
    let bytes = parts_bytes(&parts);
    if bytes > ENTRIES_BYTES_MAX {
        return Err(Stop::Reason(format!("the entries would have {bytes} bytes, at most {ENTRIES_BYTES_MAX}")));
    }
    admitted(&difference(entries, &tree))?;
    let hypothesis = line(&object, "hypothesis");
    let outcome = "being tried".to_owned();
    Ok(Node { id, parent: parent.id.clone(), hypothesis, parts, number: 0, means: None, outcome })
}

fn short(id: &str) -> &str {
    id.get(..ID_DIGITS).unwrap_or(id)
}

fn instruction(settings: &Settings) -> String {
    format!(
        "You search for a better harness of an AI agent: the texts that it reads before it works. You are given every \
harness that was tried with its score. Choose one to build on, say what you expect of the change, and change entries of \
these kinds: {}. Harnesses that were tried before are not tried again. {WARNING}\n\n{FORM}\nAdd to the object \
\"parent_id\", the id of the harness that you change, and \"hypothesis\", one sentence.",
        settings.kinds.names()
    )
}

fn material(
    batch: &Batch,
    population: &Population,
    (served, entries): (&Node, &[Entry]),
    settings: &Settings,
) -> Result<String> {
    let mut seen: Vec<&Node> =
        population.nodes.iter().filter(|node| settings.full_history || node.id == served.id).collect();
    let mut parts = vec![format!("The harnesses:\n{}", quoted("population", &table(&seen, served), TABLE_CHARS_MAX))];
    let mean = |node: &Node| node.means.map_or(f64::NEG_INFINITY, |(own, _)| own);
    seen.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
    let best = seen.into_iter().filter(|node| node.id != served.id).take(NODES_SHOWN);
    for node in core::iter::once(served).chain(best) {
        let tree = node.entries(entries, &settings.kinds);
        parts.push(format!("The texts of {}:\n{}", short(&node.id), shown(&tree, &settings.kinds, ENTRY_CHARS_MAX)));
    }
    for &sample in batch.handles() {
        parts.push(format!(
            "A trace of what serves:\n{}",
            quoted("trace", &trace(sample, TRACE_CHARS_MAX)?, TRACE_CHARS_MAX)
        ));
    }
    parts.push(attempts::shown()?);
    parts.retain(|part| !part.is_empty());
    Ok(parts.join("\n\n"))
}

/// A line a node: id, parent, scores, what was expected and what came of it.
fn table(nodes: &[&Node], served: &Node) -> String {
    let row = |node: &&Node| {
        let serves = if node.id == served.id { " (serves now)" } else { "" };
        let score = node.means.map_or_else(
            || "not scored".to_owned(),
            |(own, other)| format!("mean {own:.4}, what served then {other:.4}"),
        );
        let parent = if node.parent.is_empty() { "none" } else { short(&node.parent) };
        format!("{}{serves} parent {parent}: {score}; {}; {}", short(&node.id), node.hypothesis, node.outcome)
    };
    nodes.iter().map(row).collect::<Vec<_>>().join("\n")
}
