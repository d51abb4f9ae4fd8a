//! An empty WASI 0.2 for guests whose language cannot do without: no files, no network, no arguments, no
//! environment, output thrown away, clocks that stand still, sleeps that end at once and randomness from the step's
//! seed. Nothing in it tells how much time has passed.
//! Only there when the operator asks for it (`wasi_stub`).

use std::pin::Pin;
use std::time::Duration;

use wasmtime::component::{HasData, Linker, Resource, ResourceTable};
use wasmtime_wasi::p2::bindings::clocks::monotonic_clock;
use wasmtime_wasi::p2::{DynPollable, Pollable, subscribe};
use wasmtime_wasi::random::Deterministic;
use wasmtime_wasi::{HostWallClock, WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};

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

/// Nanoseconds between two times that a clock could tell apart.
const RESOLUTION_NS: u64 = 1_000_000;

/// Links the empty system.
pub(crate) fn link(linker: &mut Linker<CallState>) -> wasmtime::Result<()> {
    wasmtime_wasi::p2::add_to_linker_async(linker)?;
    // wasmtime-wasi wakes sleepers by the real time, whatever clock it is given.
    linker.allow_shadowing(true);
    let linked = monotonic_clock::add_to_linker::<_, StillClock>(linker, |state| Sleeps(state.ctx().table));
    linker.allow_shadowing(false);
    linked
}

/// The monotonic clock, which stands at 0.
struct StillClock;

impl HasData for StillClock {
    type Data<'a> = Sleeps<'a>;
}

/// Holds what guests wait for.
struct Sleeps<'a>(&'a mut ResourceTable);

/// A sleep, which is over as soon as it begins.
struct Over;

impl Pollable for Over {
    // What `async fn` means in this trait.
    fn ready<'life0, 'async_trait>(&'life0 mut self) -> Pin<Box<dyn Future<Output = ()> + Send + 'async_trait>>
    where
        'life0: 'async_trait,
        Self: 'async_trait,
    {
        Box::pin(std::future::ready(()))
    }
}

impl monotonic_clock::Host for Sleeps<'_> {
    fn now(&mut self) -> wasmtime::Result<monotonic_clock::Instant> {
        Ok(0)
    }

    fn resolution(&mut self) -> wasmtime::Result<monotonic_clock::Duration> {
        Ok(RESOLUTION_NS)
    }

    fn subscribe_instant(&mut self, _: monotonic_clock::Instant) -> wasmtime::Result<Resource<DynPollable>> {
        let over = self.0.push(Over)?;
        subscribe(self.0, over)
    }

    fn subscribe_duration(&mut self, _: monotonic_clock::Duration) -> wasmtime::Result<Resource<DynPollable>> {
        self.subscribe_instant(0)
    }
}

/// A clock that always shows the same time.
struct Still(Duration);

impl HostWallClock for Still {
    fn resolution(&self) -> Duration {
        Duration::from_nanos(RESOLUTION_NS)
    }

    fn now(&self) -> Duration {
        self.0
    }
}

impl WasiStub {
    fn new(now_ms: i64, seed: u32) -> Self {
        let bytes = || reef_core::sha256_hex(&seed.to_le_bytes()).into_bytes();
        let now = Still(Duration::from_millis(u64::try_from(now_ms).unwrap_or(0)));
        let context = WasiCtxBuilder::new()
            .wall_clock(now)
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
