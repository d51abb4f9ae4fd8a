//! Erasing records for good: by id, session or tag, with the reports about them and what was derived from them
//! (`derived.rs`). Afterwards not a byte of them lies in the database: SQLite's file is written anew and its log emptied,
//! Postgres rewrites the tables. What was trained cannot be untrained, nor a harness unwritten: the answer names the
//! releases. Other records that quote an erased one are records of their own; name their session or tag to erase them.

use std::collections::BTreeSet;

use reef_core::{RecordId, ReleaseId, ScenarioName, Tag, TenantId};

use crate::Store;
use crate::codec::to_text;
use crate::derived::{Derived, forget};
use crate::entry::indexed;
use crate::error::{Fault, StoreError, damaged};
use crate::key::Key;
use crate::records::record_id;
use crate::remove::{Cause, REMOVED_AT_ONCE, remove};
use crate::scrub::mark;
use crate::sql::{self, Connection};
use crate::{proposals, refused};

/// Which records to erase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selector {
    /// One, an exchange or a report.
    Record(RecordId),
    /// All exchanges of a session, and what people asked in it.
    Session(String),
    /// All exchanges with this value of a tag.
    Tag(Tag, String),
}

/// What `erase` did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Erased {
    /// Records erased: exchanges and the reports about them.
    pub records: u64,
    /// Exchanges and reports that a running step holds; erase again when it has ended.
    pub waiting: u64,
    /// Entries of recipes' state that repeated them and are gone too.
    pub state_entries: u64,
    /// Releases that were trained on them, that repeat them in their manifest, or that a proposal made which was learned
    /// from them. Later releases descend from these.
    pub releases: BTreeSet<ReleaseId>,
}

/// Where a record is gone, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tombstone {
    /// Its place in the scenario.
    pub sequence: i64,
    /// Why it is gone.
    pub cause: Cause,
    /// When it went, milliseconds since the Unix epoch.
    pub at_ms: i64,
}

impl Store {
    /// Erases records and every report that refers to one of them. Takes as long as writing the database anew, and
    /// other writes wait for it: choose a quiet time for a large one.
    pub async fn erase(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        what: &Selector,
        now_ms: i64,
    ) -> Result<Erased, StoreError> {
        let mut erased = Erased::default();
        if let Selector::Session(session) = what {
            let (key, session) = (Key::of(t, s), session.clone());
            let proposed = self.write(0, move |conn| Box::pin(forget_session(conn, key, session))).await?;
            erased.releases.extend(proposed);
        }
        let mut after = 0;
        loop {
            let (key, what) = (Key::of(t, s), what.clone());
            let batch = self.write(0, move |conn| Box::pin(erase(conn, key, what, (after, now_ms)))).await?;
            let Some(batch) = batch else { break };
            after = batch.last;
            erased.records += batch.records;
            erased.waiting += batch.waiting;
            erased.state_entries += batch.state_entries;
            erased.releases.extend(batch.releases);
        }
        self.scrub().await?;
        Ok(erased)
    }

    /// What is left of a record that was erased or dropped.
    pub async fn tombstone(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        id: &RecordId,
    ) -> Result<Option<Tombstone>, StoreError> {
        let mut conn = self.reader().await?;
        let sql = "SELECT sequence, cause, at_ms FROM tombstones WHERE tenant = $1 AND scenario = $2 AND id = $3";
        let query = sql::query(sql).bind(t.as_str()).bind(s.as_str()).bind(id.as_str());
        let row: Option<(i64, String, i64)> = self.told(query.fetch_optional(&mut conn).await)?;
        let read = |(sequence, cause, at_ms): (i64, String, i64)| {
            let cause = Cause::parse(&cause).ok_or_else(|| damaged("cause of a tombstone", cause))?;
            Ok(Tombstone { sequence, cause, at_ms })
        };
        self.told(row.map(read).transpose())
    }
}

/// One transaction's part.
struct Batch {
    /// The last sequence that was looked at.
    last: i64,
    records: u64,
    waiting: u64,
    state_entries: u64,
    releases: Vec<ReleaseId>,
}

/// What was proposed after this session: the releases.
async fn forget_session(conn: &mut Connection, key: Key, session: String) -> Result<Vec<ReleaseId>, Fault> {
    let releases = proposals::forget_session(conn, &key, &session).await?;
    let refused = refused::forget_session(conn, &key, &session).await?;
    if !releases.is_empty() || refused > 0 {
        mark(conn).await?;
    }
    Ok(releases)
}

async fn erase(
    conn: &mut Connection,
    key: Key,
    what: Selector,
    (after, now_ms): (i64, i64),
) -> Result<Option<Batch>, Fault> {
    let selected = select(conn, &key, &what, after).await?;
    let Some((last, _)) = selected.last().cloned() else {
        return if after == 0 { none(conn, &key).await.map(|()| None) } else { Ok(None) };
    };
    let mut ids: Vec<String> = selected.into_iter().map(|(_, id)| id).collect();
    ids.extend(reports_about(conn, &key, &ids).await?);
    ids.sort_unstable();
    ids.dedup();
    let held: BTreeSet<String> = listed(conn, &key, HELD, &ids).await?.into_iter().collect();
    let (waiting, free): (Vec<String>, Vec<String>) = ids.into_iter().partition(|id| held.contains(id));
    let mut batch = Batch { last, records: 0, waiting: waiting.len() as u64, state_entries: 0, releases: Vec::new() };
    let records = free.iter().cloned().map(record_id).collect::<Result<Vec<_>, _>>()?;
    let Derived { state_entries, releases, running } = forget(conn, &key, &records).await?;
    if running {
        batch.waiting += free.len() as u64;
        return Ok(Some(batch));
    }
    batch.state_entries = state_entries;
    batch.releases.extend(releases);
    batch.releases.extend(trained(conn, &key, &free).await?);
    forget_transcripts(conn, &key, &free).await?;
    retire_pending(conn, &key, &free, now_ms).await?;
    let removed = remove(conn, &key, &records, (Cause::Erased, now_ms)).await?;
    mark(conn).await?;
    batch.records = removed.records.unsigned_abs();
    Ok(Some(batch))
}

/// A scenario that does not exist is told; one without such records is fine.
async fn none(conn: &mut Connection, key: &Key) -> Result<(), Fault> {
    let sql = "SELECT name FROM scenarios WHERE tenant = $1 AND name = $2";
    let found: Option<String> = sql::query(sql).bind(key.tenant()).bind(key.scenario()).scalar_optional(conn).await?;
    found.map(|_| ()).ok_or_else(|| key.unknown())
}

/// The next records that are meant, in order.
async fn select(conn: &mut Connection, key: &Key, what: &Selector, after: i64) -> Result<Vec<(i64, String)>, Fault> {
    let (sql, text) = match what {
        Selector::Record(id) => (
            "SELECT sequence, id FROM records WHERE tenant = $1 AND scenario = $2 AND sequence > $3 AND id = $5 LIMIT $4",
            id.as_str().to_owned(),
        ),
        Selector::Session(session) => (
            "SELECT sequence, id FROM records WHERE tenant = $1 AND scenario = $2 AND sequence > $3 AND session = $5 \
             ORDER BY sequence LIMIT $4",
            indexed(session),
        ),
        Selector::Tag(_, value) => (
            "SELECT r.sequence, r.id FROM record_tags AS g JOIN records AS r \
               ON r.tenant = g.tenant AND r.scenario = g.scenario AND r.sequence = g.sequence \
             WHERE g.tenant = $1 AND g.scenario = $2 AND g.sequence > $3 AND g.value = $5 AND g.tag = $6 \
             ORDER BY g.sequence LIMIT $4",
            indexed(value),
        ),
    };
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(after).bind(REMOVED_AT_ONCE).bind(text);
    let query = match what {
        Selector::Tag(tag, _) => query.bind(tag.as_str()),
        _ => query,
    };
    query.fetch_all(conn).await
}

async fn listed<T>(conn: &mut Connection, key: &Key, sql: &'static str, ids: &[String]) -> Result<Vec<T>, Fault>
where
    (T,): sql::Row,
{
    sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(to_text(&ids)?).scalars(conn).await
}

async fn reports_about(conn: &mut Connection, key: &Key, ids: &[String]) -> Result<Vec<String>, Fault> {
    let sql = "SELECT DISTINCT link.report FROM json_each($3) AS wanted CROSS JOIN sample_records AS link \
               WHERE link.tenant = $1 AND link.scenario = $2 AND link.record = wanted.value";
    listed(conn, key, sql, ids).await
}

/// Those that a running step holds: reserved reports and the records that they refer to.
pub(crate) const HELD: &str = "SELECT wanted.value FROM json_each($3) AS wanted WHERE EXISTS ( \
      SELECT 1 FROM samples AS s WHERE s.tenant = $1 AND s.scenario = $2 AND s.report = wanted.value \
        AND s.state = 'reserved') \
    OR EXISTS (SELECT 1 FROM sample_records AS link JOIN samples AS s ON s.tenant = link.tenant \
        AND s.scenario = link.scenario AND s.report = link.report AND s.state = 'reserved' \
      WHERE link.tenant = $1 AND link.scenario = $2 AND link.record = wanted.value)";

/// Releases of the steps that consumed a sample of these reports.
async fn trained(conn: &mut Connection, key: &Key, ids: &[String]) -> Result<Vec<ReleaseId>, Fault> {
    let sql = "SELECT DISTINCT r.release_id FROM json_each($3) AS wanted \
               CROSS JOIN samples AS s CROSS JOIN releases AS r \
               WHERE s.tenant = $1 AND s.scenario = $2 AND s.report = wanted.value AND s.state = 'consumed' \
                 AND r.tenant = $1 AND r.scenario = $2 AND r.step = s.step";
    let found: Vec<String> = listed(conn, key, sql, ids).await?;
    found.into_iter().map(|id| ReleaseId::parse(id).map_err(|e| damaged("release id", e))).collect()
}

/// What a step heard from models may repeat what it read; without its records it cannot be replayed anyway.
async fn forget_transcripts(conn: &mut Connection, key: &Key, ids: &[String]) -> Result<(), Fault> {
    let sql = "UPDATE step_inputs SET transcript = NULL, transcript_bytes = NULL \
               WHERE tenant = $1 AND scenario = $2 AND step IN ( \
                 SELECT s.step FROM json_each($3) AS wanted CROSS JOIN samples AS s \
                 WHERE s.tenant = $1 AND s.scenario = $2 AND s.report = wanted.value AND s.state = 'consumed')";
    sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(to_text(&ids)?).execute(conn).await?;
    Ok(())
}

async fn retire_pending(conn: &mut Connection, key: &Key, ids: &[String], now_ms: i64) -> Result<(), Fault> {
    let sql = "UPDATE samples SET state = 'retired', reason = 'erased', retired_at_ms = $4 \
               WHERE tenant = $1 AND scenario = $2 AND state = 'pending' \
                 AND report IN (SELECT value FROM json_each($3))";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(to_text(&ids)?);
    query.bind(now_ms).execute(conn).await?;
    Ok(())
}
