//! The engine: wasmtime's settings, the clock that interrupts guests, and what else all recipes of a sandbox share.
//! One engine lives as long as its [`Sandbox`] and every recipe loaded in it.

use std::fmt;
use std::sync::{Arc, OnceLock};

use reef_core::CallReport;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use wasmtime::{
    Config, Enabled, Engine, InstanceAllocationStrategy, OperatorCost, PoolingAllocationConfig, WasmBacktraceDetails,
};

use crate::admission::Admission;
use crate::cache::Cache;
use crate::compile::{CompileCounts, Compiler};
use crate::lanes::Lanes;
use crate::limits::{INSTANCES_MAX, MEMORIES_MAX, TABLE_ELEMENTS_MAX, TABLES_MAX};
use crate::ticker::Ticker;
use crate::{Fault, SandboxConfig, SandboxError};

/// Stack of a guest.
const GUEST_STACK_BYTES: usize = 512 * 1024;
/// Stack of a guest and of the host functions that it calls.
const CALL_STACK_BYTES: usize = 2 * 1024 * 1024;
/// Compilations at the same time; each may use every core.
const COMPILES_CONCURRENT_MAX: usize = 1;
/// Stores of one call: the recipe's, and that of the verifier that it waits for. A guest is suspended during a host
/// call and cannot begin another, so at most one check of a call runs at a time, and a verifier has no imports with
/// which to ask for more. One that is let go of with its call ends at its next yield, a tick later. Loading takes a
/// slot as a call does, and a verifier is loaded without running it.
const STORES_PER_CALL: u32 = 2;
/// What a slot of the pool keeps of its memory, its tables and its stack between two calls. The pages are reset by
/// hand; giving them back to the kernel and faulting them in again took a third of a short call.
const KEEP_MEMORY_BYTES: usize = 4 << 20;
const KEEP_TABLE_BYTES: usize = 1 << 20;
const KEEP_STACK_BYTES: usize = 32 << 10;
/// Address space of a memory, which it has anyway. How much of it a guest may use, its budget says, in words.
const RESERVED_BYTES: u64 = 4 << 30;
/// Unused slots that keep anything.
const KEEP_SLOTS: u32 = 32;
/// Fuel of one page of `memory.grow`: the kernel zeroes 64 KiB for it.
const GROW_PAGE_FUEL: u8 = 255;

/// Is told of calls that have ended.
pub type CallListener = Arc<dyn Fn(&CallReport) + Send + Sync>;

/// Loads recipes and runs them. Clones share everything.
#[derive(Clone)]
pub struct Sandbox(pub(crate) Arc<Shared>);

/// What every recipe of a sandbox shares.
pub(crate) struct Shared {
    config: Arc<SandboxConfig>,
    engine: Engine,
    pooling: bool,
    lanes: Lanes,
    admission: Admission,
    compiler: Compiler,
    compiling: Arc<Semaphore>,
    compiles: CompileCounts,
    cache: Option<Cache>,
    listener: OnceLock<CallListener>,
    // Stops when the sandbox is dropped.
    ticker: Ticker,
}

impl Sandbox {
    /// A sandbox that compiles components in this process: for tests and small commands.
    pub fn new(config: SandboxConfig) -> Result<Self, SandboxError> {
        Self::with_compiler(config, Compiler::InProcess)
    }

    /// Starts the threads. Fails when a limit makes no sense or the machine refuses.
    pub fn with_compiler(config: SandboxConfig, compiler: Compiler) -> Result<Self, SandboxError> {
        config.check()?;
        let (engine, pooling) = engine(&config)?;
        let lanes = Lanes::start(&config)?;
        let ticker = Ticker::start(engine.weak())?;
        Ok(Self(Arc::new(Shared {
            admission: Admission::new(&config),
            cache: Cache::open(&config, &engine),
            config: Arc::new(config),
            engine,
            pooling,
            lanes,
            compiler,
            compiling: Arc::new(Semaphore::new(COMPILES_CONCURRENT_MAX)),
            compiles: CompileCounts::default(),
            listener: OnceLock::new(),
            ticker,
        })))
    }

    /// From now on the listener gets the report of every call that ends, well or badly: of every function, of
    /// `describe` while a recipe loads, and of every `check` of a verifier, whose fuel is also in the report of the
    /// call that asked for it. It runs on the caller's or the sandbox's threads and must be quick. The first one stays.
    pub fn on_call(&self, listener: CallListener) {
        // A second listener is the caller's mistake and changes nothing.
        let _ = self.0.listener.set(listener);
    }

    /// Are instances taken from a pool? `false` is slower and no less safe.
    pub fn pooling(&self) -> bool {
        self.0.pooling
    }
}

impl Shared {
    pub(crate) fn config(&self) -> &Arc<SandboxConfig> {
        &self.config
    }

    /// Completes the report of a call that is over and tells the listener.
    pub(crate) fn ended(&self, report: &mut CallReport, fault: Option<&Fault>) {
        report.fault = fault.map(Fault::to_string);
        if let Some(listener) = self.listener.get() {
            listener(report);
        }
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn handle(&self) -> &Handle {
        self.lanes.quick()
    }

    pub(crate) fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    pub(crate) fn ticker(&self) -> &Ticker {
        &self.ticker
    }

    pub(crate) fn admission(&self) -> &Admission {
        &self.admission
    }

    pub(crate) fn compiling(&self) -> &Arc<Semaphore> {
        &self.compiling
    }

    pub(crate) fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    pub(crate) fn compiles(&self) -> &CompileCounts {
        &self.compiles
    }

    pub(crate) fn compiles_running(&self) -> u32 {
        let free = self.compiling.available_permits();
        u32::try_from(COMPILES_CONCURRENT_MAX.saturating_sub(free)).unwrap_or(u32::MAX)
    }

    pub(crate) fn cache(&self) -> Option<&Cache> {
        self.cache.as_ref()
    }
}

fn start(what: &str, error: impl fmt::Display) -> SandboxError {
    SandboxError::Start(format!("{what}: {error:#}"))
}

/// The engine with a pool of instances, or without one where the machine or the operator does not allow it.
fn engine(config: &SandboxConfig) -> Result<(Engine, bool), SandboxError> {
    let mut settings = settings();
    if config.pooling {
        settings.allocation_strategy(InstanceAllocationStrategy::Pooling(pool(config)));
        match Engine::new(&settings) {
            Ok(engine) => return Ok((engine, true)),
            Err(error) => tracing::warn!(
                "the sandbox has no pool of instances and makes each one afresh, which is slower: {error:#}"
            ),
        }
    }
    settings.allocation_strategy(InstanceAllocationStrategy::OnDemand);
    let engine = Engine::new(&settings).map_err(|error| start("wasmtime refuses its settings", error))?;
    Ok((engine, false))
}

/// What decides about compiled code; the process that compiles uses the same, without the pool.
pub(crate) fn settings() -> Config {
    let mut costs = OperatorCost::new();
    costs.variable.memory_grow_per_page = GROW_PAGE_FUEL;
    let mut settings = Config::new();
    settings
        .concurrency_support(false)
        .wasm_memory64(false)
        .wasm_relaxed_simd(false)
        .wasm_custom_page_sizes(false)
        .wasm_wide_arithmetic(false)
        .wasm_stack_switching(false)
        .wasm_component_model(true)
        .shared_memory(false)
        .epoch_interruption(true)
        .consume_fuel(true)
        .operator_cost(costs)
        .cranelift_nan_canonicalization(true)
        .max_wasm_stack(GUEST_STACK_BYTES)
        .async_stack_size(CALL_STACK_BYTES)
        .async_stack_zeroing(true)
        .debug_info(false)
        .wasm_backtrace_details(WasmBacktraceDetails::Disable);
    settings
}

/// A pool in which every concurrent call finds its instances, memories, tables and stack.
fn pool(config: &SandboxConfig) -> PoolingAllocationConfig {
    let calls = config.calls_concurrent_max.saturating_mul(STORES_PER_CALL);
    let each = |count: usize| calls.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX));
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(calls)
        .total_core_instances(each(INSTANCES_MAX))
        .total_memories(each(MEMORIES_MAX))
        .total_tables(each(TABLES_MAX))
        .total_stacks(calls)
        .max_memories_per_component(u32::try_from(MEMORIES_MAX).unwrap_or(u32::MAX))
        .max_tables_per_component(u32::try_from(TABLES_MAX).unwrap_or(u32::MAX))
        .max_tables_per_module(u32::try_from(TABLES_MAX).unwrap_or(u32::MAX))
        .max_memories_per_module(u32::try_from(MEMORIES_MAX).unwrap_or(u32::MAX))
        .table_elements(TABLE_ELEMENTS_MAX)
        .max_memory_size(usize::try_from(RESERVED_BYTES).unwrap_or(usize::MAX));
    // Without the kernel's list of touched pages, keeping them would mean to write all of them.
    if PoolingAllocationConfig::is_pagemap_scan_available() {
        pool.pagemap_scan(Enabled::Yes)
            .linear_memory_keep_resident(KEEP_MEMORY_BYTES)
            .table_keep_resident(KEEP_TABLE_BYTES)
            .async_stack_keep_resident(KEEP_STACK_BYTES)
            .max_unused_warm_slots(KEEP_SLOTS);
    }
    pool
}

impl fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandbox").field("pooling", &self.0.pooling).finish_non_exhaustive()
    }
}
