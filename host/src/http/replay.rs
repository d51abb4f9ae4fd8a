//! `POST /reef/scenarios/{s}/replay {step, threads?}`: a stored step done again, compared thing by thing with what it was.
//! Nothing is written. It loads a model of its own and takes the processor as a step does, so one runs at a time.

use std::path::PathBuf;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::body::JsonObject;
use super::caller::Caller;
use super::error::ApiError;
use super::fields::typed;
use super::params::Path;
use super::scenarios::Management;
use crate::config::{Config, Scope};
use crate::error::StartError;
use crate::jobs::replay_step::{Wanted, replay_step};
use crate::store_place::StoreSection;

/// Threads that may be asked for.
const THREADS_MAX: usize = 1_024;

/// What replays read, and whose turn it is.
#[derive(Debug, Clone)]
pub struct Replays {
    data: PathBuf,
    store: StoreSection,
    model: PathBuf,
    compile_in_process: bool,
    turn: Arc<Semaphore>,
}

impl Replays {
    /// Of the server with this configuration.
    pub fn of(config: &Config) -> Self {
        Self {
            data: config.data.clone(),
            store: config.store.clone(),
            model: config.model.clone(),
            compile_in_process: config.recipes.compile_in_process,
            turn: Arc::new(Semaphore::new(1)),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplayBody {
    step: u32,
    /// None: as many as the step had. Others may round differently.
    threads: Option<usize>,
}

/// Does the step again and tells what differs; `same` says whether nothing does.
pub async fn replay(
    State(management): State<Management>,
    caller: Caller,
    Path(name): Path<String>,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let scenario = management.open(&caller, Scope::Admin, &name).await?;
    let body: ReplayBody = typed(body, "a replay takes {step, threads?}")?;
    if body.threads.is_some_and(|threads| !(1..=THREADS_MAX).contains(&threads)) {
        return Err(ApiError::invalid("threads", format!("threads must be 1 to {THREADS_MAX}")));
    }
    let (tenant, scenario) = scenario.key.clone();
    if management.store.step(&tenant, &scenario, body.step).await?.is_none() {
        let told =
            format!("scenario '{scenario}' has no step {}; GET /reef/scenarios/{scenario}/steps lists them", body.step);
        return Err(ApiError::not_found(told));
    }
    let replays = management.replays;
    let busy = || ApiError::conflict("another replay is running; try again when it has ended");
    let _turn = replays.turn.try_acquire().map_err(|_| busy())?;
    let wanted = Wanted {
        data: replays.data.clone(),
        store: replays.store.clone(),
        model: replays.model.clone(),
        tenant,
        scenario,
        step: body.step,
        threads: body.threads,
        compile_in_process: replays.compile_in_process,
    };
    Ok(Json(json!(replay_step(&wanted).await.map_err(refused)?)))
}

fn refused(error: StartError) -> ApiError {
    match error {
        StartError::Config(told) | StartError::Refused(told) => ApiError::conflict(told),
        StartError::Recipe(told) => ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "recipe_refused", told),
        other => ApiError::internal("the step could not be done again", other),
    }
}
