//! `GET /reef/harness/releases/{step}/page`: why a harness release came to be, what it changed, what was decided, what a
//! client needs for it, and its chain. One HTML file without scripts or outside resources; whatever came from outside is
//! escaped before it is placed.

use std::fmt::Write;

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{Html, IntoResponse, Response};
use reef_core::{ReleaseId, ReleaseOrigin};
use reef_harness::{Diff, FileChange, FileDiff, LineChange, Requirement};
use reef_store::{HarnessProposal, ListedRelease, RecordBody, ReleaseStatus};
use serde_json::{Value, json};

use super::Harnesses;
use crate::config::Scope;
use crate::html::{escape, row, table};
use crate::http::caller::Caller;
use crate::http::error::ApiError;
use crate::http::page::POLICY;
use crate::http::params::Path;
use crate::scenarios::Scenario;

/// Lines of the difference that are shown.
const LINES_SHOWN: usize = 2_000;
/// Releases of the chain that are listed, the latest.
const CHAIN_SHOWN: usize = 50;

/// What a page shows.
struct Shown<'a> {
    scenario: &'a Scenario,
    listed: ListedRelease,
    proposal: Option<HarnessProposal>,
    /// What a person asked for, where the proposal answers it.
    asked: Option<String>,
    diff: Diff,
    requires: Vec<Requirement>,
    adapters: Vec<&'a str>,
    chain: Vec<ListedRelease>,
}

/// The page of a release, by its number in the chain or by its id.
pub async fn page(
    State(harnesses): State<Harnesses>,
    caller: Caller,
    Path(step): Path<String>,
) -> Result<Response, ApiError> {
    let scenario = harnesses.open(&caller, Scope::Read).await?;
    let releases = harnesses.releases(&scenario).await?;
    let listed = find(&releases, &step)?;
    let (tenant, name) = &scenario.key;
    // A copy stands for the release that it accepted or returned to: that one has the proposal.
    let made_by = match &listed.release.manifest.origin {
        ReleaseOrigin::Acceptance { of } => of,
        _ => &listed.release.release_id,
    };
    let proposal = harnesses.store.proposal_of(tenant, name, made_by).await?;
    let asked = match proposal.as_ref().and_then(|proposal| proposal.request.as_ref()) {
        Some(request) => harnesses.store.record(tenant, name, request).await?,
        None => None,
    };
    let content = harnesses.scenarios.harness_content(&listed.release.release_id).await?;
    let before = match &listed.release.manifest.parent {
        Some(parent) => harnesses.scenarios.harness_content(parent).await?,
        None => Default::default(),
    };
    let diff = tokio::task::spawn_blocking(move || (Diff::of_trees(&before.tree, &content.tree), content.requires));
    let (diff, requires) = diff.await.map_err(|error| ApiError::internal("the trees could not be compared", error))?;
    let shown = Shown {
        scenario: &scenario,
        proposal,
        asked: asked.and_then(|record| match record.body {
            RecordBody::Instruction(instruction) => Some(instruction.text),
            _ => None,
        }),
        diff,
        requires,
        adapters: harnesses.shop.adapters().iter().map(|adapter| adapter.name.as_str()).collect(),
        chain: releases.iter().rev().take(CHAIN_SHOWN).cloned().collect(),
        listed,
    };
    let policy = [(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY))];
    Ok((policy, Html(shown.html())).into_response())
}

/// A number is that of a release that was served; one that only waits is named by its id, or by a number nobody took.
fn find(releases: &[ListedRelease], step: &str) -> Result<ListedRelease, ApiError> {
    let found = match (step.parse::<u32>(), ReleaseId::parse(step)) {
        (_, Ok(id)) => releases.iter().find(|listed| listed.release.release_id == id),
        (Ok(number), Err(_)) => {
            let of_number = || releases.iter().filter(move |listed| listed.release.manifest.sequence == number);
            let waited = |listed: &&ListedRelease| {
                matches!(listed.release.manifest.origin, ReleaseOrigin::Proposal { .. })
                    || matches!(listed.status, ReleaseStatus::Held | ReleaseStatus::Rejected)
            };
            of_number().find(|listed| !waited(listed)).or_else(|| of_number().next_back())
        }
        (Err(_), Err(_)) => return Err(ApiError::invalid("step", "name a release by its number or its id")),
    };
    found
        .cloned()
        .ok_or_else(|| ApiError::not_found(format!("there is no harness release '{}'", step.escape_default())))
}

impl Shown<'_> {
    fn html(&self) -> String {
        let (scenario, number) = (&self.scenario.key.1, self.listed.release.manifest.sequence);
        let title = format!("{} · harness {number}", escape(scenario.as_str()));
        let mut page = format!(
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
             content=\"width=device-width, initial-scale=1\"><title>{title}</title><style>{}</style></head><body><h1>{title}</h1>",
            include_str!("../page.css")
        );
        for (head, body) in [
            ("Why", self.why()),
            ("What changed", self.changed()),
            ("Verdict", self.verdict()),
            ("Setup", self.setup()),
            ("Chain, newest first", self.chain()),
        ] {
            // Writing to a string cannot fail.
            let _ = write!(page, "<section><h2>{head}</h2>{body}</section>");
        }
        page.push_str("</body></html>");
        page
    }

    fn why(&self) -> String {
        let Some(proposal) = &self.proposal else {
            return format!("<p>{}</p>", escape(&origin(&self.listed)));
        };
        let mut body = format!("<p>{}</p>", escape(&proposal.reason));
        if let Some(asked) = &self.asked {
            let _ = write!(body, "<p class=\"quiet\">A person asked:</p><pre>{}</pre>", escape(asked));
        }
        let session = proposal.session.as_deref().map(|session| format!(", session {session}")).unwrap_or_default();
        let told = format!("proposal {}{session}", proposal.id);
        let _ = write!(body, "<p class=\"quiet\"><code>{}</code></p>", escape(&told));
        body
    }

    fn changed(&self) -> String {
        if self.diff.files.is_empty() {
            return "<p>Nothing: the tree is that of its parent.</p>".to_owned();
        }
        let (mut body, mut left) = (String::new(), LINES_SHOWN);
        for file in &self.diff.files {
            body.push_str(&file_html(file, &mut left));
        }
        if left == 0 {
            let _ = write!(body, "<p class=\"quiet\">No more than {LINES_SHOWN} lines are shown.</p>");
        }
        body
    }

    fn verdict(&self) -> String {
        let ListedRelease { release, status } = &self.listed;
        let mut body = format!("<p><strong>{}</strong></p>", escape(&word(json!(status))));
        if let Some(decision) = &release.manifest.decision {
            let by = word(json!(decision.by)["kind"].clone());
            let told = format!("{} by the {by}: {}", word(json!(decision.verdict)), decision.reason);
            let _ = write!(body, "<p>{}</p>", escape(&told));
        }
        if let Some(measured) = &release.manifest.evaluation {
            let _ = write!(body, "<pre>{}</pre>", escape(&format!("{:#}", json!(measured))));
        }
        let told = format!("release {} · content {}", release.release_id, release.content_id);
        let _ = write!(body, "<p class=\"quiet\"><code>{}</code></p>", escape(&told));
        body
    }

    fn setup(&self) -> String {
        let mut body = String::new();
        if self.requires.is_empty() {
            body.push_str("<p>It needs nothing beyond the agent program.</p>");
        } else {
            let needs = self.requires.iter().map(|requirement| {
                let requirement = json!(requirement);
                let cell = |field: &str| escape(requirement[field].as_str().unwrap_or_default()).into_owned().into();
                row(&[cell("kind"), cell("name"), cell("reason")])
            });
            body.push_str(&table("texts", &["Kind", "Name", "Reason"], needs));
        }
        let header = format!("-H 'x-reef-scenario: {}'", self.scenario.key.1);
        // Without a token there is no header: an empty one is refused.
        let line = format!(
            "curl -fsS ${{REEF_TOKEN:+-H \"Authorization: Bearer $REEF_TOKEN\"}} {header} \"$REEF_URL/reef/harness/install?adapter=NAME\" | sh"
        );
        let _ = write!(body, "<pre>{}</pre>", escape(&line));
        let _ = write!(body, "<p class=\"quiet\">NAME: {}</p>", escape(&self.adapters.join(", ")));
        body
    }

    fn chain(&self) -> String {
        let rows = self.chain.iter().map(|listed| {
            let id = listed.release.release_id.as_str();
            let link = format!("<a href=\"/reef/harness/releases/{0}/page\"><code>{0}</code></a>", escape(id));
            let status = escape(&word(json!(listed.status))).into_owned();
            let number = listed.release.manifest.sequence.to_string();
            row(&[number.into(), link.into(), status.into(), escape(&origin(listed)).into_owned().into()])
        });
        table("texts", &["Number", "Release", "Status", "Origin"], rows)
    }
}

fn file_html(file: &FileDiff, left: &mut usize) -> String {
    let change = match file.change {
        FileChange::Added => "added",
        FileChange::Removed => "removed",
        FileChange::Changed => "changed",
    };
    let mut body = format!("<p>{change} <code>{}</code></p><pre>", escape(&file.path));
    for hunk in &file.hunks {
        let _ = writeln!(body, "@@ -{},{} +{},{} @@", hunk.old_start, hunk.old_lines, hunk.new_start, hunk.new_lines);
        for line in hunk.lines.iter().take(*left) {
            let (sign, tag) = match line.change {
                LineChange::Same => (' ', None),
                LineChange::Added => ('+', Some("ins")),
                LineChange::Removed => ('-', Some("del")),
            };
            let text = escape(&line.text);
            let _ = match tag {
                Some(tag) => writeln!(body, "<{tag}>{sign}{text}</{tag}>"),
                None => writeln!(body, "{sign}{text}"),
            };
        }
        *left = left.saturating_sub(hunk.lines.len());
    }
    body.push_str("</pre>");
    body
}

/// Where a release came from, in words.
fn origin(listed: &ListedRelease) -> String {
    match &listed.release.manifest.origin {
        ReleaseOrigin::Base => "the empty tree that every harness starts from".to_owned(),
        ReleaseOrigin::Step { step } => format!("step {step}"),
        ReleaseOrigin::Promotion { step } => format!("the candidate of step {step}, promoted"),
        ReleaseOrigin::Rollback { to } => format!("back to {to}"),
        ReleaseOrigin::Proposal { id } => format!("proposal {id}"),
        ReleaseOrigin::Acceptance { of } => format!("accepted {of}"),
    }
}

/// A value that is a word in JSON.
fn word(value: Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
