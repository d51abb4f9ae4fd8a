//! What the store of one call holds: its inputs, its budgets and what it has staged so far.
//! Every host function starts here by asking whether its capability may be called once more.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::call::{Call, Context, PoolSample};
use crate::log::LogBudget;
use crate::memory::MemoryBudget;
use crate::meter::Meter;
use crate::metrics::Gauges;
use crate::models::ModelsHost;
use crate::state::Bucket;
use crate::training::TrainingHost;
use crate::wasi::WasiStub;
use crate::{Cancel, Capability, Fault, FaultKind, Manifest, SandboxConfig};

/// Calls beyond the budget, in multiples of it, after which the call ends instead of getting errors.
const FLOOD_FACTOR: u32 = 2;

/// The data of a store.
pub(crate) struct CallState {
    pub(crate) context: Context,
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
    pub(crate) memory: MemoryBudget,
    pub(crate) meter: Arc<Meter>,
    pub(crate) cancel: Cancel,
    pub(crate) cancel_grace: Duration,
    pub(crate) host_calls: [u32; Capability::ALL.len()],
    pub(crate) host_calls_max: u32,
    /// Set by a host function when the call must end; the epoch callback ends it within a tick.
    pub(crate) cut_off: Option<Fault>,
    /// Set up when a guest first asks for a system interface.
    pub(crate) wasi: Option<WasiStub>,
}

impl CallState {
    /// Takes the call apart. Handles outside of the samples are dropped here and refused by the caller's check.
    pub(crate) fn new(call: Call, config: &SandboxConfig, label: Arc<str>, manifest: Option<Arc<Manifest>>) -> Self {
        let mut in_batch = vec![false; call.samples.len()];
        for index in &call.batch {
            if let Some(slot) = in_batch.get_mut(*index as usize) {
                *slot = true;
            }
        }
        Self {
            context: call.context,
            label,
            samples: call.samples,
            batch: call.batch,
            in_batch,
            manifest,
            config: call.config,
            bucket: Bucket::new(call.state, config.state_bytes_max),
            gauges: Gauges::default(),
            log: LogBudget::new(config.log_bytes_max),
            training: TrainingHost::new(call.training),
            models: ModelsHost { worker: call.models },
            memory: MemoryBudget::new(config.memory_bytes_max),
            meter: Arc::new(Meter::new()),
            cancel: call.cancel,
            cancel_grace: Duration::from_millis(config.cancel_grace_ms),
            host_calls: [0; Capability::ALL.len()],
            host_calls_max: config.host_calls_max,
            cut_off: None,
            wasi: None,
        }
    }

    /// Counts one call of the capability. The error is a sentence for the guest.
    pub(crate) fn admit(&mut self, capability: Capability) -> Result<(), String> {
        let used = match self.host_calls.get_mut(capability as usize) {
            Some(calls) => {
                *calls = calls.saturating_add(1);
                *calls
            }
            None => u32::MAX,
        };
        if used <= self.host_calls_max {
            return Ok(());
        }
        let told = format!("more than {} calls to {capability} in one call", self.host_calls_max);
        if used > self.host_calls_max.saturating_mul(FLOOD_FACTOR) {
            self.cut(FaultKind::HostLimit(capability), &told);
        }
        Err(told)
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

/// The terms of blocking work, borrowed apart from the worker's slot.
macro_rules! terms {
    ($state:expr) => {
        $crate::offload::Terms { cancel: &$state.cancel, grace: $state.cancel_grace, meter: &$state.meter }
    };
}
pub(crate) use terms;
