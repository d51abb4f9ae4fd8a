//! `/reef/scenarios/{s}/router`: the routing policy that is applied, and proposals of another. One that is not admitted is
//! an answer with its reasons and leaves nothing behind; one that is becomes a release that waits until a person promotes
//! it, with the routes that promote, reject and roll back every release.

use axum::Json;
use axum::extract::State;
use reef_core::{RecordId, Release, ReleaseId, ReleaseOrigin, RoutingPolicy, sha256_hex};
use reef_store::{HarnessProposal, PROPOSAL_REASON_BYTES_MAX, StoreError};
use serde_json::{Map, Value, json};

use super::body::JsonObject;
use super::caller::Caller;
use super::error::ApiError;
use super::fields::{known, text};
use super::inference::Serving;
use super::params::Path;
use super::redaction::redact_text;
use crate::clock::now_ms;
use crate::config::Scope;
use crate::scenarios::{Scenario, ScenarioError, policy_files};

/// Bytes of a policy as JSON.
const POLICY_BYTES_MAX: usize = 64 << 10;
/// Fields of a proposal.
const FIELDS: [&str; 3] = ["policy", "reason", "release_id"];

/// `GET …/router`: the policy that is applied; null where there is none.
pub async fn show(
    State(serving): State<Serving>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let scenario = caller.open(&serving.scenarios, Scope::Read, &name).await?;
    let live = scenario.policy();
    Ok(Json(json!({
        "scenario": scenario.key.1,
        "release_id": live.as_ref().map(|live| &live.release),
        "policy": live.as_ref().map(|live| &live.policy),
    })))
}

struct Proposed {
    policy: RoutingPolicy,
    reason: String,
    base: Option<ReleaseId>,
}

/// `POST …/router {policy, reason, release_id}`
pub async fn propose(
    State(serving): State<Serving>,
    caller: Caller,
    Path(name): Path<String>,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let scenario = caller.open(&serving.scenarios, Scope::Report, &name).await?;
    let mut asked = proposed(&body)?;
    asked.reason = redact_text(&serving.redactor, &asked.reason);
    // A client that goes away must not cut a release off from its proposal.
    let proposing = tokio::spawn(async move { decide(&serving, &scenario, asked).await });
    proposing.await.map_err(|_| ScenarioError::Interrupted)?
}

async fn decide(serving: &Serving, scenario: &Scenario, asked: Proposed) -> Result<Json<Value>, ApiError> {
    let (tenant, name) = &scenario.key;
    let head = serving.scenarios.policy_head(scenario).await?;
    let base = asked.base.clone().unwrap_or_else(|| head.release_id.clone());
    let said = json!({ "base": base, "policy": asked.policy, "reason": asked.reason });
    let id = RecordId::parse(sha256_hex(said.to_string().as_bytes()))?;
    if let Some(known) = serving.store.proposal(tenant, name, &id).await? {
        return Ok(admitted(known));
    }
    if base != head.release_id {
        let (expected, actual) = (Some(base), Some(head.release_id));
        return Err(StoreError::HeadMoved { scenario: name.clone(), expected, actual }.into());
    }
    let own = &serving.engine.info().name;
    let may_use = |model: &str| model == own || model == name.as_str() || serving.providers.find(model).is_some();
    let reasons = asked.policy.problems(may_use);
    if !reasons.is_empty() {
        let told = reasons.join("\n");
        return Ok(Json(json!({
            "proposal_id": id, "admitted": false, "release_id": base, "reason": told, "reasons": reasons,
        })));
    }
    hold(serving, (scenario, &head), (id, asked)).await
}

async fn hold(
    serving: &Serving,
    (scenario, head): (&Scenario, &Release),
    (id, asked): (RecordId, Proposed),
) -> Result<Json<Value>, ApiError> {
    let why = (ReleaseOrigin::Proposal { id: id.clone() }, asked.reason.clone());
    let proposal = move |release| HarnessProposal {
        id,
        release,
        request: None,
        reason: asked.reason,
        session: None,
        created_at_ms: now_ms(),
    };
    let files = policy_files(&asked.policy);
    Ok(admitted(serving.scenarios.hold_change(scenario, (head, files), proposal, why).await?))
}

fn admitted(proposal: HarnessProposal) -> Json<Value> {
    Json(json!({
        "proposal_id": proposal.id, "admitted": true, "release_id": proposal.release,
        "reason": "admitted; it waits until a person promotes or rejects its release",
    }))
}

fn proposed(body: &Map<String, Value>) -> Result<Proposed, ApiError> {
    known(body, &FIELDS)?;
    let policy = body.get("policy").cloned().unwrap_or_default();
    if policy.to_string().len() > POLICY_BYTES_MAX {
        return Err(ApiError::invalid("policy", format!("the policy is over {POLICY_BYTES_MAX} bytes")));
    }
    let policy = serde_json::from_value(policy).map_err(|error| {
        ApiError::invalid("policy", format!("the policy must be {{\"rules\": [{{when, models}}]}}: {error}"))
    })?;
    let reason = text(body, "reason", PROPOSAL_REASON_BYTES_MAX)?.filter(|reason| !reason.trim().is_empty());
    let reason = reason.ok_or_else(|| ApiError::invalid("reason", "say in 'reason' why the policy should change"))?;
    let base = text(body, "release_id", usize::MAX)?.map(ReleaseId::parse).transpose()?;
    Ok(Proposed { policy, reason, base })
}
