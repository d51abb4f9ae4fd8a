//! What a sandbox is doing right now, for metrics and for tests that look for leaks.

use std::sync::atomic::Ordering;

use serde::Serialize;

use crate::Sandbox;

/// A reading. All but the two counts of the cache are 0 when nothing runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Gauges {
    /// Calls that have a slot, and recipes that describe themselves.
    pub calls_running: u32,
    /// Calls that wait for one.
    pub calls_waiting: u32,
    /// Compilations that run.
    pub compiles_running: u32,
    /// Are instances taken from a pool? Without one the four numbers of the pool stay 0.
    pub pooling: bool,
    /// Components of the pool in use.
    pub pool_component_instances: u64,
    /// Core instances of the pool in use.
    pub pool_core_instances: u64,
    /// Memories of the pool in use.
    pub pool_memories: u64,
    /// Stacks of the pool in use.
    pub pool_stacks: u64,
    /// Components whose code was in the cache, since the start.
    pub compile_cache_hits: u64,
    /// Components that were compiled, since the start.
    pub compile_cache_misses: u64,
}

impl Sandbox {
    /// Reads the gauges. Numbers of different owners are read one after the other, not at one moment.
    pub fn gauges(&self) -> Gauges {
        let shared = &self.0;
        let (calls_running, calls_waiting) = shared.admission().counts();
        let pool = shared.engine().pooling_allocator_metrics();
        let pool = pool.as_ref();
        Gauges {
            calls_running,
            calls_waiting,
            compiles_running: shared.compiles_running(),
            pooling: self.pooling(),
            pool_component_instances: pool.map_or(0, |pool| pool.component_instances()),
            pool_core_instances: pool.map_or(0, |pool| pool.core_instances()),
            pool_memories: pool.map_or(0, |pool| pool.memories() as u64),
            pool_stacks: pool.map_or(0, |pool| pool.stacks() as u64),
            compile_cache_hits: shared.compiles().hits.load(Ordering::Relaxed),
            compile_cache_misses: shared.compiles().misses.load(Ordering::Relaxed),
        }
    }
}
