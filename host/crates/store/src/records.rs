//! Records: inference exchanges are appended here, and records of every kind read back.
//! A record is never changed; its sequence orders it within its scenario.

use reef_core::{Inference, Instruction, RecordId, Report, ScenarioName, TenantId, TokenTrace};
use serde::{Deserialize, Serialize};

use crate::Store;
use crate::codec;
use crate::entry::{Entry, Trace, indexed};
use crate::error::{Fault, StoreError, damaged};
use crate::key::Key;
use crate::sql::{self, Connection};

/// Records of one page.
const PAGE_RECORDS_MAX: u32 = 1_000;
/// Bytes of unpacked bodies of one page; a larger single record is still returned.
const PAGE_BYTES_MAX: i64 = 64 << 20;

/// What a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordKind {
    /// An answered model request.
    Inference,
    /// Feedback.
    Report,
    /// What a person asks of the harness.
    Instruction,
}

impl RecordKind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Inference => "inference",
            Self::Report => "report",
            Self::Instruction => "instruction",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        [Self::Inference, Self::Report, Self::Instruction].into_iter().find(|kind| kind.as_str() == text)
    }
}

/// The content of a record.
#[derive(Debug, Clone, PartialEq)]
pub enum RecordBody {
    /// An answered model request.
    Inference(Box<Inference>),
    /// Feedback.
    Report(Box<Report>),
    /// What a person asks of the harness.
    Instruction(Box<Instruction>),
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

/// Token columns as they are stored: trace, log-probs, output ids, prompt ids.
pub(crate) type TokenColumns = (Option<String>, Option<Vec<u8>>, Option<Vec<u8>>, Option<Vec<u8>>);

/// Reads token columns; all are there, or none.
pub(crate) fn read_tokens(columns: TokenColumns) -> Result<Option<TokenTrace>, Fault> {
    let (Some(trace), Some(logprobs), Some(output), Some(prompt)) = columns else { return Ok(None) };
    let Trace { spans, sampling, alternatives } = codec::from_text(&trace, "token trace")?;
    Ok(Some(TokenTrace {
        prompt: codec::ids_from_bytes(&prompt)?,
        output: codec::ids_from_bytes(&output)?,
        logprobs: codec::floats_from_bytes(&logprobs)?,
        spans,
        sampling,
        alternatives,
    }))
}

impl Store {
    /// Appends an inference record; durable on return. The same record again returns its sequence.
    pub async fn append_inference(&self, t: &TenantId, s: &ScenarioName, record: Inference) -> Result<i64, StoreError> {
        let entry = self.told(Entry::inference(Key::of(t, s), record).await)?;
        Ok(self.submit_record(entry).await?.sequence)
    }

    /// One record, of any kind.
    pub async fn record(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        id: &RecordId,
    ) -> Result<Option<StoredRecord>, StoreError> {
        let mut conn = self.reader().await?;
        self.told(select_record(&mut conn, &Key::of(t, s), id).await)
    }

    /// Receipts of the conversation of a session, oldest first; the latest `limit`. Calls beside it, such as titles,
    /// are left out.
    pub async fn session_receipts(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        session: &str,
        limit: u32,
    ) -> Result<Vec<RecordId>, StoreError> {
        let mut conn = self.reader().await?;
        let sql = "SELECT id FROM records WHERE tenant = $1 AND scenario = $2 AND session = $3 \
                   AND kind = 'inference' AND call IS NULL ORDER BY sequence DESC LIMIT $4";
        let query = sql::query(sql).bind(t.as_str()).bind(s.as_str()).bind(indexed(session)).bind(limit);
        let ids: Vec<String> = self.told(query.scalars(&mut conn).await)?;
        self.told(ids.into_iter().rev().map(record_id).collect())
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
        let page =
            Page { key: Key::of(t, s), after, limit: limit.min(PAGE_RECORDS_MAX), kind, bytes_max: PAGE_BYTES_MAX };
        let mut conn = self.reader().await?;
        self.told(page.select(&mut conn).await)
    }
}

type Row = (i64, String, i64, Vec<u8>, Option<String>, Option<Vec<u8>>, Option<Vec<u8>>, Option<Vec<u8>>);

/// One record, of any kind.
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
    let kind = RecordKind::parse(&kind).ok_or_else(|| damaged("kind of a record", kind))?;
    let mut body = read_body(kind, body, raw_bytes, sequence).await?;
    if let RecordBody::Inference(inference) = &mut body {
        inference.tokens = read_tokens((trace, logprobs, output, prompt))?;
    }
    Ok(StoredRecord { sequence, kind, body })
}

/// The body of a record, without its tokens.
pub(crate) async fn read_body(
    kind: RecordKind,
    body: Vec<u8>,
    raw_bytes: i64,
    sequence: i64,
) -> Result<RecordBody, Fault> {
    let what = format!("record at sequence {sequence}");
    Ok(match kind {
        RecordKind::Inference => RecordBody::Inference(Box::new(codec::unpack(body, raw_bytes, &what).await?)),
        RecordKind::Report => RecordBody::Report(Box::new(codec::unpack(body, raw_bytes, &what).await?)),
        RecordKind::Instruction => RecordBody::Instruction(Box::new(codec::unpack(body, raw_bytes, &what).await?)),
    })
}

/// What `Store::records` was asked for.
pub(crate) struct Page {
    pub(crate) key: Key,
    pub(crate) after: i64,
    pub(crate) limit: u32,
    pub(crate) kind: Option<RecordKind>,
    /// Of bodies and tokens; a larger single record is still returned.
    pub(crate) bytes_max: i64,
}

impl Page {
    pub(crate) async fn select(&self, conn: &mut Connection) -> Result<Vec<StoredRecord>, Fault> {
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
        let sql = "SELECT sequence, body_bytes + stored_bytes FROM records WHERE tenant = $1 AND scenario = $2 AND sequence > $3 \
                   AND ($4 IS NULL OR kind = $4) ORDER BY sequence LIMIT $5";
        let query = sql::query(sql).bind(self.key.tenant()).bind(self.key.scenario()).bind(self.after);
        let query = query.bind(self.kind.map(RecordKind::as_str)).bind(self.limit);
        let sizes: Vec<(i64, i64)> = query.fetch_all(conn).await?;
        let mut bytes = 0i64;
        let fits = |(at, (_, size)): &(usize, &(i64, i64))| {
            bytes = bytes.saturating_add(*size);
            *at == 0 || bytes <= self.bytes_max
        };
        Ok(sizes.iter().enumerate().take_while(fits).last().map(|(_, (sequence, _))| *sequence))
    }
}

/// Reads a stored id.
pub(crate) fn record_id(text: String) -> Result<RecordId, Fault> {
    RecordId::parse(text).map_err(|e| damaged("record id", e))
}
