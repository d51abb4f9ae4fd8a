//! Rollouts of a scenario: which release is pinned, tried on a share of the traffic or shadowed, and how that ended.
//! At most one runs. The scores of its arms are found by the tags that serving gave its records, so that a rollout
//! survives a restart with everything it has measured.

use reef_core::{Arm, ArmScore, ReleaseId, Rollout, RolloutEnd, RolloutPlan, ScenarioName, Surface, TenantId};

use crate::Store;
use crate::codec::{from_text, number, to_text};
use crate::entry::indexed;
use crate::error::{Fault, StoreError, conflict, invalid};
use crate::key::Key;
use crate::releases::{ReleaseStatus, select_release};
use crate::sql::{self, Connection};

/// Tag of a record of a rollout: its number, release and arm, as `arm_tag` writes them.
pub const ROLLOUT_TAG: &str = "rollout";
/// Tag of the unit that the record belongs to.
pub const ROLLOUT_UNIT_TAG: &str = "rollout-unit";
/// Rollouts of one listing.
const LISTED_MAX: u32 = 10_000;
/// Units of one arm whose scores are read.
const UNITS_MAX: u32 = 200_000;

/// The value of `ROLLOUT_TAG`. With the release, because a record that is imported may be of another server's rollout with
/// the same number.
pub fn arm_tag(rollout: &Rollout, arm: Arm) -> String {
    let arm = match arm {
        Arm::Candidate => "candidate",
        Arm::Incumbent => "incumbent",
    };
    format!("{}:{arm}:{}", rollout.number, rollout.release)
}

impl Store {
    /// Begins a rollout. `Conflict` while another runs, or where the release does not stand as its plan needs it: a pin
    /// is of the head, a canary or shadow of any other release that was not refused.
    pub async fn begin_rollout(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        (release, plan): (&ReleaseId, &RolloutPlan),
        now_ms: i64,
    ) -> Result<Rollout, StoreError> {
        self.told(plan.check().map_err(invalid))?;
        let key = Key::of(t, s);
        let rollout =
            Rollout { number: 0, release: release.clone(), plan: plan.clone(), started_at_ms: now_ms, end: None };
        self.write(0, move |conn| Box::pin(begin(conn, key, rollout))).await
    }

    /// Ends the running rollout of this number; another number, or none that runs, is a `Conflict`.
    pub async fn end_rollout(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        number: u32,
        end: &RolloutEnd,
    ) -> Result<Rollout, StoreError> {
        let (key, end) = (Key::of(t, s), end.clone());
        self.write(0, move |conn| Box::pin(finish(conn, key, number, end))).await
    }

    /// The rollout that runs.
    pub async fn running_rollout(&self, t: &TenantId, s: &ScenarioName) -> Result<Option<Rollout>, StoreError> {
        let mut conn = self.reader().await?;
        self.told(select_running(&mut conn, &Key::of(t, s)).await)
    }

    /// Rollouts, newest first; the latest 10,000.
    pub async fn rollouts(&self, t: &TenantId, s: &ScenarioName) -> Result<Vec<Rollout>, StoreError> {
        let mut conn = self.reader().await?;
        let sql = "SELECT body FROM rollouts WHERE tenant = $1 AND scenario = $2 ORDER BY number DESC LIMIT $3";
        let query = sql::query(sql).bind(t.as_str()).bind(s.as_str()).bind(LISTED_MAX);
        let rows: Vec<(String,)> = self.told(query.fetch_all(&mut conn).await)?;
        self.told(rows.into_iter().map(|(body,)| from_text(&body, "rollout")).collect())
    }

    /// The first score of each unit of an arm, in the order in which the reports came: of at most 200,000 units. Later
    /// scores of a unit say little that is new and must not count it twice. Reports that were amended or taken back do not
    /// count.
    pub async fn arm_scores(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        (rollout, arm): (&Rollout, Arm),
    ) -> Result<Vec<(String, ArmScore)>, StoreError> {
        let mut conn = self.reader().await?;
        let query = sql::query(SCORES).bind(t.as_str()).bind(s.as_str()).bind(ROLLOUT_TAG);
        let query = query.bind(indexed(&arm_tag(rollout, arm))).bind(ROLLOUT_UNIT_TAG).bind(UNITS_MAX);
        let rows: Vec<(String, f64, i64)> = self.told(query.fetch_all(&mut conn).await)?;
        Ok(rows.into_iter().map(|(unit, score, at)| (unit, ArmScore { at, score })).collect())
    }
}

pub(crate) const SCORES: &str = "SELECT unit, score, sequence FROM ( \
      SELECT unit.value AS unit, graded.score AS score, graded.sequence AS sequence, \
        ROW_NUMBER() OVER (PARTITION BY unit.value ORDER BY graded.sequence) AS nth \
      FROM record_tags AS arm \
      JOIN record_tags AS unit ON unit.tenant = arm.tenant AND unit.scenario = arm.scenario \
        AND unit.sequence = arm.sequence AND unit.tag = $5 \
      JOIN records AS r ON r.tenant = arm.tenant AND r.scenario = arm.scenario AND r.sequence = arm.sequence \
      JOIN sample_records AS named ON named.tenant = r.tenant AND named.scenario = r.scenario \
        AND named.record = r.id \
      JOIN samples AS graded ON graded.tenant = named.tenant AND graded.scenario = named.scenario \
        AND graded.report = named.report AND graded.surface = ( \
          SELECT MIN(one.surface) FROM samples AS one WHERE one.tenant = named.tenant \
            AND one.scenario = named.scenario AND one.report = named.report) \
      WHERE arm.tenant = $1 AND arm.scenario = $2 AND arm.tag = $3 AND arm.value = $4 \
        AND graded.score IS NOT NULL AND graded.amended_by IS NULL AND NOT EXISTS ( \
          SELECT 1 FROM retractions AS back WHERE back.tenant = graded.tenant \
            AND back.scenario = graded.scenario AND back.report = graded.report)) AS scored \
    WHERE nth = 1 ORDER BY sequence LIMIT $6";

async fn begin(conn: &mut Connection, key: Key, mut rollout: Rollout) -> Result<Rollout, Fault> {
    if let Some(running) = select_running(conn, &key).await? {
        let Rollout { number, plan, release, .. } = running;
        return Err(conflict(format!("rollout {number}, a {plan} of release {release}, runs; stop it first")));
    }
    let (id, plan) = (&rollout.release, &rollout.plan);
    let found = select_release(conn, &key, id).await?;
    if found.as_ref().is_some_and(|listed| listed.release.manifest.surface != Surface::Weights) {
        return Err(conflict(format!("release {id} is no release of weights; a {plan} needs one")));
    }
    let status = found.map(|listed| listed.status);
    match (status, plan.answers()) {
        (None, _) => return Err(StoreError::UnknownRelease(id.clone()).into()),
        (Some(ReleaseStatus::Rejected), _) => return Err(conflict(format!("release {id} was rejected"))),
        (Some(ReleaseStatus::Served), true) => {
            return Err(conflict(format!("release {id} is the head; a {plan} needs another release")));
        }
        (Some(ReleaseStatus::Held | ReleaseStatus::Retained), false) => {
            return Err(conflict(format!("release {id} is not the head; roll back to it first")));
        }
        (Some(ReleaseStatus::Served), false) | (Some(ReleaseStatus::Held | ReleaseStatus::Retained), true) => {}
    }
    let sql = "SELECT COALESCE(MAX(number), 0) FROM rollouts WHERE tenant = $1 AND scenario = $2";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario());
    let last: Option<i64> = query.scalar_optional(conn).await?;
    rollout.number = number(last.unwrap_or_default().saturating_add(1), "rollout number")?;
    let sql = "INSERT INTO rollouts (tenant, scenario, number, running, body) VALUES ($1, $2, $3, 1, $4)";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(rollout.number);
    query.bind(to_text(&rollout)?).execute(conn).await?;
    Ok(rollout)
}

pub(crate) async fn finish(conn: &mut Connection, key: Key, number: u32, end: RolloutEnd) -> Result<Rollout, Fault> {
    let running = select_running(conn, &key).await?.filter(|running| running.number == number);
    let Some(running) = running else { return Err(conflict(format!("rollout {number} does not run"))) };
    let ended = Rollout { end: Some(end), ..running };
    let sql = "UPDATE rollouts SET running = 0, body = $4 WHERE tenant = $1 AND scenario = $2 AND number = $3";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(number);
    query.bind(to_text(&ended)?).execute(conn).await?;
    Ok(ended)
}

pub(crate) async fn select_running(conn: &mut Connection, key: &Key) -> Result<Option<Rollout>, Fault> {
    let sql = "SELECT body FROM rollouts WHERE tenant = $1 AND scenario = $2 AND running = 1";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario());
    let body: Option<String> = query.scalar_optional(conn).await?;
    body.map(|body| from_text(&body, "rollout")).transpose()
}
