//! Whose call runs next: deficit round robin over tenants, on the fuel that their calls were measured to use.
//! [`Admission`](crate::admission::Admission) asks it under its lock; it knows neither threads nor clocks.
//! A slot is never left empty while a call that may have it waits, and a tenant that used much waits longer.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Fuel that every waiting tenant gets per round; some ten milliseconds of guest time.
pub(crate) const QUANTUM_FUEL: i64 = 10_000_000;
/// Charged for every call beside its fuel: making and dropping an instance takes some fifty microseconds.
pub(crate) const CALL_FUEL: u64 = 50_000;
/// Accounts kept for tenants that are not calling.
const IDLE_ACCOUNTS_MAX: usize = 1_024;
/// After this much rest a tenant starts over, without debt.
const REST: Duration = Duration::from_secs(60);
/// Time in which half of the recent fuel is forgotten.
const HALF_LIFE: Duration = Duration::from_secs(1);
/// Recent fuel below which a tenant is never over its share.
const LIGHT_FUEL: f64 = 20_000_000.0;

/// How many calls run and wait.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Calls that run, of all tenants.
    pub(crate) running_max: u32,
    /// Calls of one tenant that run.
    pub(crate) tenant_max: u32,
    /// Calls of one tenant that wait.
    pub(crate) waiting_max: u32,
}

/// Fuel used lately, halved every [`HALF_LIFE`].
#[derive(Debug, Clone, Copy)]
struct Recent {
    fuel: f64,
    at: Instant,
}

impl Recent {
    fn read(self, now: Instant) -> f64 {
        let age = now.saturating_duration_since(self.at).as_secs_f64();
        self.fuel * (-age / HALF_LIFE.as_secs_f64()).exp2()
    }

    fn add(&mut self, fuel: u64, now: Instant) {
        // An f64 holds the fuel of a call to within a thousandth, which is all that a share needs.
        *self = Self { fuel: self.read(now) + fuel as f64, at: now };
    }
}

struct Account<W> {
    running: u32,
    waiting: VecDeque<(u64, W)>,
    deficit: i64,
    recent: Recent,
}

impl<W> Account<W> {
    fn idle(&self) -> bool {
        self.running == 0 && self.waiting.is_empty()
    }
}

/// The queues of all tenants. `W` is what a waiting call left to be told.
pub(crate) struct Turns<W> {
    bounds: Bounds,
    accounts: HashMap<Arc<str>, Account<W>>,
    // Tenants with waiting calls, each once, in the order of their turns.
    ring: VecDeque<Arc<str>>,
    running: u32,
    waiting: u32,
    recent: Recent,
    tickets: u64,
}

impl<W> Turns<W> {
    pub(crate) fn new(bounds: Bounds, now: Instant) -> Self {
        let recent = Recent { fuel: 0.0, at: now };
        Self { bounds, accounts: HashMap::new(), ring: VecDeque::new(), running: 0, waiting: 0, recent, tickets: 0 }
    }

    pub(crate) fn running(&self) -> u32 {
        self.running
    }

    pub(crate) fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Puts a call at the end of its tenant's queue and returns its ticket, or how many wait when the queue is full.
    /// A call that gets its slot at once does not count as waiting, so ask [`Self::next`] after every join.
    pub(crate) fn join(&mut self, tenant: &Arc<str>, waiter: W, now: Instant) -> Result<u64, u32> {
        self.forget(now);
        let bounds = self.bounds;
        let idle_slots = bounds.running_max.saturating_sub(self.running);
        let account = self.accounts.entry(Arc::clone(tenant)).or_insert_with(|| Account {
            running: 0,
            waiting: VecDeque::new(),
            deficit: QUANTUM_FUEL,
            recent: Recent { fuel: 0.0, at: now },
        });
        if account.idle() && now.saturating_duration_since(account.recent.at) > REST {
            account.deficit = QUANTUM_FUEL;
        }
        let before = u32::try_from(account.waiting.len()).unwrap_or(u32::MAX);
        let at_once = before == 0 && idle_slots > 0 && account.running < bounds.tenant_max;
        if before >= bounds.waiting_max && !at_once {
            return Err(before);
        }
        if account.waiting.is_empty() {
            self.ring.push_back(Arc::clone(tenant));
        }
        self.tickets += 1;
        account.waiting.push_back((self.tickets, waiter));
        self.waiting += 1;
        Ok(self.tickets)
    }

    /// Takes a call out of the queue. `false` when it is not there any more: it has its slot.
    pub(crate) fn leave(&mut self, tenant: &Arc<str>, ticket: u64) -> bool {
        let Some(account) = self.accounts.get_mut(tenant) else { return false };
        let before = account.waiting.len();
        account.waiting.retain(|(of, _)| *of != ticket);
        if account.waiting.len() == before {
            return false;
        }
        self.waiting -= 1;
        if account.waiting.is_empty() {
            self.ring.retain(|other| other != tenant);
        }
        true
    }

    /// The call whose turn it is, if a slot is free. It counts as running from now on.
    pub(crate) fn next(&mut self) -> Option<(Arc<str>, W)> {
        if self.running >= self.bounds.running_max {
            return None;
        }
        let at = self.turn().or_else(|| {
            self.rounds();
            self.turn()
        })?;
        let tenant = self.ring.remove(at)?;
        // Those before it are at their own gate or in debt and keep their places; it goes to the end.
        let account = self.accounts.get_mut(&tenant)?;
        let (_, waiter) = account.waiting.pop_front()?;
        account.running += 1;
        if !account.waiting.is_empty() {
            self.ring.push_back(Arc::clone(&tenant));
        }
        self.running += 1;
        self.waiting -= 1;
        Some((tenant, waiter))
    }

    /// Gives the slot of a call back and charges what it used.
    pub(crate) fn end(&mut self, tenant: &Arc<str>, fuel: u64, now: Instant) {
        self.running = self.running.saturating_sub(1);
        self.recent.add(fuel, now);
        if let Some(account) = self.accounts.get_mut(tenant) {
            let cost = i64::try_from(fuel.saturating_add(CALL_FUEL)).unwrap_or(i64::MAX);
            account.running = account.running.saturating_sub(1);
            account.deficit = account.deficit.saturating_sub(cost);
            account.recent.add(fuel, now);
        }
    }

    /// Has the tenant used more than its share lately? Its calls then start where they delay nobody.
    pub(crate) fn over_share(&self, tenant: &Arc<str>, now: Instant) -> bool {
        let Some(account) = self.accounts.get(tenant) else { return false };
        let (own, tenants) = (account.recent.read(now), self.accounts.len() as f64);
        own > LIGHT_FUEL && own * tenants > self.recent.read(now)
    }

    /// Place of the first tenant that may run a call and has fuel left.
    fn turn(&self) -> Option<usize> {
        self.ring.iter().position(|tenant| self.eligible(tenant).is_some_and(|account| account.deficit > 0))
    }

    /// As many rounds as it takes until somebody may run a call.
    fn rounds(&mut self) {
        let debts = self.ring.iter().filter_map(|tenant| self.eligible(tenant)).map(|account| account.deficit);
        let Some(least) = debts.max() else { return };
        let gained = (least.saturating_neg() / QUANTUM_FUEL + 1).saturating_mul(QUANTUM_FUEL);
        let tenant_max = self.bounds.tenant_max;
        for tenant in &self.ring {
            if let Some(account) = self.accounts.get_mut(tenant).filter(|account| account.running < tenant_max) {
                account.deficit = account.deficit.saturating_add(gained).min(QUANTUM_FUEL);
            }
        }
    }

    fn eligible(&self, tenant: &Arc<str>) -> Option<&Account<W>> {
        self.accounts.get(tenant).filter(|account| account.running < self.bounds.tenant_max)
    }

    /// Keeps the accounts few: those at rest go first, then all that are not calling.
    fn forget(&mut self, now: Instant) {
        if self.accounts.len() <= IDLE_ACCOUNTS_MAX {
            return;
        }
        self.accounts.retain(|_, account| !account.idle() || now.saturating_duration_since(account.recent.at) < REST);
        if self.accounts.len() > IDLE_ACCOUNTS_MAX {
            self.accounts.retain(|_, account| !account.idle());
        }
    }
}

#[cfg(test)]
#[path = "turns_tests.rs"]
mod tests;
