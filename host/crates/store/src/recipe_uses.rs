//! Which recipe a scenario uses on each surface, since when and why. Exchanging one is a single transaction: the row, the state of
//! the new recipe and a copy of the state that it replaces, so that going back restores code and state together.
//! It is refused while a step runs, because that step would write the state of the recipe it began with.

use std::collections::BTreeMap;

use reef_core::{ScenarioName, Surface, TenantId};
use serde::{Deserialize, Serialize};

use crate::Store;
use crate::codec::{self, Body, number};
use crate::error::{Fault, StoreError, conflict, damaged, invalid};
use crate::key::Key;
use crate::sql::{self, Connection};
use crate::state;
use crate::surfaces::surface_named;

/// Key of the state that names the recipe which wrote it last: `name@version#sha256:…`. Written by every exchange,
/// and by every step that is committed.
pub const STATE_WRITER_KEY: &str = "reef.recipe";
/// Keys that belong to the host; a recipe's exchange leaves them alone.
const HOST_PREFIX: &str = "reef.";
/// Rows of one listing.
const LISTED_MAX: u32 = 100_000;
/// Characters of a note.
const NOTE_CHARS_MAX: usize = 500;

/// Key-value state of a recipe.
pub type RecipeState = BTreeMap<String, Vec<u8>>;

/// Why a recipe came into use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UseReason {
    /// The server was started with it.
    Start,
    /// An operator uploaded it.
    Upload,
    /// An operator went back to it.
    Rollback,
    /// Its successor was quarantined.
    Fallback,
}

impl UseReason {
    fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Upload => "upload",
            Self::Rollback => "rollback",
            Self::Fallback => "fallback",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::Start, Self::Upload, Self::Rollback, Self::Fallback].into_iter().find(|reason| reason.as_str() == text)
    }
}

/// A recipe in use from `at_ms` on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecipeUse {
    /// Order of the uses of a scenario, from 1.
    pub position: u32,
    /// The surface that it evolves.
    pub surface: Surface,
    /// SHA-256 of the component, 64 hex digits.
    pub digest: String,
    /// The recipe's name; names its state.
    pub name: String,
    /// The recipe's version.
    pub version: String,
    /// Why.
    pub reason: UseReason,
    /// One sentence for people; may be empty.
    pub note: String,
    /// Milliseconds since the Unix epoch.
    pub at_ms: i64,
}

type Row = (i64, String, String, String, String, String, String, i64);

impl Store {
    /// The recipe in use on a surface; none before its first exchange there.
    pub async fn recipe_use(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        surface: Surface,
    ) -> Result<Option<RecipeUse>, StoreError> {
        let uses = self.recipe_uses(t, s, u32::MAX).await?;
        Ok(uses.into_iter().find(|row| row.surface == surface))
    }

    /// Uses on all surfaces, newest first; at most 100,000.
    pub async fn recipe_uses(&self, t: &TenantId, s: &ScenarioName, limit: u32) -> Result<Vec<RecipeUse>, StoreError> {
        let mut conn = self.reader().await?;
        let sql = "SELECT position, surface, digest, name, version, reason, note, at_ms FROM recipe_uses \
                   WHERE tenant = $1 AND scenario = $2 ORDER BY position DESC LIMIT $3";
        let query = sql::query(sql).bind(t.as_str()).bind(s.as_str());
        let rows: Vec<Row> = self.told(query.bind(limit.min(LISTED_MAX)).fetch_all(&mut conn).await)?;
        self.told(rows.into_iter().map(read).collect())
    }

    /// Name and state of the recipe that the use at `position` replaced.
    pub async fn replaced_state(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        position: u32,
    ) -> Result<Option<(String, RecipeState)>, StoreError> {
        let mut conn = self.reader().await?;
        let sql = "SELECT replaced_name, replaced_bytes, replaced_state FROM recipe_uses \
                   WHERE tenant = $1 AND scenario = $2 AND position = $3";
        let query = sql::query(sql).bind(t.as_str()).bind(s.as_str()).bind(position);
        let row: Option<(String, i64, Vec<u8>)> = self.told(query.fetch_optional(&mut conn).await)?;
        let Some((name, raw_bytes, bytes)) = row else { return Ok(None) };
        let state = self.told(codec::unpack(bytes, raw_bytes, "replaced recipe state").await)?;
        Ok(Some((name, state)))
    }

    /// Puts `next` into use after the last one (its `position` is assigned here) and returns its position.
    /// `replaced`: name of the recipe whose state is kept; `state`: the new recipe's state, none = as it is.
    /// `Conflict` while a step runs.
    pub async fn exchange_recipe(
        &self,
        t: &TenantId,
        s: &ScenarioName,
        next: RecipeUse,
        (replaced, state): (&str, Option<RecipeState>),
    ) -> Result<u32, StoreError> {
        let key = Key::of(t, s);
        let old = self.recipe_state(t, s, replaced).await?;
        let old = old.into_iter().filter(|(name, _)| !name.starts_with(HOST_PREFIX)).collect::<RecipeState>();
        let kept = self.told(codec::pack(&old, "the state of the replaced recipe").await)?;
        let note: String = next.note.chars().take(NOTE_CHARS_MAX).collect();
        let exchange = Exchange { next: RecipeUse { note, ..next }, replaced: replaced.to_owned(), kept, state };
        self.told(exchange.check())?;
        self.write(exchange.size(), move |conn| Box::pin(apply(conn, key, exchange))).await
    }
}

struct Exchange {
    next: RecipeUse,
    replaced: String,
    kept: Body,
    state: Option<RecipeState>,
}

impl Exchange {
    fn check(&self) -> Result<(), Fault> {
        if self.next.digest.len() != 64 || !self.next.digest.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(invalid("the digest of a recipe is not 64 hex digits".to_owned()));
        }
        if self.state.iter().flatten().any(|(key, _)| key.starts_with(HOST_PREFIX)) {
            return Err(invalid(format!("keys that begin with {HOST_PREFIX} belong to the host")));
        }
        state::check(&self.next.name, &self.writes())
    }

    fn writes(&self) -> state::StateWrites {
        self.state.iter().flatten().map(|(key, value)| (key.clone(), Some(value.clone()))).collect()
    }

    fn size(&self) -> usize {
        self.kept.bytes.len() + state::size(&self.writes())
    }
}

async fn apply(conn: &mut Connection, key: Key, exchange: Exchange) -> Result<u32, Fault> {
    let sql = "SELECT step FROM steps WHERE tenant = $1 AND scenario = $2 AND running = 1";
    let running: Option<i64> =
        sql::query(sql).bind(key.tenant()).bind(key.scenario()).scalar_optional(&mut *conn).await?;
    if let Some(step) = running {
        return Err(conflict(format!("step {step} is running; exchange the recipe when it has ended")));
    }
    let sql = "SELECT COALESCE(MAX(position), 0) + 1 FROM recipe_uses WHERE tenant = $1 AND scenario = $2";
    let position: i64 = sql::query(sql).bind(key.tenant()).bind(key.scenario()).scalar(&mut *conn).await?;
    let position = number(position, "position of a recipe")?;
    let next = &exchange.next;
    let sql = "INSERT INTO recipe_uses (tenant, scenario, position, digest, name, version, reason, note, at_ms, \
                 replaced_name, replaced_bytes, replaced_state, surface) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)";
    let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(position).bind(&next.digest);
    let query = query.bind(&next.name).bind(&next.version).bind(next.reason.as_str()).bind(&next.note).bind(next.at_ms);
    let query = query.bind(&exchange.replaced).bind(exchange.kept.raw_bytes).bind(exchange.kept.bytes.as_slice());
    let query = query.bind(next.surface.as_str());
    match query.execute(&mut *conn).await {
        Err(fault) if fault.is_foreign_key_violation() => return Err(key.unknown()),
        other => other?,
    };
    if exchange.state.is_some() {
        let sql = "DELETE FROM recipe_state WHERE tenant = $1 AND scenario = $2 AND recipe = $3 \
                   AND substr(key, 1, CAST($5 AS INTEGER)) <> $4";
        let query = sql::query(sql).bind(key.tenant()).bind(key.scenario()).bind(&next.name).bind(HOST_PREFIX);
        query.bind(HOST_PREFIX.len() as i64).execute(&mut *conn).await?;
        state::apply(conn, &key, &next.name, exchange.writes()).await?;
    }
    let label = format!("{}@{}#sha256:{}", next.name, next.version, next.digest);
    let writer = vec![(STATE_WRITER_KEY.to_owned(), Some(label.into_bytes()))];
    state::apply(conn, &key, &next.name, writer).await?;
    Ok(position)
}

fn read((position, surface, digest, name, version, reason, note, at_ms): Row) -> Result<RecipeUse, Fault> {
    let reason =
        UseReason::parse(&reason).ok_or_else(|| damaged("recipe use", format!("unknown reason '{reason}'")))?;
    let position = number(position, "position of a recipe")?;
    let surface = surface_named(&surface)?;
    Ok(RecipeUse { position, surface, digest, name, version, reason, note, at_ms })
}
