//! The host functions of `training`: handles, lengths and limits first, then the trainer, off the guest's threads.

use std::collections::{BTreeMap, BTreeSet};

use super::terms::{Draft, DraftTerm, Scope, column, optimizer, policy, range, terms};
use super::{Measured, Optimizer, Policy, Training, TrainingError};
use crate::call_state::{CallState, Denied, terms as worker_terms};
use crate::offload::{Lost, NO_THREAD, offload};
use crate::{Capability, FaultKind};

/// Trainers of one call: each is a copy of adapter, moments and critic.
pub(super) const TRAINERS_MAX: usize = 4;
/// Candidates of one call.
pub(super) const CANDIDATES_MAX: usize = 8;
/// Updates of the critic in one host call.
const CRITIC_UPDATES_MAX: u32 = 64;

/// Why a training call is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TrainingRefusal {
    #[error("there is no sample {0} in this call")]
    UnknownSample(u32),
    #[error("there is no trainer {0} in this call")]
    UnknownTrainer(u32),
    #[error(transparent)]
    Refused(#[from] TrainingError),
}

impl From<Denied> for TrainingRefusal {
    fn from(denied: Denied) -> Self {
        Self::Refused(match denied {
            Denied::Budget(told) => TrainingError::Budget(told),
            Denied::Sealed(told) => TrainingError::Other(told),
        })
    }
}

fn invalid<T>(told: impl Into<String>) -> Result<T, TrainingRefusal> {
    Err(TrainingError::Invalid(told.into()).into())
}

impl CallState {
    fn trainer(&self, on: u32) -> Result<u32, TrainingRefusal> {
        if self.training.trainers.contains(&on) { Ok(on) } else { Err(TrainingRefusal::UnknownTrainer(on)) }
    }

    /// Response tokens of each item; the items are known and named once.
    fn lengths(&self, items: &[u32]) -> Result<Vec<usize>, TrainingRefusal> {
        if items.is_empty() {
            return invalid("items: no samples");
        }
        let mut seen = BTreeSet::new();
        items
            .iter()
            .map(|item| {
                let parts = self.parts(*item).ok_or(TrainingRefusal::UnknownSample(*item))?;
                if !seen.insert(*item) {
                    return invalid(format!("items: sample {item} is named twice"));
                }
                Ok(parts.response.len())
            })
            .collect()
    }

    fn tokens_of(&self, items: &[u32]) -> Result<usize, TrainingRefusal> {
        Ok(self.lengths(items)?.into_iter().fold(0, usize::saturating_add))
    }

    pub(super) async fn ask<R: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut dyn Training) -> Result<R, TrainingError> + Send + 'static,
    ) -> Result<R, TrainingRefusal> {
        let answer = offload(&mut self.training.worker, worker_terms!(self), move |worker| work(worker.as_mut())).await;
        match answer {
            Ok(answer) => Ok(answer?),
            Err(Lost::Cancelled) => Err(TrainingError::Cancelled.into()),
            Err(Lost::Absent) => Err(TrainingError::Other("training is not available in this call".to_owned()).into()),
            Err(Lost::NoThread) => Err(TrainingError::Other(NO_THREAD.to_owned()).into()),
            Err(Lost::Panicked) => Err(self.host_bug("the trainer panicked")),
        }
    }

    fn host_bug(&mut self, told: &str) -> TrainingRefusal {
        self.cut(FaultKind::HostBug, told);
        TrainingError::Other(told.to_owned()).into()
    }

    fn answered(&mut self, column: Vec<f32>, tokens: usize) -> Result<Vec<f32>, TrainingRefusal> {
        if column.len() == tokens {
            return Ok(column);
        }
        Err(self.host_bug(&format!("the trainer answered {} numbers for {tokens} tokens", column.len())))
    }

    /// The terms, checked against the items and against the samples that they name themselves.
    fn checked_terms(&self, items: &[u32], drafts: Vec<DraftTerm>) -> Result<Vec<super::Term>, TrainingRefusal> {
        let lengths = self.lengths(items)?;
        for draft in &drafts {
            let contexts = match &draft.objective {
                Draft::Distill(what) => what.contexts.as_slice(),
                Draft::DistillTopK(what) => what.contexts.as_slice(),
                Draft::PolicyGradient(..) | Draft::Nll => &[],
            };
            if let Some(unknown) = contexts.iter().find(|item| self.parts(**item).is_none()) {
                return Err(TrainingRefusal::UnknownSample(*unknown));
            }
        }
        let top_k = self.manifest.as_ref().map_or(0, |manifest| manifest.top_k);
        Ok(terms(drafts, Scope { lengths: &lengths, top_k })?)
    }

    pub(crate) async fn open(&mut self) -> Result<u32, TrainingRefusal> {
        self.admit(Capability::Training, &())?;
        if self.training.trainers.len() >= TRAINERS_MAX {
            return Err(TrainingError::Budget(format!("a call may open {TRAINERS_MAX} trainers")).into());
        }
        let trainer = self.ask(|worker| worker.open()).await?;
        self.training.trainers.push(trainer);
        Ok(trainer)
    }

    pub(crate) async fn forward(
        &mut self,
        on: u32,
        which: Policy,
        items: Vec<u32>,
    ) -> Result<Vec<f32>, TrainingRefusal> {
        self.admit(Capability::Training, &(on, &items))?;
        let (trainer, tokens) = (self.trainer(on)?, self.tokens_of(&items)?);
        policy("which", &which)?;
        let column = self.ask(move |worker| worker.forward(trainer, which, &items)).await?;
        self.answered(column, tokens)
    }

    pub(crate) async fn train(
        &mut self,
        on: u32,
        items: Vec<u32>,
        what: Vec<DraftTerm>,
        how: Optimizer,
    ) -> Result<Measured, TrainingRefusal> {
        self.admit(Capability::Training, &((on, &items), &what, how))?;
        let trainer = self.trainer(on)?;
        let (what, how) = (self.checked_terms(&items, what)?, optimizer(how)?);
        measured(self.ask(move |worker| worker.train(trainer, &items, what, how)).await?)
    }

    pub(crate) async fn forward_backward(
        &mut self,
        on: u32,
        items: Vec<u32>,
        what: Vec<DraftTerm>,
    ) -> Result<Measured, TrainingRefusal> {
        self.admit(Capability::Training, &(on, &items, &what))?;
        let (trainer, what) = (self.trainer(on)?, self.checked_terms(&items, what)?);
        measured(self.ask(move |worker| worker.forward_backward(trainer, &items, what)).await?)
    }

    pub(crate) async fn backward(
        &mut self,
        on: u32,
        items: Vec<u32>,
        gradients: Vec<f32>,
    ) -> Result<Measured, TrainingRefusal> {
        self.admit(Capability::Training, &(on, &items, &gradients))?;
        let (trainer, tokens) = (self.trainer(on)?, self.tokens_of(&items)?);
        column("gradients", &gradients, tokens)?;
        measured(self.ask(move |worker| worker.backward(trainer, &items, gradients)).await?)
    }

    pub(crate) async fn optimizer_step(&mut self, on: u32, how: Optimizer) -> Result<Measured, TrainingRefusal> {
        self.admit(Capability::Training, &(on, how))?;
        let (trainer, how) = (self.trainer(on)?, optimizer(how)?);
        measured(self.ask(move |worker| worker.optimizer_step(trainer, how)).await?)
    }

    pub(crate) async fn update_ema(&mut self, on: u32, rate: f64) -> Result<(), TrainingRefusal> {
        self.admit(Capability::Training, &(on, rate))?;
        let trainer = self.trainer(on)?;
        range("rate", rate, (0.0..=1.0).contains(&rate), "in [0, 1]")?;
        self.ask(move |worker| worker.update_ema(trainer, rate)).await
    }

    pub(crate) async fn values(&mut self, on: u32, items: Vec<u32>) -> Result<Vec<f32>, TrainingRefusal> {
        self.admit(Capability::Training, &(on, &items))?;
        let (trainer, tokens) = (self.trainer(on)?, self.tokens_of(&items)?);
        let column = self.ask(move |worker| worker.values(trainer, &items)).await?;
        self.answered(column, tokens)
    }

    pub(crate) async fn fit_values(
        &mut self,
        on: u32,
        items: Vec<u32>,
        returns: Vec<f32>,
        (learning_rate, updates): (f64, u32),
    ) -> Result<Measured, TrainingRefusal> {
        self.admit(Capability::Training, &((on, &items), &returns, (learning_rate, updates)))?;
        let (trainer, tokens) = (self.trainer(on)?, self.tokens_of(&items)?);
        column("returns", &returns, tokens)?;
        range("learning-rate", learning_rate, (0.0..=1.0).contains(&learning_rate), "in [0, 1]")?;
        if updates == 0 || updates > CRITIC_UPDATES_MAX {
            return invalid(format!("updates: {updates} is not in 1 to {CRITIC_UPDATES_MAX}"));
        }
        measured(self.ask(move |worker| worker.fit_values(trainer, &items, returns, learning_rate, updates)).await?)
    }

    pub(crate) async fn checkpoint(&mut self, on: u32) -> Result<u32, TrainingRefusal> {
        self.admit(Capability::Training, &on)?;
        let trainer = self.trainer(on)?;
        if self.training.candidates.len() >= CANDIDATES_MAX {
            return Err(TrainingError::Budget(format!("a call may make {CANDIDATES_MAX} checkpoints")).into());
        }
        let candidate = self.ask(move |worker| worker.checkpoint(trainer)).await?;
        self.training.candidates.push(candidate);
        Ok(candidate)
    }
}

fn measured(metrics: BTreeMap<String, f64>) -> Result<Measured, TrainingRefusal> {
    if let Some((name, value)) = metrics.iter().find(|(_, value)| !value.is_finite()) {
        return Err(TrainingError::Other(format!("training diverged: {name} is {value}")).into());
    }
    Ok(metrics)
}
