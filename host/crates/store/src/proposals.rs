//! Proposals: admitted changes of the harness, each with the release that it made. A proposal is written in one
//! transaction with its release, which waits beside the chain; the same content again is the same proposal.

use reef_core::{RecordId, Release, ReleaseId, ScenarioName, TenantId};
use serde::{Deserialize, Serialize};

use crate::Store;
use crate::codec::{from_text, to_text};
use crate::entry::storable;
use crate::error::{Fault, StoreError, conflict, damaged, invalid};
use crate::key::Key;
use crate::refused;
use crate::releases::{self, ReleaseRow};
use crate::sql::{self, Connection};

/// Bytes of the reason.
pub const PROPOSAL_REASON_BYTES_MAX: usize = 4 << 10;
/// What stands for the reason of a proposal whose session was erased.
const ERASED_REASON: &str = "erased";
/// Proposals of one listing.
const LISTED_MAX: u32 = 1_000;
/// Proposals of one scenario that wait at the same time; a person decides upon each.
const WAITING_MAX: i64 = 64;

/// An admitted change of the harness.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HarnessProposal {
    /// Digest of what is proposed.
    pub id: RecordId,
    /// The release that it made.
    pub release: ReleaseId,
    /// The instruction that it answers.
    pub request: Option<RecordId>,
    /// Why, in the proposer's words.
    pub reason: String,
    /// The session that it was learned from; none once that is erased.
    #[serde(skip)]
    pub session: Option<String>,
    /// Milliseconds since the Unix epoch.
    pub created_at_ms: i64,
}

impl Store {
    /// Writes a proposal and its release, which waits for a person; the head must be the release's parent. A proposal
    /// of that id is returned as it is, and nothing is written. `Conflict` where as many wait as may.
    pub async fn hold_proposal(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        release: &Release,
        proposal: &HarnessProposal,
    ) -> Result<HarnessProposal, StoreError> {
        let key = Key::of(t, s);
        if proposal.reason.len() > PROPOSAL_REASON_BYTES_MAX {
            let bytes = proposal.reason.len();
            let refusal = format!("the reason has {bytes} bytes; the limit is {PROPOSAL_REASON_BYTES_MAX}");
            return self.told(Err(invalid(refusal)));
        }
        let row = self.told(ReleaseRow::of(&key, release).await)?;
        let proposal = proposal.clone();
        self.write(row.size(), move |conn| Box::pin(hold(conn, key, row, proposal))).await
    }

    /// The proposal of this id.
    pub async fn proposal(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        id: &RecordId,
    ) -> Result<Option<HarnessProposal>, StoreError> {
        let mut conn = self.reader().await?;
        let sql = "SELECT body, session FROM proposals WHERE tenant = $1 AND scenario = $2 AND id = $3";
        self.told(select(&mut conn, sql, &Key::of(t, s), id.as_str()).await)
    }

    /// Proposals, newest first, at most 1,000, and where the release of each stands: `held`, `released` or `rejected`.
    pub async fn proposals(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        limit: u32,
    ) -> Result<Vec<(HarnessProposal, &'static str)>, StoreError> {
        let mut conn = self.reader().await?;
        let sql = "SELECT p.body, p.session, r.status FROM proposals AS p JOIN releases AS r ON r.tenant = p.tenant \
                     AND r.scenario = p.scenario AND r.release_id = p.release_id \
                   WHERE p.tenant = $1 AND p.scenario = $2 ORDER BY r.position DESC LIMIT $3";
        let query = sql::query(sql).bind(t.as_str()).bind(s.as_str()).bind(limit.min(LISTED_MAX));
        let rows: Vec<(String, Option<String>, String)> = self.told(query.fetch_all(&mut conn).await)?;
        let listed = rows.into_iter().map(|(body, session, status)| {
            let state = match status.as_str() {
                "held" => "held",
                "rejected" => "rejected",
                "chain" => "released",
                _ => return Err(damaged("status of a release", status)),
            };
            Ok((read((body, session))?, state))
        });
        self.told(listed.collect())
    }

    /// The proposal that made this release.
    pub async fn proposal_of(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        release: &ReleaseId,
    ) -> Result<Option<HarnessProposal>, StoreError> {
        let mut conn = self.reader().await?;
        let sql = "SELECT body, session FROM proposals WHERE tenant = $1 AND scenario = $2 AND release_id = $3";
        self.told(select(&mut conn, sql, &Key::of(t, s), release.as_str()).await)
    }

    /// The newest proposal that answers an instruction.
    pub async fn proposal_for(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        request: &RecordId,
    ) -> Result<Option<HarnessProposal>, StoreError> {
        let mut conn = self.reader().await?;
        let sql = "SELECT p.body, p.session FROM proposals AS p JOIN releases AS r ON r.tenant = p.tenant \
                     AND r.scenario = p.scenario AND r.release_id = p.release_id \
                   WHERE p.tenant = $1 AND p.scenario = $2 AND p.request = $3 ORDER BY r.position DESC LIMIT 1";
        self.told(select(&mut conn, sql, &Key::of(t, s), request.as_str()).await)
    }
}

async fn hold(
    conn: &mut Connection,
    key: Key,
    row: ReleaseRow,
    proposal: HarnessProposal,
) -> Result<HarnessProposal, Fault> {
    let sql = "SELECT body, session FROM proposals WHERE tenant = $1 AND scenario = $2 AND id = $3";
    if let Some(known) = select(conn, sql, &key, proposal.id.as_str()).await? {
        return Ok(known);
    }
    let manifest = &row.release.manifest;
    releases::require_head(conn, &key, (manifest.surface, manifest.parent.as_ref())).await?;
    let sql = "SELECT COUNT(*) FROM releases AS r JOIN proposals AS p ON p.tenant = r.tenant \
                 AND p.scenario = r.scenario AND p.release_id = r.release_id \
               WHERE r.tenant = $1 AND r.scenario = $2 AND r.status = 'held'";
    let waiting: i64 = sql::query(sql).bind(key.tenant()).bind(key.scenario()).scalar(&mut *conn).await?;
    if waiting >= WAITING_MAX {
        return Err(conflict(format!("{waiting} proposals wait already; promote or reject some of them first")));
    }
    releases::hold(conn, &key, &row).await?;
    refused::admitted(conn, &key, &proposal.id).await?;
    let sql = "INSERT INTO proposals (tenant, scenario, id, request, release_id, session, body) \
               VALUES ($1, $2, $3, $4, $5, $6, $7)";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(proposal.id.as_str());
    let query = query.bind(proposal.request.as_ref().map(RecordId::as_str)).bind(proposal.release.as_str());
    query.bind(proposal.session.as_deref().map(storable)).bind(to_text(&proposal)?).execute(conn).await?;
    Ok(proposal)
}

/// Takes an erased session out of the proposals that were learned from it, with what they say of it; their releases,
/// which hold the change and its reason for good.
pub(crate) async fn forget_session(conn: &mut Connection, key: &Key, session: &str) -> Result<Vec<ReleaseId>, Fault> {
    let sql = "SELECT body, session FROM proposals WHERE tenant = $1 AND scenario = $2 AND session = $3";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(storable(session));
    let rows: Vec<(String, Option<String>)> = query.fetch_all(&mut *conn).await?;
    let mut releases = Vec::new();
    for row in rows {
        let proposal = read(row)?;
        let erased = HarnessProposal { reason: ERASED_REASON.to_owned(), ..proposal };
        let sql = "UPDATE proposals SET session = NULL, body = $4 WHERE tenant = $1 AND scenario = $2 AND id = $3";
        let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(erased.id.as_str());
        query.bind(to_text(&erased)?).execute(&mut *conn).await?;
        releases.push(erased.release);
    }
    Ok(releases)
}

fn read((body, session): (String, Option<String>)) -> Result<HarnessProposal, Fault> {
    let proposal: HarnessProposal = from_text(&body, "proposal")?;
    Ok(HarnessProposal { session, ..proposal })
}

async fn select(
    conn: &mut Connection,
    sql: &'static str,
    key: &Key,
    wanted: &str,
) -> Result<Option<HarnessProposal>, Fault> {
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(wanted);
    let row: Option<(String, Option<String>)> = query.fetch_optional(conn).await?;
    row.map(read).transpose()
}
