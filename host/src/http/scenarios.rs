//! `/reef/scenarios…`: what learns, its settings, its held-out tasks.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use reef_core::{Gate, HeldOutTask, ReleaseId, ScenarioName, Surface};
use reef_engine::Engine;
use reef_store::{ScenarioSettings, Store, TrainingMode};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::body::JsonObject;
use super::caller::Caller;
use super::error::ApiError;
use super::fields::typed;
use super::params::Path;
use super::replay::Replays;
use crate::config::Scope;
use crate::jobs::exchange_recipe::Exchange;
use crate::recipes::Manifests;
use crate::scenarios::{Scenario, Scenarios, to_the_end};

/// Tasks of one scenario.
const HELD_OUT_MAX: usize = 4096;
/// Bytes of one task, prompt and answer together.
const HELD_OUT_BYTES_MAX: usize = 64 * 1024;

/// The part of the host that manages scenarios.
#[derive(Debug, Clone)]
pub struct Management {
    /// The truth.
    pub store: Store,
    /// Scenarios in service.
    pub scenarios: Arc<Scenarios>,
    /// Renders held-out prompts, to refuse what does not fit.
    pub engine: Engine,
    /// Manifests of the server's recipes, whose configuration is checked here.
    pub manifests: Manifests,
    /// Exchanges recipes; none on a server without a learner.
    pub exchange: Option<Exchange>,
    /// Does stored steps again.
    pub replays: Replays,
}

impl Management {
    /// The scenario of a path, for a caller with the scope.
    pub async fn open(&self, caller: &Caller, scope: Scope, name: &str) -> Result<Arc<Scenario>, ApiError> {
        caller.open(&self.scenarios, scope, name).await
    }

    /// What exchanges recipes, or why none can be.
    pub fn exchange(&self) -> Result<Exchange, ApiError> {
        let told = "this server was started without a recipe and does not learn; start it with --recipe, or with harness.recipe";
        self.exchange.clone().ok_or_else(|| ApiError::conflict(told))
    }

    /// Refuses settings that no step could run with.
    fn check(&self, scenario: Option<&Scenario>, settings: &ScenarioSettings) -> Result<(), ApiError> {
        let manifests = self.manifests.of(scenario);
        let beside_weights = manifests.contains_key(&Surface::Weights);
        for (surface, manifest) in &manifests {
            let named = if *surface == Surface::Harness && beside_weights { "harness_config" } else { "recipe_config" };
            let checked = manifest.check_config(settings.recipe_values(*surface, beside_weights));
            checked.map_err(|problem| ApiError::invalid(named, problem))?;
        }
        settings.gate.map_or(Ok(()), Gate::check).map_err(|problem| ApiError::invalid("gate", problem))
    }
}

/// Settings in a body; what is absent keeps its value.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SettingsBody {
    #[serde(default)]
    scenario: Option<String>,
    #[serde(default)]
    training_mode: Option<TrainingMode>,
    #[serde(default)]
    max_staleness: Option<u32>,
    #[serde(default)]
    recipe_config: Option<Map<String, Value>>,
    #[serde(default)]
    harness_config: Option<Map<String, Value>>,
    /// Null returns to the gate of the server.
    #[serde(default, deserialize_with = "given")]
    gate: Option<Option<Gate>>,
    /// A release that a new scenario begins with.
    #[serde(default)]
    release_id: Option<ReleaseId>,
}

/// Tells null from absent.
fn given<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Option<Gate>>, D::Error> {
    Option::deserialize(from).map(Some)
}

impl SettingsBody {
    fn read(body: Map<String, Value>) -> Result<Self, ApiError> {
        typed(body, "the settings are not valid")
    }

    fn over(self, settings: ScenarioSettings) -> ScenarioSettings {
        ScenarioSettings {
            training_mode: self.training_mode.unwrap_or(settings.training_mode),
            max_staleness: self.max_staleness.unwrap_or(settings.max_staleness),
            recipe_config: self.recipe_config.unwrap_or(settings.recipe_config),
            harness_config: self.harness_config.unwrap_or(settings.harness_config),
            gate: self.gate.unwrap_or(settings.gate),
        }
    }
}

/// `GET /reef/scenarios`
pub async fn list(State(management): State<Management>, caller: Caller) -> Result<Json<Value>, ApiError> {
    caller.require(Scope::Read)?;
    let mut rows = Vec::new();
    for scenario in management.scenarios.list(caller.tenant()).await {
        if caller.sees(&scenario.key.1) {
            rows.push(describe(&scenario));
        }
    }
    Ok(Json(json!({ "scenarios": rows })))
}

/// `POST /reef/scenarios`: 201 for a new one, 200 for an existing one.
pub async fn create(
    State(management): State<Management>,
    caller: Caller,
    JsonObject(body): JsonObject,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    caller.require(Scope::Admin)?;
    let settings = SettingsBody::read(body)?;
    let name =
        settings.scenario.clone().ok_or_else(|| ApiError::invalid("scenario", "name the scenario in 'scenario'"))?;
    let name = ScenarioName::parse(name)?;
    caller.check_sees(&name)?;
    let from = match settings.release_id.as_ref().or(caller.release.as_ref()) {
        Some(release) => Some(caller.beginning(&management.scenarios, release).await?),
        None => None,
    };
    let settings = settings.over(management.scenarios.defaults().clone());
    management.check(None, &settings)?;
    let key = (caller.tenant().clone(), name);
    let created = async move { management.scenarios.create(key, Some(settings), from.as_ref()).await };
    let (scenario, new) = to_the_end(created).await?;
    let status = if new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(describe(&scenario))))
}

/// `GET /reef/scenarios/{s}`
pub async fn show(
    State(management): State<Management>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let scenario = management.open(&caller, Scope::Read, &name).await?;
    Ok(Json(describe(&scenario)))
}

/// `POST /reef/scenarios/{s}/update`
pub async fn update(
    State(management): State<Management>,
    caller: Caller,
    Path(name): Path<String>,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let scenario = management.open(&caller, Scope::Admin, &name).await?;
    let body = SettingsBody::read(body)?;
    if body.scenario.as_deref().is_some_and(|other| other != name) {
        return Err(ApiError::invalid("scenario", "a scenario cannot be renamed; leave 'scenario' out"));
    }
    if body.release_id.is_some() {
        let told = "what a scenario began with cannot be changed; create a new one, or roll this one back";
        return Err(ApiError::invalid("release_id", told));
    }
    // Of two changes at the same time the second is made to what the first has left.
    let changing = Arc::clone(&scenario.changing).lock_owned().await;
    let settings = body.over(scenario.settings());
    management.check(Some(&scenario), &settings)?;
    let updated = async move {
        let _changing = changing;
        management.scenarios.update(&scenario, settings).await.map(|()| scenario)
    };
    Ok(Json(describe(&*to_the_end(updated).await?)))
}

/// `DELETE /reef/scenarios/{s}`: everything of it is gone, and its name is free.
pub async fn remove(
    State(management): State<Management>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let scenario = management.open(&caller, Scope::Admin, &name).await?;
    let forgotten = async move { management.scenarios.forget(&scenario).await.map(|report| (scenario, report)) };
    let (scenario, report) = to_the_end(forgotten).await?;
    Ok(Json(json!({ "scenario": scenario.key.1, "deleted": true, "bytes_freed": report.bytes_freed })))
}

fn describe(scenario: &Scenario) -> Value {
    let served = scenario.served();
    json!({
        "scenario": scenario.key.1,
        "tenant": scenario.key.0,
        "settings": scenario.settings(),
        "head": { "release_id": served.release.release_id, "content_id": served.release.content_id, "sequence": served.release.manifest.sequence },
    })
}

/// `PUT /reef/scenarios/{s}/held-out`: replaces the tasks that measure candidates and never train.
pub async fn put_held_out(
    State(management): State<Management>,
    caller: Caller,
    Path(name): Path<String>,
    JsonObject(mut body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let scenario = management.open(&caller, Scope::Admin, &name).await?;
    let tasks = body.remove("tasks").unwrap_or_default();
    let tasks: Vec<HeldOutTask> = serde_json::from_value(tasks).map_err(|error| {
        ApiError::invalid(
            "tasks",
            format!("tasks must be a list of {{messages, answer, grader: exact|similarity}}: {error}"),
        )
    })?;
    if tasks.len() > HELD_OUT_MAX {
        return Err(ApiError::invalid("tasks", format!("more than {HELD_OUT_MAX} held-out tasks")));
    }
    for (index, task) in tasks.iter().enumerate() {
        let bytes = task.answer.len() + task.messages.iter().map(|message| message.content.len()).sum::<usize>();
        if task.messages.is_empty() || bytes > HELD_OUT_BYTES_MAX {
            return Err(ApiError::invalid(
                format!("tasks[{index}]"),
                format!("tasks[{index}] needs messages and at most {HELD_OUT_BYTES_MAX} bytes"),
            ));
        }
    }
    let (engine, tasks) = (management.engine.clone(), tasks);
    let checked = tokio::task::spawn_blocking(move || check_fit(&engine, &tasks).map(|()| tasks)).await;
    let tasks = checked.map_err(|error| ApiError::internal("the held-out tasks could not be checked", error))??;
    management.store.set_held_out(&scenario.key.0, &scenario.key.1, &tasks).await?;
    scenario.tell_changed();
    Ok(Json(json!({ "scenario": scenario.key.1, "held_out": tasks.len() })))
}

/// A task that does not render, or leaves no room for its answer, could never be measured.
fn check_fit(engine: &Engine, tasks: &[HeldOutTask]) -> Result<(), ApiError> {
    let context = engine.info().context_length;
    for (index, task) in tasks.iter().enumerate() {
        let at = format!("tasks[{index}]");
        let refuse = |problem: String| ApiError::invalid(at.clone(), format!("{at}: {problem}"));
        let prompt = engine.render_chat(&task.messages).map_err(|error| refuse(error.to_string()))?;
        let wanted = crate::jobs::held_out::answer_tokens(engine, task) as usize;
        if prompt.len() + wanted > context {
            return Err(refuse(format!(
                "prompt and answer take {} tokens; the context holds {context}",
                prompt.len() + wanted
            )));
        }
    }
    Ok(())
}
