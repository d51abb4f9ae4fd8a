//! `/reef/scenarios/{s}/releases…`, rollback, promotion, rejection and steps.
//! History is never rewritten: going back mints a new release with the old content.

use axum::Json;
use axum::extract::{Path, Query, State};
use reef_core::{ReleaseId, ReleaseOrigin};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::body::JsonObject;
use super::caller::Caller;
use super::error::ApiError;
use super::scenarios::Management;
use crate::config::Scope;

/// Steps of one listing.
const STEPS_MAX: u32 = 1000;

/// `GET …/releases`, newest first.
pub async fn list(
    State(management): State<Management>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let scenario = management.open(&caller, Scope::Read, &name).await?;
    let releases = management.store.releases(&scenario.key.0, &scenario.key.1).await?;
    Ok(Json(json!({ "scenario": scenario.key.1, "releases": releases })))
}

/// `POST …/rollback {release_id}`
pub async fn rollback(
    State(management): State<Management>,
    caller: Caller,
    Path(name): Path<String>,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let scenario = management.open(&caller, Scope::Admin, &name).await?;
    let to = release_id(&body)?;
    let release = management.scenarios.mint_copy(&scenario, &to, ReleaseOrigin::Rollback { to: to.clone() }).await?;
    Ok(Json(json!(release)))
}

/// `POST …/promote {release_id}`: serves a held candidate.
pub async fn promote(
    State(management): State<Management>,
    caller: Caller,
    Path(name): Path<String>,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let scenario = management.open(&caller, Scope::Admin, &name).await?;
    let held = release_id(&body)?;
    let listed = management.store.release(&scenario.key.0, &scenario.key.1, &held).await?;
    let step = match listed.map(|listed| listed.release.manifest.origin) {
        Some(ReleaseOrigin::Step { step }) => step,
        Some(_) => {
            return Err(ApiError::conflict(format!(
                "release {held} was not made by a step; use rollback to return to it"
            )));
        }
        None => return Err(ApiError::not_found(format!("release {held} is not a release of scenario '{name}'"))),
    };
    let release = management.scenarios.mint_copy(&scenario, &held, ReleaseOrigin::Promotion { step }).await?;
    Ok(Json(json!(release)))
}

/// `POST …/reject {release_id}`: a held candidate will never be served.
pub async fn reject(
    State(management): State<Management>,
    caller: Caller,
    Path(name): Path<String>,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let scenario = management.open(&caller, Scope::Admin, &name).await?;
    let held = release_id(&body)?;
    management.store.reject_held(&scenario.key.0, &scenario.key.1, &held).await?;
    Ok(Json(json!({ "release_id": held, "status": "rejected" })))
}

fn release_id(body: &Map<String, Value>) -> Result<ReleaseId, ApiError> {
    match body.get("release_id") {
        Some(Value::String(id)) => Ok(ReleaseId::parse(id.as_str())?),
        _ => Err(ApiError::invalid("release_id", "name the release in 'release_id'")),
    }
}

/// Query of the list of steps.
#[derive(Debug, Deserialize)]
pub struct StepsQuery {
    limit: Option<u32>,
}

/// `GET …/steps`, newest first.
pub async fn steps(
    State(management): State<Management>,
    caller: Caller,
    Path(name): Path<String>,
    Query(query): Query<StepsQuery>,
) -> Result<Json<Value>, ApiError> {
    let scenario = management.open(&caller, Scope::Read, &name).await?;
    let limit = query.limit.unwrap_or(STEPS_MAX).clamp(1, STEPS_MAX);
    let steps = management.store.steps(&scenario.key.0, &scenario.key.1, limit).await?;
    Ok(Json(json!({ "scenario": scenario.key.1, "steps": steps })))
}

/// `GET …/steps/{n}`
pub async fn step(
    State(management): State<Management>,
    caller: Caller,
    Path((name, number)): Path<(String, u32)>,
) -> Result<Json<Value>, ApiError> {
    let scenario = management.open(&caller, Scope::Read, &name).await?;
    let step = management.store.step(&scenario.key.0, &scenario.key.1, number).await?;
    step.map(|step| Json(json!(step)))
        .ok_or_else(|| ApiError::not_found(format!("scenario '{name}' has no step {number}")))
}
