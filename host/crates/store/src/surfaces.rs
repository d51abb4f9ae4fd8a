//! On which surfaces a scenario learns. A report becomes a sample of each, so that one uses it whatever the others did
//! with it. The learner says it when it finds which recipes there are; a surface that comes anew finds what was reported
//! before, and one that goes leaves nothing behind that would wait for ever.

use reef_core::{ScenarioName, Surface, TenantId};

use crate::Store;
use crate::error::{Fault, StoreError, damaged, invalid};
use crate::key::Key;
use crate::sql::{self, Connection};

impl Store {
    /// The surfaces on which reports become samples; those of weights in a new scenario.
    pub async fn surfaces(&self, t: &TenantId, s: &ScenarioName) -> Result<Vec<Surface>, StoreError> {
        let mut conn = self.reader().await?;
        self.told(select(&mut conn, &Key::of(t, s)).await)
    }

    /// Learns on these surfaces from now on, at least one. What was reported before is pending on those that are new,
    /// and no longer on those that go; what was used or set aside stays so.
    pub async fn learn_on(&self, t: &TenantId, s: &ScenarioName, surfaces: &[Surface]) -> Result<(), StoreError> {
        let mut wanted = surfaces.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        if wanted.is_empty() {
            return self.told(Err(invalid("a scenario learns on at least one surface".to_owned())));
        }
        if self.surfaces(t, s).await? == wanted {
            return Ok(());
        }
        let key = Key::of(t, s);
        self.write(0, move |conn| Box::pin(change(conn, key, wanted))).await
    }
}

/// The surfaces on which reports become samples.
pub(crate) async fn select(conn: &mut Connection, key: &Key) -> Result<Vec<Surface>, Fault> {
    let sql = "SELECT learns FROM scenarios WHERE tenant = $1 AND name = $2";
    let found: Option<String> = sql::query(sql).bind(key.tenant()).bind(key.scenario()).scalar_optional(conn).await?;
    read_surfaces(&found.ok_or_else(|| key.unknown())?)
}

async fn change(conn: &mut Connection, key: Key, wanted: Vec<Surface>) -> Result<(), Fault> {
    let names: Vec<&str> = wanted.iter().map(|surface| surface.as_str()).collect();
    let sql = "UPDATE scenarios SET learns = $3 WHERE tenant = $1 AND name = $2";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(names.join(","));
    query.execute(&mut *conn).await?;
    for surface in &wanted {
        begin(conn, &key, *surface).await?;
    }
    for surface in Surface::ALL.into_iter().filter(|surface| !wanted.contains(surface)) {
        end(conn, &key, surface).await?;
    }
    Ok(())
}

/// Every report that the surface does not know becomes a sample of it, from what another says of it.
async fn begin(conn: &mut Connection, key: &Key, surface: Surface) -> Result<(), Fault> {
    let sql = "INSERT INTO samples (tenant, scenario, report, surface, sequence, state, reason, retired_at_ms, amended_by, \
                 score, metadata, content) \
               SELECT known.tenant, known.scenario, known.report, $3, known.sequence, \
                 CASE WHEN known.amended_by IS NULL AND back.report IS NULL THEN 'pending' ELSE 'retired' END, \
                 CASE WHEN known.amended_by IS NOT NULL THEN 'amended by report: ' || known.amended_by \
                   WHEN back.report IS NOT NULL THEN 'retracted' END, \
                 CASE WHEN known.amended_by IS NOT NULL OR back.report IS NOT NULL \
                   THEN COALESCE(known.retired_at_ms, back.at_ms, 0) END, \
                 known.amended_by, known.score, known.metadata, known.content \
               FROM samples AS known LEFT JOIN retractions AS back ON back.tenant = known.tenant \
                 AND back.scenario = known.scenario AND back.report = known.report \
               WHERE known.tenant = $1 AND known.scenario = $2 AND known.surface = ( \
                   SELECT MIN(one.surface) FROM samples AS one WHERE one.tenant = $1 AND one.scenario = $2 \
                     AND one.report = known.report) \
                 AND NOT EXISTS (SELECT 1 FROM samples AS mine WHERE mine.tenant = $1 AND mine.scenario = $2 \
                   AND mine.report = known.report AND mine.surface = $3)";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(surface.as_str());
    query.execute(conn).await?;
    Ok(())
}

/// What waits on a surface that does not learn keeps its records from being dropped, and nobody comes for it.
pub(crate) async fn end(conn: &mut Connection, key: &Key, surface: Surface) -> Result<(), Fault> {
    let sql = "DELETE FROM samples WHERE tenant = $1 AND scenario = $2 AND surface = $3 AND state = 'pending' AND EXISTS ( \
                 SELECT 1 FROM samples AS other WHERE other.tenant = $1 AND other.scenario = $2 \
                   AND other.report = samples.report AND other.surface <> $3)";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(surface.as_str());
    query.execute(conn).await?;
    Ok(())
}

/// Reads a column that names one surface.
pub(crate) fn surface_named(name: &str) -> Result<Surface, Fault> {
    let found = Surface::ALL.into_iter().find(|surface| surface.as_str() == name);
    found.ok_or_else(|| damaged("surface", name))
}

/// Reads a column that names several.
pub(crate) fn read_surfaces(names: &str) -> Result<Vec<Surface>, Fault> {
    names.split(',').map(surface_named).collect()
}
