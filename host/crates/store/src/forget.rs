//! A whole scenario taken out of the database: records, reports, samples, steps, releases, state and settings, in one
//! transaction, and then every byte of them from the disk as with erased records. Its name is free afterwards.

use reef_core::{ScenarioName, TenantId};

use crate::Store;
use crate::error::{Fault, StoreError};
use crate::key::Key;
use crate::scrub::mark;
use crate::sql::{self, Connection};

/// Every table in which a scenario has rows, in an order in which nothing is named any more when it goes.
const DELETES: [&str; 17] = [
    "DELETE FROM step_inputs WHERE tenant = $1 AND scenario = $2",
    "DELETE FROM steps WHERE tenant = $1 AND scenario = $2",
    "DELETE FROM proposals WHERE tenant = $1 AND scenario = $2",
    "DELETE FROM refused_proposals WHERE tenant = $1 AND scenario = $2",
    "DELETE FROM releases WHERE tenant = $1 AND scenario = $2",
    "DELETE FROM record_tags WHERE tenant = $1 AND scenario = $2",
    "DELETE FROM sample_records WHERE tenant = $1 AND scenario = $2",
    "DELETE FROM samples WHERE tenant = $1 AND scenario = $2",
    "DELETE FROM retractions WHERE tenant = $1 AND scenario = $2",
    "DELETE FROM tombstones WHERE tenant = $1 AND scenario = $2",
    "DELETE FROM records WHERE tenant = $1 AND scenario = $2",
    "DELETE FROM recipe_state WHERE tenant = $1 AND scenario = $2",
    "DELETE FROM held_out WHERE tenant = $1 AND scenario = $2",
    "DELETE FROM quarantine WHERE tenant = $1 AND scenario = $2",
    "DELETE FROM recipe_uses WHERE tenant = $1 AND scenario = $2",
    "DELETE FROM rollouts WHERE tenant = $1 AND scenario = $2",
    "DELETE FROM scenarios WHERE tenant = $1 AND name = $2",
];

impl Store {
    /// Forgets a scenario; `UnknownScenario` if there is none. The caller sees to it that nobody works in it. Takes as long
    /// as writing the database anew; what kept that from being done is told, and the next erasure does it.
    pub async fn forget_scenario(&self, t: &TenantId, s: &ScenarioName) -> Result<Option<StoreError>, StoreError> {
        let key = Key::of(t, s);
        self.write(0, move |conn| Box::pin(forget(conn, key))).await?;
        Ok(self.scrub().await.err())
    }
}

async fn forget(conn: &mut Connection, key: Key) -> Result<(), Fault> {
    let mut deleted = 0;
    for sql in DELETES {
        deleted = sql::query(sql).bind(key.tenant()).bind(key.scenario()).execute(&mut *conn).await?;
    }
    if deleted == 0 { Err(key.unknown()) } else { mark(conn).await }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::DELETES;

    /// The tables that the migrations of a database make, and whose rows are a scenario's.
    fn tables(database: &str) -> BTreeSet<String> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations").join(database);
        let files = std::fs::read_dir(folder).expect("migrations");
        let texts = files.map(|file| std::fs::read_to_string(file.expect("file").path()).expect("text"));
        let text = texts.collect::<String>();
        let made = text.split("CREATE TABLE ").skip(1).filter_map(|rest| rest.split_once('('));
        let of_scenarios = made.filter(|(name, columns)| {
            name.trim() == "scenarios"
                || columns.split(");").next().is_some_and(|columns| columns.contains("scenario "))
        });
        // A table that is made anew takes its old name at the end of its migration.
        of_scenarios.map(|(name, _)| name.trim().trim_end_matches("_anew").to_owned()).collect()
    }

    #[test]
    fn every_table_of_scenarios_is_emptied() {
        let emptied: BTreeSet<String> =
            DELETES.iter().filter_map(|sql| sql.split(' ').nth(2)).map(str::to_owned).collect();
        for database in ["sqlite", "postgres"] {
            assert_eq!(emptied, tables(database), "{database}");
        }
    }
}
