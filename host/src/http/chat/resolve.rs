//! Which scenario and which weights answer a request: headers and model name, resolved once.
//! The model name is looked at before anything is created or answered; an unknown model or release is an
//! error, never the base.

use std::sync::Arc;

use axum::http::StatusCode;
use reef_core::{ReleaseId, ScenarioName};

use super::Serving;
use crate::http::caller::Caller;
use crate::http::error::ApiError;
use crate::scenarios::{Scenario, ScenarioError, Served, to_the_end};

/// What a model name stands for.
enum Model {
    /// The base's name: whatever the scenario serves.
    Head,
    /// A scenario's name: what that one serves.
    Alias(ScenarioName),
    /// A release id.
    Release(ReleaseId),
}

/// The scenario and the snapshot that answer.
pub async fn resolve(
    serving: &Serving,
    caller: &Caller,
    model: &str,
) -> Result<(Arc<Scenario>, Arc<Served>), ApiError> {
    let named = parse(serving, model)?;
    let name = match (&caller.scenario, &named) {
        (None, Model::Alias(alias)) => {
            caller.check_sees(alias)?;
            alias.clone()
        }
        _ => caller.scenario()?,
    };
    if matches!(&named, Model::Alias(alias) if *alias != name) {
        return Err(unknown_model(serving, model));
    }
    let pinned = pinned(caller, &named)?;
    let scenario = match serving.scenarios.get(caller.tenant(), &name).await {
        Ok(found) => found,
        Err(ScenarioError::Unknown(_)) if serving.implicit_creation && may_create(caller, &named) => {
            create(serving, caller, name, pinned.as_ref()).await?
        }
        Err(ScenarioError::Unknown(_)) if !may_create(caller, &named) => return Err(unknown_model(serving, model)),
        Err(error) => return Err(error.into()),
    };
    let served = scenario.served();
    let served = match pinned {
        None => served,
        Some(pinned) if pinned == served.release.release_id => served,
        Some(pinned) => Arc::new(serving.scenarios.pinned(&scenario, &pinned).await?),
    };
    Ok((scenario, served))
}

fn parse(serving: &Serving, model: &str) -> Result<Model, ApiError> {
    if model == serving.engine.info().name {
        return Ok(Model::Head);
    }
    if let Ok(release) = ReleaseId::parse(model) {
        return Ok(Model::Release(release));
    }
    ScenarioName::parse(model).map(Model::Alias).map_err(|_| unknown_model(serving, model))
}

/// A name without a header could be anybody's typing error, so it never creates a scenario.
fn may_create(caller: &Caller, named: &Model) -> bool {
    matches!(named, Model::Head) || (matches!(named, Model::Alias(_)) && caller.scenario.is_some())
}

/// The header pins a release, and so does a release id as model; both must mean the same one.
fn pinned(caller: &Caller, named: &Model) -> Result<Option<ReleaseId>, ApiError> {
    match (&caller.release, named) {
        (Some(header), Model::Release(model)) if header != model => Err(ApiError::invalid(
            "model",
            format!("model names release {model} and x-reef-release-id {header}; send one of them"),
        )),
        (Some(header), _) => Ok(Some(header.clone())),
        (None, Model::Release(model)) => Ok(Some(model.clone())),
        (None, _) => Ok(None),
    }
}

async fn create(
    serving: &Serving,
    caller: &Caller,
    name: ScenarioName,
    pinned: Option<&ReleaseId>,
) -> Result<Arc<Scenario>, ApiError> {
    // A new scenario has only its own base, whose id nobody can know yet.
    if let Some(release) = pinned {
        return Err(ScenarioError::ForeignBase { scenario: name, release: release.clone() }.into());
    }
    let (scenarios, key) = (Arc::clone(&serving.scenarios), (caller.tenant().clone(), name));
    Ok(to_the_end(async move { scenarios.create(key, None).await }).await?.0)
}

fn unknown_model(serving: &Serving, model: &str) -> ApiError {
    let (shown, known) = (model.escape_default(), &serving.engine.info().name);
    let message = format!("the model '{shown}' does not exist; use '{known}', the scenario's name or a release id");
    ApiError { param: Some("model".to_owned()), ..ApiError::new(StatusCode::NOT_FOUND, "model_not_found", message) }
}
