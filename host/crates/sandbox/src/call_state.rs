//! What the store of one call holds: its inputs, its budgets and what it has staged so far.
//! Every host function starts here by asking whether its capability may be called once more, and hands its answer
//! over here, so that both directions are counted in one place each.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use reef_core::{AssemblyError, RecordId};
use serde_json::{Map, Value};

use crate::call::{Call, Context, PoolSample};
use crate::experience::Records;
use crate::harness::HarnessHost;
use crate::log::LogBudget;
use crate::memory::MemoryBudget;
use crate::meter::Meter;
use crate::metrics::Gauges;
use crate::models::ModelsHost;
use crate::offload::{Lost, offload};
use crate::state::Bucket;
use crate::tokens::Tokens;
use crate::traffic::{Bytes, Traffic};
use crate::training::TrainingHost;
use crate::verify::Verifiers;
use crate::wasi::WasiStub;
use crate::{Cancel, Capability, Fault, FaultKind, Manifest, SandboxConfig};

/// Calls beyond the budget, in multiples of it, after which the call ends instead of getting errors.
const FLOOD_FACTOR: u32 = 2;

/// The terms of blocking work, borrowed apart from the worker's slot.
macro_rules! terms {
    ($state:expr) => {
        $crate::offload::Terms { cancel: &$state.cancel, grace: $state.cancel_grace, meter: &$state.meter }
    };
}
pub(crate) use terms;

/// The data of a store.
pub(crate) struct CallState {
    pub(crate) context: Context,
    /// Limits of this call.
    pub(crate) limits: Arc<SandboxConfig>,
    /// Fuel that the call may use, and once more that its verifiers may use together.
    pub(crate) fuel_max: u64,
    /// Fuel that its verifiers have used.
    pub(crate) verifier_fuel: u64,
    /// `name@version#sha256:…`, for log lines.
    pub(crate) label: Arc<str>,
    pub(crate) samples: Arc<Vec<PoolSample>>,
    pub(crate) batch: Vec<u32>,
    /// True at the handles of the batch.
    pub(crate) in_batch: Vec<bool>,
    /// None while the recipe describes itself.
    pub(crate) manifest: Option<Arc<Manifest>>,
    pub(crate) config: Map<String, Value>,
    pub(crate) bucket: Bucket,
    pub(crate) gauges: Gauges,
    pub(crate) log: LogBudget,
    pub(crate) training: TrainingHost,
    pub(crate) models: ModelsHost,
    pub(crate) harness: HarnessHost,
    pub(crate) tokens: Option<Arc<dyn Tokens>>,
    pub(crate) records: Option<Arc<dyn Records>>,
    pub(crate) verifiers: Verifiers,
    pub(crate) unusable: Vec<(RecordId, AssemblyError)>,
    pub(crate) memory: MemoryBudget,
    pub(crate) meter: Arc<Meter>,
    pub(crate) traffic: Traffic,
    pub(crate) cancel: Cancel,
    pub(crate) cancel_grace: Duration,
    pub(crate) host_calls: [u32; Capability::ALL.len()],
    pub(crate) host_calls_max: u32,
    /// The function during which no capability answers.
    pub(crate) sealed: Option<&'static str>,
    /// Set by a host function when the call must end; the epoch callback ends it within a tick.
    pub(crate) cut_off: Option<Fault>,
    /// Set up when a guest first asks for a system interface.
    pub(crate) wasi: Option<WasiStub>,
}

/// Why a host call is not even looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Denied {
    /// The capability was called too often.
    Budget(String),
    /// No capability answers during this function.
    Sealed(String),
}

/// Turns [`Denied`] into the errors of a capability.
macro_rules! denied_becomes {
    ($($error:ty),*) => {$(
        impl From<$crate::call_state::Denied> for $error {
            fn from(denied: $crate::call_state::Denied) -> Self {
                match denied {
                    $crate::call_state::Denied::Budget(told) => Self::Budget(told),
                    $crate::call_state::Denied::Sealed(told) => Self::Other(told),
                }
            }
        }
    )*};
}
pub(crate) use denied_becomes;

impl CallState {
    /// Takes the call apart. Handles outside of the samples are dropped here and refused by the caller's check.
    pub(crate) fn new(
        call: Call,
        limits: Arc<SandboxConfig>,
        label: Arc<str>,
        manifest: Option<Arc<Manifest>>,
    ) -> Self {
        let mut in_batch = vec![false; call.samples.len()];
        for index in &call.batch {
            if let Some(slot) = in_batch.get_mut(*index as usize) {
                *slot = true;
            }
        }
        Self {
            context: call.context,
            fuel_max: u64::MAX,
            verifier_fuel: 0,
            label,
            samples: call.samples,
            batch: call.batch,
            in_batch,
            manifest,
            config: call.config,
            bucket: Bucket::new(call.state, limits.state_bytes_max),
            gauges: Gauges::default(),
            log: LogBudget::new(limits.log_bytes_max),
            training: TrainingHost::new(call.training),
            models: ModelsHost { worker: call.models },
            harness: HarnessHost { worker: call.harness },
            tokens: call.tokens,
            records: call.records,
            verifiers: call.verifiers,
            unusable: call.unusable,
            memory: MemoryBudget::new(limits.memory_bytes_max),
            meter: Arc::new(Meter::new()),
            traffic: Traffic::default(),
            cancel: call.cancel,
            cancel_grace: Duration::from_millis(limits.cancel_grace_ms),
            host_calls: [0; Capability::ALL.len()],
            host_calls_max: limits.host_calls_max,
            limits,
            sealed: None,
            cut_off: None,
            wasi: None,
        }
    }

    /// Counts one call of the capability and its arguments. The error holds a sentence for the guest.
    pub(crate) fn admit(&mut self, capability: Capability, arguments: &impl Bytes) -> Result<(), Denied> {
        self.traffic.took(arguments.bytes());
        let used = match self.host_calls.get_mut(capability as usize) {
            Some(calls) => {
                *calls = calls.saturating_add(1);
                *calls
            }
            None => u32::MAX,
        };
        if used > self.host_calls_max {
            let told = format!("more than {} calls to {capability} in one call", self.host_calls_max);
            if used > self.host_calls_max.saturating_mul(FLOOD_FACTOR) {
                self.cut(FaultKind::HostLimit(capability), &told);
            }
            return Err(Denied::Budget(told));
        }
        match self.sealed {
            Some(function) => Err(Denied::Sealed(format!("no capability answers during {function}"))),
            None => Ok(()),
        }
    }

    /// Hands an answer to the guest: counts it and gives the error its name in the guest's interface.
    pub(crate) fn hand<T: Bytes, E: Display + Into<W>, W>(&mut self, answer: Result<T, E>) -> Result<T, W> {
        match answer {
            Ok(value) => {
                self.traffic.gave(value.bytes());
                Ok(value)
            }
            Err(error) => {
                self.traffic.gave(error.to_string().len() as u64);
                Err(error.into())
            }
        }
    }

    /// Runs blocking work with a shared worker off the guest's threads.
    pub(crate) async fn blocking<W, R>(
        &mut self,
        worker: Option<W>,
        work: impl FnOnce(&W) -> R + Send + 'static,
    ) -> Result<R, Lost>
    where
        W: Send + 'static,
        R: Send + 'static,
    {
        let mut slot = worker;
        offload(&mut slot, terms!(self), move |worker| work(worker)).await
    }

    /// Ends the call with this fault; the first one wins.
    pub(crate) fn cut(&mut self, kind: FaultKind, message: &str) {
        self.cut_off.get_or_insert_with(|| Fault::new(kind, message));
    }

    /// The sample behind a handle of this call.
    pub(crate) fn sample(&self, handle: u32) -> Option<&PoolSample> {
        let index = handle as usize;
        if self.in_batch.get(index).copied().unwrap_or(false) { self.samples.get(index) } else { None }
    }

    /// Host calls per capability, without zeros.
    pub(crate) fn host_calls(&self) -> BTreeMap<String, u32> {
        let counted = Capability::ALL.into_iter().zip(self.host_calls);
        counted.filter(|(_, calls)| *calls > 0).map(|(capability, calls)| (capability.to_string(), calls)).collect()
    }
}
