//! `/reef/scenarios/{s}/releases…`, rollback, promotion, rejection and steps.
//! History is never rewritten: going back mints a new release with the old content.

use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRef, FromRequest, FromRequestParts, Request, State};
use axum::response::{IntoResponse, Response};
use reef_core::{DecidedBy, ReleaseId, ReleaseOrigin, ScenarioName, Step, Surface, TenantId};
use reef_store::{ListedRelease, ReleaseStatus};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Shared;
use super::body::JsonObject;
use super::caller::Caller;
use super::error::ApiError;
use super::explained::Explained;
use super::fields::known;
use super::params::{Path, Query};
use super::scenarios::Management;
use crate::config::Scope;
use crate::jobs::surface;
use crate::scenarios::{Scenario, promoted, to_the_end};

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

/// `GET …/releases/{id}`: the release with the step that made it, and how to do that step again.
pub async fn show(
    State(management): State<Management>,
    caller: Caller,
    Path((name, id)): Path<(String, String)>,
) -> Result<Json<Value>, ApiError> {
    let scenario = management.open(&caller, Scope::Read, &name).await?;
    let (listed, step) = release_of(&management, &scenario, ReleaseId::parse(id)?).await?;
    let key = scenario.key.clone();
    let ((tenant, scenario), id) = (&key, &listed.release.release_id);
    let replay = step.as_ref().map(|step| replay_command(tenant, scenario, step.step));
    let explained = Explained::of(&management, &key, Some(&listed.release), step.as_ref()).await?;
    let page = match listed.release.manifest.surface {
        Surface::Harness => format!("/reef/harness/releases/{id}/page"),
        Surface::Weights | Surface::Router => format!("/reef/scenarios/{scenario}/releases/{id}/page"),
    };
    Ok(Json(json!({ "release": listed, "step": step, "explained": explained, "replay": replay, "page": page })))
}

/// A release with the step that made it.
pub async fn release_of(
    management: &Management,
    scenario: &Scenario,
    id: ReleaseId,
) -> Result<(ListedRelease, Option<Step>), ApiError> {
    let (tenant, name) = &scenario.key;
    let listed = listed(management, scenario, &id).await?;
    let step = match listed.release.manifest.origin.step() {
        Some(step) => management.store.step(tenant, name, step).await?,
        None => None,
    };
    Ok((listed, step))
}

async fn listed(management: &Management, scenario: &Scenario, id: &ReleaseId) -> Result<ListedRelease, ApiError> {
    let (tenant, name) = &scenario.key;
    let listed = management.store.release(tenant, name, id).await?;
    listed.ok_or_else(|| ApiError::not_found(format!("release {id} is not a release of scenario '{name}'")))
}

/// A step by its number.
pub async fn step_of(management: &Management, scenario: &Scenario, number: u32) -> Result<Step, ApiError> {
    let (tenant, name) = &scenario.key;
    let step = management.store.step(tenant, name, number).await?;
    step.ok_or_else(|| ApiError::not_found(format!("scenario '{name}' has no step {number}")))
}

/// What a person types to do a step again.
pub fn replay_command(tenant: &TenantId, scenario: &ScenarioName, step: u32) -> String {
    format!("reef replay --tenant {tenant} --scenario {scenario} {step}")
}

/// What `rollback`, `promote` and `reject` are about: a release of a scenario that the caller administers.
#[derive(Debug)]
pub struct Target {
    scenario: Arc<Scenario>,
    release: ReleaseId,
    status: ReleaseStatus,
    surface: Surface,
    origin: ReleaseOrigin,
    by: DecidedBy,
}

impl FromRequest<Shared> for Target {
    type Rejection = Response;

    async fn from_request(request: Request, state: &Shared) -> Result<Self, Response> {
        let (mut head, body) = request.into_parts();
        let caller = Caller::from_request_parts(&mut head, state).await?;
        let Path(name) = Path::<String>::from_request_parts(&mut head, state).await?;
        let JsonObject(body) = JsonObject::from_request(Request::from_parts(head, body), state).await?;
        let management = Management::from_ref(state);
        Self::find(&management, &caller, &name, &body).await.map_err(IntoResponse::into_response)
    }
}

impl Target {
    async fn find(
        management: &Management,
        caller: &Caller,
        name: &str,
        body: &Map<String, Value>,
    ) -> Result<Self, ApiError> {
        let scenario = management.open(caller, Scope::Admin, name).await?;
        known(body, &["release_id"])?;
        let release = match body.get("release_id") {
            Some(Value::String(id)) => ReleaseId::parse(id.as_str())?,
            _ => return Err(ApiError::invalid("release_id", "name the release in 'release_id'")),
        };
        let ListedRelease { release: found, status } = listed(management, &scenario, &release).await?;
        let (surface, origin) = (found.manifest.surface, found.manifest.origin);
        Ok(Self { scenario, release, status, surface, origin, by: caller.person() })
    }
}

/// `POST …/rollback {release_id}`
pub async fn rollback(State(management): State<Management>, target: Target) -> Result<Json<Value>, ApiError> {
    if !matches!(target.status, ReleaseStatus::Served | ReleaseStatus::Retained) {
        return Err(ApiError::conflict(format!("release {} was never served; promote it instead", target.release)));
    }
    let origin = ReleaseOrigin::Rollback { to: target.release.clone() };
    mint(management, target, origin).await
}

/// `POST …/promote {release_id}`: serves a held candidate, or accepts a change of the harness or of the routing
/// policy that waits.
pub async fn promote(State(management): State<Management>, target: Target) -> Result<Json<Value>, ApiError> {
    let origin = match (target.status, &target.origin) {
        // A change of the harness is one of a certain head, whoever proposed it.
        (ReleaseStatus::Held, ReleaseOrigin::Step { .. }) if target.surface == Surface::Harness => {
            ReleaseOrigin::Acceptance { of: target.release.clone() }
        }
        (ReleaseStatus::Held, ReleaseOrigin::Step { step }) => ReleaseOrigin::Promotion { step: *step },
        (ReleaseStatus::Held, ReleaseOrigin::Proposal { .. }) => {
            ReleaseOrigin::Acceptance { of: target.release.clone() }
        }
        _ => {
            return Err(ApiError::conflict(format!(
                "release {} is not a held candidate; use rollback to return to it",
                target.release
            )));
        }
    };
    mint(management, target, origin).await
}

async fn mint(management: Management, target: Target, origin: ReleaseOrigin) -> Result<Json<Value>, ApiError> {
    let reason = match &origin {
        ReleaseOrigin::Rollback { to } => format!("rolled back to {to}"),
        ReleaseOrigin::Acceptance { of } => format!("accepted the change of {of}"),
        _ => "promoted a held candidate".to_owned(),
    };
    let why = (origin, promoted(target.by.clone(), reason));
    let minted = async move {
        let Target { scenario, release, surface, .. } = target;
        match surface {
            Surface::Harness | Surface::Router => management.scenarios.mint_copy_beside(&scenario, &release, why).await,
            Surface::Weights => management.scenarios.mint_copy(&scenario, &release, why).await,
        }
    };
    Ok(Json(json!(to_the_end(minted).await?)))
}

/// `POST …/reject {release_id}`: a held candidate will never be served.
pub async fn reject(State(management): State<Management>, target: Target) -> Result<Json<Value>, ApiError> {
    let (tenant, name) = &target.scenario.key;
    management.store.reject_held(tenant, name, &target.release).await?;
    Ok(Json(json!({ "release_id": target.release, "status": "rejected" })))
}

/// Query of the list of steps.
#[derive(Debug, Deserialize)]
pub struct StepsQuery {
    limit: Option<u32>,
    surface: Option<Surface>,
}

/// `GET …/steps`, newest first; with `surface`, those of it among the last thousand.
pub async fn steps(
    State(management): State<Management>,
    caller: Caller,
    Path(name): Path<String>,
    Query(query): Query<StepsQuery>,
) -> Result<Json<Value>, ApiError> {
    let scenario = management.open(&caller, Scope::Read, &name).await?;
    let limit = query.limit.unwrap_or(STEPS_MAX).clamp(1, STEPS_MAX);
    let looked_at = if query.surface.is_some() { STEPS_MAX } else { limit };
    let mut steps = management.store.steps(&scenario.key.0, &scenario.key.1, looked_at).await?;
    if let Some(wanted) = query.surface {
        let mut kept = Vec::new();
        for step in steps {
            if surface::of_step(&management.store, &scenario.key, &step).await? == wanted {
                kept.push(step);
            }
        }
        steps = kept;
        steps.truncate(limit as usize);
    }
    Ok(Json(json!({ "scenario": scenario.key.1, "steps": steps })))
}

/// `GET …/steps/{n}`
pub async fn step(
    State(management): State<Management>,
    caller: Caller,
    Path((name, number)): Path<(String, u32)>,
) -> Result<Json<Value>, ApiError> {
    let scenario = management.open(&caller, Scope::Read, &name).await?;
    Ok(Json(json!(step_of(&management, &scenario, number).await?)))
}
