//! Retention: lets records go that are older than a scenario keeps them, or more than it keeps, oldest first.
//! In bounded batches and constant memory; nothing goes that a waiting or running sample needs, or that a running canary
//! has been measured by.

use reef_core::{Arm, RecordId, RolloutPlan, ScenarioName, TenantId};
use serde::{Deserialize, Serialize};

use crate::Store;
use crate::error::{Fault, StoreError};
use crate::key::Key;
use crate::records::record_id;
use crate::refused;
use crate::remove::{Cause, REMOVED_AT_ONCE, Removed, remove};
use crate::rollouts::{arm_tag, select_running};
use crate::sql::{self, Connection};

/// What a scenario keeps; `None` = no limit of this kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Retention {
    /// Oldest record, milliseconds before now.
    pub age_ms_max: Option<i64>,
    /// Records of every kind.
    pub records_max: Option<i64>,
    /// Bytes of tokens and compressed bodies.
    pub bytes_max: Option<i64>,
}

/// What `retain` let go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Records of every kind.
    pub records: u64,
    /// Bytes of their tokens and compressed bodies.
    pub bytes: u64,
}

/// What is stored of a scenario now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stored {
    /// Records of every kind.
    pub records: i64,
    /// Bytes of tokens and compressed bodies.
    pub bytes: i64,
}

/// Where a walk over the records stands.
#[derive(Debug, Clone, Copy)]
struct Cursor {
    created_at_ms: i64,
    sequence: i64,
}

/// Before every record.
const START: Cursor = Cursor { created_at_ms: i64::MIN, sequence: 0 };

impl Store {
    /// Drops what the rule does not keep. Records that a pending or reserved sample needs stay, those that grade the arms
    /// of a running canary too, and so does the order: a scenario can therefore stay over its limits until those samples
    /// are used or retired and the canary has ended.
    pub async fn retain(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        keep: &Retention,
        now_ms: i64,
    ) -> Result<Dropped, StoreError> {
        let mut dropped = Dropped::default();
        if let Some(age) = keep.age_ms_max {
            let than_ms = now_ms.saturating_sub(age);
            self.drop_by(t, s, Walk::Older { than_ms }, (now_ms, &mut dropped)).await?;
            let key = Key::of(t, s);
            self.append(0, move |conn| Box::pin(async move { refused::forget_older(conn, &key, than_ms).await }))
                .await?;
        }
        if keep.records_max.is_some() || keep.bytes_max.is_some() {
            let records = keep.records_max.unwrap_or(i64::MAX);
            let bytes = keep.bytes_max.unwrap_or(i64::MAX);
            self.drop_by(t, s, Walk::Beyond(Stored { records, bytes }), (now_ms, &mut dropped)).await?;
        }
        Ok(dropped)
    }

    async fn drop_by(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        walk: Walk,
        (now_ms, dropped): (i64, &mut Dropped),
    ) -> Result<(), StoreError> {
        let mut cursor = START;
        loop {
            let key = Key::of(t, s);
            let done = self.write(0, move |conn| Box::pin(batch(conn, key, walk, (cursor, now_ms)))).await?;
            let Some((next, removed)) = done else { return Ok(()) };
            cursor = next;
            dropped.records += removed.records.unsigned_abs();
            dropped.bytes += removed.bytes.unsigned_abs();
        }
    }

    /// What is stored of the scenario now; all 0 when it does not exist.
    pub async fn stored(&self, t: &TenantId, s: &ScenarioName) -> Result<Stored, StoreError> {
        let mut conn = self.reader().await?;
        self.told(stored(&mut conn, &Key::of(t, s)).await)
    }
}

/// Which records may go.
#[derive(Debug, Clone, Copy)]
enum Walk {
    /// Made before this moment.
    Older { than_ms: i64 },
    /// The oldest, until no more than this is stored.
    Beyond(Stored),
}

async fn stored(conn: &mut Connection, key: &Key) -> Result<Stored, Fault> {
    let sql = "SELECT stored_records, stored_bytes FROM scenarios WHERE tenant = $1 AND name = $2";
    let row = sql::query(sql).bind(key.tenant()).bind(key.scenario()).fetch_optional::<(i64, i64)>(conn).await?;
    let (records, bytes) = row.unwrap_or_default();
    Ok(Stored { records, bytes })
}

/// One transaction's part; none = the walk is over.
async fn batch(
    conn: &mut Connection,
    key: Key,
    walk: Walk,
    (cursor, now_ms): (Cursor, i64),
) -> Result<Option<(Cursor, Removed)>, Fault> {
    let over = match walk {
        Walk::Older { .. } => None,
        Walk::Beyond(limit) => {
            let now = stored(conn, &key).await?;
            let over = Stored { records: now.records - limit.records, bytes: now.bytes.saturating_sub(limit.bytes) };
            if over.records <= 0 && over.bytes <= 0 {
                return Ok(None);
            }
            Some(over)
        }
    };
    let arms = arms(conn, &key).await?;
    let rows = match walk {
        Walk::Older { than_ms } => older(conn, &key, cursor, (arms, than_ms)).await?,
        Walk::Beyond(_) => oldest(conn, &key, cursor, arms).await?,
    };
    let Some(last) = rows.last() else { return Ok(None) };
    let next = Cursor { created_at_ms: last.1, sequence: last.0 };
    let going = chosen(rows, over)?;
    let removed = if going.is_empty() {
        Removed::default()
    } else {
        remove(conn, &key, &going, (Cause::Dropped, now_ms)).await?
    };
    Ok(Some((next, removed)))
}

/// Tags of the arms of the canary that runs; empty where none does.
async fn arms(conn: &mut Connection, key: &Key) -> Result<[String; 2], Fault> {
    let running = select_running(conn, key).await?;
    let canary = running.filter(|rollout| matches!(rollout.plan, RolloutPlan::Canary(_)));
    Ok(canary
        .map_or_else(Default::default, |rollout| [Arm::Candidate, Arm::Incumbent].map(|arm| arm_tag(&rollout, arm))))
}

/// Sequence, time, id, size, whether it is needed.
type Row = (i64, i64, String, i64, bool);

/// Does a report that graded an arm of the canary stand in this column of its link?
macro_rules! graded {
    ($column:literal) => {
        concat!(
            "EXISTS (SELECT 1 FROM sample_records AS link JOIN samples AS graded ON graded.tenant = link.tenant \
               AND graded.scenario = link.scenario AND graded.report = link.report AND graded.score IS NOT NULL \
             JOIN records AS answer ON answer.tenant = link.tenant AND answer.scenario = link.scenario \
               AND answer.id = link.record \
             JOIN record_tags AS arm ON arm.tenant = answer.tenant AND arm.scenario = answer.scenario \
               AND arm.sequence = answer.sequence AND arm.tag = 'rollout' AND arm.value IN ($4, $5) \
             WHERE link.tenant = r.tenant AND link.scenario = r.scenario AND link.",
            $column,
            " = r.id)"
        )
    };
}

/// Is the record a waiting or running sample's report, or referred to by one? Or the same of a grade that the running
/// canary counts, whose arms are $4 and $5?
macro_rules! walk {
    ($condition:literal, $order:literal) => {
        concat!(
            "SELECT r.sequence, r.created_at_ms, r.id, r.stored_bytes, EXISTS ( \
               SELECT 1 FROM samples AS s WHERE s.tenant = r.tenant AND s.scenario = r.scenario AND s.report = r.id \
                 AND s.state IN ('pending', 'reserved')) \
             OR EXISTS (SELECT 1 FROM sample_records AS link JOIN samples AS s ON s.tenant = link.tenant \
                 AND s.scenario = link.scenario AND s.report = link.report AND s.state IN ('pending', 'reserved') \
               WHERE link.tenant = r.tenant AND link.scenario = r.scenario AND link.record = r.id) \
             OR ($4 <> '' AND (",
            graded!("record"),
            " OR ",
            graded!("report"),
            ")) FROM records AS r WHERE r.tenant = $1 AND r.scenario = $2 AND ",
            $condition,
            " ORDER BY ",
            $order,
            " LIMIT $3"
        )
    };
}

pub(crate) const OLDER: &str =
    walk!("(r.created_at_ms, r.sequence) > ($6, $7) AND r.created_at_ms < $8", "r.created_at_ms, r.sequence");
pub(crate) const OLDEST: &str = walk!("r.sequence > $6", "r.sequence");

async fn older(
    conn: &mut Connection,
    key: &Key,
    cursor: Cursor,
    ([candidate, incumbent], than_ms): ([String; 2], i64),
) -> Result<Vec<Row>, Fault> {
    let query = sql::query(OLDER).bind(key.tenant()).bind(key.scenario()).bind(REMOVED_AT_ONCE);
    let query = query.bind(candidate).bind(incumbent);
    query.bind(cursor.created_at_ms).bind(cursor.sequence).bind(than_ms).fetch_all(conn).await
}

async fn oldest(
    conn: &mut Connection,
    key: &Key,
    cursor: Cursor,
    [candidate, incumbent]: [String; 2],
) -> Result<Vec<Row>, Fault> {
    let query = sql::query(OLDEST).bind(key.tenant()).bind(key.scenario()).bind(REMOVED_AT_ONCE);
    query.bind(candidate).bind(incumbent).bind(cursor.sequence).fetch_all(conn).await
}

/// Those of the rows that go: none that a sample needs, and no more than there is too much.
fn chosen(rows: Vec<Row>, mut over: Option<Stored>) -> Result<Vec<RecordId>, Fault> {
    let mut going = Vec::new();
    for (_, _, id, bytes, needed) in rows {
        if over.is_some_and(|over| over.records <= 0 && over.bytes <= 0) {
            break;
        }
        if !needed {
            over = over.map(|over| Stored { records: over.records - 1, bytes: over.bytes - bytes });
            going.push(record_id(id)?);
        }
    }
    Ok(going)
}
