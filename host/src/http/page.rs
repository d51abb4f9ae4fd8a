//! The page of a step or a release: why it came to be, what it changed, how it was measured, and how to do it again.
//! One HTML file without scripts or outside resources. Everything on it is read from the store and the release
//! repository when it is asked for; whatever came from outside is escaped before it is placed.

use std::borrow::Cow;

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{Html, IntoResponse, Response};
use reef_core::{ReleaseId, ReleaseOrigin, Step, StepOutcome, Surface};
use reef_engine::MODULES;
use reef_release::FileFacts;
use reef_store::ListedRelease;

use super::caller::Caller;
use super::error::ApiError;
use super::explained::{Explained, short};
use super::params::Path;
use super::releases::{release_of, replay_command, step_of};
use super::scenarios::Management;
use crate::config::Scope;
use crate::html::{escape, row, table};
use crate::scenarios::ScenarioKey;

/// Releases of a chain that are listed.
const CHAIN_SHOWN: usize = 12;
/// Nothing may be loaded and nothing may run.
pub const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// What a page shows.
#[derive(Debug, Default)]
struct Shown {
    key: Option<ScenarioKey>,
    release: Option<ListedRelease>,
    step: Option<Step>,
    explained: Explained,
    chain: Vec<ListedRelease>,
}

/// `GET …/releases/{id}/page`
pub async fn release(
    State(management): State<Management>,
    caller: Caller,
    Path((name, id)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    let scenario = management.open(&caller, Scope::Read, &name).await?;
    let (listed, step) = release_of(&management, &scenario, ReleaseId::parse(id)?).await?;
    page(&management, scenario.key.clone(), Some(listed), step).await
}

/// `GET …/steps/{n}/page`
pub async fn step(
    State(management): State<Management>,
    caller: Caller,
    Path((name, number)): Path<(String, u32)>,
) -> Result<Response, ApiError> {
    let scenario = management.open(&caller, Scope::Read, &name).await?;
    let key = scenario.key.clone();
    let step = step_of(&management, &scenario, number).await?;
    let release = made_by(&management, &key, &step).await?;
    page(&management, key, release, Some(step)).await
}

async fn page(
    management: &Management,
    key: ScenarioKey,
    release: Option<ListedRelease>,
    step: Option<Step>,
) -> Result<Response, ApiError> {
    let explained = Explained::of(management, &key, release.as_ref().map(|listed| &listed.release), step.as_ref());
    let explained = explained.await?;
    let surface = release.as_ref().map_or(Surface::Weights, |listed| listed.release.manifest.surface);
    let chain = management.store.releases_of(&key.0, &key.1, surface).await?;
    let chain = chain.into_iter().take(CHAIN_SHOWN).collect();
    let shown = Shown { key: Some(key), release, step, explained, chain };
    let policy = [(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY))];
    Ok((policy, Html(shown.html())).into_response())
}

/// What a step released, or left to wait; a candidate that was refused may be gone.
async fn made_by(
    management: &Management,
    (tenant, name): &ScenarioKey,
    step: &Step,
) -> Result<Option<ListedRelease>, ApiError> {
    if let StepOutcome::Released { release, .. } = &step.outcome {
        return Ok(management.store.release(tenant, name, release).await?);
    }
    let all = management.store.releases(tenant, name).await?;
    Ok(all.into_iter().find(|listed| listed.release.manifest.origin == ReleaseOrigin::Step { step: step.step }))
}

impl Shown {
    fn html(&self) -> String {
        let title = self.title();
        let mut page = format!(
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
             content=\"width=device-width, initial-scale=1\"><title>{title}</title><style>{}</style></head><body><h1>{title}</h1>",
            include_str!("page.css")
        );
        for (head, body) in [
            ("Verdict", self.verdict()),
            ("Why: the reports it learned from", self.why()),
            ("What changed", self.changed()),
            ("How it was measured", self.measured()),
            ("What its calls cost", self.calls()),
            ("Chain, newest first", self.chain()),
            ("Do it again", self.replay()),
        ] {
            if !body.is_empty() {
                page.push_str(&format!("<section><h2>{head}</h2>{body}</section>"));
            }
        }
        page.push_str("</body></html>");
        page
    }

    fn title(&self) -> String {
        let scenario = self.key.as_ref().map(|key| key.1.to_string()).unwrap_or_default();
        let what = match (&self.step, &self.release) {
            (Some(step), _) => format!("step {}", step.step),
            (None, Some(listed)) => format!("release {}", listed.release.manifest.sequence),
            (None, None) => String::new(),
        };
        format!("{} · {what}", escape(&scenario))
    }

    fn verdict(&self) -> String {
        let mut body = String::new();
        if let Some(step) = &self.step {
            let (kind, reason) = told(&step.outcome);
            body.push_str(&format!("<p><strong>{kind}</strong> {}</p>", escape(reason)));
            let told = format!("recipe {}, seed {}, from {}", step.recipe, step.seed, step.parent);
            body.push_str(&format!("<p class=\"quiet\"><code>{}</code></p>", escape(&told)));
            for (surface, head) in &step.beside {
                let told = format!("beside the {} of release {head}", surface.as_str());
                body.push_str(&format!("<p class=\"quiet\"><code>{}</code></p>", escape(&told)));
            }
        }
        if let Some(ListedRelease { release, status }) = &self.release {
            let status = short(status);
            let told = format!("{status} · release {} · content {}", release.release_id, release.content_id);
            body.push_str(&format!("<p class=\"quiet\"><code>{}</code></p>", escape(&told)));
            if let Some(records) = &release.manifest.records {
                body.push_str(&format!("<p class=\"quiet\">records <code>sha256:{}</code></p>", escape(records)));
            }
        }
        body
    }

    fn why(&self) -> String {
        let reports = &self.explained.reports;
        if reports.is_empty() {
            return String::new();
        }
        let rows = reports.iter().map(|report| {
            let score = report.score.map_or_else(|| "–".to_owned(), |score| score.to_string());
            row(&[
                escape(&report.id),
                score.into(),
                escape(&report.feedback),
                escape(&report.receipts.join(" ")).into_owned().into(),
            ])
        });
        let all = self.step.as_ref().map_or(0, |step| step.batch.len());
        let more = all.saturating_sub(reports.len());
        let more = if more > 0 { format!("<p class=\"quiet\">and {more} more</p>") } else { String::new() };
        table("texts", &["Report", "Score", "Feedback", "Receipts"], rows) + &more
    }

    fn changed(&self) -> String {
        let notes = self.explained.notes.iter().map(|note| format!("<p class=\"quiet\">{}</p>", escape(note)));
        notes.collect::<String>() + &self.files() + &self.norms()
    }

    fn files(&self) -> String {
        if self.explained.files.is_empty() {
            return String::new();
        }
        let bytes =
            |side: &Option<FileFacts>| side.as_ref().map_or_else(|| "–".to_owned(), |facts| facts.size.to_string());
        let rows = self
            .explained
            .files
            .iter()
            .map(|file| row(&[escape(&file.path), bytes(&file.before).into(), bytes(&file.after).into()]));
        table("texts", &["File", "Bytes before", "Bytes now"], rows)
    }

    fn norms(&self) -> String {
        let norms = &self.explained.norms;
        let largest = norms.iter().flat_map(|(own, _)| own).fold(0.0f64, |largest, norm| largest.max(*norm));
        if largest <= 0.0 {
            return String::new();
        }
        let rows = norms.iter().enumerate().map(|(layer, (own, before))| {
            let mut cells: Vec<Cow<'_, str>> = vec![layer.to_string().into()];
            for (index, norm) in own.iter().enumerate() {
                let change = before.and_then(|before| before.get(index).copied());
                let change = change.map(|before| format!(" <small>{:+.3}</small>", norm - before)).unwrap_or_default();
                let wide = 40.0 * norm / largest;
                cells.push(
                    format!("<svg width=\"40\" height=\"8\" aria-hidden=\"true\"><rect width=\"{wide:.1}\" height=\"8\"/></svg> {norm:.3}{change}")
                        .into(),
                );
            }
            row(&cells)
        });
        let names = MODULES.map(|module| module.rsplit('.').next().unwrap_or(module));
        let heads: Vec<&str> = std::iter::once("Block").chain(names).collect();
        let told = "<p class=\"quiet\">Frobenius norm of (alpha / rank) · B · A by block; small: the change against the parent.</p>";
        told.to_owned() + &table("norms", &heads, rows)
    }

    fn measured(&self) -> String {
        let metrics = match (&self.step, &self.release) {
            (Some(step), _) if !step.metrics.is_empty() => &step.metrics,
            (_, Some(listed)) => &listed.release.manifest.metrics,
            _ => return String::new(),
        };
        if metrics.is_empty() {
            return String::new();
        }
        let rows = metrics.iter().map(|(name, value)| row(&[escape(name), value.to_string().into()]));
        table("figures", &["Figure", "Value"], rows)
    }

    fn calls(&self) -> String {
        let calls = self.step.as_ref().map_or(&[][..], |step| &step.calls);
        if calls.is_empty() {
            return String::new();
        }
        let rows = calls.iter().map(|call| {
            let hosts: Vec<String> = call.host_calls.iter().map(|(name, count)| format!("{count} {name}")).collect();
            row(&[
                escape(&call.function),
                call.fuel.to_string().into(),
                call.guest_us.to_string().into(),
                call.host_us.to_string().into(),
                (call.memory_peak_bytes >> 10).to_string().into(),
                escape(&hosts.join(", ")).into_owned().into(),
                escape(call.fault.as_deref().unwrap_or_default()),
            ])
        });
        table("texts", &["Call", "Fuel", "Guest µs", "Host µs", "Memory KiB", "Host calls", "Fault"], rows)
    }

    fn chain(&self) -> String {
        let Some(key) = &self.key else { return String::new() };
        let rows = self.chain.iter().map(|ListedRelease { release, status }| {
            let id = &release.release_id;
            let address = format!("/reef/scenarios/{}/releases/{id}/page", key.1);
            let link = format!("<a href=\"{}\"><code>{}</code></a>", escape(&address), escape(id.as_str()));
            let origin = short(&release.manifest.origin);
            row(&[
                release.manifest.sequence.to_string().into(),
                link.into(),
                escape(&short(status)).into_owned().into(),
                escape(&origin).into_owned().into(),
            ])
        });
        table("texts", &["Sequence", "Release", "Status", "Origin"], rows)
    }

    fn replay(&self) -> String {
        let (Some(step), Some(key)) = (&self.step, &self.key) else { return String::new() };
        format!("<pre>{}</pre>", escape(&replay_command(&key.0, &key.1, step.step)))
    }
}

fn told(outcome: &StepOutcome) -> (&'static str, &str) {
    match outcome {
        StepOutcome::Running => ("Running", ""),
        StepOutcome::Released { reason, .. } => ("Released", reason),
        StepOutcome::Rejected { reason } => ("Rejected", reason),
        StepOutcome::Held { reason } => ("Held for review", reason),
        StepOutcome::Skipped { reason } => ("Skipped", reason),
        StepOutcome::Failed { reason } => ("Failed", reason),
    }
}
