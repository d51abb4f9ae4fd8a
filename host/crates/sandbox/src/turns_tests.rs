//! The queues of calls on their own: whatever arrives, leaves and ends, nobody starves, no slot stays empty,
//! and every unit of fuel is charged once.

use std::collections::{BTreeMap, HashSet};

use proptest::prelude::*;

use super::*;

const BOUNDS: Bounds = Bounds { running_max: 3, tenant_max: 2, waiting_max: 4 };

fn name(tenant: u8) -> Arc<str> {
    Arc::from(format!("tenant-{tenant}"))
}

#[derive(Debug, Clone)]
enum Event {
    Arrive(u8),
    /// The waiting call at this place, modulo their number, goes away.
    Leave(usize),
    /// The running call at this place, modulo their number, ends with this fuel.
    End(usize, u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0u8..5).prop_map(Event::Arrive),
        1 => any::<usize>().prop_map(Event::Leave),
        3 => (any::<usize>(), prop_oneof![0u64..10_000, 1_000_000u64..2_000_000_000]).prop_map(|(at, fuel)| Event::End(at, fuel)),
    ]
}

/// The queues and what an onlooker knows of them.
struct Watched {
    turns: Turns<u64>,
    now: Instant,
    waiting: BTreeMap<u64, (Arc<str>, u64)>,
    running: Vec<(u64, Arc<str>)>,
    served: HashSet<u64>,
    calls: u64,
}

impl Watched {
    fn new() -> Self {
        let now = Instant::now();
        let turns = Turns::new(BOUNDS, now);
        Self { turns, now, waiting: BTreeMap::new(), running: Vec::new(), served: HashSet::new(), calls: 0 }
    }

    fn running_of(&self, tenant: &Arc<str>) -> usize {
        self.running.iter().filter(|(_, of)| of == tenant).count()
    }

    /// Hands out every slot that can be handed out.
    fn serve(&mut self) {
        while let Some((tenant, call)) = self.turns.next() {
            assert!(self.served.insert(call), "call {call} got two slots");
            let (of, _) = self.waiting.remove(&call).expect("only waiting calls are served");
            assert_eq!(of, tenant);
            assert!(
                self.waiting.iter().all(|(other, (of, _))| *of != tenant || *other > call),
                "calls of one tenant run in their order"
            );
            self.running.push((call, tenant));
        }
        let free = self.running.len() < BOUNDS.running_max as usize;
        let may_run = |of: &Arc<str>| self.running_of(of) < BOUNDS.tenant_max as usize;
        assert!(!free || self.waiting.values().all(|(of, _)| !may_run(of)), "a slot is empty while a call waits");
        assert!(self.running.len() <= BOUNDS.running_max as usize);
        assert!(self.running.iter().all(|(_, of)| self.running_of(of) <= BOUNDS.tenant_max as usize));
        assert_eq!(self.turns.running() as usize, self.running.len());
        assert_eq!(self.turns.waiting() as usize, self.waiting.len());
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Arrive(tenant) => {
                let tenant = name(tenant);
                let before = self.waiting.values().filter(|(of, _)| *of == tenant).count();
                self.calls += 1;
                match self.turns.join(&tenant, self.calls, self.now) {
                    Ok(ticket) => drop(self.waiting.insert(self.calls, (tenant, ticket))),
                    Err(told) => assert!(before == told as usize && before >= BOUNDS.waiting_max as usize),
                }
            }
            Event::Leave(at) if !self.waiting.is_empty() => {
                let call = *self.waiting.keys().nth(at % self.waiting.len()).expect("within");
                let (tenant, ticket) = self.waiting.remove(&call).expect("waiting");
                assert!(self.turns.leave(&tenant, ticket));
                assert!(!self.turns.leave(&tenant, ticket), "it leaves once");
            }
            Event::End(at, fuel) if !self.running.is_empty() => {
                let (_, tenant) = self.running.swap_remove(at % self.running.len());
                self.turns.end(&tenant, fuel, self.now);
            }
            Event::Leave(_) | Event::End(..) => {}
        }
        self.serve();
    }
}

proptest! {
    #[test]
    fn no_slot_stays_empty_and_every_call_that_stays_is_served(events in proptest::collection::vec(event(), 1..200)) {
        let mut watched = Watched::new();
        for event in events {
            watched.apply(event);
        }
        while !watched.running.is_empty() {
            watched.apply(Event::End(0, 2_000_000_000));
        }
        prop_assert!(watched.waiting.is_empty(), "nobody waits for ever");
        prop_assert_eq!((watched.turns.running(), watched.turns.waiting()), (0, 0));
    }

    #[test]
    fn charges_add_up(fuels in proptest::collection::vec((0u8..4, 0u64..1_000_000_000), 1..60)) {
        let mut watched = Watched::new();
        for (tenant, fuel) in &fuels {
            // One call at a time: no queue, so no rounds, and a deficit is what is left of the first quantum.
            watched.apply(Event::Arrive(*tenant));
            watched.turns.accounts.get_mut(&name(*tenant)).expect("an account").deficit = 0;
            watched.apply(Event::End(0, *fuel));
            let account = &watched.turns.accounts[&name(*tenant)];
            prop_assert_eq!(account.deficit, -i64::try_from(fuel + CALL_FUEL).expect("small"));
        }
        let total: u64 = fuels.iter().map(|(_, fuel)| fuel).sum();
        let recent: f64 = watched.turns.accounts.values().map(|account| account.recent.read(watched.now)).sum();
        prop_assert!((recent - total as f64).abs() <= 1.0 && (watched.turns.recent.read(watched.now) - recent).abs() <= 1.0);
    }
}

/// Both always have calls waiting; one slot; a call of the greedy one costs a hundred of the modest one's.
#[test]
fn tenants_that_always_wait_get_the_same_fuel() {
    let (now, bounds) = (Instant::now(), Bounds { running_max: 1, tenant_max: 1, waiting_max: 4 });
    let mut turns = Turns::new(bounds, now);
    let cost = |tenant: &Arc<str>| if **tenant == *"greedy" { 100_000_000u64 } else { 1_000_000 };
    let tenants: [Arc<str>; 2] = [Arc::from("greedy"), Arc::from("modest")];
    let mut used: BTreeMap<Arc<str>, u64> = BTreeMap::new();
    for tenant in &tenants {
        turns.join(tenant, (), now).expect("room");
    }
    for _ in 0..20_000 {
        let (tenant, ()) = turns.next().expect("somebody always waits");
        turns.join(&tenant, (), now).expect("room");
        *used.entry(Arc::clone(&tenant)).or_default() += cost(&tenant) + CALL_FUEL;
        turns.end(&tenant, cost(&tenant), now);
    }
    let (greedy, modest) = (used[&tenants[0]], used[&tenants[1]]);
    assert!(greedy.abs_diff(modest) <= 200_000_000, "{greedy} and {modest}");
}

#[test]
fn a_tenant_is_over_its_share_while_it_uses_more_than_the_others() {
    let now = Instant::now();
    let mut turns = Turns::new(BOUNDS, now);
    let [spinner, light] = [name(0), name(1)];
    for (tenant, fuel) in [(&spinner, 500_000_000), (&light, 2_000)] {
        turns.join(tenant, 0, now).expect("room");
        turns.next().expect("a slot");
        turns.end(tenant, fuel, now);
    }
    assert!(turns.over_share(&spinner, now) && !turns.over_share(&light, now));
    assert!(!turns.over_share(&spinner, now + HALF_LIFE * 20), "it is forgotten");
    let mut alone = Turns::new(BOUNDS, now);
    alone.join(&spinner, 0, now).expect("room");
    alone.next().expect("a slot");
    alone.end(&spinner, 500_000_000, now);
    assert!(!alone.over_share(&spinner, now), "who is alone takes nothing from anybody");
}

#[test]
fn accounts_of_tenants_that_left_are_dropped() {
    let now = Instant::now();
    let mut turns = Turns::new(BOUNDS, now);
    for tenant in 0..3_000 {
        let tenant: Arc<str> = Arc::from(format!("t{tenant}"));
        turns.join(&tenant, 0, now).expect("room");
        turns.next().expect("a slot");
        turns.end(&tenant, 1, now);
        assert!(turns.accounts.len() <= IDLE_ACCOUNTS_MAX + 1);
    }
}
