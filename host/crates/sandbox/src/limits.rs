//! The budgets of sandboxed calls: what an operator may set, and the defaults.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{Override, SandboxError};

const MIB: u64 = 1024 * 1024;
/// Bytes of a WASM page.
pub(crate) const PAGE_BYTES: u64 = 65_536;
/// Core instances in one call; a Python guest has 21.
pub(crate) const INSTANCES_MAX: usize = 64;
/// Linear memories in one call.
pub(crate) const MEMORIES_MAX: usize = 8;
/// Tables in one call.
pub(crate) const TABLES_MAX: usize = 32;
/// Elements of one table.
pub(crate) const TABLE_ELEMENTS_MAX: usize = 100_000;
/// Bytes a table element counts against the memory budget.
pub(crate) const TABLE_ELEMENT_BYTES: usize = 16;

/// Limits of sandboxed calls.
///
/// Every `wall_*_ms` is processor time of the thread that runs the guest: waiting for a core, for training and for
/// models is not in it. In elapsed time, host calls apart, a call lasts at most
/// `wall × (calls_concurrent_max / threads + 2)` and one minute more, and is then given up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxConfig {
    /// Threads that run guests, apart from those that serve.
    pub threads: usize,
    /// Calls that run at the same time.
    pub calls_concurrent_max: u32,
    /// Calls of one tenant that run at the same time.
    pub calls_tenant_max: u32,
    /// Calls of one tenant that may wait; more are refused as overloaded.
    pub calls_waiting_max: u32,
    /// Takes instances from a pool where the machine allows one; off, every call makes its own, which is slower.
    pub pooling: bool,
    /// Bytes of all memories and tables of a call together.
    pub memory_bytes_max: u64,
    /// Fuel of `describe` and `select-samples`; about one unit per WASM operator.
    pub fuel_select: u64,
    /// Fuel of `propose-update`.
    pub fuel_propose: u64,
    /// Fuel of `evaluate`, of `migrate` and of a verifier's check.
    pub fuel_evaluate: u64,
    /// Fuel of `ingest`.
    pub fuel_ingest: u64,
    /// Fuel of `transform-request`.
    pub fuel_transform: u64,
    /// Milliseconds of guest time of `describe` and `select-samples`; training and model calls are not counted.
    pub wall_select_ms: u64,
    /// Milliseconds of guest time of `propose-update`.
    pub wall_propose_ms: u64,
    /// Milliseconds of guest time of `evaluate`, of `migrate` and of a verifier's check.
    pub wall_evaluate_ms: u64,
    /// Milliseconds of guest time of `ingest`.
    pub wall_ingest_ms: u64,
    /// Milliseconds of guest time of `transform-request`, for which a user waits.
    pub wall_transform_ms: u64,
    /// Host calls per capability and call.
    pub host_calls_max: u32,
    /// Bytes of log lines per call; more are dropped and counted.
    pub log_bytes_max: u64,
    /// Bytes of a component file.
    pub component_bytes_max: u64,
    /// Milliseconds that compiling a component may take.
    pub compile_ms_max: u64,
    /// Bytes of address space of the process that compiles a component.
    pub compile_memory_bytes_max: u64,
    /// Folder of compiled components, private to the user that runs the host; without one, every start compiles anew.
    pub cache_dir: Option<PathBuf>,
    /// Compiled components that are kept; the least recently used ones go first.
    pub cache_entries_max: u32,
    /// Bytes of all compiled components that are kept.
    pub cache_bytes_max: u64,
    /// Bytes that a guest may hand to the host in one host call or result.
    pub output_bytes_max: u64,
    /// Component handles that live at the same time in a call.
    pub component_handles_max: u32,
    /// Bytes of keys and values of one state bucket.
    pub state_bytes_max: u64,
    /// Milliseconds that a cancelled call waits for the host call it is in.
    pub cancel_grace_ms: u64,
    /// Gives guests that need it an empty WASI 0.2: no files, no network, no environment, a clock that stands still.
    pub wasi_stub: bool,
    /// Limits of single recipes, by the name in their manifest, and of tenants, as `tenant:NAME`. A recipe's win over
    /// its tenant's, and those over everybody's.
    pub overrides: BTreeMap<String, Override>,
}

impl Default for SandboxConfig {
    fn default() -> Self {
        Self {
            threads: 2,
            calls_concurrent_max: 16,
            calls_tenant_max: 4,
            calls_waiting_max: 32,
            pooling: true,
            memory_bytes_max: 64 * MIB,
            fuel_select: 500_000_000,
            fuel_propose: 2_000_000_000,
            fuel_evaluate: 2_000_000_000,
            fuel_ingest: 500_000_000,
            fuel_transform: 50_000_000,
            wall_select_ms: 2_000,
            wall_propose_ms: 30_000,
            wall_evaluate_ms: 30_000,
            wall_ingest_ms: 2_000,
            wall_transform_ms: 10,
            host_calls_max: 1_000,
            log_bytes_max: 64 * 1024,
            component_bytes_max: 64 * MIB,
            compile_ms_max: 180_000,
            compile_memory_bytes_max: 4_096 * MIB,
            cache_dir: None,
            cache_entries_max: 64,
            cache_bytes_max: 2_048 * MIB,
            output_bytes_max: 4 * MIB,
            component_handles_max: 1_024,
            state_bytes_max: MIB,
            cancel_grace_ms: 5_000,
            wasi_stub: false,
            overrides: BTreeMap::new(),
        }
    }
}

impl SandboxConfig {
    /// Refuses values that no call could run with; names the key.
    pub(crate) fn check(&self) -> Result<(), SandboxError> {
        self.check_values("")?;
        self.check_overrides()
    }

    /// `place` is where the values stand, from `sandbox.` on.
    pub(crate) fn check_values(&self, place: &str) -> Result<(), SandboxError> {
        let least: [(&str, u64, u64); 18] = [
            ("threads", self.threads as u64, 1),
            ("calls_concurrent_max", self.calls_concurrent_max.into(), 1),
            ("calls_tenant_max", self.calls_tenant_max.into(), 1),
            ("memory_bytes_max", self.memory_bytes_max, MIB),
            ("fuel_select", self.fuel_select, 1),
            ("fuel_propose", self.fuel_propose, 1),
            ("fuel_evaluate", self.fuel_evaluate, 1),
            ("fuel_ingest", self.fuel_ingest, 1),
            ("fuel_transform", self.fuel_transform, 1),
            ("wall_ingest_ms", self.wall_ingest_ms, 1),
            ("wall_transform_ms", self.wall_transform_ms, 1),
            ("wall_select_ms", self.wall_select_ms, 1),
            ("wall_propose_ms", self.wall_propose_ms, 1),
            ("wall_evaluate_ms", self.wall_evaluate_ms, 1),
            ("host_calls_max", self.host_calls_max.into(), 1),
            ("output_bytes_max", self.output_bytes_max, 1),
            ("compile_ms_max", self.compile_ms_max, 1),
            ("compile_memory_bytes_max", self.compile_memory_bytes_max, 256 * MIB),
        ];
        for (key, value, low) in least {
            if value < low {
                return Err(SandboxError::Start(format!("sandbox.{place}{key} is {value} and must be at least {low}")));
            }
        }
        let most: [(&str, u64, u64); 4] = [
            ("threads", self.threads as u64, 256),
            ("calls_concurrent_max", self.calls_concurrent_max.into(), 1_024),
            ("memory_bytes_max", self.memory_bytes_max, 4_096 * MIB),
            ("cache_entries_max", self.cache_entries_max.into(), 4_096),
        ];
        for (key, value, high) in most {
            if value > high {
                return Err(SandboxError::Start(format!("sandbox.{place}{key} is {value} and must be at most {high}")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_limits_are_refused_by_name() {
        assert_eq!(SandboxConfig::default().check(), Ok(()));
        let told = SandboxConfig { threads: 0, ..Default::default() }.check().expect_err("refused").to_string();
        assert!(told.contains("sandbox.threads is 0"), "{told}");
        let told = SandboxConfig { memory_bytes_max: u64::MAX, ..Default::default() }
            .check()
            .expect_err("refused")
            .to_string();
        assert!(told.contains("sandbox.memory_bytes_max"), "{told}");
    }

    #[test]
    fn unknown_keys_are_refused() {
        assert!(serde_json::from_str::<SandboxConfig>(r#"{"fuel": 1}"#).is_err());
        assert_eq!(serde_json::from_str::<SandboxConfig>("{}").expect("defaults"), SandboxConfig::default());
    }
}
