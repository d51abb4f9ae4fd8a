//! Secrets are taken out of records of every kind before the store sees them.
//! Exchanges and the routes that take feedback call it; the crate `intake` does the work, beside the requests where a text is long.
//! What cannot be looked at is not stored.

use std::sync::Arc;

use reef_core::{Inference, Instruction, RecordId, Report};
use reef_intake::{Counts, Redactor, text_bytes};

use super::error::ApiError;

/// Texts up to this size are looked at in place: moving them costs more.
const INLINE_BYTES_MAX: usize = 256 << 10;

/// The record without secrets.
pub async fn redact_record(redactor: &Arc<Redactor>, mut record: Inference) -> Result<Inference, ApiError> {
    let bytes = text_bytes(&record.request) + text_bytes(&record.response);
    let redactor = Arc::clone(redactor);
    let redact = move || {
        let found = redactor.redact_inference(&mut record);
        (record, found.all())
    };
    let (record, found) = heavy(bytes, redact).await?;
    count(&found);
    Ok(record)
}

/// The report without secrets.
pub async fn redact_report(redactor: &Arc<Redactor>, mut report: Report) -> Result<Report, ApiError> {
    let metadata = report.metadata.iter().map(|(name, value)| name.len() + text_bytes(value));
    let bytes = report.feedback.as_ref().map_or(0, text_bytes) + metadata.sum::<usize>();
    let redactor = Arc::clone(redactor);
    let redact = move || {
        let found = redactor.redact_report(&mut report);
        (report, found)
    };
    let (report, found) = heavy(bytes, redact).await?;
    count(&found);
    Ok(report)
}

/// The instruction without secrets; its text is short, so that it is looked at in place.
pub fn redact_instruction(redactor: &Redactor, mut instruction: Instruction) -> Instruction {
    instruction.text = redact_text(redactor, &instruction.text);
    instruction.session = instruction.session.map(|session| stored_label(redactor, &session));
    for requirement in &mut instruction.requires {
        count(&redactor.redact_json(requirement));
    }
    instruction
}

/// A session or the value of a tag as records bear it: without secrets, and different for different ones.
pub fn stored_label(redactor: &Redactor, label: &str) -> String {
    redactor.redact_label(label).0.into_owned()
}

/// Refuses an id that holds a secret: ids are stored, listed and indexed as they are.
pub fn check_id(redactor: &Redactor, id: &RecordId) -> Result<(), ApiError> {
    match redactor.secret_kind(id.as_str()) {
        Some(kind) => Err(ApiError::invalid(
            "agent_record_id",
            format!("the id looks like a secret ({kind}), and ids are stored as they are; use another id"),
        )),
        None => Ok(()),
    }
}

/// A short text without secrets.
pub fn redact_text(redactor: &Redactor, text: &str) -> String {
    let (text, found) = redactor.redact_text(text);
    count(&found);
    text.into_owned()
}

async fn heavy<T: Send + 'static>(bytes: usize, work: impl FnOnce() -> T + Send + 'static) -> Result<T, ApiError> {
    if bytes <= INLINE_BYTES_MAX {
        return Ok(work());
    }
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| ApiError::internal("the record could not be searched for secrets and was not stored", error))
}

fn count(found: &Counts) {
    for (kind, count) in found.iter() {
        metrics::counter!("reef_redactions_total", "kind" => kind.to_owned()).increment(count);
    }
}
