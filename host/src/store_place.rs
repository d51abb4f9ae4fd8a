//! Where the log of records, steps and releases is: a SQLite file in the data folder, or a Postgres database.
//! The server opens it to write, commands that only look beside it.

use std::path::Path;

use reef_store::Store;
use serde::{Deserialize, Serialize};

use crate::error::StartError;

/// The section `store` of the configuration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreSection {
    /// Name of an environment variable with `postgres://user:password@host:5432/database`; none = SQLite in the data
    /// folder.
    pub postgres_env: Option<String>,
}

impl StoreSection {
    /// Opens it to write.
    pub async fn open(&self, data: &Path) -> Result<Store, StartError> {
        match &self.postgres_env {
            Some(variable) => Ok(Store::connect(&url(variable)?).await?),
            None => Ok(Store::open(&data.join("reef.db")).await?),
        }
    }

    /// Opens it to read, whether or not the server runs. Without a configuration a folder that holds no database is of a
    /// server on Postgres.
    pub async fn open_read_only(&self, data: &Path) -> Result<Store, StartError> {
        if let Some(variable) = &self.postgres_env {
            return Ok(Store::connect_read_only(&url(variable)?).await?);
        }
        let database = data.join("reef.db");
        if database.is_file() {
            return Ok(Store::open_read_only(&database).await?);
        }
        match std::env::var(URL_VARIABLE).ok().filter(|url| !url.is_empty()) {
            Some(url) => Ok(Store::connect_read_only(&url).await?),
            None => Err(StartError::Data(format!(
                "{} holds no reef.db; name a server's folder with --data or --config, or its Postgres database in {URL_VARIABLE}",
                data.display()
            ))),
        }
    }
}

/// The variable that names the Postgres database to commands that only read and are given no configuration.
const URL_VARIABLE: &str = "REEF_STORE_URL";

fn url(variable: &str) -> Result<String, StartError> {
    std::env::var(variable).ok().filter(|url| !url.is_empty()).ok_or_else(|| {
        StartError::Config(format!(
            "store.postgres_env names the variable {variable}, which is not set; set it to postgres://user:password@host:5432/database or remove the key"
        ))
    })
}
