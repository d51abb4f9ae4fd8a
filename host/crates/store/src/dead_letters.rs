//! Dead letters: reports that a surface set aside and will never use, each with its reason, for a person who asks why.
//! Reasons read `kind: detail`; `samples.rs` counts them by kind.

use reef_core::{RecordId, ScenarioName, Surface, TenantId};
use serde::{Deserialize, Serialize};

use crate::Store;
use crate::error::{Fault, StoreError};
use crate::records::record_id;
use crate::sql;
use crate::surfaces::surface_named;

/// Dead letters of one page.
const PAGE_MAX: u32 = 1_000;

/// A report that was set aside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// The report.
    pub report: RecordId,
    /// The surface that will not use it.
    pub surface: Surface,
    /// Its place in the scenario.
    pub sequence: i64,
    /// Why, as `kind: detail`.
    pub reason: String,
    /// When, milliseconds since the Unix epoch.
    pub retired_at_ms: i64,
}

type Row = (String, String, i64, Option<String>, Option<i64>);

impl Store {
    /// Dead letters after a sequence, oldest first, at most 1,000; an empty page means that there are no more.
    /// `kind`: only those whose reason begins with `kind:` or is it.
    pub async fn dead_letters(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        (after, limit): (i64, u32),
        kind: Option<&str>,
    ) -> Result<Vec<DeadLetter>, StoreError> {
        let mut conn = self.reader().await?;
        let sql = "SELECT report, surface, sequence, reason, retired_at_ms FROM samples \
                   WHERE tenant = $1 AND scenario = $2 AND surface IN ('weights', 'harness', 'router') \
                     AND state = 'retired' AND sequence > $3 \
                     AND ($5 IS NULL OR substr(reason, 1, instr(reason || ':', ':') - 1) = $5) \
                   ORDER BY sequence, surface LIMIT $4";
        let query = sql::query(sql).bind(t.as_str()).bind(s.as_str()).bind(after).bind(limit.min(PAGE_MAX));
        let rows: Vec<Row> = self.told(query.bind(kind).fetch_all(&mut conn).await)?;
        self.told(rows.into_iter().map(read).collect())
    }
}

fn read((report, surface, sequence, reason, retired_at_ms): Row) -> Result<DeadLetter, Fault> {
    Ok(DeadLetter {
        report: record_id(report)?,
        surface: surface_named(&surface)?,
        sequence,
        reason: reason.unwrap_or_default(),
        retired_at_ms: retired_at_ms.unwrap_or_default(),
    })
}
