//! Who may call now: a gate per tenant, then one for all. A tenant waits at its own gate first, so that one
//! tenant's queue never stands in front of another's.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{Fault, FaultKind, SandboxConfig};

/// Gates kept for tenants that are not calling.
const IDLE_GATES_MAX: usize = 1_024;

#[derive(Debug)]
struct Gate {
    slots: Arc<Semaphore>,
    waiting: AtomicU32,
}

/// Hands out the right to run a call.
#[derive(Debug)]
pub(crate) struct Admission {
    all: Arc<Semaphore>,
    gates: Mutex<HashMap<String, Arc<Gate>>>,
    tenant_max: usize,
    waiting_max: u32,
}

/// The right to run one call, given back on drop.
#[derive(Debug)]
pub(crate) struct Permit {
    _tenant: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

/// Counts a waiting call for as long as it lives.
struct Waiting<'a>(&'a AtomicU32);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Admission {
    pub(crate) fn new(config: &SandboxConfig) -> Self {
        Self {
            all: Arc::new(Semaphore::new(config.calls_concurrent_max as usize)),
            gates: Mutex::new(HashMap::new()),
            tenant_max: config.calls_tenant_max as usize,
            waiting_max: config.calls_waiting_max,
        }
    }

    /// Waits for a slot; `Overloaded` at once when the tenant's queue is full.
    pub(crate) async fn enter(&self, tenant: &str) -> Result<Permit, Fault> {
        let gate = self.gate(tenant);
        let _waiting = self.queue(&gate, tenant)?;
        let closed = |_| Fault::new(FaultKind::HostBug, "the gate of the sandbox is closed");
        let tenant = Arc::clone(&gate.slots).acquire_owned().await.map_err(closed)?;
        let all = Arc::clone(&self.all).acquire_owned().await.map_err(closed)?;
        Ok(Permit { _tenant: tenant, _all: all })
    }

    fn gate(&self, tenant: &str) -> Arc<Gate> {
        let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        if gates.len() > IDLE_GATES_MAX {
            gates.retain(|_, gate| Arc::strong_count(gate) > 1 || gate.slots.available_permits() < self.tenant_max);
        }
        let fresh = || Arc::new(Gate { slots: Arc::new(Semaphore::new(self.tenant_max)), waiting: AtomicU32::new(0) });
        Arc::clone(gates.entry(tenant.to_owned()).or_insert_with(fresh))
    }

    fn queue<'a>(&self, gate: &'a Gate, tenant: &str) -> Result<Waiting<'a>, Fault> {
        let before = gate.waiting.fetch_add(1, Ordering::Relaxed);
        let waiting = Waiting(&gate.waiting);
        let free = u32::try_from(gate.slots.available_permits()).unwrap_or(u32::MAX);
        if before >= self.waiting_max.saturating_add(free) {
            return Err(Fault::new(
                FaultKind::Overloaded,
                format!("{before} calls of tenant {tenant} wait already; try again later"),
            ));
        }
        Ok(waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_tenant_cannot_take_every_slot_or_fill_anothers_queue() {
        let config =
            SandboxConfig { calls_concurrent_max: 2, calls_tenant_max: 1, calls_waiting_max: 1, ..Default::default() };
        let admission = Arc::new(Admission::new(&config));
        let greedy = admission.enter("greedy").await.expect("first");
        let waiter = tokio::spawn({
            let admission = Arc::clone(&admission);
            async move { admission.enter("greedy").await }
        });
        tokio::task::yield_now().await;
        assert_eq!(admission.enter("greedy").await.expect_err("queue full").kind, FaultKind::Overloaded);
        let modest = admission.enter("modest").await.expect("own gate");
        drop((greedy, modest));
        assert!(waiter.await.expect("joined").is_ok());
        assert_eq!(admission.all.available_permits(), 2);
    }
}
