//! Why Reef does not start or stops: one sentence and one exit code each.
//! Errors of single requests live in `http::error`; this type ends the process.

use std::net::SocketAddr;

use crate::scenarios::ScenarioError;
use crate::weights::WeightsError;

/// A failure that ends a command.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Exit code 2.
    #[error("configuration: {0}")]
    Config(String),
    /// Exit code 3.
    #[error("model: {0}")]
    Model(#[from] reef_engine::EngineError),
    /// Exit code 4.
    #[error(
        "address {address} cannot be served: {reason}; choose another with --listen or stop the program that holds it"
    )]
    Address {
        /// The address.
        address: SocketAddr,
        /// The system's words.
        reason: std::io::Error,
    },
    /// Exit code 5.
    #[error("store: {0}")]
    Store(#[from] reef_store::StoreError),
    /// Exit code 5.
    #[error("release repository: {0}")]
    Releases(#[from] reef_release::ReleaseError),
    /// Exit code 5.
    #[error("data: {0}")]
    Data(String),
    /// Exit code 6.
    #[error("recipe: {0}")]
    Recipe(String),
    /// A server refuses what was asked of it; exit code 2.
    #[error("{0}")]
    Refused(String),
    /// An agent reached a limit before it was done; exit code 7.
    #[error("{0}")]
    Limit(String),
    /// Exit code 1.
    #[error("{0}")]
    Other(String),
}

impl From<ScenarioError> for StartError {
    fn from(error: ScenarioError) -> Self {
        match error {
            ScenarioError::Store(error) => Self::Store(error),
            ScenarioError::Release(error) | ScenarioError::Weights(WeightsError::Release(error)) => {
                Self::Releases(error)
            }
            error => Self::Other(format!("a scenario cannot be opened: {error}")),
        }
    }
}

impl StartError {
    /// Stable meaning for scripts: 2 configuration or usage, 3 model, 4 address, 5 storage, 6 recipe, 7 an agent's limit,
    /// 1 other.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Refused(_) => 2,
            Self::Model(_) => 3,
            Self::Address { .. } => 4,
            Self::Store(_) | Self::Releases(_) | Self::Data(_) => 5,
            Self::Recipe(_) => 6,
            Self::Limit(_) => 7,
            Self::Other(_) => 1,
        }
    }
}
