//! `GET /reef/scenarios/{s}/contract`: what a scenario asks of whoever feeds it. The fields of reports that its recipes
//! read, the keys that an operator may set, what it trains on and when; the first five keys are those of the protocol.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::caller::Caller;
use super::error::ApiError;
use super::params::Path;
use super::scenarios::Management;
use crate::config::Scope;

/// Answers the question of a client that is about to send reports.
pub async fn show(
    State(management): State<Management>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let scenario = management.open(&caller, Scope::Read, &name).await?;
    let manifests = management.manifests.of(Some(&scenario));
    let (manifest, beside) = (manifests.values().next(), manifests.values().nth(1));
    let (settings, learner) = (scenario.settings(), scenario.side(scenario.leading()).status());
    let fields: Vec<_> = manifests.values().flat_map(|manifest| &manifest.report_fields).collect();
    let required: &[&str] = if manifest.is_some() { &["inference", "report"] } else { &["inference"] };
    Ok(Json(json!({
        "scenario": scenario.key.1,
        "processor": manifest.map(|manifest| &manifest.name),
        "training_mode": settings.training_mode,
        "status": { "running": learner.running, "waiting": learner.waiting, "last_error": learner.last_error },
        "required_request_types": required,
        "surface": manifest.map(|manifest| manifest.surface),
        "report": {
            "score": if manifests.values().any(|manifest| manifest.needs_score) { "required" } else { "optional" },
            "metadata": fields,
        },
        "recipe_config": manifest.map(|manifest| manifest.config.as_slice()).unwrap_or_default(),
        "harness_config": beside.map(|manifest| manifest.config.as_slice()).unwrap_or_default(),
        "max_staleness": settings.max_staleness,
    })))
}
