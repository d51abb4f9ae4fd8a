//! Capability `verify`: verifiers that the operator installed, each a component of its own.
//! A check runs in a fresh store with the budgets of `evaluate`, off the caller's threads and on the host's bill.
//! A verifier imports nothing, so that it can do nothing but compute.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::call::Call;
use crate::call_state::{CallState, denied_becomes};
use crate::engine::Sandbox;
use crate::generation::{Export, Linked, Returned};
use crate::lanes::Lane;
use crate::run::{Ended, run};
use crate::text::clean;
use crate::traffic::Bytes;
use crate::{Capability, Fault, FaultKind};

/// Characters of what a verifier says.
const DETAIL_CHARS_MAX: usize = 500;
/// Bytes of a task and of an answer.
const TEXT_BYTES_MAX: usize = 1024 * 1024;

/// The verifiers of a call by name.
pub type Verifiers = Arc<BTreeMap<String, Verifier>>;

/// A verifier that is ready to check answers. Clones share the compiled code.
#[derive(Clone)]
pub struct Verifier(Arc<Loaded>);

struct Loaded {
    sandbox: Sandbox,
    linked: Arc<dyn Linked>,
    digest: String,
}

/// What a verifier says of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Check {
    pub(crate) score: f64,
    pub(crate) passed: bool,
    pub(crate) detail: String,
}

impl Bytes for Check {
    fn bytes(&self) -> u64 {
        (self.score, self.passed, &self.detail).bytes()
    }
}

/// Why there is no word on an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum VerifyError {
    #[error("there is no verifier '{0}'")]
    UnknownVerifier(String),
    #[error("{0}")]
    Failed(String),
    #[error("{0}")]
    Budget(String),
    #[error("{0}")]
    Other(String),
}
denied_becomes!(VerifyError);

impl Verifier {
    pub(crate) fn new(sandbox: Sandbox, linked: Arc<dyn Linked>, digest: String) -> Self {
        Self(Arc::new(Loaded { sandbox, linked, digest }))
    }

    /// SHA-256 of the component, 64 hex digits.
    pub fn digest(&self) -> &str {
        &self.0.digest
    }

    /// Runs one check. Its own fault is the error.
    async fn check(&self, call: Call, label: Arc<str>, task: String, answer: String) -> Result<Returned, Fault> {
        let (shared, linked) = (Arc::clone(&self.0.sandbox.0), Arc::clone(&self.0.linked));
        let state = CallState::new(call, shared.config(), label, None);
        let (lanes, meter) = (Arc::clone(&shared), Arc::clone(&state.meter));
        let task = async move { run(&shared, linked.as_ref(), state, Export::Check { task, answer }).await };
        match lanes.lanes().run(Lane::Quick, meter, task).await {
            Ok(Ended { result, .. }) => result,
            Err(error) => Err(Fault::new(FaultKind::HostBug, format!("the check ended without an answer: {error}"))),
        }
    }
}

impl CallState {
    pub(crate) fn verifier_names(&mut self) -> Result<Vec<String>, VerifyError> {
        self.admit(Capability::Verify, &())?;
        Ok(self.verifiers.keys().cloned().collect())
    }

    pub(crate) async fn verify(&mut self, name: &str, task: String, answer: String) -> Result<Check, VerifyError> {
        self.admit(Capability::Verify, &(name, &task, &answer))?;
        let shown = clean(name, 64);
        let Some(verifier) = self.verifiers.get(name).cloned() else {
            return Err(VerifyError::UnknownVerifier(shown));
        };
        if task.len() > TEXT_BYTES_MAX || answer.len() > TEXT_BYTES_MAX {
            let told = format!("task and answer have at most {TEXT_BYTES_MAX} bytes each");
            return Err(VerifyError::Failed(told));
        }
        let call = Call { cancel: self.cancel.clone(), ..Call::new(self.context.clone()) };
        let label = format!("verifier {shown}#sha256:{}", verifier.digest()).into();
        let meter = Arc::clone(&self.meter);
        let booked = meter.host_time();
        let returned = verifier.check(call, label, task, answer).await;
        drop(booked);
        match returned {
            Ok(Returned::Checked(Ok(check))) => finite(check, &shown),
            Ok(Returned::Checked(Err(told))) => Err(VerifyError::Failed(clean(&told, DETAIL_CHARS_MAX))),
            Ok(_) => Err(VerifyError::Other("the answer of another function came back".to_owned())),
            Err(fault) if fault.blame() == crate::Blame::Recipe => {
                Err(VerifyError::Failed(format!("verifier '{shown}': {fault}")))
            }
            Err(fault) => Err(VerifyError::Other(format!("verifier '{shown}': {fault}"))),
        }
    }
}

fn finite(check: Check, shown: &str) -> Result<Check, VerifyError> {
    if !check.score.is_finite() {
        return Err(VerifyError::Failed(format!("verifier '{shown}' gave the score {}", check.score)));
    }
    Ok(Check { detail: clean(&check.detail, DETAIL_CHARS_MAX), ..check })
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Verifier").field(&self.0.digest).finish()
    }
}
