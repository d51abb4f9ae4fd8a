//! The components that a server has loaded, so that a step of long ago finds the code that it ran.
//! Their bytes lie in the data folder under their digest; the rows say what they are and since when.

use serde::{Deserialize, Serialize};

use crate::Store;
use crate::error::{Fault, StoreError};
use crate::sql::{self, Connection};

/// Components of one listing.
const RECIPES_LISTED_MAX: u32 = 1_000;

/// A component whose bytes are kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptRecipe {
    /// SHA-256 of the component, 64 hex digits.
    pub digest: String,
    /// The recipe's name.
    pub name: String,
    /// The recipe's version.
    pub version: String,
    /// Generation of the interface that it was built for.
    pub generation: String,
    /// Bytes of the component.
    pub bytes: i64,
    /// When it was loaded first, milliseconds since the Unix epoch.
    pub first_loaded_ms: i64,
}

type Row = (String, String, String, String, i64, i64);

impl Store {
    /// Notes a component; one that is known keeps its first row.
    pub async fn keep_recipe(&self, recipe: KeptRecipe) -> Result<(), StoreError> {
        self.append(0, move |conn| Box::pin(insert(conn, recipe))).await
    }

    /// Components, latest first; at most 1,000.
    pub async fn kept_recipes(&self) -> Result<Vec<KeptRecipe>, StoreError> {
        let mut conn = self.reader().await?;
        let sql = "SELECT digest, name, version, generation, bytes, first_loaded_ms FROM recipes \
                   ORDER BY first_loaded_ms DESC, digest LIMIT $1";
        let rows = sql::query(sql).bind(RECIPES_LISTED_MAX).fetch_all(&mut conn).await;
        let rows: Vec<Row> = self.told(rows)?;
        Ok(rows.into_iter().map(read).collect())
    }
}

async fn insert(conn: &mut Connection, recipe: KeptRecipe) -> Result<(), Fault> {
    let sql = "INSERT INTO recipes (digest, name, version, generation, bytes, first_loaded_ms) \
               VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING";
    let query = sql::query(sql).bind(recipe.digest).bind(recipe.name).bind(recipe.version).bind(recipe.generation);
    query.bind(recipe.bytes).bind(recipe.first_loaded_ms).execute(conn).await?;
    Ok(())
}

fn read((digest, name, version, generation, bytes, first_loaded_ms): Row) -> KeptRecipe {
    KeptRecipe { digest, name, version, generation, bytes, first_loaded_ms }
}
