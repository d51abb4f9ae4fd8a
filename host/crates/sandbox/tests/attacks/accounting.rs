//! What calls leave behind, what they cost, and that they do the same every time.

use std::time::Duration;

use reef_sandbox::{FaultKind, Recipe, SandboxConfig};

use crate::guest::*;
use crate::newer::{Newer, load_newer};
use crate::wit_value::{bare, f, l, n, ok, t};

/// 1,000 calls that write a megabyte and trap → as much memory as before, give or take 16 MiB, 60 s.
#[tokio::test]
async fn a_thousand_traps_leave_nothing_behind() {
    if !alone("accounting::a_thousand_traps_leave_nothing_behind") {
        return;
    }
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let dirty = "(drop (memory.grow (i32.const 16))) (memory.fill (i32.const 262144) (i32.const 7)
            (i32.const 1048576)) unreachable";
        let recipe = load(&sandbox, Guest::doing(dirty)).await.expect("loads");
        let cycle = async |count: u32| {
            for _ in 0..count {
                assert_eq!(kind(&recipe.select_samples(call()).await), FaultKind::Trap);
            }
        };
        cycle(100).await;
        let before = process_bytes("VmRSS");
        within(60_000, cycle(1_000)).await;
        let grown = process_bytes("VmRSS").saturating_sub(before);
        assert!(grown < 16 << 20, "{grown} bytes more");
        still_works(&sandbox).await;
    })
    .await;
}

/// select-samples, a guest that stops at the first byte another call left in fresh memory → never stops.
#[tokio::test]
async fn memory_of_one_call_is_never_seen_by_the_next() {
    for_each_sandbox(async || {
        let sandbox = sandbox(SandboxConfig { calls_concurrent_max: 1, ..small() });
        let residue =
            "(if (i32.load (i32.const 200000)) (then unreachable)) (i32.store (i32.const 200000) (i32.const 1))";
        let mut guest = Guest::good();
        guest.select = format!("{residue} {}", guest.select);
        let recipe = load(&sandbox, guest).await.expect("loads");
        for tenant in ["a", "b", "c", "a"] {
            assert!(recipe.select_samples(call_of(tenant)).await.result.is_ok());
        }
    })
    .await;
}

/// Floating point over the seed with a NaN on the way, into the only measurement of the verdict at this address.
fn computing(verdict: u32) -> String {
    // The row of the measurement lies where the verdict's list points; its value is 8 bytes further.
    format!(
        "(local $x f64) (local $n i32)
         (local.set $x (f64.convert_i32_u (local.get 6)))
         (loop $again
           (local.set $x (f64.sqrt (f64.add (local.get $x) (f64.div (local.get 5) (f64.convert_i32_u (local.get $n))))))
           (local.set $n (i32.add (local.get $n) (i32.const 3)))
           (br_if $again (i32.lt_u (local.get $n) (i32.const 30000))))
         (local.set $x (f64.min (local.get $x) (f64.const 1e300)))
         (f64.store (i32.add (i32.load (i32.const {})) (i32.const 8)) (local.get $x))
         i32.const {verdict}",
        verdict + 16
    )
}

async fn equal_runs(recipe: &Recipe) {
    let mut first = None;
    for _ in 0..100 {
        let outcome = recipe.evaluate(call(), 0).await;
        let run = (outcome.result.expect("verdict"), outcome.report.fuel, outcome.report.memory_peak_bytes);
        assert!(run.1 > 10_000);
        assert_eq!(first.get_or_insert_with(|| run.clone()), &run);
    }
}

/// evaluate of 0.1.0, 100 times, floating point with a NaN on the way → equal answers and equal fuel, 60 s.
#[tokio::test]
async fn a_hundred_runs_are_equal_in_answer_and_fuel() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let mut guest = Guest::good();
        guest.evaluate = computing(guest.data.verdict(&[("x", 0.0)]));
        let recipe = load(&sandbox, guest).await.expect("loads");
        within(60_000, equal_runs(&recipe)).await;
    })
    .await;
}

/// evaluate of 0.2.0, 100 times, floating point with a NaN on the way → equal answers and equal fuel, 60 s.
#[tokio::test]
async fn a_hundred_runs_of_a_newer_recipe_are_equal_in_answer_and_fuel() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let mut guest = Newer::good();
        let verdict = ok(f([bare(0), t("good"), l([f([t("x"), n(0.0)])])]));
        let verdict = guest.put_result("strategy", "evaluate", &verdict);
        let recipe =
            load_newer(&sandbox, guest.doing("strategy", "evaluate", &computing(verdict))).await.expect("loads");
        assert_eq!(recipe.generation(), "0.2.0");
        within(60_000, equal_runs(&recipe)).await;
    })
    .await;
}

/// Nine tenants with short calls beside one that spins in every slot it gets → all of theirs end, 20 s.
#[tokio::test]
async fn a_tenant_that_spins_does_not_starve_the_others() {
    for_each_sandbox(async || {
        let sandbox = sandbox(SandboxConfig { fuel_select: u64::MAX / 2, wall_select_ms: 300, ..small() });
        let spinner = load(&sandbox, Guest::doing("(loop $spin (br $spin)) unreachable")).await.expect("loads");
        let good = load(&sandbox, Guest::good()).await.expect("loads");
        let spinning: Vec<_> = (0..6)
            .map(|_| {
                let spinner = spinner.clone();
                tokio::spawn(async move { spinner.select_samples(call_of("greedy")).await })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(50)).await;
        for tenant in 0..9 {
            let outcome = within(2_000, good.select_samples(call_of(&format!("light-{tenant}")))).await;
            assert!(outcome.result.is_ok(), "{:?}", outcome.result);
        }
        for spin in spinning {
            assert_eq!(kind(&within(20_000, spin).await.expect("joined")), FaultKind::Deadline);
        }
    })
    .await;
}

/// A sandbox that is dropped while nothing runs stops its threads; a recipe keeps its sandbox alive.
#[tokio::test]
async fn a_recipe_outlives_the_handle_of_its_sandbox() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let recipe = load(&sandbox, Guest::good()).await.expect("loads");
        drop(sandbox);
        assert!(recipe.select_samples(call()).await.result.is_ok());
    })
    .await;
}
