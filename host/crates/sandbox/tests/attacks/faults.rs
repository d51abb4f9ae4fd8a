//! Guests that burn time, memory or stack, or trap.

use std::collections::BTreeMap;

use reef_sandbox::{Blame, FaultKind, Override, SandboxConfig, SandboxError};

use crate::guest::*;

const SPIN: &str = "(loop $spin (br $spin)) unreachable";

/// Every export, an endless loop → OutOfFuel, 5 s each.
#[tokio::test]
async fn an_endless_loop_runs_out_of_fuel_in_every_export() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let recipe = load(&sandbox, Guest::doing(SPIN)).await.expect("loads");
        let selected = within(5_000, recipe.select_samples(call())).await;
        assert_eq!(kind(&selected), FaultKind::OutOfFuel);
        assert_eq!(selected.report.fuel, small().fuel_select);
        assert_eq!(selected.result.as_ref().expect_err("fault").blame(), Blame::Recipe);
        assert_eq!(kind(&within(5_000, recipe.propose_update(call())).await), FaultKind::OutOfFuel);
        assert_eq!(kind(&within(5_000, recipe.evaluate(call(), 0)).await), FaultKind::OutOfFuel);
        still_works(&sandbox).await;
    })
    .await;
}

/// select-samples, an endless loop with fuel for hours → Deadline, wall of 100 ms, 5 s.
#[tokio::test]
async fn an_endless_loop_meets_its_deadline() {
    for_each_sandbox(async || {
        let sandbox = sandbox(SandboxConfig { fuel_select: u64::MAX / 2, wall_select_ms: 100, ..small() });
        let recipe = load(&sandbox, Guest::doing(SPIN)).await.expect("loads");
        let outcome = within(5_000, recipe.select_samples(call())).await;
        assert_eq!(kind(&outcome), FaultKind::Deadline);
        assert!((100_000..1_000_000).contains(&outcome.report.guest_us), "{} us", outcome.report.guest_us);
        still_works(&sandbox).await;
    })
    .await;
}

/// Loading, an endless loop in the start function → describe out of fuel, 5 s.
#[tokio::test]
async fn an_endless_start_function_does_not_load() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let guest = Guest { fields: "(func $begin (loop $spin (br $spin))) (start $begin)".into(), ..Guest::good() };
        match within(5_000, load(&sandbox, guest)).await {
            Err(SandboxError::Describe(fault)) => assert_eq!(fault.kind, FaultKind::OutOfFuel),
            other => panic!("{other:?}"),
        }
        still_works(&sandbox).await;
    })
    .await;
}

/// select-samples, an endless loop in the allocator that receives the arguments → OutOfFuel, 5 s.
#[tokio::test]
async fn an_endless_allocator_runs_out_of_fuel() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let recipe = load(&sandbox, Guest { realloc: SPIN, ..Guest::good() }).await.expect("loads");
        assert_eq!(kind(&within(5_000, recipe.select_samples(call())).await), FaultKind::OutOfFuel);
        still_works(&sandbox).await;
    })
    .await;
}

/// select-samples, filling the whole memory again and again → OutOfFuel, because bytes are priced, 5 s.
#[tokio::test]
async fn a_storm_of_bulk_operations_runs_out_of_fuel() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let fill =
            "(loop $again (memory.fill (i32.const 131072) (i32.const 1) (i32.const 131072)) (br $again)) unreachable";
        let recipe = load(&sandbox, Guest::doing(fill)).await.expect("loads");
        assert_eq!(kind(&within(5_000, recipe.select_samples(call())).await), FaultKind::OutOfFuel);
        still_works(&sandbox).await;
    })
    .await;
}

/// select-samples, growing the memory for ever → OutOfMemory with the peak at the budget, 5 s.
#[tokio::test]
async fn a_memory_bomb_stops_at_the_budget() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let grow = "(loop $more (drop (memory.grow (i32.const 1))) (br $more)) unreachable";
        let recipe = load(&sandbox, Guest::doing(grow)).await.expect("loads");
        let outcome = within(5_000, recipe.select_samples(call())).await;
        assert_eq!(kind(&outcome), FaultKind::OutOfMemory);
        assert_eq!(outcome.report.memory_peak_bytes, small().memory_bytes_max);
        still_works(&sandbox).await;
    })
    .await;
}

/// select-samples, a growth beyond the budget answered with a trap, as allocators do → OutOfMemory, 5 s.
#[tokio::test]
async fn aborting_for_want_of_memory_is_out_of_memory() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let recipe =
            load(&sandbox, Guest::doing("(drop (memory.grow (i32.const 1000))) unreachable")).await.expect("loads");
        assert_eq!(kind(&within(5_000, recipe.select_samples(call())).await), FaultKind::OutOfMemory);
    })
    .await;
}

/// select-samples, growing a table for ever → OutOfMemory, 5 s.
#[tokio::test]
async fn a_table_bomb_stops_at_the_budget() {
    for_each_sandbox(async || {
        let sandbox = sandbox(SandboxConfig { memory_bytes_max: 1 << 20, ..small() });
        let guest = Guest {
            fields: "(table $t 1 funcref)".into(),
            select: "(loop $more (drop (table.grow $t (ref.null func) (i32.const 1000))) (br $more)) unreachable"
                .into(),
            ..Guest::good()
        };
        let recipe = load(&sandbox, guest).await.expect("loads");
        assert_eq!(kind(&within(5_000, recipe.select_samples(call())).await), FaultKind::OutOfMemory);
        still_works(&sandbox).await;
    })
    .await;
}

/// Loading, a declared memory of 4 GiB → refused before any guest code runs, 5 s.
#[tokio::test]
async fn a_declared_memory_of_four_gibibytes_does_not_load() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let told = within(5_000, load(&sandbox, Guest { memory: "65536", ..Guest::good() }))
            .await
            .expect_err("refused")
            .to_string();
        assert!(told.starts_with("the recipe is not valid") && told.contains("memory"), "{told}");
        still_works(&sandbox).await;
    })
    .await;
}

/// A sandbox in which the recipe or the tenant of this key may use 16 MiB.
fn with_room(key: &str) -> SandboxConfig {
    let own = Override { memory_bytes_max: Some(16 << 20), ..Default::default() };
    SandboxConfig { overrides: BTreeMap::from([(key.to_owned(), own)]), ..small() }
}

/// select-samples, a need of 6.5 MiB where 4 are allowed, by a recipe and a tenant with limits of their own and by others
/// → an answer for those, OutOfMemory for the others, 5 s each.
#[tokio::test]
async fn only_a_recipe_or_tenant_with_more_memory_may_use_more() {
    for_each_sandbox(async || {
        let needing = |name| {
            let grow = "(if (i32.eq (memory.grow (i32.const 100)) (i32.const -1)) (then unreachable))";
            Guest { name, ..Guest::good() }.selecting_after(grow)
        };
        for (key, mine, other) in
            [("large", ("large", "a"), ("probe", "a")), ("tenant:a", ("probe", "a"), ("probe", "b"))]
        {
            let sandbox = sandbox(with_room(key));
            let selecting = async |(name, tenant): (&'static str, &str)| {
                let recipe = load(&sandbox, needing(name)).await.expect("loads");
                within(5_000, recipe.select_samples(call_of(tenant))).await
            };
            let outcome = selecting(mine).await;
            assert!(outcome.result.is_ok(), "{key}: {:?}", outcome.result);
            assert_eq!(kind(&selecting(other).await), FaultKind::OutOfMemory);
        }
    })
    .await;
}

/// Loading, a declared memory of 6 MiB where 4 are allowed → refused, but for the recipe that may use more, 5 s each.
#[tokio::test]
async fn a_declared_memory_is_held_to_the_recipes_own_limit() {
    for_each_sandbox(async || {
        let sandbox = sandbox(with_room("large"));
        let declaring = |name| Guest { name, memory: "100", ..Guest::good() };
        let told = load(&sandbox, declaring("probe")).await.expect_err("refused").to_string();
        assert!(told.contains("declares 6553600 bytes") && told.contains("sandbox.overrides"), "{told}");
        assert!(within(5_000, load(&sandbox, declaring("large"))).await.is_ok());
    })
    .await;
}

/// select-samples, endless recursion → StackOverflow, 5 s.
#[tokio::test]
async fn endless_recursion_overflows_the_guests_own_stack() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let guest = Guest {
            fields: "(func $deep (param i64) (result i64) (i64.add (call $deep (local.get 0)) (i64.const 1)))".into(),
            select: "(drop (call $deep (i64.const 1))) unreachable".into(),
            ..Guest::good()
        };
        let recipe = load(&sandbox, guest).await.expect("loads");
        assert_eq!(kind(&within(5_000, recipe.select_samples(call())).await), FaultKind::StackOverflow);
        still_works(&sandbox).await;
    })
    .await;
}

/// Every export, `unreachable` and a wild pointer → Trap, 5 s.
#[tokio::test]
async fn traps_are_told_from_each_other_by_their_message() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let recipe = load(&sandbox, Guest::doing("unreachable")).await.expect("loads");
        let outcome = within(5_000, recipe.evaluate(call(), 0)).await;
        assert_eq!(kind(&outcome), FaultKind::Trap);
        assert!(outcome.result.expect_err("fault").message.contains("unreachable"));
        let wild = load(&sandbox, Guest::doing("(i32.load (i32.const -8))")).await.expect("loads");
        let outcome = within(5_000, wild.evaluate(call(), 0)).await;
        assert_eq!(kind(&outcome), FaultKind::Trap);
        assert!(outcome.result.expect_err("fault").message.contains("out of bounds"));
        still_works(&sandbox).await;
    })
    .await;
}
