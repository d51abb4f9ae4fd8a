//! Samples that a call derived from its own: their tokens, and the limits on them.

use crate::call_state::CallState;
use crate::training::{TrainingError, TrainingHost, TrainingRefusal};
use crate::{Capability, FaultKind};

/// Samples that one call may derive.
const DERIVED_MAX: usize = 256;
/// Tokens of a derived prompt or response.
const DERIVED_TOKENS_MAX: usize = 32_768;

/// A sample of the call with other tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Derived {
    /// Sample of the call.
    pub(crate) source: u32,
    /// None = the sample's own.
    pub(crate) prompt: Option<Vec<u32>>,
    /// None = the sample's own.
    pub(crate) response: Option<Vec<u32>>,
}

impl TrainingHost {
    pub(crate) fn derived(&self, item: u32) -> Option<&Derived> {
        self.derived.get(&item)
    }

    pub(crate) fn derived_count(&self) -> usize {
        self.derived.len()
    }

    #[cfg(test)]
    pub(crate) fn derive_for_test(
        &mut self,
        item: u32,
        source: u32,
        prompt: Option<Vec<u32>>,
        response: Option<Vec<u32>>,
    ) {
        self.derived.insert(item, Derived { source, prompt, response });
    }
}

impl CallState {
    pub(crate) async fn derive(
        &mut self,
        item: u32,
        prompt: Option<Vec<u32>>,
        response: Option<Vec<u32>>,
    ) -> Result<u32, TrainingRefusal> {
        self.admit(Capability::Training, &(item, &prompt, &response))?;
        self.parts(item).ok_or(TrainingRefusal::UnknownSample(item))?;
        check_tokens("prompt", prompt.as_deref())?;
        check_tokens("response", response.as_deref())?;
        if self.training.derived.len() >= DERIVED_MAX {
            return Err(TrainingError::Budget(format!("a call may derive {DERIVED_MAX} samples")).into());
        }
        // What is derived from a derived sample starts from the sample of the call, so that trainers know two kinds only.
        let derived = match self.training.derived(item).cloned() {
            None => Derived { source: item, prompt, response },
            Some(base) => {
                Derived { source: base.source, prompt: prompt.or(base.prompt), response: response.or(base.response) }
            }
        };
        let wanted = derived.clone();
        let handle = self.ask(move |worker| worker.derive(wanted.source, wanted.prompt, wanted.response)).await?;
        if (handle as usize) < self.samples.len() || self.training.derived.contains_key(&handle) {
            let told = format!("the trainer gave out item {handle} a second time");
            self.cut(FaultKind::HostBug, &told);
            return Err(TrainingError::Other(told).into());
        }
        self.training.derived.insert(handle, derived);
        Ok(handle)
    }
}

fn check_tokens(name: &str, ids: Option<&[u32]>) -> Result<(), TrainingError> {
    match ids.map(<[u32]>::len) {
        Some(count) if count == 0 || count > DERIVED_TOKENS_MAX => {
            Err(TrainingError::Invalid(format!("{name}: {count} tokens is not in 1 to {DERIVED_TOKENS_MAX}")))
        }
        _ => Ok(()),
    }
}
