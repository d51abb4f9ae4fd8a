//! `POST /reef/report`: feedback on receipts, durable on return, counted once.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use reef_core::{RecordId, Report};
use reef_intake::Redactor;
use reef_sandbox::Manifest;
use reef_store::Store;
use serde_json::{Map, Value, json};
use tracing::Instrument;

use super::body::JsonObject;
use super::caller::Caller;
use super::error::ApiError;
use super::redaction::{check_id, redact_report, stored_label};
use crate::clock::now_ms;
use crate::config::Scope;
use crate::receipts::Receipts;
use crate::recipes::Manifests;
use crate::scenarios::{Scenario, Scenarios};
use crate::telemetry;

/// The field of reports that every recipe means alike.
const FEEDBACK_FIELD: &str = "feedback";
/// Answers of a session that one report grades, the latest.
const SESSION_RECEIPTS_MAX: u32 = 256;

/// The part of the host that takes feedback.
#[derive(Debug, Clone)]
pub struct Feedback {
    /// Where reports go.
    pub store: Store,
    /// Scenarios in service.
    pub scenarios: Arc<Scenarios>,
    /// Receipts not durable yet.
    pub receipts: Receipts,
    /// How long to wait for those.
    pub receipt_wait: Duration,
    /// Manifests of the server's recipes, whose report fields are checked here.
    pub manifests: Manifests,
    /// Takes secrets out before anything is stored.
    pub redactor: Arc<Redactor>,
}

impl Feedback {
    /// The scenario that a caller with the scope names.
    pub async fn open(&self, caller: &Caller, scope: Scope) -> Result<Arc<Scenario>, ApiError> {
        caller.require(scope)?;
        Ok(self.scenarios.get(caller.tenant(), &caller.scenario()?).await?)
    }
}

/// Recipes read fields of the metadata: what a person says in `feedback` is there for one that asks for such a field.
fn hand_words_over(manifest: &Manifest, report: &mut Report) {
    let asked = manifest.report_fields.iter().any(|field| field.name == FEEDBACK_FIELD);
    if let (true, Some(Value::String(words))) = (asked, &report.feedback) {
        report.metadata.entry(FEEDBACK_FIELD).or_insert_with(|| words.as_str().into());
    }
}

/// Stores a report.
pub async fn report(
    State(feedback): State<Feedback>,
    caller: Caller,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let scenario = feedback.open(&caller, Scope::Report).await?;
    let name = &scenario.key.1;
    let body = of_session(&feedback, &scenario, body).await?;
    let mut report = Report::from_body(&body, now_ms())?;
    for manifest in feedback.manifests.of(Some(&scenario)).values() {
        hand_words_over(manifest, &mut report);
        manifest.check_metadata(&report.metadata).map_err(|problem| ApiError::invalid("metadata", problem))?;
    }
    check_id(&feedback.redactor, &report.id)?;
    report = redact_report(&feedback.redactor, report).await?;
    if !feedback.receipts.wait(&scenario.key, &report.references, feedback.receipt_wait).await {
        let told = "the answer that this report grades is still being produced; report again when it has ended";
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "receipt_in_flight", told));
    }
    let span = tracing::info_span!("report", scenario = %name, report.id = %report.id, score = report.score);
    let parent = match &caller.traceparent {
        Some(parent) => Some(parent.clone()),
        None => trace_of_record(&feedback.store, &scenario.key, &report).await?,
    };
    telemetry::continue_trace(&span, parent.as_deref());
    report.traceparent = telemetry::traceparent(&span);
    let id = report.id.clone();
    let appended = feedback.store.append_report(&scenario.key.0, &scenario.key.1, report).instrument(span).await?;
    if !appended.duplicate {
        metrics::counter!("reef_reports_total").increment(1);
        scenario.wake();
    }
    Ok(Json(json!({ "agent_record_id": id, "scenario": name, "request_type": "report" })))
}

/// A report may name a session instead of receipts: it grades all answers of its conversation.
async fn of_session(
    feedback: &Feedback,
    scenario: &Scenario,
    mut body: Map<String, Value>,
) -> Result<Map<String, Value>, ApiError> {
    let session = match body.remove("session") {
        None | Some(Value::Null) => return Ok(body),
        Some(Value::String(session)) => stored_label(&feedback.redactor, &session),
        Some(_) => return Err(ApiError::invalid("session", "'session' is a text")),
    };
    if body.get("references").is_some_and(|references| !references.is_null()) {
        return Err(ApiError::invalid("session", "name a 'session' or 'references', not both"));
    }
    let (tenant, name) = &scenario.key;
    if let Some(known) = sent_before(feedback, scenario, &body).await? {
        // The session may have gone on since: what is sent again says what it said.
        body.insert("references".to_owned(), json!(known));
        return Ok(body);
    }
    let receipts = feedback.store.session_receipts(tenant, name, &session, SESSION_RECEIPTS_MAX).await?;
    if receipts.is_empty() {
        let shown: String = session.chars().take(64).flat_map(char::escape_default).collect();
        let told = format!("session '{shown}' has no answer in scenario '{name}'; name its receipts in 'references'");
        return Err(ApiError::not_found(told));
    }
    body.insert("references".to_owned(), json!(receipts));
    Ok(body)
}

/// What a report with the id of this one refers to, if there is one.
async fn sent_before(
    feedback: &Feedback,
    scenario: &Scenario,
    body: &Map<String, Value>,
) -> Result<Option<Vec<RecordId>>, ApiError> {
    let Some(id) = body.get("agent_record_id").and_then(Value::as_str) else { return Ok(None) };
    let (tenant, name) = &scenario.key;
    let record = feedback.store.record(tenant, name, &RecordId::parse(id)?).await?;
    Ok(record.and_then(|stored| match stored.body {
        reef_store::RecordBody::Report(report) => Some(report.references),
        reef_store::RecordBody::Inference(_) | reef_store::RecordBody::Instruction(_) => None,
    }))
}

/// Without a trace of its own, a report continues the trace of the record that it grades.
async fn trace_of_record(
    store: &Store,
    key: &crate::scenarios::ScenarioKey,
    report: &Report,
) -> Result<Option<String>, ApiError> {
    let Some(first) = report.references.first() else { return Ok(None) };
    let record = store.record(&key.0, &key.1, first).await?;
    Ok(record.and_then(|stored| match stored.body {
        reef_store::RecordBody::Inference(inference) => inference.traceparent,
        reef_store::RecordBody::Report(_) | reef_store::RecordBody::Instruction(_) => None,
    }))
}
