//! Records: inference exchanges appended durably, and reading records of both kinds back.
//! A record is never changed; its sequence orders it within its scenario.

use reef_core::{Inference, RecordId, RecordStatus, ReleaseSpan, Report, Sampling, ScenarioName, TenantId, TokenTrace};
use serde::{Deserialize, Serialize};

use crate::Store;
use crate::codec::{self, Body};
use crate::error::{Fault, StoreError, conflict, damaged, invalid};
use crate::key::Key;
use crate::sql::{self, Connection};

/// Records of one page.
const PAGE_RECORDS_MAX: u32 = 1_000;
/// Bytes of unpacked bodies of one page; a larger single record is still returned.
const PAGE_BYTES_MAX: i64 = 64 << 20;
/// Tokens of one record.
const TOKENS_MAX: usize = 1 << 20;
/// Bytes of a path, a session or a trace parent.
const TEXT_BYTES_MAX: usize = 4 << 10;

/// What a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordKind {
    /// An answered model request.
    Inference,
    /// Feedback.
    Report,
}

impl RecordKind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Inference => "inference",
            Self::Report => "report",
        }
    }
}

/// The content of a record.
#[derive(Debug, Clone, PartialEq)]
pub enum RecordBody {
    /// An answered model request.
    Inference(Box<Inference>),
    /// Feedback.
    Report(Box<Report>),
}

/// A record as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredRecord {
    /// Order within the scenario, from 1, rising, possibly with gaps.
    pub sequence: i64,
    /// What it is.
    pub kind: RecordKind,
    /// Its content.
    pub body: RecordBody,
}

/// What is written beside the token columns.
#[derive(Serialize, Deserialize)]
struct Trace {
    spans: Vec<ReleaseSpan>,
    sampling: Sampling,
}

/// Token columns as they are stored: trace, log-probs, output ids, prompt ids.
pub(crate) type TokenColumns = (Option<String>, Option<Vec<u8>>, Option<Vec<u8>>, Option<Vec<u8>>);

/// Reads token columns; all are there, or none.
pub(crate) fn read_tokens(columns: TokenColumns) -> Result<Option<TokenTrace>, Fault> {
    let (Some(trace), Some(logprobs), Some(output), Some(prompt)) = columns else { return Ok(None) };
    let Trace { spans, sampling } = codec::from_text(&trace, "token trace")?;
    Ok(Some(TokenTrace {
        prompt: codec::ids_from_bytes(&prompt)?,
        output: codec::ids_from_bytes(&output)?,
        logprobs: codec::floats_from_bytes(&logprobs)?,
        spans,
        sampling,
    }))
}

/// An inference record ready to be written.
struct InferenceRow {
    record: Inference,
    tokens: TokenColumns,
    body: Body,
}

impl InferenceRow {
    async fn of(mut record: Inference) -> Result<Self, Fault> {
        check(&record)?;
        let trace = record.tokens.take();
        let body = codec::pack(&record, &format!("record {}", record.id)).await?;
        let tokens = match &trace {
            None => (None, None, None, None),
            Some(t) => (
                Some(codec::to_text(&Trace { spans: t.spans.clone(), sampling: t.sampling })?),
                Some(codec::floats_to_bytes(&t.logprobs)),
                Some(codec::ids_to_bytes(&t.output)),
                Some(codec::ids_to_bytes(&t.prompt)),
            ),
        };
        record.tokens = trace;
        Ok(Self { record, tokens, body })
    }

    /// Bytes that wait for the writer.
    fn size(&self) -> usize {
        let tokens = self.record.tokens.as_ref().map_or(0, |t| t.prompt.len() + 3 * t.output.len());
        // The unpacked record travels along, to be compared when its id exists already.
        self.body.bytes.len() + usize::try_from(self.body.raw_bytes).unwrap_or(usize::MAX / 2) + 8 * tokens
    }
}

fn check(record: &Inference) -> Result<(), Fault> {
    let id = &record.id;
    let texts = [Some(&record.path), record.session.as_ref(), record.traceparent.as_ref()];
    if texts.iter().flatten().any(|text| text.len() > TEXT_BYTES_MAX) {
        return Err(invalid(format!("record {id}: a path, session or traceparent is over {TEXT_BYTES_MAX} bytes")));
    }
    let Some(tokens) = &record.tokens else { return Ok(()) };
    if tokens.output.len() != tokens.logprobs.len() {
        return Err(invalid(format!(
            "record {id}: {} tokens, {} log-probs",
            tokens.output.len(),
            tokens.logprobs.len()
        )));
    }
    if tokens.prompt.len().saturating_add(tokens.output.len()) > TOKENS_MAX {
        return Err(invalid(format!("record {id}: more than {TOKENS_MAX} tokens")));
    }
    if !(tokens.sampling.temperature.is_finite() && tokens.sampling.top_p.is_finite()) {
        return Err(invalid(format!("record {id}: the sampling parameters are not finite")));
    }
    Ok(())
}

impl Store {
    /// Appends an inference record; durable on return. The same record again returns its sequence.
    pub async fn append_inference(&self, t: &TenantId, s: &ScenarioName, record: Inference) -> Result<i64, StoreError> {
        let key = Key::of(t, s);
        let row = self.told(InferenceRow::of(record).await)?;
        self.append(row.size(), move |conn| Box::pin(insert_inference(conn, key, row))).await
    }

    /// One record, of either kind.
    pub async fn record(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        id: &RecordId,
    ) -> Result<Option<StoredRecord>, StoreError> {
        let mut conn = self.reader().await?;
        self.told(select_record(&mut conn, &Key::of(t, s), id).await)
    }

    /// Records after a sequence, oldest first. A page ends at `limit`, 1,000 records or 64 MiB of bodies;
    /// an empty page means that there are no more.
    #[expect(clippy::too_many_arguments, reason = "tenant and scenario name the place, three more name the page")]
    pub async fn records(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        after: i64,
        limit: u32,
        kind: Option<RecordKind>,
    ) -> Result<Vec<StoredRecord>, StoreError> {
        let page = Page { key: Key::of(t, s), after, limit: limit.min(PAGE_RECORDS_MAX), kind };
        let mut conn = self.reader().await?;
        self.told(page.select(&mut conn).await)
    }
}

async fn insert_inference(conn: &mut Connection, key: Key, row: InferenceRow) -> Result<i64, Fault> {
    let sql = "INSERT INTO records (tenant, scenario, sequence, id, kind, status, capture, \
                                    trace, logprobs, output, prompt, body_bytes, body) \
               SELECT $1, $2, last_sequence + 1, $3, 'inference', $4, $5, $6, $7, $8, $9, $10, $11 \
               FROM scenarios WHERE tenant = $1 AND name = $2 RETURNING sequence";
    let (trace, logprobs, output, prompt) = row.tokens;
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(row.record.id.as_str());
    let query = query.bind(status_str(row.record.status)).bind(row.record.capture);
    let query = query.bind(trace).bind(logprobs).bind(output).bind(prompt);
    let inserted = query.bind(row.body.raw_bytes).bind(row.body.bytes).scalar_optional(&mut *conn).await;
    let sequence: i64 = match inserted {
        Ok(Some(sequence)) => sequence,
        Ok(None) => return Err(key.unknown()),
        Err(fault) if fault.is_unique_violation() => return same_inference(conn, &key, &row.record).await,
        Err(fault) => return Err(fault),
    };
    count(conn, &key, sequence, RecordKind::Inference).await?;
    Ok(sequence)
}

async fn same_inference(conn: &mut Connection, key: &Key, record: &Inference) -> Result<i64, Fault> {
    match select_record(conn, key, &record.id).await? {
        Some(StoredRecord { sequence, body: RecordBody::Inference(old), .. }) if *old == *record => Ok(sequence),
        _ => Err(id_taken(&record.id)),
    }
}

/// The refusal of an id that stands for something else.
pub(crate) fn id_taken(id: &RecordId) -> Fault {
    conflict(format!("record {id} exists already with other content; send it under a new id, or amend it"))
}

/// Moves the counters of the scenario past a record that was just inserted.
pub(crate) async fn count(
    conn: &mut Connection,
    key: &Key,
    sequence: i64,
    kind: RecordKind,
) -> Result<(), Fault> {
    let sql = "UPDATE scenarios SET last_sequence = $3, inferences = inferences + $4, reports = reports + (1 - $4) \
               WHERE tenant = $1 AND name = $2";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(sequence);
    query.bind(i64::from(kind == RecordKind::Inference)).execute(conn).await?;
    Ok(())
}

fn status_str(status: RecordStatus) -> &'static str {
    match status {
        RecordStatus::Complete => "complete",
        RecordStatus::Cancelled => "cancelled",
        RecordStatus::Failed => "failed",
    }
}

type Row = (i64, String, i64, Vec<u8>, Option<String>, Option<Vec<u8>>, Option<Vec<u8>>, Option<Vec<u8>>);

/// One record, of either kind.
pub(crate) async fn select_record(
    conn: &mut Connection,
    key: &Key,
    id: &RecordId,
) -> Result<Option<StoredRecord>, Fault> {
    let sql = "SELECT sequence, kind, body_bytes, body, trace, logprobs, output, prompt FROM records \
               WHERE tenant = $1 AND scenario = $2 AND id = $3";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(id.as_str());
    let row: Option<Row> = query.fetch_optional(conn).await?;
    match row {
        Some(row) => Ok(Some(read(row).await?)),
        None => Ok(None),
    }
}

async fn read(row: Row) -> Result<StoredRecord, Fault> {
    let (sequence, kind, raw_bytes, body, trace, logprobs, output, prompt) = row;
    let what = format!("record at sequence {sequence}");
    if kind == RecordKind::Report.as_str() {
        let body = RecordBody::Report(Box::new(codec::unpack(body, raw_bytes, &what).await?));
        return Ok(StoredRecord { sequence, kind: RecordKind::Report, body });
    }
    let mut inference: Inference = codec::unpack(body, raw_bytes, &what).await?;
    inference.tokens = read_tokens((trace, logprobs, output, prompt))?;
    Ok(StoredRecord { sequence, kind: RecordKind::Inference, body: RecordBody::Inference(Box::new(inference)) })
}

/// What `Store::records` was asked for.
struct Page {
    key: Key,
    after: i64,
    limit: u32,
    kind: Option<RecordKind>,
}

impl Page {
    async fn select(&self, conn: &mut Connection) -> Result<Vec<StoredRecord>, Fault> {
        let Some(last) = self.last(conn).await? else { return Ok(Vec::new()) };
        let sql = "SELECT sequence, kind, body_bytes, body, trace, logprobs, output, prompt FROM records \
                   WHERE tenant = $1 AND scenario = $2 AND sequence > $3 AND sequence <= $4 \
                   AND ($5 IS NULL OR kind = $5) ORDER BY sequence";
        let query = sql::query(sql).bind(self.key.tenant()).bind(self.key.scenario()).bind(self.after);
        let rows: Vec<Row> = query.bind(last).bind(self.kind.map(RecordKind::as_str)).fetch_all(conn).await?;
        let mut page = Vec::with_capacity(rows.len());
        for row in rows {
            page.push(read(row).await?);
        }
        Ok(page)
    }

    /// The last sequence that fits; sizes are read without bodies, so that a page is never loaded to be cut.
    async fn last(&self, conn: &mut Connection) -> Result<Option<i64>, Fault> {
        let sql = "SELECT sequence, body_bytes FROM records WHERE tenant = $1 AND scenario = $2 AND sequence > $3 \
                   AND ($4 IS NULL OR kind = $4) ORDER BY sequence LIMIT $5";
        let query = sql::query(sql).bind(self.key.tenant()).bind(self.key.scenario()).bind(self.after);
        let query = query.bind(self.kind.map(RecordKind::as_str)).bind(self.limit);
        let sizes: Vec<(i64, i64)> = query.fetch_all(conn).await?;
        let mut bytes = 0i64;
        let fits = |(at, (_, size)): &(usize, &(i64, i64))| {
            bytes = bytes.saturating_add(*size);
            *at == 0 || bytes <= PAGE_BYTES_MAX
        };
        Ok(sizes.iter().enumerate().take_while(fits).last().map(|(_, (sequence, _))| *sequence))
    }
}

/// Reads a stored id.
pub(crate) fn record_id(text: String) -> Result<RecordId, Fault> {
    RecordId::parse(text).map_err(|e| damaged("record id", e))
}
