//! What changes the harness: proposals, what people ask for, and what became of either.
//! Bodies are bounded and refused by field; a change that is not admitted is an answer, not an error.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use reef_core::{Instruction, RecordId, ReleaseId, ReleaseOrigin, StepOutcome, Surface};
use reef_harness::{MUTATIONS_MAX, Requirement, read_mutations};
use reef_store::{
    HarnessProposal, InstructionState, PROPOSAL_REASON_BYTES_MAX, RecordBody, RefusedProposal, ReleaseStatus,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Harnesses;
use crate::clock::now_ms;
use crate::config::Scope;
use crate::http::body::JsonObject;
use crate::http::caller::Caller;
use crate::http::error::ApiError;
use crate::http::fields::{known, text};
use crate::http::params::{Path, Query};
use crate::http::redaction::{check_id, redact_instruction, redact_text};
use crate::jobs::propose_harness::{Proposal, ProposeError, Proposed, propose_harness};
use crate::scenarios::{Scenario, ScenarioError};

/// Bytes of the name of a session.
const SESSION_BYTES_MAX: usize = 512;
/// Proposals of a listing, where the query names no number, and at most.
const LISTED_DEFAULT: u32 = 100;
const LISTED_MAX: u32 = 1_000;
/// Fields of a proposal.
const FIELDS: [&str; 5] = ["mutations", "reason", "session", "release_id", "request"];

impl From<ProposeError> for ApiError {
    fn from(error: ProposeError) -> Self {
        match error {
            ProposeError::UnknownRequest(_) => Self::invalid("request", error.to_string()),
            ProposeError::Requires(_) => Self::invalid("request", error.to_string()),
            ProposeError::Corpus(_) | ProposeError::Tasks(_) => Self::conflict(error.to_string()),
            ProposeError::Scenario(error) => error.into(),
            ProposeError::Store(error) => error.into(),
        }
    }
}

/// `POST /reef/harness/proposals {mutations, reason, session, release_id, request}`
pub async fn propose(
    State(harnesses): State<Harnesses>,
    caller: Caller,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let scenario = harnesses.open(&caller, Scope::Report).await?;
    let mut asked = proposed(&body)?;
    asked.reason = redact_text(&harnesses.redactor, &asked.reason);
    asked.session = asked.session.or(caller.session).map(|session| redact_text(&harnesses.redactor, &session));
    // A client that goes away must not cut a release off from its proposal.
    let proposing = tokio::spawn(async move {
        let Harnesses { store, scenarios, shop, .. } = &harnesses;
        propose_harness(scenarios, (store, shop), &scenario, asked).await
    });
    let proposal = proposing.await.map_err(|_| ScenarioError::Interrupted)??;
    Ok(Json(match proposal {
        Proposal::Admitted(HarnessProposal { id, release, .. }) => json!({
            "proposal_id": id, "admitted": true, "release_id": release,
            "reason": "admitted; it waits until a person promotes or rejects its release",
        }),
        Proposal::Refused(RefusedProposal { id, base, reasons, .. }) => json!({
            "proposal_id": id, "admitted": false, "release_id": base, "reason": reasons.join("\n"), "reasons": reasons,
        }),
    }))
}

/// Query of a listing of proposals.
#[derive(Debug, Deserialize)]
pub struct Listing {
    limit: Option<u32>,
}

/// `GET /reef/harness/proposals`: what was proposed, newest first, and what became of it; of refused ones the rules that
/// they break.
pub async fn list(
    State(harnesses): State<Harnesses>,
    caller: Caller,
    Query(listing): Query<Listing>,
) -> Result<Json<Value>, ApiError> {
    let scenario = harnesses.open(&caller, Scope::Read).await?;
    let (tenant, name) = &scenario.key;
    let limit = listing.limit.unwrap_or(LISTED_DEFAULT).clamp(1, LISTED_MAX);
    let admitted = harnesses.store.proposals(tenant, name, limit).await?.into_iter().map(|(proposal, state)| {
        let HarnessProposal { id, release, request, reason, session, created_at_ms } = proposal;
        let row = json!({ "proposal_id": id, "admitted": true, "state": state, "release_id": release, "request": request,
            "reason": reason, "reasons": [], "session": session, "created_at_ms": created_at_ms });
        (created_at_ms, row)
    });
    let refused = harnesses.store.refused_proposals(tenant, name, limit).await?.into_iter().map(|refused| {
        let RefusedProposal { id, base, request, reason, reasons, session, created_at_ms } = refused;
        let row = json!({ "proposal_id": id, "admitted": false, "state": "refused", "release_id": base,
            "request": request, "reason": reason, "reasons": reasons, "session": session,
            "created_at_ms": created_at_ms });
        (created_at_ms, row)
    });
    let mut rows: Vec<(i64, Value)> = admitted.chain(refused).collect();
    rows.sort_by_key(|(at_ms, _)| std::cmp::Reverse(*at_ms));
    let rows: Vec<Value> = rows.into_iter().take(limit as usize).map(|(_, row)| row).collect();
    Ok(Json(json!({ "scenario": name, "proposals": rows })))
}

fn proposed(body: &Map<String, Value>) -> Result<Proposed, ApiError> {
    known(body, &FIELDS)?;
    let mutations = body.get("mutations").unwrap_or(&Value::Null);
    let count = mutations.as_array().map_or(0, Vec::len);
    if count > MUTATIONS_MAX {
        return Err(ApiError::invalid("mutations", format!("{count} mutations; the limit is {MUTATIONS_MAX}")));
    }
    let mutations = read_mutations(mutations).map_err(|error| ApiError::invalid("mutations", error.to_string()))?;
    let reason = text(body, "reason", PROPOSAL_REASON_BYTES_MAX)?.filter(|reason| !reason.trim().is_empty());
    let release = text(body, "release_id", usize::MAX)?.map(ReleaseId::parse).transpose();
    let request = text(body, "request", usize::MAX)?.map(RecordId::parse).transpose();
    Ok(Proposed {
        mutations,
        reason: reason.ok_or_else(|| ApiError::invalid("reason", "say in 'reason' why the harness should change"))?,
        session: text(body, "session", SESSION_BYTES_MAX)?,
        base: release.map_err(|error| ApiError::invalid("release_id", error.to_string()))?,
        request: request.map_err(|error| ApiError::invalid("request", error.to_string()))?,
    })
}

/// `POST /reef/train {text, session, release_id, requires[], agent_record_id?}`: files what a person asks for.
pub async fn train(
    State(harnesses): State<Harnesses>,
    caller: Caller,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let scenario = harnesses.open(&caller, Scope::Report).await?;
    let (tenant, name) = &scenario.key;
    let read = Instruction::from_body(&body, now_ms());
    let mut instruction = read.map_err(|error| ApiError::invalid(error.field.clone(), error.to_string()))?;
    for (at, requirement) in instruction.requires.iter().enumerate() {
        let read: Result<Requirement, _> = serde_json::from_value(requirement.clone());
        read.map_err(|error| ApiError::invalid(format!("requires[{at}]"), format!("requires[{at}]: {error}")))?;
    }
    if let Some(release) = &instruction.release {
        harnesses.scenarios.harness_release(&scenario, release).await?;
    }
    instruction.session = instruction.session.or(caller.session);
    instruction.traceparent = caller.traceparent;
    check_id(&harnesses.redactor, &instruction.id)?;
    let instruction = redact_instruction(&harnesses.redactor, instruction);
    let id = instruction.id.clone();
    let read = harnesses.reads_instructions(&scenario);
    if !harnesses.store.append_instruction(tenant, name, instruction, read).await?.duplicate {
        scenario.wake();
    }
    Ok(Json(json!({ "agent_record_id": id, "scenario": name, "request_type": "instruction" })))
}

/// `GET /reef/harness/requests/{id}/progress`: of an instruction, or of a proposal.
pub async fn progress(
    State(harnesses): State<Harnesses>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let scenario = harnesses.open(&caller, Scope::Read).await?;
    let (tenant, name) = &scenario.key;
    let id = RecordId::parse(id)?;
    let proposal = match harnesses.store.proposal(tenant, name, &id).await? {
        Some(proposal) => Some(proposal),
        None => harnesses.store.proposal_for(tenant, name, &id).await?,
    };
    if let Some(proposal) = proposal {
        let (state, release) = decided(&harnesses, &scenario, &proposal.release).await?;
        return Ok(Json(json!({
            "id": id, "scenario": name, "state": state, "reason": proposal.reason, "release_id": release,
            "proposal_id": proposal.id,
        })));
    }
    if let Some(refused) = harnesses.store.refused_proposal(tenant, name, &id).await? {
        return Ok(Json(json!({
            "id": id, "scenario": name, "state": "refused", "reason": refused.reasons.join("\n"),
            "release_id": null, "proposal_id": refused.id,
        })));
    }
    match harnesses.store.record(tenant, name, &id).await?.map(|record| record.body) {
        Some(RecordBody::Instruction(_)) => {
            let (state, reason, release) = worked_on(&harnesses, &scenario, &id).await?;
            Ok(Json(json!({
                "id": id, "scenario": name, "state": state, "reason": reason, "release_id": release,
                "proposal_id": null,
            })))
        }
        _ => Err(ApiError::new(
            StatusCode::NOT_FOUND,
            "not_found",
            format!("'{id}' is no instruction or proposal of scenario '{name}'; POST /reef/train files one"),
        )),
    }
}

/// How far a recipe has come with an instruction: state, why, and the release that came of it.
async fn worked_on(
    harnesses: &Harnesses,
    scenario: &Scenario,
    id: &RecordId,
) -> Result<(&'static str, String, Option<ReleaseId>), ApiError> {
    let (tenant, name) = &scenario.key;
    let step = match harnesses.store.instruction_state(tenant, name, id).await? {
        None => return Ok(("waiting", "no proposal answers it yet, and no recipe reads it".to_owned(), None)),
        Some(InstructionState::Waiting) => {
            let told = scenario.side(Surface::Harness).status().waiting;
            return Ok(("waiting", told.unwrap_or_else(|| "no step has taken it yet".to_owned()), None));
        }
        Some(InstructionState::SetAside(reason)) => return Ok(("rejected", reason, None)),
        Some(InstructionState::InStep(step) | InstructionState::Used(step)) => step,
    };
    let Some(step) = harnesses.store.step(tenant, name, step).await? else {
        return Ok(("waiting", format!("step {step} is not kept"), None));
    };
    let reason = step.outcome_reason().unwrap_or("a step works on it").to_owned();
    match &step.outcome {
        StepOutcome::Running | StepOutcome::Failed { .. } => Ok(("running", reason, None)),
        StepOutcome::Rejected { .. } | StepOutcome::Skipped { .. } => Ok(("rejected", reason, None)),
        StepOutcome::Released { release, .. } => Ok(("released", reason, Some(release.clone()))),
        StepOutcome::Held { .. } => {
            let releases = harnesses.store.releases_of(tenant, name, Surface::Harness).await?;
            let made = releases.iter().find(|listed| listed.release.manifest.origin.step() == Some(step.step));
            let Some(made) = made else { return Ok(("held", reason, None)) };
            let (state, release) = decided(harnesses, scenario, &made.release.release_id).await?;
            Ok((state, reason, Some(release)))
        }
    }
}

/// What became of the release of a proposal, and the release that tells so.
async fn decided(
    harnesses: &Harnesses,
    scenario: &Scenario,
    proposed: &ReleaseId,
) -> Result<(&'static str, ReleaseId), ApiError> {
    match harnesses.scenarios.harness_release(scenario, proposed).await?.status {
        ReleaseStatus::Held => return Ok(("held", proposed.clone())),
        ReleaseStatus::Rejected => return Ok(("rejected", proposed.clone())),
        ReleaseStatus::Served | ReleaseStatus::Retained => {}
    }
    let (tenant, name) = &scenario.key;
    let releases = harnesses.store.releases_of(tenant, name, Surface::Harness).await?;
    let accepted = releases
        .into_iter()
        .map(|listed| listed.release)
        .find(|release| matches!(&release.manifest.origin, ReleaseOrigin::Acceptance { of } if of == proposed));
    Ok(("released", accepted.map_or_else(|| proposed.clone(), |release| release.release_id)))
}
