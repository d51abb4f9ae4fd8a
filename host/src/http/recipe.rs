//! `/reef/scenarios/{s}/recipe`: the component that a scenario learns with, its exchange while it runs, and back.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use reef_core::Surface;
use serde::Deserialize;
use serde_json::{Value, json};

use super::body::Whole;
use super::caller::Caller;
use super::error::ApiError;
use super::params::{Path, Query};
use super::scenarios::Management;
use crate::config::Scope;
use crate::jobs::exchange_recipe::ExchangeError;
use crate::scenarios::InUse;

/// Uses of one listing.
const USES_MAX: u32 = 1_000;

/// `GET …/recipe`: what is in use on each surface, what it says of itself, and what was used before.
pub async fn show(
    State(management): State<Management>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let scenario = management.open(&caller, Scope::Read, &name).await?;
    let mut uses = management.store.recipe_uses(&scenario.key.0, &scenario.key.1, USES_MAX).await?;
    // An exchange that is committed and not yet swapped in is told with the next answer: history and recipe agree.
    uses.retain(|row| scenario.side(row.surface).recipe().is_none_or(|now| row.position <= now.position));
    let told = |now: InUse| {
        json!({
            "label": now.recipe.label(),
            "digest": now.recipe.digest(),
            "generation": now.recipe.generation(),
            "manifest": now.recipe.manifest(),
        })
    };
    let leading = scenario.side(scenario.leading()).recipe().map(told);
    let surfaces: BTreeMap<_, Value> = scenario.recipes().map(|(surface, now)| (surface, told(now))).collect();
    Ok(Json(json!({ "scenario": scenario.key.1, "recipe": leading, "surfaces": surfaces, "uses": uses })))
}

/// `PUT …/recipe`: body = a component. Loaded, tried, and put into use between two steps, on the surface that its manifest
/// names.
pub async fn put(
    State(management): State<Management>,
    caller: Caller,
    Path(name): Path<String>,
    Whole(body): Whole,
) -> Result<Json<Value>, ApiError> {
    let scenario = management.open(&caller, Scope::Admin, &name).await?;
    let exchange = management.exchange()?;
    // A client that goes away must not leave database and memory apart.
    let exchanged = tokio::spawn(async move { exchange.upload(&scenario, body).await });
    Ok(Json(json!(exchanged.await.map_err(|error| ApiError::internal("the exchange broke down", error))??)))
}

/// Query of a rollback.
#[derive(Debug, Deserialize)]
pub struct RollbackQuery {
    surface: Option<Surface>,
}

/// `POST …/recipe/rollback[?surface=harness]`: the recipe before, with its state as it was.
pub async fn rollback(
    State(management): State<Management>,
    caller: Caller,
    Path(name): Path<String>,
    Query(query): Query<RollbackQuery>,
) -> Result<Json<Value>, ApiError> {
    let scenario = management.open(&caller, Scope::Admin, &name).await?;
    let exchange = management.exchange()?;
    let surface = query.surface.unwrap_or_else(|| scenario.leading());
    let exchanged = tokio::spawn(async move { exchange.rollback(&scenario, surface).await });
    Ok(Json(json!(exchanged.await.map_err(|error| ApiError::internal("the exchange broke down", error))??)))
}

impl From<ExchangeError> for ApiError {
    fn from(error: ExchangeError) -> Self {
        let message = error.to_string();
        match error {
            ExchangeError::Store(error) => error.into(),
            ExchangeError::Recipe(_) => Self::new(StatusCode::UNPROCESSABLE_ENTITY, "recipe_refused", message),
            ExchangeError::Failed { .. } => Self::new(StatusCode::UNPROCESSABLE_ENTITY, "recipe_failed", message),
            ExchangeError::NotTried { .. } | ExchangeError::Uploading => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "recipe_not_tried", message)
            }
            ExchangeError::Config(_) => Self::invalid("recipe_config", message),
            ExchangeError::NothingBefore | ExchangeError::Busy | ExchangeError::SameName(_) => Self::conflict(message),
        }
    }
}
