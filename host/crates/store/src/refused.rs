//! Proposals that were not admitted: kept with the rules that they break, so that whoever proposes can read later what
//! to do otherwise. The newest of a scenario stay; retention by age takes them too, and so does the erasure of the
//! session that they were learned from.

use reef_core::{RecordId, ReleaseId, ScenarioName, TenantId};
use serde::{Deserialize, Serialize};

use crate::Store;
use crate::codec::{from_text, to_text};
use crate::entry::storable;
use crate::error::{Fault, StoreError};
use crate::key::Key;
use crate::sql::{self, Connection};

/// Refused proposals that a scenario keeps.
const KEPT_MAX: i64 = 256;
/// Rules that one names; a proposal breaks each mutation's few.
const REASONS_MAX: usize = 64;
/// Characters of one rule's explanation.
const REASON_CHARS_MAX: usize = 2_000;

/// A change of the harness that was not admitted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedProposal {
    /// Digest of what was proposed.
    pub id: RecordId,
    /// The release that it would have changed.
    pub base: ReleaseId,
    /// The instruction that it answers.
    pub request: Option<RecordId>,
    /// Why it was proposed, in the proposer's words.
    pub reason: String,
    /// The rules that it breaks, in their order.
    pub reasons: Vec<String>,
    /// The session that it was learned from.
    #[serde(skip)]
    pub session: Option<String>,
    /// Milliseconds since the Unix epoch.
    pub created_at_ms: i64,
}

impl Store {
    /// Keeps a refused proposal; the same one again takes the place of the earlier.
    pub async fn refuse_proposal(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        refused: &RefusedProposal,
    ) -> Result<(), StoreError> {
        let mut refused = refused.clone();
        refused.reasons.truncate(REASONS_MAX);
        for reason in &mut refused.reasons {
            if let Some((end, _)) = reason.char_indices().nth(REASON_CHARS_MAX) {
                reason.truncate(end);
            }
        }
        let (key, body) = (Key::of(t, s), self.told(to_text(&refused))?);
        self.write(body.len(), move |conn| Box::pin(refuse(conn, key, refused, body))).await
    }

    /// Refused proposals, newest first.
    pub async fn refused_proposals(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        limit: u32,
    ) -> Result<Vec<RefusedProposal>, StoreError> {
        let mut conn = self.reader().await?;
        let sql = "SELECT body, session FROM refused_proposals WHERE tenant = $1 AND scenario = $2 \
                   ORDER BY created_at_ms DESC, id DESC LIMIT $3";
        let rows = sql::query(sql).bind(t.as_str()).bind(s.as_str()).bind(limit).fetch_all(&mut conn).await;
        self.told(self.told(rows)?.into_iter().map(read).collect())
    }

    /// The refused proposal of this id.
    pub async fn refused_proposal(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        id: &RecordId,
    ) -> Result<Option<RefusedProposal>, StoreError> {
        let mut conn = self.reader().await?;
        let sql = "SELECT body, session FROM refused_proposals WHERE tenant = $1 AND scenario = $2 AND id = $3";
        let query = sql::query(sql).bind(t.as_str()).bind(s.as_str()).bind(id.as_str());
        let row = self.told(query.fetch_optional(&mut conn).await)?;
        self.told(row.map(read).transpose())
    }
}

async fn refuse(conn: &mut Connection, key: Key, refused: RefusedProposal, body: String) -> Result<(), Fault> {
    let sql = "INSERT INTO refused_proposals (tenant, scenario, id, session, created_at_ms, body) \
               VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (tenant, scenario, id) \
               DO UPDATE SET session = excluded.session, created_at_ms = excluded.created_at_ms, body = excluded.body";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(refused.id.as_str());
    let query = query.bind(refused.session.as_deref().map(storable)).bind(refused.created_at_ms).bind(body);
    match query.execute(&mut *conn).await {
        Err(fault) if fault.is_foreign_key_violation() => return Err(key.unknown()),
        other => other?,
    };
    let sql = "DELETE FROM refused_proposals WHERE tenant = $1 AND scenario = $2 AND id IN ( \
                 SELECT id FROM refused_proposals WHERE tenant = $1 AND scenario = $2 \
                 ORDER BY created_at_ms DESC, id DESC LIMIT 1000 OFFSET $3)";
    sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(KEPT_MAX).execute(conn).await?;
    Ok(())
}

/// It was proposed again and admitted.
pub(crate) async fn admitted(conn: &mut Connection, key: &Key, id: &RecordId) -> Result<(), Fault> {
    let sql = "DELETE FROM refused_proposals WHERE tenant = $1 AND scenario = $2 AND id = $3";
    sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(id.as_str()).execute(conn).await?;
    Ok(())
}

/// Those that were learned from an erased session; how many.
pub(crate) async fn forget_session(conn: &mut Connection, key: &Key, session: &str) -> Result<u64, Fault> {
    let sql = "DELETE FROM refused_proposals WHERE tenant = $1 AND scenario = $2 AND session = $3";
    sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(storable(session)).execute(conn).await
}

/// Those of before this moment.
pub(crate) async fn forget_older(conn: &mut Connection, key: &Key, than_ms: i64) -> Result<(), Fault> {
    let sql = "DELETE FROM refused_proposals WHERE tenant = $1 AND scenario = $2 AND created_at_ms < $3";
    sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(than_ms).execute(conn).await?;
    Ok(())
}

fn read((body, session): (String, Option<String>)) -> Result<RefusedProposal, Fault> {
    let refused: RefusedProposal = from_text(&body, "refused proposal")?;
    Ok(RefusedProposal { session, ..refused })
}
