//! Import and export of records, so that experience can move between servers. An export is JSON lines in the order of
//! the log, read page by page; an import takes such lines back in atomic batches. Samples, steps and releases stay: a
//! report becomes a pending sample where it arrives.

use reef_core::{Alternatives, Inference, RecordId, ReleaseSpan, Sampling, ScenarioName, TenantId, TokenTrace};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::codec::Number;
use crate::entry::Entry;
use crate::error::{Fault, StoreError, damaged, invalid};
use crate::key::Key;
use crate::records::{Page, RecordBody, RecordKind, StoredRecord};
use crate::reports::Appended;
use crate::sql::Connection;
use crate::{Store, append};

/// Records of one import: all of them or none.
const IMPORTED_MAX: usize = 1_000;
/// Records that an export holds in memory.
const PAGE_RECORDS: u32 = 256;
/// Bytes of them; a larger single record is still exported.
const PAGE_BYTES_MAX: i64 = 8 << 20;

/// What an import did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Imported {
    /// Where the records went, in their order, but for those that are gone.
    pub appended: Vec<Appended>,
    /// Records that were erased or dropped here, and reports about such; none of them comes back.
    pub gone: u64,
}

/// What an export wrote.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Exported {
    /// Records.
    pub records: u64,
    /// Sequence of the last one; an export that was interrupted goes on after it.
    pub last: i64,
}

/// A line of an export.
#[derive(Serialize, Deserialize)]
struct Line {
    sequence: i64,
    kind: RecordKind,
    record: Map<String, Value>,
}

/// Tokens in JSON, which has no word for log-probs that are not finite.
#[derive(Serialize, Deserialize)]
struct Tokens {
    prompt: Vec<u32>,
    output: Vec<u32>,
    logprobs: Vec<Number>,
    spans: Vec<ReleaseSpan>,
    sampling: Sampling,
    #[serde(default, skip_serializing_if = "Alternatives::is_none")]
    alternatives: Alternatives,
}

const TOKENS: &str = "tokens";

impl StoredRecord {
    /// The record as a line of an export, without its end.
    pub fn to_line(&self) -> Result<String, StoreError> {
        let mut record = self.fields()?;
        if let RecordBody::Inference(inference) = &self.body
            && let Some(trace) = &inference.tokens
        {
            record.insert(TOKENS.to_owned(), serde_json::to_value(Tokens::of(trace)).map_err(unwritable)?);
        }
        serde_json::to_string(&Line { sequence: self.sequence, kind: self.kind, record }).map_err(unwritable)
    }

    /// The record as JSON, without tokens.
    pub(crate) fn body_text(&self) -> Result<String, StoreError> {
        serde_json::to_string(&self.fields()?).map_err(unwritable)
    }

    fn fields(&self) -> Result<Map<String, Value>, StoreError> {
        match &self.body {
            RecordBody::Inference(inference) => fields(&Inference { tokens: None, ..Inference::clone(inference) }),
            RecordBody::Report(report) => fields(report.as_ref()),
            RecordBody::Instruction(instruction) => fields(instruction.as_ref()),
        }
    }
}

impl RecordBody {
    /// Its id.
    pub fn id(&self) -> &RecordId {
        match self {
            Self::Inference(record) => &record.id,
            Self::Report(report) => &report.id,
            Self::Instruction(instruction) => &instruction.id,
        }
    }

    /// Reads a line of an export; its sequence is given anew by the import.
    pub fn from_line(line: &str) -> Result<Self, StoreError> {
        Self::read(serde_json::from_str(line).map_err(unreadable)?)
    }

    /// The same of a line that was parsed already.
    pub fn from_json(line: Value) -> Result<Self, StoreError> {
        Self::read(serde_json::from_value(line).map_err(unreadable)?)
    }

    fn read(Line { kind, mut record, .. }: Line) -> Result<Self, StoreError> {
        match kind {
            RecordKind::Report => {
                return Ok(Self::Report(serde_json::from_value(Value::Object(record)).map_err(unreadable)?));
            }
            RecordKind::Instruction => {
                return Ok(Self::Instruction(serde_json::from_value(Value::Object(record)).map_err(unreadable)?));
            }
            RecordKind::Inference => {}
        }
        let tokens = record.remove(TOKENS).filter(|tokens| !tokens.is_null());
        let tokens: Option<Tokens> = tokens.map(serde_json::from_value).transpose().map_err(unreadable)?;
        let mut inference: Inference = serde_json::from_value(Value::Object(record)).map_err(unreadable)?;
        inference.tokens = tokens.map(Tokens::trace);
        Ok(Self::Inference(Box::new(inference)))
    }
}

impl Tokens {
    fn of(trace: &TokenTrace) -> Self {
        Self {
            prompt: trace.prompt.clone(),
            output: trace.output.clone(),
            logprobs: trace.logprobs.iter().map(|value| Number::of(f64::from(*value))).collect(),
            spans: trace.spans.clone(),
            sampling: trace.sampling,
            alternatives: trace.alternatives.clone(),
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "every value was an f32 when it was written")]
    fn trace(self) -> TokenTrace {
        TokenTrace {
            prompt: self.prompt,
            output: self.output,
            logprobs: self.logprobs.into_iter().map(|value| value.get() as f32).collect(),
            spans: self.spans,
            sampling: self.sampling,
            alternatives: self.alternatives,
        }
    }
}

fn fields<T: Serialize>(record: &T) -> Result<Map<String, Value>, StoreError> {
    match serde_json::to_value(record).map_err(unwritable)? {
        Value::Object(fields) => Ok(fields),
        _ => Ok(Map::new()),
    }
}

fn unwritable(error: serde_json::Error) -> StoreError {
    StoreError::Invalid(format!("a record cannot be written as JSON: {error}"))
}

fn unreadable(error: serde_json::Error) -> StoreError {
    StoreError::Invalid(format!("a line of the import is no record of an export: {error}"))
}

impl Store {
    /// Appends up to 1,000 records in their order: all of them or, if one is refused, none. Those that are there
    /// already with the same content are duplicates and no error, and what was erased here is left out.
    pub async fn import(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        records: Vec<RecordBody>,
    ) -> Result<Imported, StoreError> {
        if records.len() > IMPORTED_MAX {
            let refusal = format!("{} records in one import; the limit is {IMPORTED_MAX}", records.len());
            return self.told(Err(invalid(refusal)));
        }
        let mut entries = Vec::with_capacity(records.len());
        for record in records {
            let entry = match record {
                RecordBody::Inference(record) => Entry::inference(Key::of(t, s), *record).await,
                RecordBody::Report(report) => Entry::report(Key::of(t, s), *report).await,
                RecordBody::Instruction(instruction) => Entry::instruction(Key::of(t, s), *instruction, false).await,
            };
            entries.push(self.told(entry)?);
        }
        let size = entries.iter().map(Entry::size).sum();
        self.write(size, move |conn| Box::pin(import(conn, entries))).await
    }

    /// The records after a sequence as JSON lines, oldest first, as far as one page of an export goes; none = there are
    /// no more.
    pub async fn lines(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        after: i64,
    ) -> Result<Option<(String, Exported)>, StoreError> {
        let page = self.page(t, s, after).await?;
        let Some(last) = page.last() else { return Ok(None) };
        let exported = Exported { records: page.len() as u64, last: last.sequence };
        let mut lines = String::new();
        for record in &page {
            lines.push_str(&record.to_line()?);
            lines.push('\n');
        }
        Ok(Some((lines, exported)))
    }

    /// Writes the records after a sequence as JSON lines, oldest first, and flushes. Memory stays at one page.
    pub async fn export<W: AsyncWrite + Unpin + Send>(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        after: i64,
        out: &mut W,
    ) -> Result<Exported, StoreError> {
        let mut exported = Exported { records: 0, last: after };
        while let Some((lines, page)) = self.lines(t, s, exported.last).await? {
            exported = Exported { records: exported.records + page.records, last: page.last };
            out.write_all(lines.as_bytes()).await.map_err(unwriting)?;
        }
        out.flush().await.map_err(unwriting)?;
        Ok(exported)
    }

    /// A page of an export.
    pub(crate) async fn page(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        after: i64,
    ) -> Result<Vec<StoredRecord>, StoreError> {
        let page = Page { key: Key::of(t, s), after, limit: PAGE_RECORDS, kind: None, bytes_max: PAGE_BYTES_MAX };
        // The connection goes back between two pages, so that a slow receiver holds none.
        let mut conn = self.reader().await?;
        self.told(page.select(&mut conn).await)
    }
}

/// The receiver failed.
pub(crate) fn unwriting(error: impl std::fmt::Display) -> StoreError {
    StoreError::Unavailable { path: "the export's target".into(), reason: error.to_string() }
}

async fn import(conn: &mut Connection, entries: Vec<Entry>) -> Result<Imported, Fault> {
    let entries: Vec<&Entry> = entries.iter().collect();
    let outcomes = append::all(conn, &entries).await?;
    if outcomes.len() != entries.len() {
        return Err(damaged("import", "fewer outcomes than records"));
    }
    let mut imported = Imported::default();
    for outcome in outcomes {
        match outcome {
            Ok(appended) => imported.appended.push(appended),
            Err(StoreError::Gone(_)) => imported.gone += 1,
            Err(refusal) => return Err(Fault::Refused(refusal)),
        }
    }
    Ok(imported)
}
