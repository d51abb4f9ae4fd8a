//! What explains a release or a step beside itself: the reports that it learned from, and what it changed. The page and
//! `reef release show` tell the same. What cannot be read any more, as the adapter of a parent that retention emptied,
//! is told in words and keeps nothing else from being shown.

use reef_core::{Release, ReleaseId, Step, Surface};
use reef_engine::MODULES;
use reef_release::FileChange;
use reef_store::RecordBody;
use serde::Serialize;
use serde_json::{Value, json};

use super::error::ApiError;
use super::scenarios::Management;
use crate::scenarios::ScenarioKey;
use crate::weights::ADAPTER_FILE;

/// Reports of a batch that are told.
const REPORTS_SHOWN: usize = 64;
/// Characters of a text that are shown.
const TEXT_CHARS_SHOWN: usize = 300;

/// Frobenius norms of the deltas of one block.
pub type Norms = [f64; MODULES.len()];

/// A report of the batch.
#[derive(Debug, Serialize)]
pub struct ReportRow {
    /// Its id.
    pub id: String,
    /// Its score.
    pub score: Option<f64>,
    /// The start of its feedback, or that it is gone.
    pub feedback: String,
    /// The answers that it grades.
    pub receipts: Vec<String>,
}

/// What explains a release or a step.
#[derive(Debug, Default, Serialize)]
pub struct Explained {
    /// Reports of the batch, the first of them.
    pub reports: Vec<ReportRow>,
    /// Files against the parent.
    pub files: Vec<FileChange>,
    /// What the adapter adds to the model by block, in the order of `modules`, and what the parent's added.
    pub norms: Vec<(Norms, Option<Norms>)>,
    /// Modules of a block.
    pub modules: [&'static str; MODULES.len()],
    /// Why a part of this is not told.
    pub notes: Vec<String>,
}

impl Explained {
    /// Of a release, a step, or a step with what it released or left to wait.
    pub async fn of(
        management: &Management,
        key: &ScenarioKey,
        release: Option<&Release>,
        step: Option<&Step>,
    ) -> Result<Self, ApiError> {
        let mut explained = Self { modules: MODULES, ..Self::default() };
        if let Some(step) = step {
            explained.reports = reports(management, key, step).await?;
        }
        if let Some(release) = release {
            if let Some(parent) = &release.manifest.parent {
                match management.scenarios.changed_files(parent, &release.release_id).await {
                    Ok(changes) => explained.files = changes,
                    Err(error) => explained.notes.push(ApiError::from(error).message().to_owned()),
                }
            }
            if release.manifest.surface == Surface::Weights {
                explained.measure(management, release).await;
            }
        }
        explained.notes.dedup();
        Ok(explained)
    }

    async fn measure(&mut self, management: &Management, release: &Release) {
        let own = match norms_of(management, &release.release_id).await {
            Ok(own) => own,
            Err(error) => return self.notes.push(error.message().to_owned()),
        };
        let before = match &release.manifest.parent {
            Some(parent) => norms_of(management, parent).await,
            None => Ok(Vec::new()),
        };
        let before = before.unwrap_or_else(|error| {
            self.notes.push(error.message().to_owned());
            Vec::new()
        });
        self.norms = own.into_iter().enumerate().map(|(layer, own)| (own, before.get(layer).copied())).collect();
    }
}

async fn reports(management: &Management, key: &ScenarioKey, step: &Step) -> Result<Vec<ReportRow>, ApiError> {
    let mut rows = Vec::new();
    for id in step.batch.iter().take(REPORTS_SHOWN) {
        let found = management.store.record(&key.0, &key.1, id).await?;
        let id = id.to_string();
        rows.push(match found.map(|record| record.body) {
            Some(RecordBody::Report(report)) => ReportRow {
                id,
                score: report.score,
                feedback: report.feedback.as_ref().map(short).unwrap_or_default(),
                receipts: report.references.iter().map(ToString::to_string).collect(),
            },
            Some(RecordBody::Instruction(asked)) => {
                ReportRow { id, score: None, feedback: short(&asked.text), receipts: Vec::new() }
            }
            _ => ReportRow { id, score: None, feedback: "no longer stored".to_owned(), receipts: Vec::new() },
        });
    }
    Ok(rows)
}

/// A value as a text of bounded length.
pub fn short(value: impl Serialize) -> String {
    let text = match json!(value) {
        Value::String(text) => text,
        other => other.to_string(),
    };
    let mut shown: String = text.chars().take(TEXT_CHARS_SHOWN).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

async fn norms_of(management: &Management, release: &ReleaseId) -> Result<Vec<Norms>, ApiError> {
    let files = management.scenarios.files(release).await?;
    if !files.iter().any(|(path, _)| path == ADAPTER_FILE) {
        return Ok(Vec::new());
    }
    let engine = management.engine.clone();
    let read = tokio::task::spawn_blocking(move || engine.adapter_norms(&files)).await;
    let read = read.map_err(|error| ApiError::internal("the adapter could not be measured", error))?;
    read.map_err(|error| ApiError::internal("the adapter could not be measured", error))
}
