//! The demo's page: one HTML file without scripts or outside resources, readable while the demo runs.
//! The board renders it after each step. Whatever came from the server is escaped before it is placed.

use std::borrow::Cow;

use reef_core::{ReleaseOrigin, StepOutcome};

use super::chart::learning_curve;
use super::course::{Course, StepView};
use super::families::Difficulty;
use super::scenario::{ListedRelease, metric};
use crate::html::{escape, row, table};

const TEMPLATE: &str = include_str!("page.html");
/// Hex digits of a release id that are shown.
const ID_CHARS_SHOWN: usize = 10;
/// Names of the figures that are shown, the recipe's before the trainer's own.
const GATE_SERVED: &[&str] = &["held_out_served"];
const GATE_CANDIDATE: &[&str] = &["held_out_candidate"];
const MASKED_SHARE: &[&str] = &["pg_clipfrac", "masked_share", "clip_fraction"];
const LOGPROB_DIFFERENCE: &[&str] = &["train_rollout_logprob_abs_diff", "logprob_abs_diff"];

/// What stands over everything.
#[derive(Debug, Clone)]
pub struct Heading {
    /// Seed of the run.
    pub seed: u64,
    /// Address of the server.
    pub server: String,
}

/// The whole page.
pub fn render(heading: &Heading, courses: &[Course]) -> String {
    let families: Vec<String> = courses.iter().map(family).collect();
    let done = courses.iter().filter(|course| course.after.is_some()).count();
    let state = if done == courses.len() {
        "complete".to_owned()
    } else {
        format!("still running, {done} of {} families done; reload to see more", courses.len())
    };
    fill(&[
        ("seed", heading.seed.to_string()),
        ("server", escape(&heading.server).into_owned()),
        ("state", state),
        ("families", families.concat()),
    ])
}

/// Puts values in the place of `{{name}}` in one pass, so that no value is searched for names.
fn fill(values: &[(&str, String)]) -> String {
    let mut page = String::with_capacity(TEMPLATE.len() + values.iter().map(|(_, value)| value.len()).sum::<usize>());
    let mut rest = TEMPLATE;
    while let Some((before, after)) = rest.split_once("{{") {
        page.push_str(before);
        let (name, after) = after.split_once("}}").unwrap_or((after, ""));
        page.push_str(values.iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value));
        rest = after;
    }
    page.push_str(rest);
    page
}

fn family(course: &Course) -> String {
    let difficulty = match course.difficulty {
        Difficulty::Easy => "easy",
        Difficulty::Harder => "harder",
    };
    format!(
        "<section><h2>{} <small>{difficulty}</small></h2>{}<figure>{}{}</figure>{}<h3>Release chain</h3>{}<h3>Steps</h3>{}</section>",
        escape(&course.family),
        headline(course),
        learning_curve(course),
        LEGEND,
        examples(course),
        chain(course),
        steps(course),
    )
}

const LEGEND: &str = "<figcaption><span class=\"key reward\">mean reward of training answers</span> <span class=\"key exact\">exact share of training answers</span> \
    <span class=\"key held\">exact share on held-out prompts, 95 % interval</span></figcaption>";

fn headline(course: &Course) -> String {
    let percent = |value: f64| format!("{:.0} %", 100.0 * value);
    let figure = match (course.share_before(), course.share_after(), course.gain()) {
        (Some(before), Some(after), Some(gain)) => {
            let [low, high] = gain.interval.map(|limit| 100.0 * limit);
            format!(
                "<p class=\"big\">{} → {}</p><p>{:+.1} points on {} held-out prompts (95 % interval {low:+.1} to {high:+.1}, paired)</p>",
                percent(before.value),
                percent(after.value),
                100.0 * gain.value,
                course.before.as_ref().map_or(0, Vec::len),
            )
        }
        (Some(before), _, _) => format!("<p class=\"big\">{} → …</p><p>learning</p>", percent(before.value)),
        _ => "<p class=\"big\">…</p><p>waits for its turn or is being measured</p>".to_owned(),
    };
    let (steps, seconds) = (course.steps.len(), course.elapsed.as_secs_f64());
    format!(
        "{figure}<p class=\"quiet\">{steps} steps, head is release {}, {} tokens sampled for training, {seconds:.0} s</p>",
        course.head_sequence, course.tokens
    )
}

fn examples(course: &Course) -> String {
    if course.examples.is_empty() {
        return String::new();
    }
    let rows = course.examples.iter().map(|example| {
        let after = example.after.as_deref().unwrap_or("…");
        row(&[escape(&example.prompt), escape(&example.wanted), escape(&example.before), escape(after)])
    });
    let system = if course.system.is_empty() {
        String::new()
    } else {
        format!("<p class=\"quiet\">System message: {}</p>", escape(&course.system))
    };
    format!("<h3>Held-out answers</h3>{system}{}", table("texts", &["Prompt", "Wanted", "Before", "After"], rows))
}

fn number(value: Option<f64>, digits: usize) -> Cow<'static, str> {
    value.map_or(Cow::Borrowed("–"), |value| Cow::Owned(format!("{value:.digits$}")))
}

/// The base, then every step with or without a release, then releases that no step made.
fn chain(course: &Course) -> String {
    let of_origin = |wanted: fn(&ReleaseOrigin) -> bool| {
        course.releases.iter().filter(move |listed| wanted(&listed.release.manifest.origin))
    };
    let base = of_origin(|origin| matches!(origin, ReleaseOrigin::Base))
        .map(|listed| link(Some(listed), "–", "the base model", None));
    let steps = course.steps.iter().map(|view| {
        let (release, told) = match &view.step.outcome {
            StepOutcome::Released { release, reason } => (course.release(release), format!("released: {reason}")),
            outcome => (None, told(outcome)),
        };
        link(release, &view.step.step.to_string(), &told, Some(view))
    });
    let others = of_origin(|origin| matches!(origin, ReleaseOrigin::Rollback { .. } | ReleaseOrigin::Promotion { .. }))
        .map(|listed| {
            let told = match &listed.release.manifest.origin {
                ReleaseOrigin::Rollback { to } => format!("rollback to {}", short(to.as_str())),
                _ => "promoted by a person".to_owned(),
            };
            link(Some(listed), "–", &told, None)
        });
    table("chain", &["Release", "Id", "Step", "Decision and reason", "Gate", "Lag"], base.chain(steps).chain(others))
}

fn link(release: Option<&ListedRelease>, step: &str, told: &str, view: Option<&StepView>) -> String {
    let sequence = release.map_or("–".to_owned(), |listed| listed.release.manifest.sequence.to_string());
    let id = release.map_or("–".to_owned(), |listed| {
        format!("<code>{}</code>", escape(short(listed.release.release_id.as_str())))
    });
    let status = release
        .and_then(|listed| listed.status.as_deref())
        .map_or(String::new(), |status| format!(" <small>{}</small>", escape(status)));
    let gate = view.map_or("–".to_owned(), |view| {
        let metrics = &view.step.metrics;
        format!("{} → {}", number(metric(metrics, GATE_SERVED), 3), number(metric(metrics, GATE_CANDIDATE), 3))
    });
    row(&[
        sequence.into(),
        (id + &status).into(),
        step.into(),
        escape(told),
        gate.into(),
        number(view.and_then(|view| view.lag), 1),
    ])
}

fn short(id: &str) -> &str {
    id.get(..ID_CHARS_SHOWN).unwrap_or(id)
}

fn told(outcome: &StepOutcome) -> String {
    match outcome {
        StepOutcome::Running => "running".to_owned(),
        StepOutcome::Released { reason, .. } => format!("released: {reason}"),
        StepOutcome::Rejected { reason } => format!("rejected: {reason}"),
        StepOutcome::Held { reason } => format!("held for review: {reason}"),
        StepOutcome::Skipped { reason } => format!("skipped: {reason}"),
        StepOutcome::Failed { reason } => format!("failed: {reason}"),
    }
}

fn steps(course: &Course) -> String {
    let rows = course.steps.iter().map(|view| {
        let metrics = &view.step.metrics;
        let million_fuel = view.fuel() as f64 / 1e6;
        row(&[
            view.step.step.to_string().into(),
            number(view.reward, 3),
            number(view.exact.map(|share| 100.0 * share), 0),
            view.step.batch.len().to_string().into(),
            number(metric(metrics, &["tokens"]), 0),
            number(Some(view.seconds()), 1),
            number(Some(million_fuel), 2),
            number(metric(metrics, MASKED_SHARE), 3),
            metric(metrics, LOGPROB_DIFFERENCE).map_or("–".into(), |value| format!("{value:.1e}").into()),
        ])
    });
    let heads = [
        "Step",
        "Reward",
        "Exact %",
        "Samples",
        "Tokens",
        "Seconds",
        "Fuel (million)",
        "Masked share",
        "Log-prob diff",
    ];
    table("figures", &heads, rows)
}

#[cfg(test)]
#[path = "page_tests.rs"]
mod tests;
