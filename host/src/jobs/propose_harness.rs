//! A proposed change of the harness, from its mutations to a release that waits for a person. The route calls it; the
//! crate `harness` decides what is admitted, against the tree that is served and what the scenario is tested on.
//! A proposal that is not admitted is an answer with its reasons, which are kept to be read later.

use std::sync::Arc;

use reef_core::{Instruction, RecordId, Release, ReleaseId, ReleaseOrigin, sha256_hex};
use reef_episodes::Task;
use reef_harness::{Adapter, Binding, Corpus, CorpusError, Mutation, Policy, Refusal, Rules, admit};
use reef_store::{HarnessProposal, RecordBody, RefusedProposal, Store, StoreError};

use serde_json::json;

use crate::clock::now_ms;
use crate::episodes::Shop;
use crate::scenarios::{HarnessContent, Scenario, ScenarioError, ScenarioKey, Scenarios};

/// Requirements of one release.
const REQUIRES_MAX: usize = 64;

/// What is proposed.
#[derive(Debug, Clone)]
pub struct Proposed {
    /// The changes.
    pub mutations: Vec<Mutation>,
    /// Why, in the proposer's words.
    pub reason: String,
    /// The session that it was learned from.
    pub session: Option<String>,
    /// The release that it changes; the head by default.
    pub base: Option<ReleaseId>,
    /// The instruction that it answers.
    pub request: Option<RecordId>,
}

/// What became of a proposal.
#[derive(Debug)]
pub enum Proposal {
    /// Its release waits, or was decided upon already.
    Admitted(HarnessProposal),
    /// It breaks rules; they are kept.
    Refused(RefusedProposal),
}

/// Why a proposal gets no answer.
#[derive(Debug, thiserror::Error)]
pub enum ProposeError {
    /// The instruction that it answers is not there.
    #[error("'{0}' is no instruction of this scenario; leave 'request' out, or name one that POST /reef/train filed")]
    UnknownRequest(RecordId),
    /// Too much to scan for what it repeats.
    #[error("{0}; the held-out tasks of the scenario are too many to admit a proposal beside them")]
    Corpus(#[from] CorpusError),
    /// The tasks of the scenario cannot be read.
    #[error("{0}; correct the tasks under harness.tasks")]
    Tasks(String),
    /// The release would need too much of a client.
    #[error("the release would have {0} requirements; the limit is {REQUIRES_MAX}")]
    Requires(usize),
    /// The chain refused.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The store refused.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Proposes a change.
pub async fn propose_harness(
    scenarios: &Scenarios,
    (store, shop): (&Store, &Shop),
    scenario: &Scenario,
    asked: Proposed,
) -> Result<Proposal, ProposeError> {
    let (tenant, name) = &scenario.key;
    let head = scenarios.harness(scenario).await?;
    if let Some(base) = &asked.base {
        scenarios.harness_release(scenario, base).await?;
    }
    let base = asked.base.clone().unwrap_or_else(|| head.release_id.clone());
    let id = digest(&asked, &base)?;
    if let Some(known) = store.proposal(tenant, name, &id).await? {
        return Ok(Proposal::Admitted(known));
    }
    if base != head.release_id {
        let (expected, actual) = (Some(base), Some(head.release_id));
        return Err(StoreError::HeadMoved { scenario: name.clone(), expected, actual }.into());
    }
    let request = instruction(store, scenario, asked.request.as_ref()).await?;
    let before = scenarios.harness_content(&base).await?;
    let tasks = shop.tasks(&scenario.key).await.map_err(ProposeError::Tasks)?;
    let corpus = corpus(store, scenario, &tasks).await?;
    let (content, mutations) = (before.clone(), asked.mutations.clone());
    let (adapters, key) = (Arc::clone(shop.adapters()), scenario.key.clone());
    let admitted = tokio::task::spawn_blocking(move || {
        let policy = Policy::default();
        let adapters: Vec<&Adapter> = adapters.iter().filter(|adapter| takes_all(adapter, &policy)).collect();
        let binding = trial(key.1);
        let rules = Rules { policy: &policy, adapters: &adapters, binding: &binding, corpus: &corpus };
        admit(&content.tree, &mutations, &rules)
    });
    match admitted.await.map_err(|_| ScenarioError::Interrupted)? {
        Err(refusals) => {
            let Proposed { request, reason, session, .. } = asked;
            let reasons = refusals.iter().map(Refusal::to_string).collect();
            let refused = RefusedProposal { id, base, request, reason, reasons, session, created_at_ms: now_ms() };
            store.refuse_proposal(tenant, name, &refused).await?;
            Ok(Proposal::Refused(refused))
        }
        Ok(applied) => {
            let mut content = HarnessContent { tree: applied.tree, requires: before.requires };
            need(&mut content, request.as_ref())?;
            hold(scenarios, scenario, (&head, &content), (id, asked)).await.map(Proposal::Admitted)
        }
    }
}

/// Equal for proposals that say the same about the same release.
fn digest(asked: &Proposed, base: &ReleaseId) -> Result<RecordId, ProposeError> {
    let Proposed { mutations, reason, session, request, .. } = asked;
    let said =
        json!({ "base": base, "mutations": mutations, "reason": reason, "session": session, "request": request });
    let id = sha256_hex(said.to_string().as_bytes());
    Ok(RecordId::parse(id).map_err(|error| StoreError::Invalid(error.to_string()))?)
}

async fn instruction(
    store: &Store,
    scenario: &Scenario,
    request: Option<&RecordId>,
) -> Result<Option<Instruction>, ProposeError> {
    let Some(id) = request else { return Ok(None) };
    match store.record(&scenario.key.0, &scenario.key.1, id).await?.map(|record| record.body) {
        Some(RecordBody::Instruction(instruction)) => Ok(Some(*instruction)),
        _ => Err(ProposeError::UnknownRequest(id.clone())),
    }
}

/// What the scenario is tested on.
pub(super) async fn corpus(store: &Store, scenario: &Scenario, tasks: &[Arc<Task>]) -> Result<Corpus, ProposeError> {
    let mut corpus = Corpus::default();
    for (at, task) in store.held_out(&scenario.key.0, &scenario.key.1).await?.iter().enumerate() {
        for message in &task.messages {
            corpus.add_text(&format!("held-out task {at}"), &message.content)?;
        }
        corpus.add_answer(&format!("the answer of held-out task {at}"), &task.answer)?;
    }
    for task in tasks {
        corpus.add_text(&format!("the task {}", task.name), &task.instruction)?;
    }
    Ok(corpus)
}

/// A proposal is tried with the agent programs that take every kind of entry that it may touch; what others cannot take
/// is left out where they are installed, and said there.
pub(super) fn takes_all(adapter: &Adapter, policy: &Policy) -> bool {
    adapter.takes().is_superset(&policy.kinds)
}

/// Where nothing is installed, any address will do.
pub(super) fn trial(scenario: reef_core::ScenarioName) -> Binding {
    Binding {
        url: "http://127.0.0.1:8420".to_owned(),
        model: "model".to_owned(),
        scenario,
        release: "0".to_owned(),
        context_tokens: 8_192,
        output_tokens: 1_024,
        version: None,
    }
}

/// What the instructions of a batch ask of clients, beside what clients are asked already.
pub(super) async fn needed(
    store: &Store,
    (tenant, name): &ScenarioKey,
    batch: &[RecordId],
    mut content: HarnessContent,
) -> Result<HarnessContent, ProposeError> {
    for id in batch {
        if let Some(RecordBody::Instruction(asked)) = store.record(tenant, name, id).await?.map(|record| record.body) {
            need(&mut content, Some(&asked))?;
        }
    }
    Ok(content)
}

/// Adds what the instruction asks of clients.
fn need(content: &mut HarnessContent, request: Option<&Instruction>) -> Result<(), ProposeError> {
    let asked = request.map(|instruction| instruction.requires.as_slice()).unwrap_or_default();
    for requirement in asked {
        let read = serde_json::from_value(requirement.clone());
        let read = read.map_err(|error| StoreError::Invalid(format!("a requirement of the request: {error}")))?;
        if !content.requires.contains(&read) {
            content.requires.push(read);
        }
    }
    let count = content.requires.len();
    if count > REQUIRES_MAX { Err(ProposeError::Requires(count)) } else { Ok(()) }
}

async fn hold(
    scenarios: &Scenarios,
    scenario: &Scenario,
    (head, content): (&Release, &HarnessContent),
    (id, asked): (RecordId, Proposed),
) -> Result<HarnessProposal, ProposeError> {
    let origin = ReleaseOrigin::Proposal { id: id.clone() };
    let reason = asked.reason.clone();
    let proposal = move |release| HarnessProposal {
        id,
        release,
        request: asked.request,
        reason: asked.reason,
        session: asked.session,
        created_at_ms: now_ms(),
    };
    Ok(scenarios.hold_change(scenario, (head, content.to_files()), proposal, (origin, reason)).await?)
}
