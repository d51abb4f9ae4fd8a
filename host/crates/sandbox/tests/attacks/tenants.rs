//! Tenants beside each other: slots, residue, exchanges of a recipe under load, and what is left after thousands of
//! calls that end in every way.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use reef_sandbox::{Call, Cancel, FaultKind, Grants, Recipe, Sandbox, SandboxConfig, SandboxError};
use tempfile::TempDir;

use crate::guest::*;
use crate::newer::Newer;

const SPIN: &str = "(loop $spin (br $spin)) unreachable";

/// select-samples, one tenant with 12 spinning calls, slots for 4 → 2 run, 2 wait, 8 are Overloaded at once; another
/// tenant's call ends meanwhile, 20 s.
#[tokio::test]
async fn one_tenant_cannot_take_every_slot() {
    for_each_sandbox(async || {
        let sandbox = sandbox(SandboxConfig {
            calls_concurrent_max: 4,
            calls_tenant_max: 2,
            calls_waiting_max: 2,
            fuel_select: u64::MAX / 2,
            wall_select_ms: 400,
            ..small()
        });
        let spinner = load(&sandbox, Guest::doing(SPIN)).await.expect("loads");
        let good = load(&sandbox, Guest::good()).await.expect("loads");
        let greedy: Vec<_> = (0..12)
            .map(|_| {
                let spinner = spinner.clone();
                tokio::spawn(async move { kind(&spinner.select_samples(call_of("greedy")).await) })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(50)).await;
        let gauges = sandbox.gauges();
        assert!(gauges.calls_running <= 2 && gauges.calls_waiting <= 2, "{gauges:?}");
        let outcome = within(5_000, good.select_samples(call_of("modest"))).await;
        assert!(outcome.result.is_ok(), "{:?}", outcome.result);
        let mut ended = Vec::new();
        for call in greedy {
            ended.push(within(20_000, call).await.expect("joined"));
        }
        let refused = ended.iter().filter(|kind| **kind == FaultKind::Overloaded).count();
        assert_eq!((refused, ended.iter().filter(|kind| **kind == FaultKind::Deadline).count()), (8, 4), "{ended:?}");
        still_works(&sandbox).await;
    })
    .await;
}

/// Loading while the only slot is taken and nobody may wait → Overloaded, the fault of the host; loads afterwards, 20 s.
#[tokio::test]
async fn loading_takes_a_slot_like_any_call() {
    for_each_sandbox(async || {
        let sandbox = sandbox(SandboxConfig {
            calls_concurrent_max: 1,
            calls_waiting_max: 0,
            fuel_select: u64::MAX / 2,
            wall_select_ms: 600_000,
            ..small()
        });
        let spinner = load(&sandbox, Guest::doing(SPIN)).await.expect("loads");
        let cancel = Cancel::new();
        let call = Call { cancel: cancel.clone(), ..call_of("greedy") };
        let spinning = tokio::spawn(async move { kind(&spinner.select_samples(call).await) });
        within(5_000, async {
            while sandbox.gauges().calls_running == 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        match within(5_000, load(&sandbox, Guest::good())).await {
            Err(SandboxError::Describe(fault)) => assert_eq!(fault.kind, FaultKind::Overloaded),
            other => panic!("{other:?}"),
        }
        cancel.cancel();
        assert_eq!(within(20_000, spinning).await.expect("joined"), FaultKind::Cancelled);
        still_works(&sandbox).await;
    })
    .await;
}

/// A guest that fills memory, a table and a global with a secret.
fn secretive() -> Guest {
    Guest {
        fields:
            "(table $t 1 2000 funcref) (global $g (mut i64) (i64.const 0)) (func $secret) (elem declare func $secret)"
                .into(),
        ..Guest::good()
    }
    .selecting_after(
        "(drop (memory.grow (i32.const 56)))
         (memory.fill (i32.const 262144) (i32.const 165) (i32.const 3670016))
         (global.set $g (i64.const 0x5ec2e7))
         (drop (table.grow $t (ref.func $secret) (i32.const 1000)))
         (table.set $t (i32.const 0) (ref.func $secret))",
    )
}

/// A guest that traps where anything is left of another guest.
fn curious() -> Guest {
    Guest { fields: "(table $t 1 2000 funcref) (global $g (mut i64) (i64.const 0))".into(), ..Guest::good() }
        .selecting_after(
            "(local $at i32)
         (if (i64.ne (global.get $g) (i64.const 0)) (then unreachable))
         (if (i32.eqz (ref.is_null (table.get $t (i32.const 0)))) (then unreachable))
         (drop (memory.grow (i32.const 56)))
         (drop (table.grow $t (ref.null func) (i32.const 1000)))
         (local.set $at (i32.const 1000))
         (loop $entries
           (if (i32.eqz (ref.is_null (table.get $t (local.get $at)))) (then unreachable))
           (br_if $entries (local.tee $at (i32.sub (local.get $at) (i32.const 1)))))
         (local.set $at (i32.const 262144))
         (loop $bytes
           (if (i64.ne (i64.load (local.get $at)) (i64.const 0)) (then unreachable))
           (br_if $bytes (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 8))) (i32.const 3932160))))",
        )
}

/// select-samples, a secret in memory, table and global, then another tenant's guest that looks → it finds zeros, 20 s.
#[tokio::test]
async fn nothing_of_a_tenant_is_left_for_the_next() {
    for_each_sandbox(async || {
        let sandbox = sandbox(SandboxConfig { calls_concurrent_max: 1, ..small() });
        let secretive = load(&sandbox, secretive()).await.expect("loads");
        let curious = load(&sandbox, curious()).await.expect("loads");
        for _ in 0..10 {
            let outcome = within(5_000, secretive.select_samples(call_of("a"))).await;
            assert!(outcome.result.is_ok(), "{:?}", outcome.result);
            let outcome = within(5_000, curious.select_samples(call_of("b"))).await;
            assert!(outcome.result.is_ok(), "{:?}", outcome.result);
        }
    })
    .await;
}

/// select-samples, state and gauges of a tenant's call, then another tenant's → nothing of them, 5 s.
#[tokio::test]
async fn state_and_gauges_stay_with_their_call() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let mut guest = Guest::good().importing("state", "get", "(param i32 i32 i32)").importing(
            "metrics",
            "gauge",
            "(param i32 i32 f64)",
        );
        let [at, length] = guest.data.text("k");
        // Traps when there is a value, and then only when it is somebody else's.
        let guest = guest.selecting_after(&format!(
            "(call $get (i32.const {at}) (i32.const {length}) (i32.const 64))
             (if (i32.load8_u (i32.const 68)) (then (call $gauge (i32.const {at}) (i32.const {length}) (f64.const 1))))"
        ));
        let recipe = load(&sandbox, guest).await.expect("loads");
        let state = || [("k".to_owned(), b"secret".to_vec())].into_iter().collect();
        let owner = within(5_000, recipe.select_samples(Call { state: state(), ..call_of("a") })).await;
        assert!(owner.result.is_ok() && owner.metrics.contains_key("k"), "{:?}", owner.result);
        let other = within(5_000, recipe.select_samples(call_of("b"))).await;
        assert!(other.result.is_ok() && other.metrics.is_empty() && other.state.is_empty(), "{:?}", other.result);
    })
    .await;
}

/// One task that loads versions and makes them current, calls whatever is current, and drops it all again.
async fn upgrading(sandboxes: Arc<[Sandbox; 2]>, current: Arc<Mutex<Recipe>>, task: usize) {
    for turn in 0..15 {
        let sandbox = &sandboxes[(task + turn) % 2];
        let bytes = if (task * 7 + turn).is_multiple_of(3) { Newer::good().bytes() } else { Guest::good().bytes() };
        let recipe = sandbox.load(bytes, &Grants::all()).await.expect("loads");
        let (mine, tenant) = (recipe.label(), format!("tenant-{task}"));
        let before = std::mem::replace(&mut *current.lock().expect("not poisoned"), recipe.clone());
        let calls = [before.select_samples(call_of(&tenant)), recipe.select_samples(call_of(&tenant))];
        for call in calls {
            let outcome = call.await;
            assert!(outcome.result.is_ok(), "{mine}: {:?}", outcome.result);
        }
        // A call on a recipe that everybody else has let go of.
        let running = before.select_samples(call_of(&tenant));
        drop((recipe, current.lock().expect("not poisoned").clone()));
        assert!(running.await.result.is_ok());
    }
}

/// Loading, calling, replacing and dropping recipes of both generations from 8 tasks, two sandboxes on one cache → every
/// call gets its answer, and every gauge is 0 afterwards, 60 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn upgrades_under_load_lose_no_call() {
    for_each_sandbox(async || {
        let folder = TempDir::new().expect("a folder");
        let config = || SandboxConfig {
            cache_dir: Some(folder.path().join("compiled")),
            cache_entries_max: 1,
            calls_waiting_max: 64,
            ..small()
        };
        let sandboxes = Arc::new([sandbox(config()), sandbox(config())]);
        let first = load(&sandboxes[0], Guest::good()).await.expect("loads");
        let current = Arc::new(Mutex::new(first));
        let tasks: Vec<_> =
            (0..8).map(|task| tokio::spawn(upgrading(Arc::clone(&sandboxes), Arc::clone(&current), task))).collect();
        for task in tasks {
            within(60_000, task).await.expect("joined");
        }
        for sandbox in sandboxes.iter() {
            at_rest(sandbox).await;
        }
    })
    .await;
}

/// Waits until nothing runs and nothing of the pool is taken.
async fn at_rest(sandbox: &Sandbox) {
    let started = Instant::now();
    loop {
        let now = sandbox.gauges();
        let busy = u64::from(now.calls_running + now.calls_waiting + now.compiles_running);
        let pool = now.pool_component_instances + now.pool_core_instances + now.pool_memories + now.pool_stacks;
        if busy + pool == 0 {
            return;
        }
        assert!(started.elapsed() < Duration::from_secs(30), "{now:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Cycles of each kind of sandbox.
const CYCLES: usize = 10_000;
/// Calls at the same time.
const TASKS: usize = 16;

/// Recipes that end in every way.
struct Endings {
    good: Recipe,
    newer: Recipe,
    trapping: Recipe,
    greedy: Recipe,
    spinning: Recipe,
}

impl Endings {
    async fn load(sandbox: &Sandbox) -> Self {
        let grow = "(loop $more (drop (memory.grow (i32.const 8))) (br $more)) unreachable";
        Self {
            good: load(sandbox, Guest::good()).await.expect("loads"),
            newer: sandbox.load(Newer::good().bytes(), &Grants::all()).await.expect("loads"),
            trapping: load(sandbox, Guest::doing("unreachable")).await.expect("loads"),
            greedy: load(sandbox, Guest::doing(grow)).await.expect("loads"),
            spinning: load(sandbox, Guest::doing(SPIN)).await.expect("loads"),
        }
    }

    /// One call that ends as the number says.
    async fn cycle(&self, number: u64, tenant: &str) {
        let call = || call_of(tenant);
        match number % 16 {
            0..5 => assert!(self.good.select_samples(call()).await.result.is_ok()),
            5..8 => assert!(self.newer.evaluate(call(), 0).await.result.is_ok()),
            8..12 => assert_eq!(kind(&self.trapping.propose_update(call()).await), FaultKind::Trap),
            12 => assert_eq!(kind(&self.greedy.select_samples(call()).await), FaultKind::OutOfMemory),
            13 => {
                let cancel = Cancel::new();
                cancel.cancel();
                assert_eq!(kind(&self.good.evaluate(Call { cancel, ..call() }, 0).await), FaultKind::Cancelled);
            }
            14 => {
                let cancel = Cancel::new();
                let cancelling = async {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    cancel.cancel();
                };
                let call = Call { cancel: cancel.clone(), ..call() };
                let (outcome, ()) = tokio::join!(self.spinning.select_samples(call), cancelling);
                assert!(matches!(kind(&outcome), FaultKind::Cancelled | FaultKind::OutOfFuel));
            }
            // The caller goes away.
            _ => drop(tokio::time::timeout(Duration::from_millis(1), self.spinning.select_samples(call())).await),
        }
    }
}

/// `cycles` calls on [`TASKS`] tasks, in an order that follows from the seed.
async fn cycles(endings: &Arc<Endings>, seed: u64, cycles: usize) {
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let endings = Arc::clone(endings);
            tokio::spawn(async move {
                let mut state = seed.wrapping_add(task as u64);
                for _ in 0..cycles / TASKS {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    endings.cycle(state >> 33, &format!("tenant-{}", task % 5)).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no call ends in another way");
    }
}

/// 10,000 calls in random order that answer, trap, run out, are cancelled or left → gauges at 0, and as much memory as
/// before, give or take 64 MiB, 300 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ten_thousand_calls_leave_nothing_behind() {
    if !alone("tenants::ten_thousand_calls_leave_nothing_behind") {
        return;
    }
    for_each_sandbox(async || {
        let sandbox = sandbox(SandboxConfig { fuel_select: 200_000_000, ..small() });
        let endings = Arc::new(Endings::load(&sandbox).await);
        cycles(&endings, 1, 1_000).await;
        at_rest(&sandbox).await;
        let before = process_bytes("VmRSS");
        let working = cycles(&endings, 2, CYCLES);
        tokio::time::timeout(Duration::from_secs(300), working).await.expect("the calls end");
        at_rest(&sandbox).await;
        let grown = process_bytes("VmRSS").saturating_sub(before);
        println!("{grown} bytes more after {CYCLES} calls");
        assert!(grown < 64 << 20, "{grown} bytes more");
        still_works(&sandbox).await;
    })
    .await;
}
