//! Which scenario and which weights or provider answer a request: headers and model name, resolved once.
//! The model name is looked at before anything is created or answered; an unknown model or release is an
//! error, never the base. An operator's allow-list comes before scenarios of the same name.

use std::sync::Arc;

use axum::http::StatusCode;
use reef_core::{ReleaseId, ScenarioName};
use reef_dialects::{Ask, Dialect};
use reef_store::ReleaseStatus;

use super::{Serving, embedded_error};
use crate::http::caller::Caller;
use crate::http::error::ApiError;
use crate::provider::{Upstream, embedded};
use crate::scenarios::{Scenario, ScenarioError, Served, to_the_end};

/// Characters of an unknown model's name that an error repeats.
const MODEL_CHARS_SHOWN: usize = 200;

/// What a model name stands for.
pub(super) enum Model {
    /// The base's name: whatever the scenario serves.
    Head,
    /// A scenario's name: what that one serves.
    Alias(ScenarioName),
    /// A release id.
    Release(ReleaseId),
    /// A provider's model.
    Upstream(Arc<Upstream>),
}

/// What answers a request.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// The scenario that the exchange belongs to.
    pub scenario: Arc<Scenario>,
    /// The snapshot in service.
    pub served: Arc<Served>,
    /// The provider that answers; none: the embedded engine.
    pub upstream: Option<Arc<Upstream>>,
    /// The request names the release itself.
    pub pinned: bool,
}

/// Finds what answers; a new scenario comes into being where that is allowed and the request can be answered.
pub async fn resolve(
    serving: &Serving,
    caller: &Caller,
    (dialect, ask): (Dialect, &Ask),
) -> Result<Resolved, ApiError> {
    let model = ask.model.as_str();
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
    let mut pinned = pinned(caller, &named)?;
    let scenario = match serving.scenarios.get(caller.tenant(), &name).await {
        Ok(found) => found,
        Err(ScenarioError::Unknown(_)) if serving.implicit_creation && may_create(caller, &named) => {
            match &named {
                Model::Upstream(upstream) => upstream.check(ask, dialect)?,
                _ => embedded::check(&serving.engine, &Arc::new(ask.clone()), dialect).await.map_err(embedded_error)?,
            }
            // The release that it begins with is named to create it, and pins nothing.
            create(serving, caller, name, pinned.take().as_ref()).await?
        }
        Err(ScenarioError::Unknown(_)) if !may_create(caller, &named) => return Err(unknown_model(serving, model)),
        Err(error) => return Err(error.into()),
    };
    let (served, names_release) = (scenario.served(), pinned.is_some());
    let served = match pinned {
        None => served,
        Some(pinned) if pinned == served.release.release_id => served,
        Some(pinned) => Arc::new(serving.scenarios.pinned(&scenario, &pinned).await?),
    };
    let upstream = match named {
        Model::Upstream(upstream) => Some(upstream),
        Model::Head | Model::Alias(_) | Model::Release(_) => None,
    };
    Ok(Resolved { scenario, served, upstream, pinned: names_release })
}

/// Is there such a model? Nothing comes into being, and a release is not loaded.
pub async fn check(serving: &Serving, caller: &Caller, model: &str) -> Result<(), ApiError> {
    let alias = match parse(serving, model)? {
        Model::Head | Model::Upstream(_) => return Ok(()),
        Model::Release(release) => return check_release(serving, caller, &release).await,
        Model::Alias(alias) => alias,
    };
    caller.check_sees(&alias)?;
    match serving.scenarios.get(caller.tenant(), &alias).await {
        Ok(_) => Ok(()),
        Err(ScenarioError::Unknown(_)) if serving.implicit_creation && caller.scenario.as_ref() == Some(&alias) => {
            Ok(())
        }
        Err(ScenarioError::Unknown(_)) => Err(unknown_model(serving, model)),
        Err(error) => Err(error.into()),
    }
}

/// Is it a release that this scenario can serve?
async fn check_release(serving: &Serving, caller: &Caller, release: &ReleaseId) -> Result<(), ApiError> {
    let name = caller.scenario()?;
    let listed = match serving.scenarios.get(caller.tenant(), &name).await {
        Ok(_) => serving.store.release(caller.tenant(), &name, release).await?,
        Err(ScenarioError::Unknown(_)) => return Err(unknown_model(serving, release.as_str())),
        Err(error) => return Err(error.into()),
    };
    match listed.map(|listed| listed.status) {
        Some(ReleaseStatus::Served | ReleaseStatus::Retained) => Ok(()),
        _ => Err(ScenarioError::UnknownRelease(release.clone()).into()),
    }
}

pub(super) fn parse(serving: &Serving, model: &str) -> Result<Model, ApiError> {
    if model == serving.engine.info().name {
        return Ok(Model::Head);
    }
    if let Ok(release) = ReleaseId::parse(model) {
        return Ok(Model::Release(release));
    }
    if let Some(upstream) = serving.providers.find(model) {
        return Ok(Model::Upstream(Arc::clone(upstream)));
    }
    ScenarioName::parse(model).map(Model::Alias).map_err(|_| unknown_model(serving, model))
}

/// A name without a header could be anybody's typing error, so it never creates a scenario.
fn may_create(caller: &Caller, named: &Model) -> bool {
    matches!(named, Model::Head | Model::Upstream(_)) || (matches!(named, Model::Alias(_)) && caller.scenario.is_some())
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
    let from = match pinned {
        Some(release) => Some(caller.beginning(&serving.scenarios, release).await?),
        None => None,
    };
    let (scenarios, key) = (Arc::clone(&serving.scenarios), (caller.tenant().clone(), name));
    Ok(to_the_end(async move { scenarios.create(key, None, from.as_ref()).await }).await?.0)
}

fn unknown_model(serving: &Serving, model: &str) -> ApiError {
    let known = &serving.engine.info().name;
    no_model(model, &format!("use '{known}', the scenario's name, a release id or a provider's model"))
}

/// 404; `remedy` says what to do.
pub fn no_model(model: &str, remedy: &str) -> ApiError {
    let shown: String = model.escape_default().take(MODEL_CHARS_SHOWN).collect();
    let message = format!("the model '{shown}' does not exist; {remedy}");
    ApiError { param: Some("model".to_owned()), ..ApiError::new(StatusCode::NOT_FOUND, "model_not_found", message) }
}
