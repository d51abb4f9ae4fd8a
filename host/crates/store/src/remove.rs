//! Takes records out of the log and leaves tombstones, so that the samples and steps that name them still explain
//! themselves. `erase.rs` removes what a person may not be kept in, `retention.rs` what is old or too much; both go in
//! batches inside the writer's transactions. Nothing is removed that a waiting or running sample needs.

use reef_core::RecordId;

use crate::codec::to_text;
use crate::error::Fault;
use crate::key::Key;
use crate::sql::{self, Connection};

/// Records that one transaction removes.
pub(crate) const REMOVED_AT_ONCE: i64 = 500;

/// Why a record is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Someone asked for it.
    Erased,
    /// The retention rule let it go.
    Dropped,
}

impl Cause {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Erased => "erased",
            Self::Dropped => "dropped",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        [Self::Erased, Self::Dropped].into_iter().find(|cause| cause.as_str() == text)
    }
}

/// What a batch took away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Removed {
    pub(crate) records: i64,
    pub(crate) bytes: i64,
}

/// Removes these records, of any kind.
pub(crate) async fn remove(
    conn: &mut Connection,
    key: &Key,
    ids: &[RecordId],
    (cause, now_ms): (Cause, i64),
) -> Result<Removed, Fault> {
    let list = to_text(&ids)?;
    let bound = |sql| sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(list.as_str());
    let sql = "SELECT COUNT(*), CAST(COALESCE(SUM(stored_bytes), 0) AS BIGINT) FROM records \
               WHERE tenant = $1 AND scenario = $2 AND id IN (SELECT value FROM json_each($3))";
    let (records, bytes) = bound(sql).fetch_optional(&mut *conn).await?.unwrap_or_default();
    let sql = "INSERT INTO tombstones (tenant, scenario, id, sequence, kind, cause, at_ms) \
               SELECT tenant, scenario, id, sequence, kind, $4, $5 FROM records \
               WHERE tenant = $1 AND scenario = $2 AND id IN (SELECT value FROM json_each($3))";
    bound(sql).bind(cause.as_str()).bind(now_ms).execute(&mut *conn).await?;
    let sql = "DELETE FROM record_tags WHERE tenant = $1 AND scenario = $2 AND sequence IN ( \
                 SELECT r.sequence FROM json_each($3) AS gone CROSS JOIN records AS r \
                 WHERE r.tenant = $1 AND r.scenario = $2 AND r.id = gone.value)";
    bound(sql).execute(&mut *conn).await?;
    let sql = "DELETE FROM records WHERE tenant = $1 AND scenario = $2 AND id IN (SELECT value FROM json_each($3))";
    bound(sql).execute(&mut *conn).await?;
    // What a report said lies in its sample too, and what a recipe said of it in the reason after its kind.
    let sql = "UPDATE samples SET score = NULL, metadata = '{}', content = NULL, \
                 reason = substr(reason, 1, instr(reason || ':', ':') - 1) \
               WHERE tenant = $1 AND scenario = $2 AND report IN (SELECT value FROM json_each($3))";
    bound(sql).execute(&mut *conn).await?;
    let sql = "UPDATE scenarios SET stored_records = stored_records - $3, stored_bytes = stored_bytes - $4 \
               WHERE tenant = $1 AND name = $2";
    sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(records).bind(bytes).execute(conn).await?;
    Ok(Removed { records, bytes })
}
