//! `/reef/scenarios/{s}/pin`, `/canary`, `/shadow`, `/rollout` and `/rollouts`: releases that are tried beside the head.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use reef_core::{CanaryPlan, ReleaseId, RolloutPlan, Sticky, Tag};
use serde::Deserialize;
use serde_json::{Value, json};

use super::body::JsonObject;
use super::caller::Caller;
use super::error::ApiError;
use super::fields::typed;
use super::params::Path;
use super::scenarios::Management;
use crate::config::Scope;
use crate::scenarios::{Scenario, to_the_end};

/// What is said of a body that is no rollout.
const NOT_VALID: &str = "the rollout is not valid";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PinBody {
    release_id: ReleaseId,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ShadowBody {
    release_id: ReleaseId,
    percent: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CanaryBody {
    release_id: ReleaseId,
    percent: f64,
    #[serde(default)]
    sticky: StickyBody,
    tag: Option<Tag>,
    alpha: Option<f64>,
    margin: Option<f64>,
    pairs_min: Option<u32>,
    pairs_max: Option<u32>,
    scores: Option<(f64, f64)>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StickyBody {
    #[default]
    Session,
    Tag,
}

impl CanaryBody {
    fn plan(self) -> Result<(ReleaseId, RolloutPlan), ApiError> {
        let sticky = match (self.sticky, self.tag) {
            (StickyBody::Session, None) => Sticky::Session,
            (StickyBody::Tag, Some(tag)) => Sticky::Tag(tag),
            (StickyBody::Tag, None) => return Err(ApiError::invalid("tag", "name the tag that is sticky in 'tag'")),
            (StickyBody::Session, Some(_)) => {
                return Err(ApiError::invalid("sticky", "a tag is named; say \"sticky\": \"tag\""));
            }
        };
        let defaults = CanaryPlan::of_sessions(self.percent);
        let plan = CanaryPlan {
            percent: self.percent,
            sticky,
            alpha: self.alpha.unwrap_or(defaults.alpha),
            margin: self.margin.unwrap_or(defaults.margin),
            pairs_min: self.pairs_min.unwrap_or(defaults.pairs_min),
            pairs_max: self.pairs_max.unwrap_or(defaults.pairs_max),
            scores: self.scores.unwrap_or(defaults.scores),
        };
        Ok((self.release_id, RolloutPlan::Canary(plan)))
    }
}

/// `POST …/pin {release_id}`: it is the head, by a rollback if need be, and stays it.
pub async fn pin(
    State(management): State<Management>,
    caller: Caller,
    Path(name): Path<String>,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let scenario = management.open(&caller, Scope::Admin, &name).await?;
    let (PinBody { release_id }, by) = (typed(body, NOT_VALID)?, caller.person());
    let pinned = async move { management.scenarios.pin(&scenario, &release_id, by).await };
    Ok(Json(json!(to_the_end(pinned).await?)))
}

/// `POST …/canary {release_id, percent, sticky: session|tag, tag, alpha, margin, pairs_min, pairs_max, scores}`
pub async fn canary(
    State(management): State<Management>,
    caller: Caller,
    Path(name): Path<String>,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let scenario = management.open(&caller, Scope::Admin, &name).await?;
    begin(management, scenario, typed::<CanaryBody>(body, NOT_VALID)?.plan()?).await
}

/// `POST …/shadow {release_id, percent}`
pub async fn shadow(
    State(management): State<Management>,
    caller: Caller,
    Path(name): Path<String>,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let scenario = management.open(&caller, Scope::Admin, &name).await?;
    let ShadowBody { release_id, percent } = typed(body, NOT_VALID)?;
    begin(management, scenario, (release_id, RolloutPlan::Shadow { percent })).await
}

async fn begin(
    management: Management,
    scenario: Arc<Scenario>,
    (release, plan): (ReleaseId, RolloutPlan),
) -> Result<Json<Value>, ApiError> {
    plan.check().map_err(|problem| {
        let field = problem.split(' ').next().unwrap_or("body").to_owned();
        ApiError::invalid(field, problem)
    })?;
    let begun = async move { management.scenarios.begin_rollout(&scenario, &release, plan).await };
    Ok(Json(json!(to_the_end(begun).await?)))
}

/// `DELETE …/rollout`: ends what runs; the head stays where it is.
pub async fn stop(
    State(management): State<Management>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let scenario = management.open(&caller, Scope::Admin, &name).await?;
    let told = format!("no rollout of scenario '{name}' runs; begin one with pin, canary or shadow");
    let stopped = async move { management.scenarios.stop_rollout(&scenario, "stopped by a person").await };
    match to_the_end(stopped).await? {
        Some(ended) => Ok(Json(json!(ended))),
        None => Err(ApiError::conflict(told)),
    }
}

/// `GET …/rollouts`: what runs, with its figures so far, and all that ran, newest first.
pub async fn list(
    State(management): State<Management>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let scenario = management.open(&caller, Scope::Read, &name).await?;
    let running = match scenario.rollout() {
        Some(live) => {
            let figures = management.scenarios.figures(&scenario, &live.rollout).await?.map(|(_, figures)| figures);
            json!({ "rollout": live.rollout, "figures": figures })
        }
        None => Value::Null,
    };
    let rollouts = management.store.rollouts(&scenario.key.0, &scenario.key.1).await?;
    Ok(Json(json!({ "scenario": scenario.key.1, "running": running, "rollouts": rollouts })))
}
