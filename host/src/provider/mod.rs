//! What answers model requests: the embedded engine, or an upstream over HTTP.
//! The inference handlers ask one of the two and hear events in no dialect's words; what a client of the upstream's own
//! dialect should get unchanged comes along as it was sent. Whoever drops an `Answering` cancels it.

pub mod config;
pub mod embedded;
pub mod failure;
mod reading;
mod retry;
pub mod upstream;
#[cfg(test)]
pub(crate) mod upstream_tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use reef_dialects::{Event, Refusal, SseEvent};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::sync::mpsc;

use crate::error::StartError;
use config::ProviderSection;
pub use upstream::Upstream;

/// Steps of one answer that wait for whoever hears it.
pub const HEARD_MAX: usize = 64;

/// An answer that is being given.
#[derive(Debug)]
pub struct Answering {
    /// Its steps; ends after the last, or after an error. To drop it is to cancel the answer.
    pub heard: mpsc::Receiver<Result<Heard, ProviderError>>,
}

/// A step of an answer.
#[derive(Debug, Default)]
pub struct Heard {
    /// What it says.
    pub events: Vec<Event>,
    /// The upstream's frame, if it speaks the client's dialect; of a whole answer its text, as `data`.
    pub raw: Option<SseEvent>,
}

/// Why there is no answer, or no more of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProviderError {
    /// The request is at fault: told to the client in its dialect.
    #[error("{message}")]
    Refused {
        /// HTTP status, from 400 to 499; 502 where the provider does not accept this server's key.
        status: u16,
        /// Stable code.
        code: String,
        /// A sentence.
        message: String,
        /// The parameter at fault.
        param: Option<String>,
        /// Seconds after which the same request may succeed.
        retry_after_s: Option<u32>,
    },
    /// It cannot be reached, takes too long or fails; the same request may succeed later.
    #[error("{0}")]
    Unavailable(String),
    /// The answer broke off, or was not what it claims to be.
    #[error("{0}")]
    Broken(String),
}

impl ProviderError {
    /// HTTP status for the client.
    pub fn status(&self) -> u16 {
        match self {
            Self::Refused { status, .. } => *status,
            Self::Unavailable(_) => 503,
            Self::Broken(_) => 502,
        }
    }

    /// Stable code for the client.
    pub fn code(&self) -> &str {
        match self {
            Self::Refused { code, .. } => code,
            Self::Unavailable(_) => "provider_unavailable",
            Self::Broken(_) => "provider_broken",
        }
    }

    /// The parameter at fault.
    pub fn param(&self) -> Option<&str> {
        match self {
            Self::Refused { param, .. } => param.as_deref(),
            Self::Unavailable(_) | Self::Broken(_) => None,
        }
    }
}

impl From<Refusal> for ProviderError {
    fn from(Refusal { param, message }: Refusal) -> Self {
        let code = "invalid_request".to_owned();
        Self::Refused { status: 400, code, message, param: Some(param), retry_after_s: None }
    }
}

/// What of a client's headers an upstream gets; its token is not among them.
#[derive(Debug, Clone, Default)]
pub struct Passed {
    /// W3C `traceparent`.
    pub traceparent: Option<String>,
    /// `x-request-id`.
    pub request_id: Option<String>,
    /// Headers of the messages dialect, for upstreams that speak it; see `anthropic_headers`.
    pub anthropic: Vec<(HeaderName, HeaderValue)>,
}

/// Values that are passed on, and bytes of each.
const ANTHROPIC_HEADERS_MAX: usize = 16;
const ANTHROPIC_HEADER_BYTES_MAX: usize = 1024;

/// The client's `anthropic-version` and `anthropic-beta`, as far as they are short and printable.
pub fn anthropic_headers(headers: &HeaderMap) -> Vec<(HeaderName, HeaderValue)> {
    let names = ["anthropic-version", "anthropic-beta"].map(HeaderName::from_static);
    let values = names.iter().flat_map(|name| headers.get_all(name).iter().map(move |value| (name, value)));
    let short = values.filter(|(_, value)| value.len() <= ANTHROPIC_HEADER_BYTES_MAX && value.to_str().is_ok());
    short.take(ANTHROPIC_HEADERS_MAX).map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// The configured upstreams.
#[derive(Debug, Clone, Default)]
pub struct Providers {
    by_name: BTreeMap<String, Arc<Upstream>>,
    by_model: BTreeMap<String, Arc<Upstream>>,
}

impl Providers {
    /// Reads the keys from their variables; an upstream whose key is missing is an error.
    pub fn from_config(sections: &BTreeMap<String, ProviderSection>) -> Result<Self, StartError> {
        let mut providers = Self::default();
        for (name, section) in sections {
            let upstream = Arc::new(Upstream::new(name, section)?);
            providers.by_name.insert(name.clone(), Arc::clone(&upstream));
            for model in section.models.keys() {
                if providers.by_model.insert(model.clone(), Arc::clone(&upstream)).is_some() {
                    let told = format!("providers.{name}.models.{model} is another provider's too; rename one of them");
                    return Err(StartError::Config(told));
                }
            }
        }
        Ok(providers)
    }

    /// The upstream of an allow-listed model, by the name that clients use.
    pub fn find(&self, model: &str) -> Option<&Arc<Upstream>> {
        self.by_model.get(model)
    }

    /// The upstream of this name.
    pub fn named(&self, provider: &str) -> Option<&Arc<Upstream>> {
        self.by_name.get(provider)
    }

    /// Names of the allow-listed models, each with its provider's.
    pub fn models(&self) -> impl Iterator<Item = (&str, &str)> {
        self.by_model.iter().map(|(model, upstream)| (model.as_str(), upstream.name()))
    }
}
