//! Capability `verify`: verifiers that the operator installed, each a component of its own.
//! A check runs in a fresh store with the budgets of `evaluate`, off the caller's threads. Its fuel is on the bill of
//! the call that asked for it, whose checks together may use as much as the call itself.
//! A verifier imports nothing, so that it can do nothing but compute.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use reef_core::CallReport;

use crate::call::{Call, Context};
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

    /// Checks an answer outside of any call; the score, or a sentence that says why there is none.
    pub async fn judge(&self, context: Context, task: String, answer: String) -> Result<f64, String> {
        if task.len() > TEXT_BYTES_MAX || answer.len() > TEXT_BYTES_MAX {
            return Err(format!("task and answer have at most {TEXT_BYTES_MAX} bytes each"));
        }
        let label = format!("verifier sha256:{}", self.digest()).into();
        match self.check(Call::new(context), label, Export::Check { task, answer }, self.fuel()).await.0 {
            Ok(Returned::Checked(Ok(check))) => Ok(check.score),
            Ok(Returned::Checked(Err(told))) => Err(clean(&told, DETAIL_CHARS_MAX)),
            Ok(_) => Err("the answer of another function came back".to_owned()),
            Err(fault) => Err(fault.to_string()),
        }
    }

    /// Fuel of one check.
    fn fuel(&self) -> u64 {
        self.0.sandbox.0.config().fuel_evaluate
    }

    /// Runs one check with at most this fuel; also returns the fuel used. Its own fault is the error.
    ///
    /// It takes no slot of its own: the call that waits for it has one, and the pool has room for both.
    async fn check(
        &self,
        call: Call,
        label: Arc<str>,
        export: Export,
        fuel_max: u64,
    ) -> (Result<Returned, Fault>, u64) {
        let (shared, linked) = (Arc::clone(&self.0.sandbox.0), Arc::clone(&self.0.linked));
        let mut state = CallState::new(call, Arc::clone(shared.config()), label, None);
        state.fuel_max = fuel_max;
        let function = export.name();
        let (own, meter) = (Arc::clone(&shared), Arc::clone(&state.meter));
        let task = async move { run(&own, linked.as_ref(), state, export).await };
        let (result, mut report) = match shared.lanes().run(Lane::Quick, meter, task).await {
            Ok(Ended { result, report, .. }) => (result, report),
            Err(error) => {
                let told = format!("the check ended without an answer: {error}");
                let report = CallReport { function: function.to_owned(), ..CallReport::default() };
                (Err(Fault::new(FaultKind::HostBug, told)), report)
            }
        };
        shared.ended(&mut report, result.as_ref().err());
        (result, report.fuel)
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
        let left = self.fuel_max.saturating_sub(self.verifier_fuel);
        if left == 0 {
            return Err(self.no_fuel());
        }
        let call = Call { cancel: self.cancel.clone(), ..Call::new(self.context.clone()) };
        let label = format!("verifier {shown}#sha256:{}", verifier.digest()).into();
        let meter = Arc::clone(&self.meter);
        let booked = meter.host_time();
        let (returned, fuel) = verifier.check(call, label, Export::Check { task, answer }, left).await;
        drop(booked);
        self.verifier_fuel = self.verifier_fuel.saturating_add(fuel);
        match returned {
            Ok(Returned::Checked(Ok(check))) => finite(check, &shown),
            Ok(Returned::Checked(Err(told))) => Err(VerifyError::Failed(clean(&told, DETAIL_CHARS_MAX))),
            Ok(_) => Err(VerifyError::Other("the answer of another function came back".to_owned())),
            // Not the verifier's doing: alone it may use more.
            Err(fault) if fault.kind == FaultKind::OutOfFuel && left < verifier.fuel() => Err(self.no_fuel()),
            Err(fault) if fault.blame() == crate::Blame::Recipe => {
                Err(VerifyError::Failed(format!("verifier '{shown}': {fault}")))
            }
            Err(fault) => Err(VerifyError::Other(format!("verifier '{shown}': {fault}"))),
        }
    }
}

impl CallState {
    fn no_fuel(&self) -> VerifyError {
        let told = format!("the checks of one call may use {} units of fuel together, and all is used", self.fuel_max);
        VerifyError::Budget(format!("{told}; check fewer answers"))
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
