//! One step: summaries and grades of the sessions, a decision on each group, several decisions on one skill merged, and
//! the skills as changes of the tree. What the calls will cost is known before the first, so that a budget that is too
//! small is said and not half spent.

use alloc::collections::BTreeMap;

use reef_evolution::edits::{field, with_field};
use reef_evolution::stop::{admitted, incumbent};
use reef_evolution::untrusted::{WARNING, quoted, shortened};
use reef_evolution::{Calls, Stop};
use reef_recipe::prelude::*;
use reef_recipe::{Entry, EntryKind, Mutation};

use crate::decide::{self, Wanted, merged, wanted};
use crate::judge;
use crate::sessions::{Session, by_session, groups};
use crate::settings::Settings;

/// Temperatures of the four stages.
const SUMMARISE: f32 = 0.2;
const JUDGE: f32 = 0.1;
const DECIDE: f32 = 0.4;
const MERGE: f32 = 0.3;
/// Characters of a summary, and of a skill's text, in a prompt.
const SUMMARY_CHARS_MAX: usize = 2_000;
const SKILL_CHARS_MAX: usize = 12_000;

/// The skills that the batch teaches.
pub(crate) fn propose(batch: &Batch, settings: &Settings) -> Result<Vec<Mutation>, Stop> {
    let skills: Vec<Entry> = incumbent()?.into_iter().filter(|entry| entry.kind == EntryKind::Skill).collect();
    let known: Vec<String> = skills.iter().map(|entry| entry.id.clone()).collect();
    let sessions: Vec<Session> =
        by_session(batch.handles())?.iter().map(|samples| Session::read(samples, &known)).collect::<Result<_>>()?;
    let groups = groups(&sessions, settings.sessions_per_group);
    let mut calls = Calls::on(settings.evolver.clone())?;
    let (needed, left) = (2 * sessions.len() + groups.len(), calls.left());
    if needed > left as usize {
        let told = format!("{} sessions in {} groups need {needed} model calls", sessions.len(), groups.len());
        return Err(Stop::Reason(format!("{told}; max_model_calls_per_step is {left}")));
    }
    let graded = graded(&mut calls, &sessions)?;
    let wanted = decided(&mut calls, &groups, &graded, &skills)?;
    let changes = changes(&mut calls, wanted, &skills)?;
    metrics::gauge("model_calls", f64::from(calls.used()));
    metrics::gauge("skills_changed", changes.len() as f64);
    if changes.is_empty() {
        return Err(Stop::Reason(format!("{} sessions teach no change of a skill", sessions.len())));
    }
    Ok(changes)
}

/// A summary of each session with its grade.
fn graded(calls: &mut Calls, sessions: &[Session]) -> Result<Vec<String>, Stop> {
    let instruction = format!(
        "Summarise a session of an AI agent in at most 150 words: what was wanted, what it did, which skills it used and \
how, where it failed or lost time, and how it ended. {WARNING}"
    );
    let texts: Vec<String> = sessions.iter().map(|session| quoted("session", &session.text, usize::MAX)).collect();
    let asked: Vec<(&str, &str)> = texts.iter().map(|text| (instruction.as_str(), text.as_str())).collect();
    let summaries = calls.ask_all(&asked, SUMMARISE)?;
    let summaries: Vec<String> = summaries.iter().map(|text| quoted("summary", text, SUMMARY_CHARS_MAX)).collect();
    let instruction = judge::instruction();
    let asked: Vec<(&str, &str)> = summaries.iter().map(|text| (instruction.as_str(), text.as_str())).collect();
    let grades: Vec<Option<f64>> = calls.ask_all(&asked, JUDGE)?.iter().map(|answer| judge::score(answer)).collect();
    let known: Vec<f64> = grades.iter().copied().flatten().collect();
    metrics::gauge("session_score_mean", maths::mean(&known));
    metrics::gauge("sessions_ungraded", (grades.len() - known.len()) as f64);
    let told = summaries.iter().zip(grades).map(|(summary, grade)| {
        let grade = grade.map_or_else(|| "not graded".to_owned(), |grade| format!("grade {grade:.2}"));
        format!("{grade}:\n{summary}")
    });
    Ok(told.collect())
}

/// What each group's decision wants, by skill.
fn decided(
    calls: &mut Calls,
    groups: &BTreeMap<String, Vec<usize>>,
    graded: &[String],
    skills: &[Entry],
) -> Result<BTreeMap<String, Vec<Wanted>>, Stop> {
    let catalogue: Vec<String> =
        skills.iter().map(|entry| format!("{}: {}", entry.id, field(entry, "description"))).collect();
    let catalogue = quoted("catalogue", &catalogue.join("\n"), SKILL_CHARS_MAX);
    let material = |(name, numbers): (&String, &Vec<usize>)| {
        let skill = skills.iter().find(|entry| entry.id == *name);
        let skill = skill.map_or_else(|| "No skill was used.".to_owned(), shown);
        let sessions: Vec<&str> = numbers.iter().filter_map(|&number| graded.get(number).map(String::as_str)).collect();
        format!("All skills:\n{catalogue}\n\n{skill}\n\nThe sessions:\n{}", sessions.join("\n"))
    };
    let materials: Vec<String> = groups.iter().map(material).collect();
    let instruction = decide::instruction();
    let asked: Vec<(&str, &str)> = materials.iter().map(|text| (instruction.as_str(), text.as_str())).collect();
    let answers = calls.ask_all(&asked, DECIDE)?;
    let mut found = BTreeMap::<String, Vec<Wanted>>::new();
    for (name, answer) in groups.keys().zip(&answers) {
        let own = Some(name.as_str()).filter(|name| !name.is_empty());
        if let Some(wanted) = wanted(answer, own, skills) {
            found.entry(wanted.id.clone()).or_default().push(wanted);
        }
    }
    Ok(found)
}

fn shown(skill: &Entry) -> String {
    let (description, text) = (field(skill, "description"), field(skill, "text"));
    format!("The skill {}:\n{}", skill.id, quoted("skill", &format!("{description}\n{text}"), SKILL_CHARS_MAX))
}

/// One change a skill; those that the tree does not admit are left out, and are the reason if none is left.
fn changes(calls: &mut Calls, found: BTreeMap<String, Vec<Wanted>>, skills: &[Entry]) -> Result<Vec<Mutation>, Stop> {
    let (mut changes, mut refusal) = (Vec::new(), None);
    for (id, versions) in found {
        let old = skills.iter().find(|entry| entry.id == id);
        let Some(wanted) = one(calls, versions, old)? else { continue };
        let blank = Entry { id, kind: EntryKind::Skill, config: "{}".to_owned() };
        let entry = with_field(old.unwrap_or(&blank), "description", &wanted.description);
        let change = Mutation::Put(with_field(&entry, "text", &wanted.text));
        match admitted(core::slice::from_ref(&change)) {
            Ok(()) => changes.push(change),
            Err(Stop::Reason(reason)) => {
                log::warn!("the skill {} stays as it was: {}", wanted.id, shortened(&reason, 300));
                refusal = Some(reason);
            }
            Err(failure) => return Err(failure),
        }
    }
    match refusal {
        Some(reason) if changes.is_empty() => Err(Stop::Reason(reason)),
        _ => Ok(changes),
    }
}

/// Several versions of a skill merged into one; the first where the budget allows no merging.
fn one(calls: &mut Calls, mut versions: Vec<Wanted>, old: Option<&Entry>) -> Result<Option<Wanted>, Stop> {
    if versions.len() < 2 || calls.left() == 0 {
        return Ok((!versions.is_empty()).then(|| versions.swap_remove(0)));
    }
    let id = versions.first().map(|version| version.id.clone()).unwrap_or_default();
    let texts: Vec<String> = versions
        .iter()
        .map(|version| quoted("version", &format!("{}\n{}", version.description, version.text), SKILL_CHARS_MAX))
        .collect();
    let material = format!("The skill {id}:\n{}", texts.join("\n"));
    let answer = calls.ask(&decide::merging(), &material, MERGE)?;
    Ok(merged(&answer, &id, old))
}
