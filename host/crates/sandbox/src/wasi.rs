//! An empty WASI 0.2 for guests whose language cannot do without: no files, no network, no arguments, no
//! environment, output thrown away, a clock that stands at the step's time and randomness from the step's seed.
//! Only there when the operator asks for it (`wasi_stub`).

use std::time::Duration;

use wasmtime::component::ResourceTable;
use wasmtime_wasi::random::Deterministic;
use wasmtime_wasi::{HostMonotonicClock, HostWallClock, WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};

use crate::call_state::CallState;

/// WASI resources that live at the same time in a call.
const RESOURCES_MAX: usize = 1_024;
/// Bytes of one request for randomness.
const RANDOM_BYTES_MAX: u64 = 64 * 1024;

/// The empty system of one call.
pub(crate) struct WasiStub {
    context: WasiCtx,
    table: ResourceTable,
}

/// A clock that always shows the same time.
struct Still(Duration);

impl HostWallClock for Still {
    fn resolution(&self) -> Duration {
        Duration::from_millis(1)
    }

    fn now(&self) -> Duration {
        self.0
    }
}

impl HostMonotonicClock for Still {
    fn resolution(&self) -> u64 {
        1_000_000
    }

    fn now(&self) -> u64 {
        0
    }
}

impl WasiStub {
    fn new(now_ms: i64, seed: u32) -> Self {
        let bytes = || reef_core::sha256_hex(&seed.to_le_bytes()).into_bytes();
        let now = Still(Duration::from_millis(u64::try_from(now_ms).unwrap_or(0)));
        let context = WasiCtxBuilder::new()
            .wall_clock(now)
            .monotonic_clock(Still(Duration::ZERO))
            .secure_random(Deterministic::new(bytes()))
            .insecure_random(Deterministic::new(bytes()))
            .insecure_random_seed(u128::from(seed))
            .max_random_size(RANDOM_BYTES_MAX)
            .allow_tcp(false)
            .allow_udp(false)
            .build();
        let mut table = ResourceTable::new();
        table.set_max_capacity(RESOURCES_MAX);
        Self { context, table }
    }
}

impl WasiView for CallState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        let (now_ms, seed) = (self.context.now_ms, self.context.seed);
        let stub = self.wasi.get_or_insert_with(|| WasiStub::new(now_ms, seed));
        WasiCtxView { ctx: &mut stub.context, table: &mut stub.table }
    }
}
