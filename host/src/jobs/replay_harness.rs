//! The replay of a step that evolves the harness: the recipe proposes and judges again on what it heard from models and
//! episodes, and the gate decides again on the same outcomes. No episode is played and no model is asked.

use std::sync::Arc;

use reef_sandbox::{HarnessChange, PoolSample, Proposal};

use super::harness_step::{PLAYED, gate_harness};
use super::learn_scenario::state_of;
use super::propose_harness::needed;
use super::replay_step::{Replay, Wanted, failed};
use super::rerun::Folder;
use super::run_step::guest_state;
use super::step_harness::{CANDIDATE, mutation};
use super::transcript::Playback;
use crate::error::StartError;
use crate::scenarios::HarnessContent;

/// How the reason of a proposal begins that the tree did not take.
pub const NOT_ADMITTED: &str = "not admitted: ";

impl Replay {
    /// The proposal and the verdict against the transcript.
    pub(super) async fn update_harness(&mut self, folder: &Folder, wanted: &Wanted) -> Result<(), StartError> {
        self.context.seed = self.step.seed;
        let samples = Arc::new(self.samples(folder, wanted, &self.step.batch).await?);
        let playback = Playback::new(self.transcript.calls.clone());
        let mut call = self.call(&samples, guest_state(state_of(&self.inputs)));
        call.models = Some(Box::new(playback.clone()));
        call.harness = Some(Box::new(playback.clone()));
        let outcome = self.recipe.propose_update(call).await;
        let decision = match self.take(outcome) {
            Err(fault) => failed(&fault),
            Ok(Proposal::Skip(reason)) => format!("skipped: {reason}"),
            Ok(Proposal::Weights(_)) => "failed: a harness recipe proposed weights".to_owned(),
            Ok(Proposal::Harness(changes)) => self.proposed(folder, &changes, (&samples, &playback)).await?,
        };
        let heard = format!("{} calls", self.transcript.calls.len());
        let again = playback.divergence().unwrap_or_else(|| heard.clone());
        self.compare("calls of models and harness", heard, again);
        // Nothing is played here, so that the host's own counts are taken over.
        let counts = self.step.metrics.iter().filter(|(name, _)| name.starts_with(PLAYED));
        self.metrics.extend(counts.map(|(name, count)| (name.clone(), *count)));
        if !self.transcript.complete {
            self.notes.push("the step heard more than is kept; its decision may not be reached".to_owned());
        }
        self.conclude(decision);
        Ok(())
    }

    async fn proposed(
        &mut self,
        folder: &Folder,
        changes: &[HarnessChange],
        (samples, playback): (&Arc<Vec<PoolSample>>, &Playback),
    ) -> Result<String, StartError> {
        let reason = self.step.outcome_reason().filter(|reason| reason.starts_with(NOT_ADMITTED));
        if let Some(told) = reason.filter(|_| self.step.candidate.is_none()).map(|reason| format!("rejected: {reason}"))
        {
            self.notes.push("what the operator admits is not asked again".to_owned());
            return Ok(told);
        }
        let files = folder.files(&self.step.parent).await?;
        let before = HarnessContent::from_files(&files).map_err(StartError::Other)?;
        let mutations: Result<Vec<_>, String> = changes.iter().map(mutation).collect();
        let applied = mutations.and_then(|all| before.tree.apply(&all).map_err(|error| error.to_string()));
        let id = match applied {
            Ok(applied) => {
                let content = HarnessContent { tree: applied.tree, requires: before.requires };
                let content = needed(&folder.store, &self.key, &self.step.batch, content).await;
                let content = content.map_err(|error| StartError::Other(error.to_string()))?;
                reef_release::content_id(&content.to_files()).ok().map_or("none".to_owned(), |id| id.to_string())
            }
            Err(told) => told,
        };
        let was = self.step.candidate.as_ref().map_or("none".to_owned(), ToString::to_string);
        self.compare("candidate", was, id);
        let mut call = self.judging(samples, playback);
        call.harness = Some(Box::new(playback.clone()));
        let gate = |gate, replay: &Self| gate_harness(gate, &mut playback.clone(), replay.step.seed).0;
        Ok(self.judge(call, CANDIDATE, gate).await)
    }
}
