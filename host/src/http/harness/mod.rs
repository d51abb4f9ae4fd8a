//! `/reef/harness…`: the harness that clients install, its chain, and the agent programs that can be given it.
//! Everything is read from the store and the release repository when it is asked for; the scenario is the header's or
//! the token's default, and one that the token does not see looks absent.

pub mod install;
pub mod page;
pub mod proposals;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use reef_core::{INSTRUCTION_FIELD, Release, ReleaseId, Surface};
use reef_engine::Engine;
use reef_intake::Redactor;
use reef_store::{ListedRelease, Store};
use serde::Deserialize;
use serde_json::{Value, json};

use super::caller::Caller;
use super::error::ApiError;
use super::params::Query;
use crate::config::Scope;
use crate::episodes::Shop;
use crate::recipes::Manifests;
use crate::scenarios::{HarnessContent, Scenario, Scenarios};

/// Names the release of an answer.
const RELEASE_HEADER: HeaderName = HeaderName::from_static("x-reef-release-id");

/// The part of the host that serves harnesses.
#[derive(Debug, Clone)]
pub struct Harnesses {
    /// The truth.
    pub store: Store,
    /// Scenarios in service.
    pub scenarios: Arc<Scenarios>,
    /// Where episodes are played, and the agent programs.
    pub shop: Shop,
    /// Whose model installed programs ask for.
    pub engine: Engine,
    /// Takes secrets out of what people ask.
    pub redactor: Arc<Redactor>,
    /// Of the server's recipes.
    pub manifests: Manifests,
}

impl Harnesses {
    /// The scenario that a caller with the scope names.
    async fn open(&self, caller: &Caller, scope: Scope) -> Result<Arc<Scenario>, ApiError> {
        caller.require(scope)?;
        Ok(self.scenarios.get(caller.tenant(), &caller.scenario()?).await?)
    }

    /// Does a recipe of the scenario read what people ask for?
    fn reads_instructions(&self, scenario: &Scenario) -> bool {
        let manifests = self.manifests.of(Some(scenario));
        let fields = manifests.get(&Surface::Harness).map(|manifest| manifest.report_fields.as_slice());
        fields.unwrap_or_default().iter().any(|field| field.name == INSTRUCTION_FIELD)
    }

    /// The named harness release, or the head.
    async fn release(&self, scenario: &Scenario, id: Option<&str>) -> Result<ListedRelease, ApiError> {
        let head = self.scenarios.harness(scenario).await?.release_id;
        let id = id.map_or(Ok(head), ReleaseId::parse)?;
        Ok(self.scenarios.harness_release(scenario, &id).await?)
    }

    /// The releases of the chain and those that wait or waited beside it, oldest first.
    async fn releases(&self, scenario: &Scenario) -> Result<Vec<ListedRelease>, ApiError> {
        self.scenarios.harness(scenario).await?;
        let (tenant, name) = &scenario.key;
        let mut releases = self.store.releases_of(tenant, name, Surface::Harness).await?;
        releases.reverse();
        Ok(releases)
    }
}

/// Query of the harness.
#[derive(Debug, Deserialize)]
pub struct Wanted {
    release_id: Option<String>,
    /// As the published client says it.
    version: Option<String>,
}

/// `GET /reef/harness`
pub async fn show(
    State(harnesses): State<Harnesses>,
    caller: Caller,
    Query(wanted): Query<Wanted>,
) -> Result<Response, ApiError> {
    let scenario = harnesses.open(&caller, Scope::Read).await?;
    let wanted = wanted.release_id.or(wanted.version);
    let ListedRelease { release, status } = harnesses.release(&scenario, wanted.as_deref()).await?;
    let content = harnesses.scenarios.harness_content(&release.release_id).await?;
    let Release { release_id, content_id, manifest } = &release;
    let body = json!({
        "scenario": scenario.key.1,
        "release_id": release_id,
        "artifact_version": release_id,
        "parent_release_id": manifest.parent,
        "content_id": content_id,
        "sequence": manifest.sequence,
        "status": status,
        "files": files(&content),
        "evaluation": manifest.evaluation,
        "requires": content.requires,
    });
    let named = HeaderValue::from_str(release_id.as_str());
    let named = named.map_err(|error| ApiError::internal("the release could not be named", error))?;
    Ok(([(RELEASE_HEADER, named)], Json(body)).into_response())
}

/// The files of a tree as texts.
fn files(content: &HarnessContent) -> BTreeMap<String, String> {
    let files = content.tree.to_files().into_iter();
    files.map(|file| (file.path, String::from_utf8_lossy(&file.bytes).into_owned())).collect()
}

/// `GET /reef/harness/releases`, oldest first.
pub async fn releases(State(harnesses): State<Harnesses>, caller: Caller) -> Result<Json<Value>, ApiError> {
    let scenario = harnesses.open(&caller, Scope::Read).await?;
    let releases = harnesses.releases(&scenario).await?;
    Ok(Json(json!({ "scenario": scenario.key.1, "releases": releases })))
}

/// `GET /reef/harness/versions`: the same, as the published client reads it.
pub async fn versions(State(harnesses): State<Harnesses>, caller: Caller) -> Result<Json<Value>, ApiError> {
    let scenario = harnesses.open(&caller, Scope::Read).await?;
    let versions: Vec<Value> = harnesses.releases(&scenario).await?.iter().map(version).collect();
    Ok(Json(json!({ "scenario": scenario.key.1, "versions": versions })))
}

fn version(listed: &ListedRelease) -> Value {
    let mut row = json!(listed);
    row["artifact_version"] = json!(listed.release.release_id);
    row
}

/// `GET /reef/harness/adapters`: the agent programs, what each takes and what it cannot take.
pub async fn adapters(State(harnesses): State<Harnesses>, caller: Caller) -> Result<Json<Value>, ApiError> {
    caller.require(Scope::Read)?;
    let rows = harnesses.shop.adapters().iter().map(|adapter| {
        json!({
            "name": adapter.name,
            "title": adapter.title,
            "binary": adapter.binary,
            "versions": adapter.versions.to_string(),
            "install": adapter.install,
            "audit": adapter.audit,
            "takes": adapter.takes(),
            "cannot": adapter.cannot,
            "limits": adapter.limits,
        })
    });
    Ok(Json(json!({ "adapters": rows.collect::<Vec<_>>() })))
}
