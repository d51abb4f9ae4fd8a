//! Recorded exchanges for a recipe that follows live sessions (its export `live`): handed over in order, each once,
//! and its judgements become reports. The place in the log is part of the recipe's state, so a crash hands the same
//! exchanges over again and the same judgements are the same reports, which the store counts once.

use reef_core::{Inference, LIVE_REPORT_PREFIX, RecordId, RecordStatus, Report, sha256_hex};
use reef_sandbox::{Call, Context, Exchange, Fault, Judgement};
use reef_store::{RecordBody, RecordKind, StoreError};

use super::guest_reads::{answer, messages};
use super::run_step::{StepError, Workshop, context_outside, guest_state};
use super::step_context::unstorable;
use super::surface;
use crate::scenarios::Scenario;

/// Exchanges of one call.
const EXCHANGES_MAX: u32 = 64;
/// Where the recipe is in the log: a sequence, 8 bytes little-endian.
const PLACE_STATE: &str = "reef.live";

/// Hands the next exchanges over. `None` when there were none; else whether the call ended well.
pub async fn ingest_live(workshop: &Workshop, scenario: &Scenario) -> Result<Option<Result<(), Fault>>, StepError> {
    let recipe = &workshop.recipe;
    if !recipe.exports().live {
        return Ok(None);
    }
    let (tenant, name) = &scenario.key;
    let owner = recipe.manifest().name.clone();
    let state = workshop.store.recipe_state(tenant, name, &owner).await?;
    let page =
        workshop.store.records(tenant, name, place(state.get(PLACE_STATE)), EXCHANGES_MAX, Some(RecordKind::Inference));
    let page = page.await?;
    let Some(last) = page.last().map(|stored| stored.sequence) else { return Ok(None) };
    let inferences: Vec<Inference> = page
        .into_iter()
        .filter_map(|stored| match stored.body {
            RecordBody::Inference(inference) => Some(*inference),
            RecordBody::Report(_) | RecordBody::Instruction(_) => None,
        })
        .filter(|inference| inference.status == RecordStatus::Complete && inference.capture)
        .collect();
    let mut writes = Vec::new();
    if !inferences.is_empty() {
        let heard_ms = inferences.iter().map(|inference| inference.created_at_ms).max().unwrap_or(0);
        let context = Context { now_ms: heard_ms, ..context_outside(scenario) };
        let config = workshop.exchange.config(scenario, surface::of(recipe));
        let call = Call { config, state: guest_state(state), ..Call::new(context) };
        let call = workshop.exchange.reads.give(&scenario.key, call);
        let ended = recipe.ingest(call, inferences.iter().filter_map(exchange).collect()).await;
        let judgements = match ended.result {
            Ok(judgements) => judgements,
            Err(fault) => return Ok(Some(Err(fault))),
        };
        for judgement in judgements {
            let judged = inferences.iter().find(|inference| inference.id == judgement.receipt);
            let Some(report) = judged.and_then(|inference| report(&owner, inference, judgement)) else { continue };
            match workshop.store.append_report(tenant, name, report).await {
                Ok(_) => metrics::counter!("reef_judgements_total").increment(1),
                // Judged before a crash, and otherwise now, with another head or more exchanges: the first word counts.
                // Or erased since it was read.
                Err(StoreError::Conflict(_) | StoreError::Gone(_)) => {}
                Err(StoreError::Invalid(told)) => return Ok(Some(Err(unstorable(&told)))),
                Err(error) => return Err(error.into()),
            }
        }
        writes = ended.state;
    }
    writes.push((PLACE_STATE.to_owned(), Some(last.to_le_bytes().to_vec())));
    match workshop.store.write_recipe_state(tenant, name, &owner, writes).await {
        Ok(()) => Ok(Some(Ok(()))),
        Err(StoreError::Invalid(told)) => Ok(Some(Err(unstorable(&told)))),
        Err(error) => Err(error.into()),
    }
}

fn place(stored: Option<&Vec<u8>>) -> i64 {
    let bytes = stored.and_then(|bytes| <[u8; 8]>::try_from(bytes.as_slice()).ok());
    bytes.map_or(0, i64::from_le_bytes)
}

/// `None` for answers that no release of this server gave.
fn exchange(inference: &Inference) -> Option<Exchange> {
    let trace = inference.tokens.as_ref()?;
    let count = |tokens: &[u32]| u32::try_from(tokens.len()).unwrap_or(u32::MAX);
    Some(Exchange {
        id: inference.id.clone(),
        release: trace.spans.first()?.release.clone(),
        at_ms: inference.created_at_ms,
        session: inference.session.clone(),
        tags: inference.tags.iter().map(|(tag, value)| (tag.to_string(), value.clone())).collect(),
        messages: messages(inference),
        answer: answer(inference),
        tools: inference.request["tools"].as_array().is_some_and(|tools| !tools.is_empty()),
        prompt_tokens: count(&trace.prompt),
        answer_tokens: count(&trace.output),
    })
}

/// The report of a judgement: named by recipe and receipt, so that the same judgement again is the same report.
fn report(recipe: &str, judged: &Inference, judgement: Judgement) -> Option<Report> {
    let digest = sha256_hex(format!("{recipe}\n{}", judged.id).as_bytes());
    Some(Report {
        id: RecordId::parse(format!("{LIVE_REPORT_PREFIX}{}", digest.get(..32)?)).ok()?,
        created_at_ms: judged.created_at_ms,
        score: Some(judgement.score),
        feedback: None,
        references: vec![judgement.receipt],
        metadata: judgement.metadata,
        amends: None,
        traceparent: judged.traceparent.clone(),
    })
}
