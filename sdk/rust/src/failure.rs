//! How a refusal of the host becomes the failure of a call, so that `?` is all a recipe needs.

use alloc::format;
use alloc::string::{String, ToString};

use crate::bindings::reef::recipe::experience::ExperienceError;
use crate::bindings::reef::recipe::harness::HarnessError;
use crate::bindings::reef::recipe::models::ModelsError;
use crate::bindings::reef::recipe::state::StateError;
use crate::bindings::reef::recipe::tokens::TokensError;
use crate::bindings::reef::recipe::training::TrainingError;
use crate::bindings::reef::recipe::verify::VerifyError;
use crate::{EntryName, Failure};

impl Failure {
    /// A reason of the recipe's own.
    pub fn other(reason: impl Into<String>) -> Self {
        Self::Other(reason.into())
    }

    /// A configuration value that cannot be used; the message names the key.
    pub fn config(key: &str, problem: &str) -> Self {
        Self::InvalidConfig(format!("{key}: {problem}"))
    }

    /// What went wrong, in words.
    pub fn message(&self) -> &str {
        let (Self::InvalidConfig(message) | Self::Capability(message) | Self::Other(message)) = self;
        message
    }

    /// A refusal of the host.
    pub fn capability(message: impl Into<String>) -> Self {
        Self::Capability(message.into())
    }
}

impl From<ExperienceError> for Failure {
    fn from(error: ExperienceError) -> Self {
        Self::Capability(match error {
            ExperienceError::UnknownSample(handle) => {
                format!("experience: {handle} is not a sample of this call")
            }
            ExperienceError::Budget(message) => format!("experience: over budget: {message}"),
            ExperienceError::Absent(message) => format!("experience: not recorded: {message}"),
            ExperienceError::Other(message) => format!("experience: {message}"),
        })
    }
}

impl From<TrainingError> for Failure {
    fn from(error: TrainingError) -> Self {
        Self::Capability(match error {
            TrainingError::UnknownSample(handle) => {
                format!("training: {handle} is not a sample of this call")
            }
            TrainingError::UnknownTrainer(handle) => {
                format!("training: {handle} is not a trainer of this call")
            }
            TrainingError::Invalid(message) => format!("training: {message}"),
            TrainingError::Budget(message) => format!("training: over budget: {message}"),
            TrainingError::Unsupported(message) => format!("training: this host cannot do it: {message}"),
            TrainingError::Cancelled => "training: the step was cancelled".to_string(),
            TrainingError::Other(message) => format!("training: {message}"),
        })
    }
}

impl From<ModelsError> for Failure {
    fn from(error: ModelsError) -> Self {
        Self::Capability(match error {
            ModelsError::UnknownBinding(name) => {
                format!("models: no binding '{name}' in this call")
            }
            ModelsError::Invalid(message) => format!("models: {message}"),
            ModelsError::Budget(message) => format!("models: over budget: {message}"),
            ModelsError::Cancelled => "models: the step was cancelled".to_string(),
            ModelsError::Other(message) => format!("models: {message}"),
        })
    }
}

impl From<HarnessError> for Failure {
    fn from(error: HarnessError) -> Self {
        Self::Capability(match error {
            HarnessError::UnknownEntry(EntryName { kind, id }) => {
                format!("harness: the tree has no {kind:?} '{id}'")
            }
            HarnessError::UnknownTask(name) => format!("harness: no task '{name}'"),
            HarnessError::Refused(message) => format!("harness: refused: {message}"),
            HarnessError::Budget(message) => format!("harness: over budget: {message}"),
            HarnessError::Cancelled => "harness: the step was cancelled".to_string(),
            HarnessError::Other(message) => format!("harness: {message}"),
        })
    }
}

impl From<VerifyError> for Failure {
    fn from(error: VerifyError) -> Self {
        Self::Capability(match error {
            VerifyError::UnknownVerifier(name) => format!("verify: no verifier '{name}'"),
            VerifyError::Failed(message) => format!("verify: {message}"),
            VerifyError::Budget(message) => format!("verify: over budget: {message}"),
            VerifyError::Other(message) => format!("verify: {message}"),
        })
    }
}

impl From<TokensError> for Failure {
    fn from(error: TokensError) -> Self {
        Self::Capability(match error {
            TokensError::Invalid(message) => format!("tokens: {message}"),
            TokensError::Budget(message) => format!("tokens: over budget: {message}"),
            TokensError::Other(message) => format!("tokens: {message}"),
        })
    }
}

impl From<StateError> for Failure {
    fn from(error: StateError) -> Self {
        Self::Capability(match error {
            StateError::TooLarge(message) => format!("state: {message}"),
            StateError::Budget(message) => format!("state: over budget: {message}"),
            StateError::Other(message) => format!("state: {message}"),
        })
    }
}
