//! Runs one export in a fresh store: limits first, then instantiation, then the call, then the store is dropped.
//! The only place that drives guest code. Whatever happens in there, the store's data comes back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reef_core::CallReport;
use wasmtime::{Store, UpdateDeadline};

use crate::call_state::CallState;
use crate::engine::Shared;
use crate::generation::{Broken, Export, Linked, Returned};
use crate::meter::{Meter, Metered};
use crate::traffic::Bytes;
use crate::{Fault, FaultKind, SandboxConfig};

/// How often a call that is waiting is looked after.
const WATCH_PERIOD: Duration = Duration::from_millis(50);
/// Added to the time that a call may wait for a thread; long calls get one when nobody else wants the core.
const THREAD_SLACK: Duration = Duration::from_secs(60);
/// Added to the time that a cancelled call may go on.
const GRACE_SLACK: Duration = Duration::from_secs(1);

impl Export {
    fn fuel(&self, config: &SandboxConfig) -> u64 {
        match self {
            Self::Describe | Self::SelectSamples => config.fuel_select,
            Self::ProposeUpdate => config.fuel_propose,
            Self::Evaluate(_) | Self::Migrate { .. } | Self::Check { .. } => config.fuel_evaluate,
            Self::Ingest(_) => config.fuel_ingest,
            Self::TransformRequest(_) => config.fuel_transform,
        }
    }

    fn wall(&self, config: &SandboxConfig) -> Duration {
        Duration::from_millis(match self {
            Self::Describe | Self::SelectSamples => config.wall_select_ms,
            Self::ProposeUpdate => config.wall_propose_ms,
            Self::Evaluate(_) | Self::Migrate { .. } | Self::Check { .. } => config.wall_evaluate_ms,
            Self::Ingest(_) => config.wall_ingest_ms,
            Self::TransformRequest(_) => config.wall_transform_ms,
        })
    }

    /// Bytes that the guest is given before it runs.
    fn arguments(&self, state: &CallState) -> u64 {
        let batch = match self {
            Self::SelectSamples | Self::ProposeUpdate => state.batch.bytes(),
            _ => 0,
        };
        let context = match self {
            Self::SelectSamples | Self::ProposeUpdate | Self::Evaluate(_) | Self::Ingest(_) => state.context.bytes(),
            Self::Describe | Self::Migrate { .. } | Self::TransformRequest(_) | Self::Check { .. } => 0,
        };
        self.bytes().saturating_add(batch).saturating_add(context)
    }
}

/// A call that is over.
pub(crate) struct Ended {
    pub(crate) result: Result<Returned, Fault>,
    pub(crate) state: CallState,
    pub(crate) report: CallReport,
}

impl Ended {
    /// A call that never reached the guest.
    pub(crate) fn refused(function: &str, state: CallState, fault: Fault) -> Self {
        let report = CallReport { function: function.to_owned(), ..CallReport::default() };
        Self { result: Err(fault), state, report }
    }
}

/// Runs the export and measures it.
pub(crate) async fn run(shared: &Shared, linked: &dyn Linked, mut state: CallState, export: Export) -> Ended {
    let (config, function) = (Arc::clone(&state.limits), export.name());
    let (fuel_max, wall) = (export.fuel(&config).min(state.fuel_max), export.wall(&config));
    state.fuel_max = fuel_max;
    let arguments = export.arguments(&state);
    state.traffic.gave(arguments);
    let mut store = match store(shared, state, fuel_max, wall) {
        Ok(store) => store,
        Err((state, fault)) => return Ended::refused(function, *state, fault),
    };
    let _running = shared.ticker().running();
    let meter = Arc::clone(&store.data().meter);
    let cancel = store.data().cancel.clone();
    let patience = Patience {
        meter: &meter,
        // With every slot taken, a guest gets a thread for its share of the time only.
        wait: wall.saturating_mul(config.calls_concurrent_max / u32::try_from(config.threads).unwrap_or(1).max(1) + 2)
            + THREAD_SLACK,
        grace: Duration::from_millis(config.cancel_grace_ms) + GRACE_SLACK,
    };
    let work = Metered { meter: Arc::clone(&meter), inner: linked.call(&mut store, export) };
    let outcome = patience.watch(work, &cancel).await;
    let fuel = fuel_max.saturating_sub(store.get_fuel().unwrap_or(0));
    let mut state = meter.booked(|| store.into_data());
    // What its verifiers used is on the bill of the call that asked them.
    let fuel = fuel.saturating_add(state.verifier_fuel);
    let result = settle(outcome, function, &state);
    if let Ok(returned) = &result {
        state.traffic.took(returned.bytes());
    }
    let report = CallReport {
        function: function.to_owned(),
        fuel,
        guest_us: micros(meter.guest()),
        host_us: micros(meter.host()),
        wall_us: micros(meter.elapsed()),
        bytes_in: state.traffic.bytes_in,
        bytes_out: state.traffic.bytes_out,
        memory_peak_bytes: state.memory.peak_bytes(),
        host_calls: state.host_calls(),
        log_dropped_bytes: state.log.dropped_bytes,
        fault: None,
    };
    if state.gauges.ignored > 0 {
        tracing::warn!(recipe = %state.label, ignored = state.gauges.ignored, "gauges were ignored: a bad name or value, too many of them, or set where none is kept");
    }
    Ended { result, state, report }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// A store whose limits are set before anything is instantiated in it.
fn store(
    shared: &Shared,
    state: CallState,
    fuel: u64,
    wall: Duration,
) -> Result<Store<CallState>, (Box<CallState>, Fault)> {
    let config = shared.config();
    let mut store = Store::new(shared.engine(), state);
    store.limiter(|state| &mut state.memory);
    store.set_hostcall_fuel(usize::try_from(config.output_bytes_max).unwrap_or(usize::MAX));
    store.set_max_component_handles(config.component_handles_max as usize);
    store.set_epoch_deadline(1);
    store.epoch_deadline_callback(move |context| {
        let state = context.data();
        if let Some(fault) = &state.cut_off {
            return Err(wasmtime::Error::new(fault.clone()));
        }
        if state.cancel.is_cancelled() {
            return Err(wasmtime::Error::new(cancelled()));
        }
        if state.meter.guest() > wall {
            return Err(wasmtime::Error::new(deadline(wall)));
        }
        Ok(UpdateDeadline::YieldCustom(1, Box::pin(tokio::task::yield_now())))
    });
    match store.set_fuel(fuel) {
        Ok(()) => Ok(store),
        Err(error) => Err((Box::new(store.into_data()), Fault::new(FaultKind::HostBug, format!("{error:#}")))),
    }
}

fn cancelled() -> Fault {
    Fault::new(FaultKind::Cancelled, "the call was cancelled")
}

fn deadline(wall: Duration) -> Fault {
    Fault::new(FaultKind::Deadline, format!("the guest ran longer than {} ms", wall.as_millis()))
}

/// The last word on a call: what ended it from outside wins over what the guest made of it.
fn settle(
    outcome: Result<Result<Returned, Broken>, Fault>,
    function: &str,
    state: &CallState,
) -> Result<Returned, Fault> {
    if let Some(fault) = &state.cut_off {
        return Err(fault.clone());
    }
    if state.cancel.is_cancelled() {
        return Err(cancelled());
    }
    outcome?.map_err(|broken| {
        let fault = match broken {
            Broken::Instantiation(error) => Fault::from_instantiation(&error),
            Broken::Guest(error) => Fault::from_guest(&error),
            Broken::Missing => Fault::new(FaultKind::MissingCapability, format!("the component has no {function}")),
        };
        // A guest that gets no memory usually aborts.
        if fault.kind == FaultKind::Trap && state.memory.refused() { state.memory.fault() } else { fault }
    })
}

/// How long a call may neither run nor be in a host call, and how long it may go on once cancelled.
struct Patience<'a> {
    meter: &'a Meter,
    wait: Duration,
    grace: Duration,
}

impl Patience<'_> {
    /// The epoch stops guests that run; this stops calls that wait for something that does not come.
    async fn watch<T>(&self, mut work: Metered<'_, T>, cancel: &crate::Cancel) -> Result<T, Fault> {
        let mut cancelled_at: Option<Instant> = None;
        loop {
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                () = tokio::time::sleep(WATCH_PERIOD) => {}
            }
            if self.meter.elapsed().saturating_sub(self.meter.host()) > self.wait {
                return Err(Fault::new(
                    FaultKind::Deadline,
                    format!("the call waited longer than {} ms", self.wait.as_millis()),
                ));
            }
            if cancel.is_cancelled() && cancelled_at.get_or_insert_with(Instant::now).elapsed() > self.grace {
                return Err(cancelled());
            }
        }
    }
}
