//! What later word does to earlier reports: an amendment replaces one, a retraction takes one back, an expiry gives up
//! those that waited too long. A sample that a step holds stays with it and leaves the pool if the step fails; one that
//! was trained is marked, and the step is not unmade.

use reef_core::{RecordId, ScenarioName, TenantId};

use crate::Store;
use crate::codec::to_text;
use crate::entry::{AMENDS_TAG, Entry, indexed};
use crate::error::{Fault, StoreError};
use crate::key::Key;
use crate::records::RecordKind;
use crate::sql::{self, Connection};

/// Samples that one transaction expires.
const EXPIRED_AT_ONCE: u32 = 1_000;

/// What a retraction found: of several surfaces, what weighs most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retracted {
    /// It was waiting and left the pool.
    LeftPool,
    /// A running step holds it: it leaves the pool if that step fails, and is trained otherwise.
    InStep(u32),
    /// This step used it already; it is marked.
    Trained(u32),
    /// It was set aside before, or graded no record.
    NotWaiting,
}

impl Store {
    /// Takes a report back. Again is no error; the history is kept.
    pub async fn retract(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        report: &RecordId,
        now_ms: i64,
    ) -> Result<Retracted, StoreError> {
        let (key, report) = (Key::of(t, s), report.clone());
        self.write(0, move |conn| Box::pin(retract(conn, key, report, now_ms))).await
    }

    /// Retires pending samples whose reports were made before `before_ms`, in bounded batches; returns how many.
    pub async fn expire(&self, t: &TenantId, s: &ScenarioName, before_ms: i64, now_ms: i64) -> Result<u64, StoreError> {
        let mut expired = 0;
        loop {
            // All that wait are looked at, which must not hold the writer up.
            let old = {
                let mut conn = self.reader().await?;
                self.told(waiting_since(&mut conn, &Key::of(t, s), before_ms).await)?
            };
            let (key, found) = (Key::of(t, s), old.len());
            let retired = self.write(0, move |conn| Box::pin(expire(conn, key, old, now_ms))).await?;
            expired += retired;
            if found < EXPIRED_AT_ONCE as usize || retired == 0 {
                return Ok(expired);
            }
        }
    }
}

async fn retract(conn: &mut Connection, key: Key, report: RecordId, now_ms: i64) -> Result<Retracted, Fault> {
    let sql = "SELECT s.state, s.step FROM records AS r LEFT JOIN samples AS s ON s.tenant = r.tenant \
                 AND s.scenario = r.scenario AND s.report = r.id \
               WHERE r.tenant = $1 AND r.scenario = $2 AND r.id = $3 AND r.kind = 'report' \
               ORDER BY CASE s.state WHEN 'reserved' THEN 0 WHEN 'consumed' THEN 1 WHEN 'pending' THEN 2 ELSE 3 END \
               LIMIT 1";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(report.as_str());
    let found: Option<(Option<String>, Option<i64>)> = query.fetch_optional(&mut *conn).await?;
    let Some((state, step)) = found else { return Err(StoreError::UnknownReference(report).into()) };
    let sql =
        "INSERT INTO retractions (tenant, scenario, report, at_ms) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(report.as_str());
    query.bind(now_ms).execute(&mut *conn).await?;
    let sql = "UPDATE samples SET state = 'retired', reason = 'retracted', retired_at_ms = $4 \
               WHERE tenant = $1 AND scenario = $2 AND report = $3 AND state = 'pending'";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(report.as_str());
    query.bind(now_ms).execute(conn).await?;
    let step = u32::try_from(step.unwrap_or_default()).unwrap_or_default();
    Ok(match state.as_deref() {
        Some("pending") => Retracted::LeftPool,
        Some("reserved") => Retracted::InStep(step),
        Some("consumed") => Retracted::Trained(step),
        _ => Retracted::NotWaiting,
    })
}

async fn waiting_since(conn: &mut Connection, key: &Key, before_ms: i64) -> Result<Vec<String>, Fault> {
    // A subquery for each row, because a join of tables without statistics walks both of them in Postgres.
    let sql = "SELECT s.report FROM samples AS s WHERE s.tenant = $1 AND s.scenario = $2 \
                 AND s.surface IN ('weights', 'harness', 'router') AND s.state = 'pending' \
                 AND (SELECT r.created_at_ms FROM records AS r \
                      WHERE r.tenant = $1 AND r.scenario = $2 AND r.sequence = s.sequence) < $3 \
               ORDER BY s.sequence LIMIT $4";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(before_ms).bind(EXPIRED_AT_ONCE);
    query.scalars(conn).await
}

async fn expire(conn: &mut Connection, key: Key, old: Vec<String>, now_ms: i64) -> Result<u64, Fault> {
    let sql = "UPDATE samples SET state = 'retired', reason = 'expired: it waited too long', retired_at_ms = $4 \
               WHERE tenant = $1 AND scenario = $2 AND state = 'pending' \
                 AND report IN (SELECT value FROM json_each($3))";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(to_text(&old)?);
    query.bind(now_ms).execute(conn).await
}

/// May this report be amended?
pub(crate) async fn amendable(
    conn: &mut Connection,
    key: &Key,
    old: &RecordId,
) -> Result<Result<(), StoreError>, Fault> {
    // The tag is of a report that graded no record too, the sample of one that was amended before there were tags.
    let sql = "SELECT COALESCE(s.amended_by, (SELECT new.id FROM record_tags AS tag JOIN records AS new \
                   ON new.tenant = tag.tenant AND new.scenario = tag.scenario AND new.sequence = tag.sequence \
                 WHERE tag.tenant = r.tenant AND tag.scenario = r.scenario AND tag.tag = $4 AND tag.value = $5 \
                 ORDER BY tag.sequence LIMIT 1)), r.kind \
               FROM records AS r LEFT JOIN samples AS s ON s.tenant = r.tenant \
               AND s.scenario = r.scenario AND s.report = r.id WHERE r.tenant = $1 AND r.scenario = $2 AND r.id = $3";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(old.as_str());
    let query = query.bind(AMENDS_TAG).bind(indexed(old.as_str()));
    let found: Option<(Option<String>, String)> = query.fetch_optional(conn).await?;
    Ok(match found {
        Some((None, kind)) if kind == RecordKind::Report.as_str() => Ok(()),
        Some((Some(by), _)) => {
            Err(StoreError::Conflict(format!("report {old} was amended by {by} already; amend {by}")))
        }
        _ => Err(StoreError::UnknownReference(old.clone())),
    })
}

/// Marks the replaced report. A pending one leaves the pool now; one in a running step leaves it if the step fails.
pub(crate) async fn amend(conn: &mut Connection, key: &Key, old: &RecordId, new: &Entry) -> Result<(), Fault> {
    let sql = "UPDATE samples SET amended_by = $4, \
                 retired_at_ms = CASE state WHEN 'pending' THEN $5 ELSE retired_at_ms END, \
                 reason = CASE state WHEN 'pending' THEN 'amended by report: ' || $4 ELSE reason END, \
                 state = CASE state WHEN 'pending' THEN 'retired' ELSE state END \
               WHERE tenant = $1 AND scenario = $2 AND report = $3";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(old.as_str());
    query.bind(new.id().as_str()).bind(new.created_at_ms()).execute(conn).await?;
    Ok(())
}
