//! What a recipe is known for in a scenario: its faults and pauses, as the sandbox counts them.
//! The learner writes the record when it changes and reads it when it starts, so that a restart forgives nothing.

use reef_core::{ScenarioName, TenantId};
use serde_json::Value;

use crate::Store;
use crate::codec::{from_text, to_text};
use crate::error::{Fault, StoreError, invalid};
use crate::key::Key;
use crate::sql::{self, Connection};

/// Bytes of a record as JSON.
const RECORD_BYTES_MAX: usize = 64 << 10;

impl Store {
    /// The record of a recipe, which its label names; none = it is clean.
    pub async fn quarantine(&self, t: &TenantId, s: &ScenarioName, label: &str) -> Result<Option<Value>, StoreError> {
        let mut conn = self.reader().await?;
        let sql = "SELECT record FROM quarantine WHERE tenant = $1 AND scenario = $2 AND recipe = $3";
        let query = sql::query(sql).bind(t.as_str()).bind(s.as_str()).bind(label);
        let text: Option<String> = self.told(query.scalar_optional(&mut conn).await)?;
        self.told(text.map(|text| from_text(&text, "quarantine record")).transpose())
    }

    /// Replaces the record of a recipe; `None` makes it clean.
    pub async fn set_quarantine(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        label: &str,
        record: Option<&Value>,
    ) -> Result<(), StoreError> {
        let text = self.told(record.map(to_text).transpose())?;
        if text.as_ref().is_some_and(|text| text.len() > RECORD_BYTES_MAX) {
            return self
                .told(Err(invalid(format!("the quarantine record of {label} is over {RECORD_BYTES_MAX} bytes"))));
        }
        let (key, label) = (Key::of(t, s), label.to_owned());
        self.append(0, move |conn| Box::pin(write(conn, key, label, text))).await
    }
}

async fn write(conn: &mut Connection, key: Key, label: String, text: Option<String>) -> Result<(), Fault> {
    const SET: &str = "INSERT INTO quarantine (tenant, scenario, recipe, record) \
                       SELECT tenant, name, $3, $4 FROM scenarios WHERE tenant = $1 AND name = $2 \
                       ON CONFLICT (tenant, scenario, recipe) DO UPDATE SET record = excluded.record";
    const CLEAR: &str = "DELETE FROM quarantine WHERE tenant = $1 AND scenario = $2 AND recipe = $3";
    let sql = if text.is_some() { SET } else { CLEAR };
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(label);
    let Some(text) = text else {
        query.execute(conn).await?;
        return Ok(());
    };
    if query.bind(text).execute(conn).await? == 0 {
        return Err(key.unknown());
    }
    Ok(())
}
