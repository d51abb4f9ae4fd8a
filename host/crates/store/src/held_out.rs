//! Held-out tasks of a scenario: they measure and never train, so they live in a table of their own
//! that no query for samples touches.

use reef_core::{HeldOutTask, ScenarioName, TenantId};

use crate::Store;
use crate::codec::{from_text, to_text};
use crate::error::{Fault, StoreError, invalid};
use crate::key::Key;
use crate::sql::{self, Connection};

/// Tasks of one scenario; each costs two generations per evaluation.
const TASKS_MAX: usize = 10_000;
/// Bytes of all tasks as JSON.
const TASKS_BYTES_MAX: usize = 64 << 20;

impl Store {
    /// Replaces the held-out tasks as a whole.
    pub async fn set_held_out(&self, t: &TenantId, s: &ScenarioName, tasks: &[HeldOutTask]) -> Result<(), StoreError> {
        let key = Key::of(t, s);
        let texts = self.told(tasks.iter().map(to_text).collect::<Result<Vec<_>, _>>())?;
        let bytes = texts.iter().map(String::len).sum::<usize>();
        if texts.len() > TASKS_MAX || bytes > TASKS_BYTES_MAX {
            let refusal = format!(
                "{} held-out tasks of {bytes} bytes are too many; the limits are {TASKS_MAX} and {TASKS_BYTES_MAX}",
                texts.len()
            );
            return self.told(Err(invalid(refusal)));
        }
        // A list of texts: each element is one task, still as text.
        let list = self.told(to_text(&texts))?;
        self.write(list.len(), move |conn| Box::pin(replace(conn, key, list))).await
    }

    /// The held-out tasks, in the order in which they were set.
    pub async fn held_out(&self, t: &TenantId, s: &ScenarioName) -> Result<Vec<HeldOutTask>, StoreError> {
        let mut conn = self.reader().await?;
        let sql = "SELECT task FROM held_out WHERE tenant = $1 AND scenario = $2 ORDER BY position";
        let rows = sql::query(sql).bind(t.as_str()).bind(s.as_str()).scalars(&mut conn).await;
        let rows: Vec<String> = self.told(rows)?;
        self.told(rows.iter().map(|text| from_text(text, "held-out task")).collect())
    }
}

async fn replace(conn: &mut Connection, key: Key, list: String) -> Result<(), Fault> {
    let known = "SELECT name FROM scenarios WHERE tenant = $1 AND name = $2";
    let query = sql::query(known).bind(key.tenant()).bind(key.scenario());
    if query.scalar_optional::<String>(&mut *conn).await?.is_none() {
        return Err(key.unknown());
    }
    let sql = "DELETE FROM held_out WHERE tenant = $1 AND scenario = $2";
    sql::query(sql).bind(key.tenant()).bind(key.scenario()).execute(&mut *conn).await?;
    let sql = "INSERT INTO held_out (tenant, scenario, position, task) SELECT $1, $2, key, value FROM json_each($3)";
    sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(list).execute(&mut *conn).await?;
    Ok(())
}
