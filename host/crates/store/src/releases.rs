//! The release chains of a scenario, one for each surface, each with a head that moves only by compare-and-swap. A release row is never edited but for its status; held candidates wait beside the chains.

use reef_core::{Release, ReleaseId, ReleaseOrigin, RolloutEnd, ScenarioName, Surface, TenantId};
use serde::{Deserialize, Serialize};

use crate::Store;
use crate::codec::{self, Body};
use crate::error::{Fault, StoreError, conflict, damaged, invalid};
use crate::key::Key;
use crate::rollouts;
use crate::sql::{self, Connection};

/// Releases of one listing, newest first.
const RELEASES_LISTED_MAX: u32 = 10_000;

/// Releases of a scenario and whether each is the head of its surface, with a condition and an order.
macro_rules! listed {
    ($rest:literal) => {
        concat!(
            "SELECT r.body_bytes, r.body, r.metrics, r.status, \
               r.release_id IS NOT DISTINCT FROM (CASE r.surface \
                 WHEN 'harness' THEN s.harness_head WHEN 'router' THEN s.router_head ELSE s.head END) \
             FROM releases AS r JOIN scenarios AS s ON s.tenant = r.tenant AND s.name = r.scenario \
             WHERE r.tenant = $1 AND r.scenario = $2 ",
            $rest
        )
    };
}

/// The head of one surface.
macro_rules! head {
    ($column:literal) => {
        concat!(
            "SELECT r.body_bytes, r.body, r.metrics, r.status, TRUE FROM scenarios AS s JOIN releases AS r \
             ON r.tenant = s.tenant AND r.scenario = s.name AND r.release_id = s.",
            $column,
            " WHERE s.tenant = $1 AND s.name = $2"
        )
    };
}

/// Where a release stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReleaseStatus {
    /// The head of its surface.
    Served,
    /// Served earlier, or promoted under another id; can be pinned and rolled back to.
    Retained,
    /// A candidate that waits for a person.
    Held,
    /// A held candidate that a person refused.
    Rejected,
}

/// A release and where it stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ListedRelease {
    /// The release.
    #[serde(flatten)]
    pub release: Release,
    /// Where it stands.
    pub status: ReleaseStatus,
}

/// A release ready to be written.
#[derive(Debug, Clone)]
pub(crate) struct ReleaseRow {
    pub(crate) release: Release,
    metrics: String,
    body: Body,
}

impl ReleaseRow {
    /// Refuses a release that says it belongs elsewhere.
    pub(crate) async fn of(key: &Key, release: &Release) -> Result<Self, Fault> {
        let id = &release.release_id;
        if !key.owns(&release.manifest.tenant, &release.manifest.scenario) {
            let (tenant, scenario) = (&release.manifest.tenant, &release.manifest.scenario);
            return Err(invalid(format!("release {id} belongs to scenario '{scenario}' of tenant '{tenant}'")));
        }
        let mut bare = release.clone();
        let metrics = codec::metrics_to_text(&std::mem::take(&mut bare.manifest.metrics))?;
        let body = codec::pack(&bare, &format!("release {id}")).await?;
        Ok(Self { release: release.clone(), metrics, body })
    }

    pub(crate) fn size(&self) -> usize {
        self.metrics.len() + self.body.bytes.len()
    }
}

impl Store {
    /// Appends a base, rollback, promotion or acceptance and makes it the head of its surface, in one transaction. A
    /// promotion takes the held candidate of its step, an acceptance the held proposal, which must follow the head;
    /// without one, because a person refused or promoted it meanwhile, it is a `Conflict`. `expected_head` `None`:
    /// there is no head yet. The same release again is no error while it is the head.
    pub async fn append_release(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        release: &Release,
        expected_head: Option<&ReleaseId>,
    ) -> Result<(), StoreError> {
        self.append_release_ending((t, s), release, expected_head, None).await
    }

    /// The same, and ends the running rollout of this number in the same transaction.
    pub async fn append_release_ending(
        &self,
        (t, s): (&TenantId, &ScenarioName),
        release: &Release,
        expected_head: Option<&ReleaseId>,
        ends: Option<(u32, RolloutEnd)>,
    ) -> Result<(), StoreError> {
        let key = Key::of(t, s);
        let row = self.told(ReleaseRow::of(&key, release).await)?;
        let expected = expected_head.cloned();
        self.write(row.size(), move |conn| {
            Box::pin(async move {
                append(conn, key.clone(), row, expected).await?;
                match ends {
                    Some((number, end)) => rollouts::finish(conn, key, number, end).await.map(drop),
                    None => Ok(()),
                }
            })
        })
        .await
    }

    /// The release of weights that is served.
    pub async fn head(&self, t: &TenantId, s: &ScenarioName) -> Result<Option<Release>, StoreError> {
        self.head_on(t, s, Surface::Weights).await
    }

    /// The harness that clients install.
    pub async fn harness_head(&self, t: &TenantId, s: &ScenarioName) -> Result<Option<Release>, StoreError> {
        self.head_on(t, s, Surface::Harness).await
    }

    /// The head of one surface.
    pub async fn head_on(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        surface: Surface,
    ) -> Result<Option<Release>, StoreError> {
        let sql = match surface {
            Surface::Weights => head!("head"),
            Surface::Harness => head!("harness_head"),
            Surface::Router => head!("router_head"),
        };
        let key = Key::of(t, s);
        let mut conn = self.reader().await?;
        let query = sql::query(sql).bind(key.tenant()).bind(key.scenario());
        let row: Option<Row> = self.told(query.fetch_optional(&mut conn).await)?;
        let listed = self.told(read_one(row).await)?;
        Ok(listed.map(|listed| listed.release))
    }

    /// One release of this scenario.
    pub async fn release(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        id: &ReleaseId,
    ) -> Result<Option<ListedRelease>, StoreError> {
        let mut conn = self.reader().await?;
        self.told(select_release(&mut conn, &Key::of(t, s), id).await)
    }

    /// The release of weights with which this scenario began; none once it is gone.
    pub async fn first_release(&self, t: &TenantId, s: &ScenarioName) -> Result<Option<ListedRelease>, StoreError> {
        let mut conn = self.reader().await?;
        let sql = listed!("AND r.surface = 'weights' ORDER BY r.position LIMIT 1");
        let query = sql::query(sql).bind(t.as_str()).bind(s.as_str());
        let row: Option<Row> = self.told(query.fetch_optional(&mut conn).await)?;
        let oldest = self.told(read_one(row).await)?;
        Ok(oldest.filter(|listed| listed.release.manifest.sequence == 0))
    }

    /// The releases of this scenario, of every surface, newest first; the latest 10,000.
    pub async fn releases(&self, t: &TenantId, s: &ScenarioName) -> Result<Vec<ListedRelease>, StoreError> {
        self.list(t, s, None).await
    }

    /// The releases of one surface, newest first; the latest 10,000.
    pub async fn releases_of(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        surface: Surface,
    ) -> Result<Vec<ListedRelease>, StoreError> {
        self.list(t, s, Some(surface)).await
    }

    async fn list(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        surface: Option<Surface>,
    ) -> Result<Vec<ListedRelease>, StoreError> {
        let mut conn = self.reader().await?;
        let sql = listed!("AND ($3 IS NULL OR r.surface = $3) ORDER BY r.position DESC LIMIT $4");
        let query = sql::query(sql).bind(t.as_str()).bind(s.as_str()).bind(surface.map(Surface::as_str));
        let query = query.bind(RELEASES_LISTED_MAX);
        let rows: Vec<Row> = self.told(query.fetch_all(&mut conn).await)?;
        let mut listed = Vec::with_capacity(rows.len());
        for row in rows {
            listed.push(self.told(read(row).await)?);
        }
        Ok(listed)
    }

    /// When releases of weights became the head: each with the sequence of the last record before it. Oldest first.
    pub async fn heads(&self, t: &TenantId, s: &ScenarioName) -> Result<Vec<(ReleaseId, i64)>, StoreError> {
        let mut conn = self.reader().await?;
        let sql = "SELECT release_id, after_sequence FROM releases \
                   WHERE tenant = $1 AND scenario = $2 AND surface = 'weights' AND after_sequence IS NOT NULL \
                   ORDER BY position";
        let rows = sql::query(sql).bind(t.as_str()).bind(s.as_str()).fetch_all(&mut conn).await;
        let rows: Vec<(String, i64)> = self.told(rows)?;
        let read = |(id, after)| Ok((ReleaseId::parse(id).map_err(|e| damaged("release id", e))?, after));
        self.told(rows.into_iter().map(read).collect())
    }

    /// Refuses a held candidate for ever. Refusing it again is no error.
    pub async fn reject_held(&self, t: &TenantId, s: &ScenarioName, id: &ReleaseId) -> Result<(), StoreError> {
        let (key, id) = (Key::of(t, s), id.clone());
        self.write(0, move |conn| Box::pin(reject(conn, key, id))).await
    }
}

pub(crate) async fn append(
    conn: &mut Connection,
    key: Key,
    row: ReleaseRow,
    expected: Option<ReleaseId>,
) -> Result<(), Fault> {
    let id = &row.release.release_id;
    if let Some(known) = select_release(conn, &key, id).await? {
        let again = known.status == ReleaseStatus::Served && known.release == row.release;
        return if again { Ok(()) } else { Err(conflict(format!("release {id} exists already in this scenario"))) };
    }
    advance(conn, &key, &row, expected.as_ref()).await?;
    if let ReleaseOrigin::Acceptance { of } = &row.release.manifest.origin {
        accept(conn, &key, of, expected.as_ref()).await?;
    }
    if let ReleaseOrigin::Promotion { step } = row.release.manifest.origin {
        // The candidate has been decided upon: it must not be promoted or rejected again.
        let sql = "UPDATE releases SET status = 'chain' \
                   WHERE tenant = $1 AND scenario = $2 AND status = 'held' AND step = $3";
        let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(step);
        if query.execute(&mut *conn).await? == 0 {
            return Err(conflict(format!(
                "no candidate of step {step} is held; roll back to a release that was served"
            )));
        }
    }
    Ok(())
}

/// Takes a held proposal, which must have been made to what was the head until now.
async fn accept(conn: &mut Connection, key: &Key, of: &ReleaseId, head: Option<&ReleaseId>) -> Result<(), Fault> {
    let held = select_release(conn, key, of).await?.filter(|listed| listed.status == ReleaseStatus::Held);
    let Some(held) = held else {
        return Err(conflict(format!("release {of} does not wait any more; roll back to a release that was served")));
    };
    if held.release.manifest.parent.as_ref() != head {
        return Err(conflict(format!(
            "release {of} changes another release than the head that is served now; propose its change again"
        )));
    }
    let sql = "UPDATE releases SET status = 'chain' WHERE tenant = $1 AND scenario = $2 AND release_id = $3";
    sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(of.as_str()).execute(conn).await?;
    Ok(())
}

/// Writes a release and moves the head of its surface to it from `expected`.
pub(crate) async fn advance(
    conn: &mut Connection,
    key: &Key,
    row: &ReleaseRow,
    expected: Option<&ReleaseId>,
) -> Result<(), Fault> {
    let release = &row.release;
    require_head(conn, key, (release.manifest.surface, expected)).await?;
    // The first release of a scenario may be a copy of one of another.
    let fork = expected.is_none() && release.manifest.origin == ReleaseOrigin::Base;
    if release.manifest.parent.as_ref() != expected && !fork {
        let id = &release.release_id;
        return Err(invalid(format!("release {id} names another parent than the head that it replaces")));
    }
    insert(conn, key, row, "chain").await?;
    let sql = match release.manifest.surface {
        Surface::Harness => "UPDATE scenarios SET harness_head = $3 WHERE tenant = $1 AND name = $2",
        Surface::Router => "UPDATE scenarios SET router_head = $3 WHERE tenant = $1 AND name = $2",
        Surface::Weights => "UPDATE scenarios SET head = $3 WHERE tenant = $1 AND name = $2",
    };
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(release.release_id.as_str());
    query.execute(conn).await?;
    Ok(())
}

/// Refuses unless this is the head of the surface. Inside the one writer's transaction, checking and moving are one.
pub(crate) async fn require_head(
    conn: &mut Connection,
    key: &Key,
    (surface, expected): (Surface, Option<&ReleaseId>),
) -> Result<(), Fault> {
    let sql = match surface {
        Surface::Harness => "SELECT harness_head FROM scenarios WHERE tenant = $1 AND name = $2",
        Surface::Router => "SELECT router_head FROM scenarios WHERE tenant = $1 AND name = $2",
        Surface::Weights => "SELECT head FROM scenarios WHERE tenant = $1 AND name = $2",
    };
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario());
    let head: Option<Option<String>> = query.scalar_optional(conn).await?;
    let head = head.ok_or_else(|| key.unknown())?;
    if head.as_deref() == expected.map(ReleaseId::as_str) {
        return Ok(());
    }
    let actual = head.map(ReleaseId::parse).transpose().map_err(|e| damaged("head", e))?;
    let scenario = key.scenario_name().clone();
    Err(StoreError::HeadMoved { scenario, expected: expected.cloned(), actual }.into())
}

/// The surface of a release of the scenario.
pub(crate) async fn surface_of(conn: &mut Connection, key: &Key, id: &ReleaseId) -> Result<Option<Surface>, Fault> {
    Ok(select_release(conn, key, id).await?.map(|listed| listed.release.manifest.surface))
}

/// Writes a candidate that waits for a person; the head stays.
pub(crate) async fn hold(conn: &mut Connection, key: &Key, row: &ReleaseRow) -> Result<(), Fault> {
    insert(conn, key, row, "held").await
}

async fn insert(conn: &mut Connection, key: &Key, row: &ReleaseRow, status: &str) -> Result<(), Fault> {
    let sql = "INSERT INTO releases (tenant, scenario, release_id, position, status, step, metrics, body_bytes, body, \
                 surface, after_sequence) \
               SELECT $1, $2, $3, COALESCE(MAX(position), 0) + 1, $4, $5, $6, $7, $8, $9, \
                 CASE $4 WHEN 'chain' THEN \
                   (SELECT last_sequence FROM scenarios WHERE tenant = $1 AND name = $2) END \
               FROM releases WHERE tenant = $1 AND scenario = $2";
    let (id, manifest) = (&row.release.release_id, &row.release.manifest);
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(id.as_str()).bind(status);
    let query = query.bind(manifest.origin.step()).bind(row.metrics.as_str()).bind(row.body.raw_bytes);
    let query = query.bind(row.body.bytes.as_slice()).bind(manifest.surface.as_str());
    match query.execute(conn).await {
        Ok(_) => Ok(()),
        Err(fault) if fault.is_unique_violation() => {
            Err(conflict(format!("release {id} exists already in this scenario")))
        }
        Err(fault) => Err(fault),
    }
}

async fn reject(conn: &mut Connection, key: Key, id: ReleaseId) -> Result<(), Fault> {
    match select_release(conn, &key, &id).await?.map(|listed| listed.status) {
        None => Err(StoreError::UnknownRelease(id).into()),
        Some(ReleaseStatus::Rejected) => Ok(()),
        Some(ReleaseStatus::Served | ReleaseStatus::Retained) => {
            Err(conflict(format!("release {id} is not held; to leave it, roll back to another release")))
        }
        Some(ReleaseStatus::Held) => {
            let running = rollouts::select_running(conn, &key).await?;
            if running.is_some_and(|rollout| rollout.release == id) {
                let told = "answers a part of the traffic; stop that first, with DELETE …/rollout";
                return Err(conflict(format!("release {id} {told}")));
            }
            let sql = "UPDATE releases SET status = 'rejected' WHERE tenant = $1 AND scenario = $2 AND release_id = $3";
            let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(id.as_str());
            query.execute(conn).await?;
            Ok(())
        }
    }
}

/// Size and body, metrics, stored status, whether it is the head.
type Row = (i64, Vec<u8>, String, String, bool);

pub(crate) async fn select_release(
    conn: &mut Connection,
    key: &Key,
    id: &ReleaseId,
) -> Result<Option<ListedRelease>, Fault> {
    let sql = listed!("AND r.release_id = $3");
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(id.as_str());
    read_one(query.fetch_optional(conn).await?).await
}

async fn read_one(row: Option<Row>) -> Result<Option<ListedRelease>, Fault> {
    match row {
        Some(row) => Ok(Some(read(row).await?)),
        None => Ok(None),
    }
}

async fn read((raw_bytes, body, metrics, status, is_head): Row) -> Result<ListedRelease, Fault> {
    let mut release: Release = codec::unpack(body, raw_bytes, "release").await?;
    release.manifest.metrics = codec::metrics_from_text(&metrics)?;
    let status = match (status.as_str(), is_head) {
        ("chain", true) => ReleaseStatus::Served,
        ("chain", false) => ReleaseStatus::Retained,
        ("held", _) => ReleaseStatus::Held,
        ("rejected", _) => ReleaseStatus::Rejected,
        (other, _) => return Err(damaged("release status", other)),
    };
    Ok(ListedRelease { release, status })
}
