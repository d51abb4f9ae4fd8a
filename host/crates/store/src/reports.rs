//! Reports: feedback appended durably and exactly once, and what an amendment does to the report it replaces.
//! A report that references records becomes a sample (`samples.rs`) in the same transaction.

use reef_core::{RecordId, Report, ScenarioName, TenantId};

use crate::Store;
use crate::codec::{self, Body};
use crate::error::{Fault, StoreError, conflict, invalid};
use crate::key::Key;
use crate::records::{RecordBody, RecordKind, StoredRecord, count, id_taken, select_record};
use crate::sql::{self, Connection};

/// References of one report.
const REFERENCES_MAX: usize = 256;
/// Bytes of the metadata as JSON; recipes read it with every pool.
const METADATA_BYTES_MAX: usize = 256 << 10;

/// Where a report went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// Its sequence in the scenario.
    pub sequence: i64,
    /// It was there already with the same content, and is counted once.
    pub duplicate: bool,
}

/// A report ready to be written.
struct ReportRow {
    report: Report,
    references: String,
    metadata: String,
    body: Body,
}

impl ReportRow {
    async fn of(report: Report) -> Result<Self, Fault> {
        check(&report)?;
        let metadata = codec::to_text(&report.metadata)?;
        if metadata.len() > METADATA_BYTES_MAX {
            let size = metadata.len();
            return Err(invalid(format!("the metadata has {size} bytes; the limit is {METADATA_BYTES_MAX}")));
        }
        let references = codec::to_text(&report.references)?;
        let body = codec::pack(&report, &format!("report {}", report.id)).await?;
        Ok(Self { report, references, metadata, body })
    }

    fn size(&self) -> usize {
        let raw = usize::try_from(self.body.raw_bytes).unwrap_or(usize::MAX / 2);
        self.body.bytes.len() + raw + self.metadata.len()
    }
}

fn check(report: &Report) -> Result<(), Fault> {
    let id = &report.id;
    if report.score.is_some_and(|score| !score.is_finite()) {
        return Err(invalid(format!("report {id}: the score is not finite")));
    }
    if report.references.len() > REFERENCES_MAX {
        return Err(invalid(format!("report {id}: more than {REFERENCES_MAX} references")));
    }
    let mut sorted: Vec<_> = report.references.iter().collect();
    sorted.sort();
    sorted.dedup();
    if sorted.len() < report.references.len() {
        return Err(invalid(format!("report {id}: a reference is named twice")));
    }
    if report.amends.as_ref() == Some(id) {
        return Err(invalid(format!("report {id}: it cannot amend itself")));
    }
    Ok(())
}

impl Store {
    /// Appends a report; durable on return. The same id and content, however often and however
    /// concurrently, is one report; other content is a `Conflict`.
    pub async fn append_report(&self, t: &TenantId, s: &ScenarioName, report: Report) -> Result<Appended, StoreError> {
        let key = Key::of(t, s);
        let row = self.told(ReportRow::of(report).await)?;
        self.write(row.size(), move |conn| Box::pin(insert(conn, key, row))).await
    }
}

async fn insert(conn: &mut Connection, key: Key, row: ReportRow) -> Result<Appended, Fault> {
    let sql = "INSERT INTO records (tenant, scenario, sequence, id, kind, body_bytes, body) \
               SELECT $1, $2, last_sequence + 1, $3, 'report', $4, $5 \
               FROM scenarios WHERE tenant = $1 AND name = $2 RETURNING sequence";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(row.report.id.as_str());
    let query = query.bind(row.body.raw_bytes).bind(row.body.bytes.as_slice());
    let sequence: i64 = match query.scalar_optional(&mut *conn).await {
        Ok(Some(sequence)) => sequence,
        Ok(None) => return Err(key.unknown()),
        Err(fault) if fault.is_unique_violation() => return same_report(conn, &key, &row.report).await,
        Err(fault) => return Err(fault),
    };
    count(conn, &key, sequence, RecordKind::Report).await?;
    if let Some(old) = &row.report.amends {
        amend(conn, &key, old, &row.report).await?;
    }
    if !row.report.references.is_empty() {
        insert_sample(conn, &key, &row, sequence).await?;
    }
    Ok(Appended { sequence, duplicate: false })
}

async fn same_report(conn: &mut Connection, key: &Key, report: &Report) -> Result<Appended, Fault> {
    match select_record(conn, key, &report.id).await? {
        Some(StoredRecord { sequence, body: RecordBody::Report(old), .. }) if old.same_content(report) => {
            Ok(Appended { sequence, duplicate: true })
        }
        _ => Err(id_taken(&report.id)),
    }
}

async fn insert_sample(conn: &mut Connection, key: &Key, row: &ReportRow, sequence: i64) -> Result<(), Fault> {
    let unknown = "SELECT value FROM json_each($3) WHERE NOT EXISTS (SELECT 1 FROM records WHERE tenant = $1 \
                   AND scenario = $2 AND id = value AND kind = 'inference') ORDER BY key LIMIT 1";
    let query = sql::query(unknown).bind(key.tenant()).bind(key.scenario()).bind(row.references.as_str());
    let unknown: Option<String> = query.scalar_optional(&mut *conn).await?;
    if let Some(id) = row.report.references.iter().find(|id| unknown.as_deref() == Some(id.as_str())) {
        return Err(StoreError::UnknownReference(id.clone()).into());
    }
    let sql = "INSERT INTO samples (tenant, scenario, report, sequence, state, score, metadata) \
               VALUES ($1, $2, $3, $4, 'pending', $5, $6)";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(row.report.id.as_str());
    query.bind(sequence).bind(row.report.score).bind(row.metadata.as_str()).execute(&mut *conn).await?;
    let sql = "INSERT INTO sample_records (tenant, scenario, report, record) \
               SELECT $1, $2, $3, value FROM json_each($4)";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(row.report.id.as_str());
    query.bind(row.references.as_str()).execute(&mut *conn).await?;
    Ok(())
}

/// Marks the replaced report. A pending one leaves the pool now; one in a running step leaves it if the step fails.
async fn amend(conn: &mut Connection, key: &Key, old: &RecordId, new: &Report) -> Result<(), Fault> {
    let sql = "SELECT s.amended_by, r.kind FROM records r LEFT JOIN samples s ON s.tenant = r.tenant \
               AND s.scenario = r.scenario AND s.report = r.id WHERE r.tenant = $1 AND r.scenario = $2 AND r.id = $3";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(old.as_str());
    let found: Option<(Option<String>, String)> = query.fetch_optional(&mut *conn).await?;
    match found {
        Some((None, kind)) if kind == RecordKind::Report.as_str() => {}
        Some((Some(by), _)) => {
            return Err(conflict(format!("report {old} was amended by {by} already; amend {by}")));
        }
        _ => return Err(StoreError::UnknownReference(old.clone()).into()),
    }
    let sql = "UPDATE samples SET amended_by = $4, \
                 retired_at_ms = CASE state WHEN 'pending' THEN $5 ELSE retired_at_ms END, \
                 reason = CASE state WHEN 'pending' THEN 'amended by report: ' || $4 ELSE reason END, \
                 state = CASE state WHEN 'pending' THEN 'retired' ELSE state END \
               WHERE tenant = $1 AND scenario = $2 AND report = $3";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(old.as_str());
    query.bind(new.id.as_str()).bind(new.created_at_ms).execute(&mut *conn).await?;
    Ok(())
}
