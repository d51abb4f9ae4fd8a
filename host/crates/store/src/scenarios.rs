//! Scenarios and their settings. The settings are stored as JSON, so that a restart finds the training
//! mode, the gate and the recipe's configuration as the operator left them.

use reef_core::{Gate, Release, ScenarioName, Surface, TenantId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Store;
use crate::codec::{from_text, to_text};
use crate::error::{Fault, StoreError, damaged, invalid};
use crate::key::Key;
use crate::releases::{self, ReleaseRow};
use crate::sql::{self, Connection};

/// Bytes of the settings as JSON.
const SETTINGS_BYTES_MAX: usize = 1 << 20;
/// Lag up to which samples are usable, unless a scenario says otherwise; 0 would throw nearly all away.
const MAX_STALENESS_DEFAULT: u32 = 4;

/// Who starts training.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainingMode {
    /// The learner, whenever the recipe finds a batch.
    #[default]
    Auto,
    /// People alone: recipes of the harness work on what they ask for, and on nothing else.
    Manual,
    /// Both; what `auto` does as well, under the protocol's name for it.
    Hybrid,
}

/// What an operator may set for one scenario.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ScenarioSettings {
    /// Who starts training.
    pub training_mode: TrainingMode,
    /// Largest lag of a usable sample, in releases.
    pub max_staleness: u32,
    /// Values for the keys of the recipe of the weights, or of the harness where nothing evolves the weights.
    pub recipe_config: Map<String, Value>,
    /// Values for the keys of a recipe that evolves the harness beside one of the weights.
    pub harness_config: Map<String, Value>,
    /// The rule for releasing a candidate; `None`: the server's default.
    pub gate: Option<Gate>,
}

impl Default for ScenarioSettings {
    fn default() -> Self {
        Self {
            training_mode: TrainingMode::Auto,
            max_staleness: MAX_STALENESS_DEFAULT,
            recipe_config: Map::new(),
            harness_config: Map::new(),
            gate: None,
        }
    }
}

impl ScenarioSettings {
    /// The values for the recipe of a surface; `beside_weights`: a recipe evolves the weights.
    pub fn recipe_values(&self, surface: Surface, beside_weights: bool) -> &Map<String, Value> {
        match surface {
            Surface::Harness if beside_weights => &self.harness_config,
            Surface::Weights | Surface::Harness | Surface::Router => &self.recipe_config,
        }
    }
}

/// One thing that learns.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// Owner.
    pub tenant: TenantId,
    /// Name.
    pub name: ScenarioName,
    /// Settings.
    pub settings: ScenarioSettings,
    /// Milliseconds since the Unix epoch.
    pub created_at_ms: i64,
}

/// Did `create_scenario` create it?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// Yes.
    New,
    /// It exists; its settings are as they were.
    Existing,
}

type Row = (String, String, String, i64);

impl Store {
    /// Creates a scenario; an existing one is left as it is.
    pub async fn create_scenario(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        settings: &ScenarioSettings,
        now_ms: i64,
    ) -> Result<Created, StoreError> {
        let (key, settings) = (Key::of(t, s), self.told(settings_text(settings))?);
        self.append(0, move |conn| Box::pin(insert(conn, key, settings, now_ms))).await
    }

    /// Creates a scenario that begins with a copy of a release of another one, both in one transaction. `HeadMoved` if
    /// it has a release already.
    pub async fn create_fork(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        settings: &ScenarioSettings,
        first: &Release,
    ) -> Result<(), StoreError> {
        let (key, settings) = (Key::of(t, s), self.told(settings_text(settings))?);
        let row = self.told(ReleaseRow::of(&key, first).await)?;
        self.write(row.size(), move |conn| Box::pin(insert_fork(conn, key, settings, row))).await
    }

    /// One scenario.
    pub async fn scenario(&self, t: &TenantId, s: &ScenarioName) -> Result<Option<Scenario>, StoreError> {
        let mut conn = self.reader().await?;
        let sql = "SELECT tenant, name, settings, created_at_ms FROM scenarios WHERE tenant = $1 AND name = $2";
        let query = sql::query(sql).bind(t.as_str()).bind(s.as_str());
        let row: Option<Row> = self.told(query.fetch_optional(&mut conn).await)?;
        self.told(row.map(read).transpose())
    }

    /// The scenarios of a tenant, by name.
    pub async fn scenarios(&self, t: &TenantId) -> Result<Vec<Scenario>, StoreError> {
        let mut conn = self.reader().await?;
        let sql = "SELECT tenant, name, settings, created_at_ms FROM scenarios WHERE tenant = $1 ORDER BY name";
        let rows = sql::query(sql).bind(t.as_str()).fetch_all(&mut conn).await;
        let rows: Vec<Row> = self.told(rows)?;
        self.told(rows.into_iter().map(read).collect())
    }

    /// Every scenario of every tenant; for the server's own start, never for a caller.
    pub async fn all_scenarios(&self) -> Result<Vec<Scenario>, StoreError> {
        let mut conn = self.reader().await?;
        let sql = "SELECT tenant, name, settings, created_at_ms FROM scenarios ORDER BY tenant, name";
        let rows: Vec<Row> = self.told(sql::query(sql).fetch_all(&mut conn).await)?;
        self.told(rows.into_iter().map(read).collect())
    }

    /// Replaces the settings.
    pub async fn update_scenario(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        settings: &ScenarioSettings,
    ) -> Result<(), StoreError> {
        let (key, settings) = (Key::of(t, s), self.told(settings_text(settings))?);
        self.append(0, move |conn| Box::pin(update(conn, key, settings))).await
    }
}

async fn insert(conn: &mut Connection, key: Key, settings: String, now_ms: i64) -> Result<Created, Fault> {
    let sql = "INSERT INTO scenarios (tenant, name, settings, created_at_ms) \
               VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(settings).bind(now_ms);
    let created = query.execute(conn).await? == 1;
    Ok(if created { Created::New } else { Created::Existing })
}

async fn insert_fork(conn: &mut Connection, key: Key, settings: String, row: ReleaseRow) -> Result<(), Fault> {
    insert(conn, key.clone(), settings, row.release.manifest.created_at_ms).await?;
    releases::append(conn, key, row, None).await
}

async fn update(conn: &mut Connection, key: Key, settings: String) -> Result<(), Fault> {
    let sql = "UPDATE scenarios SET settings = $3 WHERE tenant = $1 AND name = $2";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(settings);
    if query.execute(conn).await? == 1 { Ok(()) } else { Err(key.unknown()) }
}

fn settings_text(settings: &ScenarioSettings) -> Result<String, Fault> {
    let text = to_text(settings)?;
    if text.len() > SETTINGS_BYTES_MAX {
        let size = text.len();
        return Err(invalid(format!("the settings have {size} bytes; the limit is {SETTINGS_BYTES_MAX}")));
    }
    Ok(text)
}

fn read((tenant, name, settings, created_at_ms): Row) -> Result<Scenario, Fault> {
    Ok(Scenario {
        tenant: TenantId::parse(tenant).map_err(|e| damaged("scenario row", e))?,
        name: ScenarioName::parse(name).map_err(|e| damaged("scenario row", e))?,
        settings: from_text(&settings, "settings")?,
        created_at_ms,
    })
}
