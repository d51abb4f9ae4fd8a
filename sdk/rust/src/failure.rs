//! How a refusal of the host becomes the failure of a call, so that `?` is all a recipe needs.

use alloc::format;
use alloc::string::{String, ToString};

use crate::Failure;
use crate::bindings::reef::recipe::experience::ExperienceError;
use crate::bindings::reef::recipe::models::ModelsError;
use crate::bindings::reef::recipe::state::StateError;
use crate::bindings::reef::recipe::training::TrainingError;

impl Failure {
    /// A reason of the recipe's own.
    pub fn other(reason: impl Into<String>) -> Self {
        Self::Other(reason.into())
    }

    /// A configuration value that cannot be used; the message names the key.
    pub fn config(key: &str, problem: &str) -> Self {
        Self::InvalidConfig(format!("{key}: {problem}"))
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

impl From<StateError> for Failure {
    fn from(error: StateError) -> Self {
        Self::Capability(match error {
            StateError::TooLarge(message) => format!("state: {message}"),
            StateError::Budget(message) => format!("state: over budget: {message}"),
            StateError::Other(message) => format!("state: {message}"),
        })
    }
}
