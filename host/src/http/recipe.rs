//! `/reef/scenarios/{s}/recipe`: the component that a scenario learns with, its exchange while it runs, and back.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::{Value, json};

use super::body::Whole;
use super::caller::Caller;
use super::error::ApiError;
use super::params::Path;
use super::scenarios::Management;
use crate::config::Scope;
use crate::jobs::exchange_recipe::ExchangeError;

/// Uses of one listing.
const USES_MAX: u32 = 1_000;

/// `GET …/recipe`: what is in use, what it says of itself, and what was used before.
pub async fn show(
    State(management): State<Management>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let scenario = management.open(&caller, Scope::Read, &name).await?;
    let now = scenario.recipe();
    let mut uses = management.store.recipe_uses(&scenario.key.0, &scenario.key.1, USES_MAX).await?;
    // An exchange that is committed and not yet swapped in is told with the next answer: history and recipe agree.
    uses.retain(|row| now.as_ref().is_none_or(|now| row.position <= now.position));
    let now = now.map(|now| {
        json!({
            "label": now.recipe.label(),
            "digest": now.recipe.digest(),
            "generation": now.recipe.generation(),
            "manifest": now.recipe.manifest(),
        })
    });
    Ok(Json(json!({ "scenario": scenario.key.1, "recipe": now, "uses": uses })))
}

/// `PUT …/recipe`: body = a component. Loaded, tried, and put into use between two steps.
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

/// `POST …/recipe/rollback`: the recipe before, with its state as it was.
pub async fn rollback(
    State(management): State<Management>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let scenario = management.open(&caller, Scope::Admin, &name).await?;
    let exchange = management.exchange()?;
    let exchanged = tokio::spawn(async move { exchange.rollback(&scenario).await });
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
            ExchangeError::NothingBefore | ExchangeError::Busy => Self::conflict(message),
        }
    }
}
