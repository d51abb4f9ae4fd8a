//! What is kept of a scenario's use: pages and import of records, erasure, retraction, and what was set aside.
//! Bodies are bounded and answers are read page by page, so that a large log takes no more memory than a small one.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use reef_core::{RecordId, Tag};
use reef_store::{Imported, RecordBody, RecordKind, Retracted, Selector, Store, StoreError, StoredRecord};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::body::JsonObject;
use super::caller::Caller;
use super::error::ApiError;
use super::params::{Path, Query};
use super::redaction::{check_id, redact_instruction, redact_record, redact_report, stored_label};
use super::report::Feedback;
use super::scenarios::Management;
use crate::clock::now_ms;
use crate::config::Scope;
use crate::scenarios::Scenario;

/// Records of one page.
const PAGE_MAX: u32 = 1000;
const PAGE_DEFAULT: u32 = 100;

/// Query of a page of records.
#[derive(Debug, Deserialize)]
pub struct Page {
    after_sequence: Option<i64>,
    limit: Option<u32>,
    request_type: Option<String>,
}

/// `GET /reef/scenarios/{s}/records`
pub async fn records(
    State(management): State<Management>,
    caller: Caller,
    Path(name): Path<String>,
    Query(page): Query<Page>,
) -> Result<Json<Value>, ApiError> {
    let scenario = management.open(&caller, Scope::Read, &name).await?;
    let kind = match page.request_type.as_deref() {
        None => None,
        Some("inference") => Some(RecordKind::Inference),
        Some("report") => Some(RecordKind::Report),
        Some("instruction") => Some(RecordKind::Instruction),
        Some(_) => {
            let told = "request_type is 'inference', 'report' or 'instruction'";
            return Err(ApiError::invalid("request_type", told));
        }
    };
    let limit = page.limit.unwrap_or(PAGE_DEFAULT).clamp(1, PAGE_MAX);
    let rows = management
        .store
        .records(&scenario.key.0, &scenario.key.1, page.after_sequence.unwrap_or(0), limit, kind)
        .await?;
    let next = rows.last().map(|row| row.sequence);
    let rows: Vec<Value> = rows.iter().map(shown).collect();
    Ok(Json(json!({ "records": rows, "next_after_sequence": next })))
}

/// `GET /reef/scenarios/{s}/records/{id}`
pub async fn record(
    State(management): State<Management>,
    caller: Caller,
    Path((name, id)): Path<(String, String)>,
) -> Result<Json<Value>, ApiError> {
    let scenario = management.open(&caller, Scope::Read, &name).await?;
    let id = RecordId::parse(id)?;
    let found = management.store.record(&scenario.key.0, &scenario.key.1, &id).await?;
    found
        .as_ref()
        .map(shown)
        .map(Json)
        .ok_or_else(|| ApiError::not_found(format!("record {id} does not exist in scenario '{name}'")))
}

fn shown(record: &StoredRecord) -> Value {
    let (kind, body) = match &record.body {
        RecordBody::Inference(inference) => ("inference", json!(inference)),
        RecordBody::Report(report) => ("report", json!(report)),
        RecordBody::Instruction(instruction) => ("instruction", json!(instruction)),
    };
    json!({ "sequence": record.sequence, "request_type": kind, "record": body })
}

/// `POST /reef/records`: one record, as a line of an export.
pub async fn import_one(
    feedback: State<Feedback>,
    caller: Caller,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    import(feedback, caller, vec![Value::Object(body)]).await
}

/// `POST /reef/records/batch`: `{records: […]}`, all of them or none.
pub async fn import_batch(
    feedback: State<Feedback>,
    caller: Caller,
    JsonObject(mut body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    match body.remove("records") {
        Some(Value::Array(records)) if body.is_empty() => import(feedback, caller, records).await,
        _ => Err(ApiError::invalid("records", "send {\"records\": […]} with the lines of an export")),
    }
}

async fn import(
    State(feedback): State<Feedback>,
    caller: Caller,
    records: Vec<Value>,
) -> Result<Json<Value>, ApiError> {
    let scenario = feedback.open(&caller, Scope::Admin).await?;
    let mut read = Vec::with_capacity(records.len());
    for (index, record) in records.into_iter().enumerate() {
        let refused = |error: StoreError| ApiError::invalid(format!("records[{index}]"), error.to_string());
        // What was stored elsewhere was not necessarily searched for secrets there.
        let record = RecordBody::from_json(record).map_err(refused)?;
        check_id(&feedback.redactor, record.id())?;
        read.push(match record {
            RecordBody::Inference(record) => {
                RecordBody::Inference(Box::new(redact_record(&feedback.redactor, *record).await?))
            }
            RecordBody::Report(report) => {
                RecordBody::Report(Box::new(redact_report(&feedback.redactor, *report).await?))
            }
            RecordBody::Instruction(instruction) => {
                RecordBody::Instruction(Box::new(redact_instruction(&feedback.redactor, *instruction)))
            }
        });
    }
    let Imported { appended, gone } = feedback.store.import(&scenario.key.0, &scenario.key.1, read).await?;
    scenario.wake();
    let duplicates = appended.iter().filter(|record| record.duplicate).count();
    let last = appended.iter().map(|record| record.sequence).max();
    Ok(Json(json!({
        "scenario": scenario.key.1, "imported": appended.len() - duplicates, "duplicates": duplicates, "gone": gone,
        "last_sequence": last,
    })))
}

/// `POST /reef/scenarios/{s}/erase`: `{record}`, `{session}` or `{tag: {name: value}}`, for good.
pub async fn erase(
    State(management): State<Management>,
    State(feedback): State<Feedback>,
    caller: Caller,
    Path(name): Path<String>,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let scenario = management.open(&caller, Scope::Admin, &name).await?;
    let what = match selector(&body)? {
        Selector::Record(id) => Selector::Record(id),
        Selector::Session(session) => Selector::Session(stored_label(&feedback.redactor, &session)),
        Selector::Tag(tag, value) => Selector::Tag(tag, stored_label(&feedback.redactor, &value)),
    };
    // What is being answered now may be what is to go, and is written when it has ended.
    let unsettled = match &what {
        Selector::Record(id) => {
            let one = std::slice::from_ref(id);
            usize::from(!feedback.receipts.wait(&scenario.key, one, feedback.receipt_wait).await)
        }
        Selector::Session(_) | Selector::Tag(..) => {
            feedback.receipts.wait_scenario(&scenario.key, feedback.receipt_wait).await
        }
    };
    let store = management.store.clone();
    // A client that goes away must not leave half of it behind.
    let erased = tokio::spawn(erase_now(store, scenario, what)).await;
    let erased = erased.map_err(|error| ApiError::internal("the erasure broke down; ask again", error))??;
    Ok(Json(json!({
        "records": erased.records, "waiting": erased.waiting + unsettled as u64, "state_entries": erased.state_entries,
        "trained_releases": erased.releases,
    })))
}

async fn erase_now(store: Store, scenario: Arc<Scenario>, what: Selector) -> Result<reef_store::Erased, StoreError> {
    store.erase(&scenario.key.0, &scenario.key.1, &what, now_ms()).await
}

fn selector(body: &Map<String, Value>) -> Result<Selector, ApiError> {
    let refused = || {
        ApiError::invalid(
            "body",
            "name what to erase: {\"record\": id}, {\"session\": text} or {\"tag\": {name: value}}",
        )
    };
    let mut fields = body.iter();
    let (Some((field, value)), None) = (fields.next(), fields.next()) else { return Err(refused()) };
    match (field.as_str(), value) {
        ("record", Value::String(id)) => Ok(Selector::Record(RecordId::parse(id.as_str())?)),
        ("session", Value::String(session)) => Ok(Selector::Session(session.clone())),
        ("tag", Value::Object(tag)) => {
            let mut tags = tag.iter();
            match (tags.next(), tags.next()) {
                (Some((name, Value::String(value))), None) => Ok(Selector::Tag(Tag::parse(name)?, value.clone())),
                _ => Err(refused()),
            }
        }
        _ => Err(refused()),
    }
}

/// `DELETE /reef/reports/{id}`: takes a report back.
pub async fn retract(
    State(feedback): State<Feedback>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let scenario = feedback.open(&caller, Scope::Report).await?;
    let id = RecordId::parse(id)?;
    let (state, step) = match feedback.store.retract(&scenario.key.0, &scenario.key.1, &id, now_ms()).await? {
        Retracted::LeftPool => ("retracted", None),
        Retracted::InStep(step) => ("in_step", Some(step)),
        Retracted::Trained(step) => ("trained", Some(step)),
        Retracted::NotWaiting => ("not_waiting", None),
    };
    Ok(Json(json!({ "agent_record_id": id, "scenario": scenario.key.1, "state": state, "step": step })))
}

/// Query of a page of dead letters.
#[derive(Debug, Deserialize)]
pub struct Letters {
    after_sequence: Option<i64>,
    limit: Option<u32>,
    kind: Option<String>,
}

/// `GET /reef/scenarios/{s}/dead-letters`: reports that will never be trained, and why.
pub async fn dead_letters(
    State(management): State<Management>,
    caller: Caller,
    Path(name): Path<String>,
    Query(page): Query<Letters>,
) -> Result<Json<Value>, ApiError> {
    let scenario = management.open(&caller, Scope::Read, &name).await?;
    let place = (page.after_sequence.unwrap_or(0), page.limit.unwrap_or(PAGE_DEFAULT).clamp(1, PAGE_MAX));
    let letters = management.store.dead_letters(&scenario.key.0, &scenario.key.1, place, page.kind.as_deref()).await?;
    let next = letters.last().map(|letter| letter.sequence);
    Ok(Json(json!({ "dead_letters": letters, "next_after_sequence": next })))
}
