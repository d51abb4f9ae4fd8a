//! Operations: liveness, readiness, status, metrics, models. Reading them changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use metrics_exporter_prometheus::PrometheusHandle;
use reef_core::{Release, Surface};
use reef_engine::Engine;
use reef_sandbox::Sandbox;
use reef_store::{Counts, Store};
use serde_json::{Value, json};

use super::caller::Caller;
use super::error::{ApiError, V1Error};
use super::inference::no_model;
use super::params::Path;
use crate::config::Scope;
use crate::provider::Providers;
use crate::scenarios::{LearnerStatus, Scenario, Scenarios};

/// The part of the host that reports on itself.
#[derive(Clone)]
pub struct Operations {
    /// For counts.
    pub store: Store,
    /// For heads and learners.
    pub scenarios: Arc<Scenarios>,
    /// For load.
    pub engine: Engine,
    /// For `/metrics`.
    pub prometheus: PrometheusHandle,
    /// Labels of the server's recipes.
    pub recipes: BTreeMap<Surface, String>,
    /// For its gauges.
    pub sandbox: Sandbox,
    /// For the names of their models.
    pub providers: Providers,
}

impl std::fmt::Debug for Operations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operations").field("recipes", &self.recipes).finish_non_exhaustive()
    }
}

/// `GET /healthz`: the process answers.
pub async fn healthz() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

/// `GET /readyz`: the store answers too.
pub async fn readyz(State(operations): State<Operations>) -> Result<Json<Value>, ApiError> {
    operations.store.all_scenarios().await?;
    Ok(Json(json!({ "status": "ready", "model": operations.engine.info().name })))
}

/// `GET /metrics`
pub async fn metrics(State(operations): State<Operations>) -> Response {
    let stats = operations.engine.stats();
    metrics::gauge!("reef_engine_active_requests").set(stats.active as f64);
    metrics::gauge!("reef_engine_queued_requests").set(stats.queued as f64);
    let sandbox = operations.sandbox.gauges();
    metrics::gauge!("reef_sandbox_calls_running").set(sandbox.calls_running as f64);
    metrics::gauge!("reef_sandbox_calls_waiting").set(sandbox.calls_waiting as f64);
    metrics::gauge!("reef_sandbox_pooling").set(f64::from(u8::from(sandbox.pooling)));
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], operations.prometheus.render()).into_response()
}

/// `GET /v1/models`: the base name answers with the head; every head and alias is listed, and every provider's model.
pub async fn models(State(operations): State<Operations>, caller: Caller) -> Result<Json<Value>, V1Error> {
    caller.require(Scope::Infer)?;
    Ok(Json(json!({ "object": "list", "data": rows(&operations, &caller).await })))
}

/// `GET /v1/models/{model}`
pub async fn model(
    State(operations): State<Operations>,
    caller: Caller,
    Path(model): Path<String>,
) -> Result<Json<Value>, V1Error> {
    caller.require(Scope::Infer)?;
    let found = rows(&operations, &caller).await.into_iter().find(|row| row["id"] == *model);
    Ok(Json(found.ok_or_else(|| no_model(&model, "GET /v1/models lists those there are"))?))
}

async fn rows(operations: &Operations, caller: &Caller) -> Vec<Value> {
    let info = operations.engine.info();
    let row = |id: &str, owner: &str, root: &str, created_ms: i64| json!({ "id": id, "object": "model", "created": created_ms / 1000, "owned_by": owner, "root": root });
    let entry = |id: &str, root: &str, created_ms: i64| row(id, "reef", root, created_ms);
    let mut rows = vec![entry(&info.name, &info.name, 0)];
    rows.extend(operations.providers.models().map(|(model, provider)| row(model, provider, model, 0)));
    for scenario in operations.scenarios.list(caller.tenant()).await {
        if caller.sees(&scenario.key.1) {
            let served = scenario.served();
            rows.push(entry(scenario.key.1.as_str(), &info.name, served.release.manifest.created_at_ms));
            rows.push(entry(served.release.release_id.as_str(), &info.name, served.release.manifest.created_at_ms));
        }
    }
    rows
}

/// `GET /reef/status`
pub async fn status(State(operations): State<Operations>, caller: Caller) -> Result<Json<Value>, ApiError> {
    caller.require(Scope::Read)?;
    let info = operations.engine.info();
    let stats = operations.engine.stats();
    let mut rows = Vec::new();
    for scenario in operations.scenarios.list(caller.tenant()).await {
        if caller.sees(&scenario.key.1) {
            rows.push(scenario_status(&operations.store, &scenario, !operations.recipes.is_empty()).await?);
        }
    }
    Ok(Json(json!({
        "model": { "name": info.name, "sha256": info.sha256, "context_length": info.context_length },
        "engine": { "active": stats.active, "queued": stats.queued, "prompt_tokens": stats.prompt_tokens, "output_tokens": stats.output_tokens },
        "recipe": operations.recipes.values().next(),
        "recipes": operations.recipes,
        "sandbox": operations.sandbox.gauges(),
        "scenarios": rows,
    })))
}

/// What an operator should know without having asked.
fn alarms(scenario: &Scenario, leading: &LearnerStatus, learns: bool) -> Vec<String> {
    let mut alarms = Vec::new();
    if learns && leading.held_out == 0 {
        alarms.push("no held-out tasks: candidates are released without being measured".to_owned());
    }
    for learner in Surface::ALL.map(|surface| scenario.side(surface).status()) {
        if learner.quarantined_until_ms.is_some() {
            alarms.push("the recipe is quarantined".to_owned());
        }
        alarms.extend(learner.regression);
        alarms.extend(learner.training);
    }
    alarms
}

/// The harness, and whether the weights with which it was measured still serve.
fn harness_status(head: &Release, served: &Release) -> Value {
    let measured_with = head.manifest.evaluation.as_ref().and_then(|evaluation| evaluation.weights.as_ref());
    json!({
        "release_id": head.release_id,
        "content_id": head.content_id,
        "sequence": head.manifest.sequence,
        "measured_with": measured_with,
        "weights_moved_since": measured_with.map(|weights| *weights != served.release_id),
    })
}

/// One surface that learns: its recipe, its learner, and its samples.
fn side_status(scenario: &Scenario, surface: Surface, counts: Counts) -> Value {
    let (learner, recipe) = (scenario.side(surface).status(), scenario.side(surface).recipe());
    json!({
        "recipe": recipe.map(|now| now.recipe.label()),
        "running": learner.running,
        "waiting": learner.waiting,
        "last_error": learner.last_error,
        "quarantined_until_ms": learner.quarantined_until_ms,
        "pending": counts.pending,
        "reserved": counts.reserved,
        "consumed": counts.consumed,
        "retired": counts.retired,
    })
}

async fn scenario_status(store: &Store, scenario: &Scenario, learns: bool) -> Result<Value, ApiError> {
    let (tenant, name) = &scenario.key;
    let (counts, each) = store.counts_on_each(tenant, name).await?;
    let served = scenario.served();
    let leading = match scenario.recipes().next() {
        Some((surface, _)) => surface,
        // Before its learner's first turn the store alone knows.
        None => store.surfaces(tenant, name).await?.first().copied().unwrap_or(Surface::Weights),
    };
    let learner = scenario.side(leading).status();
    let counted = each.get(&leading).copied().unwrap_or_default();
    let harness = store.harness_head(tenant, name).await?;
    let mut surfaces = BTreeMap::new();
    for (surface, _) in scenario.recipes() {
        surfaces.insert(surface, side_status(scenario, surface, each.get(&surface).copied().unwrap_or_default()));
    }
    let steps = store.next_step_number(tenant, name).await?.saturating_sub(1);
    Ok(json!({
        "tenant": tenant,
        "scenario": name,
        "head": { "release_id": served.release.release_id, "content_id": served.release.content_id, "sequence": served.release.manifest.sequence },
        "router": scenario.policy().map(|live| json!({ "release_id": live.release, "rules": live.policy.rules.len() })),
        "harness": harness.map(|head| harness_status(&head, &served.release)),
        "training_mode": scenario.settings().training_mode,
        "rollout": scenario.rollout().map(|live| json!(live.rollout)),
        "step": steps,
        "running": learner.running,
        "waiting": learner.waiting,
        "last_error": learner.last_error,
        "recipe": scenario.side(leading).recipe().map(|now| now.recipe.label()),
        "surfaces": surfaces,
        "held_out": learner.held_out,
        "alarms": alarms(scenario, &learner, learns),
        "quarantined_until_ms": learner.quarantined_until_ms,
        "inferences": counts.inferences,
        "reports": counts.reports,
        "pending": counted.pending,
        "reserved": counted.reserved,
        "consumed": counted.consumed,
        "retired": counted.retired,
        "retired_reasons": store.retirement_reasons(tenant, name).await?,
    }))
}
