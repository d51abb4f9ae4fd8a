//! Key-value state of a recipe in a scenario. What a step writes is written together with it (`steps.rs`), so that a
//! recipe never remembers a step that did not happen; what a recipe learns from live exchanges is written by itself.

use std::collections::BTreeMap;

use reef_core::{ScenarioName, TenantId};

use crate::Store;
use crate::error::{Fault, StoreError, invalid};
use crate::key::Key;
use crate::sql::{self, Connection};

/// Bytes of a key (interface `state`).
const KEY_BYTES_MAX: usize = 256;
/// Bytes of a value (interface `state`).
const VALUE_BYTES_MAX: usize = 64 << 10;
/// Keys that one call of a recipe may change (interface `state`).
const CALL_WRITES_MAX: usize = 10_000;
/// Keys of the host's own that are written beside them: where the recipe is in the log, its label, its critic.
const HOST_WRITES_MAX: usize = 16;
/// Keys that one step may write: what its two calls, the proposal and its evaluation, change at most has room.
const WRITES_MAX: usize = 2 * CALL_WRITES_MAX + HOST_WRITES_MAX;
/// Bytes of a recipe's name.
const RECIPE_BYTES_MAX: usize = 128;

/// Writes of one step: `None` deletes the key.
pub(crate) type StateWrites = Vec<(String, Option<Vec<u8>>)>;

impl Store {
    /// All state of the recipe with this name (without version) in this scenario.
    pub async fn recipe_state(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        recipe: &str,
    ) -> Result<BTreeMap<String, Vec<u8>>, StoreError> {
        let mut conn = self.reader().await?;
        let sql = "SELECT key, value FROM recipe_state WHERE tenant = $1 AND scenario = $2 AND recipe = $3";
        let query = sql::query(sql).bind(t.as_str()).bind(s.as_str()).bind(recipe);
        let rows: Vec<(String, Vec<u8>)> = self.told(query.fetch_all(&mut conn).await)?;
        Ok(rows.into_iter().collect())
    }
}

impl Store {
    /// Writes state outside of a step: all of it or none.
    pub async fn write_recipe_state(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        recipe: &str,
        writes: Vec<(String, Option<Vec<u8>>)>,
    ) -> Result<(), StoreError> {
        self.told(check(recipe, &writes))?;
        let (key, recipe) = (Key::of(t, s), recipe.to_owned());
        self.write(size(&writes), move |conn| Box::pin(async move { apply(conn, &key, &recipe, writes).await })).await
    }
}

/// Refuses writes over the limits of the interface.
pub(crate) fn check(recipe: &str, writes: &StateWrites) -> Result<(), Fault> {
    if writes.len() > WRITES_MAX {
        return Err(invalid(format!("{} state writes in one step; the limit is {WRITES_MAX}", writes.len())));
    }
    if !writes.is_empty() && (recipe.is_empty() || recipe.len() > RECIPE_BYTES_MAX) {
        return Err(invalid(format!("the recipe's name has {} bytes; use 1 to {RECIPE_BYTES_MAX}", recipe.len())));
    }
    for (key, value) in writes {
        let bytes = value.as_ref().map_or(0, Vec::len);
        if key.is_empty() || key.len() > KEY_BYTES_MAX || bytes > VALUE_BYTES_MAX {
            let limits = format!("keys have 1 to {KEY_BYTES_MAX} bytes and values at most {VALUE_BYTES_MAX}");
            return Err(invalid(format!("state key of {} bytes with a value of {bytes}: {limits}", key.len())));
        }
    }
    Ok(())
}

/// Bytes of the writes.
pub(crate) fn size(writes: &StateWrites) -> usize {
    writes.iter().map(|(key, value)| key.len() + value.as_ref().map_or(0, Vec::len)).sum()
}

/// Applies the writes inside the step's transaction.
pub(crate) async fn apply(conn: &mut Connection, key: &Key, recipe: &str, writes: StateWrites) -> Result<(), Fault> {
    const SET: &str = "INSERT INTO recipe_state (tenant, scenario, recipe, key, value) VALUES ($1, $2, $3, $4, $5) \
                       ON CONFLICT (tenant, scenario, recipe, key) DO UPDATE SET value = excluded.value";
    const DELETE: &str = "DELETE FROM recipe_state WHERE tenant = $1 AND scenario = $2 AND recipe = $3 AND key = $4";
    for (name, value) in writes {
        let sql = if value.is_some() { SET } else { DELETE };
        let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(recipe).bind(name);
        let query = match value {
            Some(value) => query.bind(value),
            None => query,
        };
        query.execute(&mut *conn).await?;
    }
    Ok(())
}
