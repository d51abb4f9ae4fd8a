//! Who may call now: a gate per tenant, then one for all, in the order that [`Turns`] decides.
//! A tenant waits in its own bounded queue, so that one tenant's calls never stand in front of another's.
//! A caller that goes away while it waits, or before it learns that it may run, leaves no hole.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::oneshot;

use crate::lanes::Lane;
use crate::meter::Meter;
use crate::turns::{Bounds, Turns};
use crate::{Fault, FaultKind, SandboxConfig};

/// Calls that wait, of all tenants; each keeps its samples in memory.
const WAITING_MAX: u32 = 16_384;
/// Fuel charged per microsecond of guest time of a call that was dropped before it was measured.
const FUEL_PER_US: u64 = 500;

/// Hands out the right to run a call. Clones share it.
#[derive(Clone)]
pub(crate) struct Admission(Arc<Mutex<Turns<Waiter>>>);

/// How a waiting call is told that it may run.
type Waiter = oneshot::Sender<Permit>;

/// The right to run one call. What the call used is charged when it is dropped.
pub(crate) struct Permit {
    admission: Admission,
    tenant: Arc<str>,
    lane: Lane,
    fuel: Option<u64>,
    meter: Option<Arc<Meter>>,
}

/// A place in a queue, given up on drop.
struct Place<'a> {
    admission: &'a Admission,
    tenant: Arc<str>,
    ticket: u64,
}

impl Admission {
    pub(crate) fn new(config: &SandboxConfig) -> Self {
        let bounds = Bounds {
            running_max: config.calls_concurrent_max,
            tenant_max: config.calls_tenant_max,
            waiting_max: config.calls_waiting_max,
        };
        Self(Arc::new(Mutex::new(Turns::new(bounds, Instant::now()))))
    }

    /// Waits for a slot; `Overloaded` at once when the tenant's queue is full.
    pub(crate) async fn enter(&self, tenant: &str) -> Result<Permit, Fault> {
        let tenant: Arc<str> = Arc::from(tenant);
        let (waiter, told) = oneshot::channel();
        let place = Place { admission: self, ticket: self.join(&tenant, waiter)?, tenant };
        self.serve();
        let granted = told.await.map_err(|_| Fault::new(FaultKind::HostBug, "the gate of the sandbox is closed"));
        drop(place);
        granted
    }

    /// Calls that run and calls that wait.
    pub(crate) fn counts(&self) -> (u32, u32) {
        let turns = self.turns();
        (turns.running(), turns.waiting())
    }

    fn turns(&self) -> MutexGuard<'_, Turns<Waiter>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn join(&self, tenant: &Arc<str>, waiter: Waiter) -> Result<u64, Fault> {
        let mut turns = self.turns();
        let overloaded = |told: String| Fault::new(FaultKind::Overloaded, told);
        if turns.waiting() >= WAITING_MAX {
            return Err(overloaded(format!("{WAITING_MAX} calls of all tenants wait already; try again later")));
        }
        turns
            .join(tenant, waiter, Instant::now())
            .map_err(|before| overloaded(format!("{before} calls of tenant {tenant} wait already; try again later")))
    }

    /// Tells everybody who may run. A call that is gone gives its slot back, which serves the next one.
    fn serve(&self) {
        loop {
            let mut turns = self.turns();
            let Some((tenant, waiter)) = turns.next() else { return };
            let lane = if turns.over_share(&tenant, Instant::now()) { Lane::Slow } else { Lane::Quick };
            // A permit that nobody takes is dropped, and that takes the lock.
            drop(turns);
            let permit = Permit { admission: self.clone(), tenant, lane, fuel: None, meter: None };
            drop(waiter.send(permit));
        }
    }
}

impl Permit {
    /// Where the call begins.
    pub(crate) fn lane(&self) -> Lane {
        self.lane
    }

    /// From now on the call has used something, measured by this meter should it never end in order.
    pub(crate) fn measure(&mut self, meter: Arc<Meter>) {
        self.meter = Some(meter);
    }

    /// The call is over and has used this much.
    pub(crate) fn charge(mut self, fuel: u64) {
        self.fuel = Some(fuel);
    }

    fn used(&self) -> u64 {
        let guessed = || {
            let guest_us = self.meter.as_ref().map_or(0, |meter| meter.guest().as_micros());
            u64::try_from(guest_us).unwrap_or(u64::MAX).saturating_mul(FUEL_PER_US)
        };
        self.fuel.unwrap_or_else(guessed)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let used = self.used();
        self.admission.turns().end(&self.tenant, used, Instant::now());
        self.admission.serve();
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.admission.turns().leave(&self.tenant, self.ticket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(running: u32, tenant: u32, waiting: u32) -> Admission {
        Admission::new(&SandboxConfig {
            calls_concurrent_max: running,
            calls_tenant_max: tenant,
            calls_waiting_max: waiting,
            ..Default::default()
        })
    }

    #[tokio::test]
    async fn one_tenant_cannot_take_every_slot_or_fill_anothers_queue() {
        let admission = admission(2, 1, 1);
        let greedy = admission.enter("greedy").await.expect("first");
        let waiter = tokio::spawn({
            let admission = admission.clone();
            async move { admission.enter("greedy").await.map(drop) }
        });
        tokio::task::yield_now().await;
        assert_eq!(admission.counts(), (1, 1));
        let refused = admission.enter("greedy").await.map(drop).expect_err("queue full");
        assert_eq!(refused.kind, FaultKind::Overloaded);
        let modest = admission.enter("modest").await.expect("own gate");
        drop((greedy, modest));
        assert_eq!(waiter.await.expect("joined"), Ok(()));
        assert_eq!(admission.counts(), (0, 0));
    }

    #[tokio::test]
    async fn callers_that_go_away_leave_no_hole() {
        let admission = admission(1, 1, 8);
        let first = admission.enter("a").await.expect("free");
        let waiters: Vec<_> = (0..4)
            .map(|_| {
                let admission = admission.clone();
                tokio::spawn(async move { admission.enter("a").await.map(drop) })
            })
            .collect();
        tokio::task::yield_now().await;
        assert_eq!(admission.counts(), (1, 4));
        // The second is gone before its turn; the first is gone when it has its permit but does not know it yet.
        for gone in waiters.iter().take(2).rev() {
            gone.abort();
        }
        drop(first);
        for (at, waiter) in waiters.into_iter().enumerate() {
            assert_eq!(waiter.await.is_ok(), at >= 2, "waiter {at}");
        }
        assert_eq!(admission.counts(), (0, 0));
        admission.enter("b").await.expect("free again").charge(7);
        assert_eq!(admission.counts(), (0, 0));
    }

    #[tokio::test]
    async fn a_tenant_that_used_much_starts_on_the_slow_lane() {
        let admission = admission(4, 2, 8);
        assert!(admission.enter("light").await.map(|permit| permit.lane() == Lane::Quick).expect("free"));
        admission.enter("spinner").await.expect("free").charge(500_000_000);
        assert!(admission.enter("spinner").await.map(|permit| permit.lane() == Lane::Slow).expect("free"));
        assert!(admission.enter("light").await.map(|permit| permit.lane() == Lane::Quick).expect("free"));
    }
}
