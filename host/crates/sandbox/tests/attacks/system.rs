//! Guests that look for a way out: files, sockets, the environment, clocks and randomness, with an empty system and
//! without one.

use reef_sandbox::{Blame, FaultKind, SandboxConfig, SandboxError};

use crate::guest::*;

/// Calls a function of the system and does this with what it answers.
fn reaching((interface, function): (&str, &str), signature: &str, body: &str) -> Guest {
    Guest::good().system((interface, function), "reach", signature).selecting_after(body)
}

/// Every function of the system that is tried, and what an empty system answers: an empty list, a refusal, a still clock.
fn attempts() -> Vec<Guest> {
    let none = "(call $reach (i32.const 64)) (if (i32.load (i32.const 68)) (then unreachable))";
    let denied = "(call $reach (i32.const 0) (i32.const 64))
        (if (i32.ne (i32.load8_u (i32.const 64)) (i32.const 1)) (then unreachable))
        (if (i32.ne (i32.load8_u (i32.const 68)) (i32.const 1)) (then unreachable))";
    let still = "(local $n i32) (local $then i64)
        (local.set $then (call $reach))
        (loop $again (br_if $again (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1)))
            (i32.const 1000000))))
        (if (i64.ne (call $reach) (local.get $then)) (then unreachable))";
    let time = "(call $reach (i32.const 64)) (if (i64.ne (i64.load (i32.const 64)) (i64.const 1700000000))
        (then unreachable))";
    vec![
        reaching(("filesystem/preopens", "get-directories"), "(param i32)", none),
        reaching(("cli/environment", "get-environment"), "(param i32)", none),
        reaching(("cli/environment", "get-arguments"), "(param i32)", none),
        reaching(("sockets/tcp-create-socket", "create-tcp-socket"), "(param i32 i32)", denied),
        reaching(("clocks/monotonic-clock", "now"), "(result i64)", still),
        reaching(("clocks/wall-clock", "now"), "(param i32)", &format!("{time} {time}")),
    ]
}

/// select-samples, a look for files, arguments, the environment, sockets and clocks in an empty system → empty lists,
/// access-denied, and clocks that stand still, 5 s each.
#[tokio::test]
async fn an_empty_system_has_no_files_no_network_and_no_time() {
    for_each_sandbox(async || {
        let sandbox = sandbox(SandboxConfig { wasi_stub: true, ..small() });
        for guest in attempts() {
            let imports = guest.imports.clone();
            let recipe = load(&sandbox, guest).await.expect("loads");
            let outcome = within(5_000, recipe.select_samples(call())).await;
            assert!(outcome.result.is_ok(), "{imports}: {:?}", outcome.result);
        }
    })
    .await;
}

/// Loading the same guests where there is no system → refused by the import, before any guest code runs, 5 s each.
#[tokio::test]
async fn without_a_system_nothing_of_it_loads() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        for guest in attempts() {
            let refused = within(5_000, load(&sandbox, guest)).await.expect_err("refused");
            assert!(matches!(refused, SandboxError::WasiImport { .. }), "{refused}");
        }
        still_works(&sandbox).await;
    })
    .await;
}

/// select-samples, random numbers of an empty system → they follow from the seed of the step, 5 s each.
#[tokio::test]
async fn randomness_follows_from_the_seed() {
    for_each_sandbox(async || {
        let sandbox = sandbox(SandboxConfig { wasi_stub: true, ..small() });
        let mut guest = Guest::good().importing("metrics", "gauge", "(param i32 i32 f64)").system(
            ("random/random", "get-random-u64"),
            "random",
            "(result i64)",
        );
        let [at, length] = guest.data.text("drawn");
        let body = format!("(call $gauge (i32.const {at}) (i32.const {length}) (f64.convert_i64_u (call $random)))");
        let recipe = load(&sandbox, guest.selecting_after(&body)).await.expect("loads");
        let mut drawn = Vec::new();
        for seed in [7, 7, 8] {
            let mut call = call();
            call.context.seed = seed;
            drawn.push(within(5_000, recipe.select_samples(call)).await.metrics["drawn"]);
        }
        assert!(drawn[0] == drawn[1] && drawn[1] != drawn[2], "{drawn:?}");
    })
    .await;
}

/// select-samples, a gigabyte of random bytes in one call of an empty system → a fault of the recipe, 5 s.
#[tokio::test]
async fn randomness_is_bounded() {
    for_each_sandbox(async || {
        let sandbox = sandbox(SandboxConfig { wasi_stub: true, ..small() });
        let reach = "(call $reach (i64.const 1073741824) (i32.const 64))";
        let guest = reaching(("random/random", "get-random-bytes"), "(param i64 i32)", reach);
        let recipe = load(&sandbox, guest).await.expect("loads");
        let outcome = within(5_000, recipe.select_samples(call())).await;
        assert_ne!(kind(&outcome), FaultKind::OutOfFuel);
        assert_eq!(outcome.result.expect_err("fault").blame(), Blame::Recipe);
        still_works(&sandbox).await;
    })
    .await;
}

/// select-samples, sleeps of an hour in an empty system → over as soon as they begin, so that they neither hold the slot
/// nor tell how much time has passed, 5 s each.
#[tokio::test]
async fn sleeps_end_at_once_and_tell_no_time() {
    for_each_sandbox(async || {
        let sandbox = sandbox(SandboxConfig { wasi_stub: true, ..small() });
        for function in ["subscribe-duration", "subscribe-instant"] {
            let body = "(local $sleep i32)
                (local.set $sleep (call $reach (i64.const 3600000000000)))
                (if (i32.eqz (call $ready (local.get $sleep))) (then unreachable))
                (call $block (local.get $sleep))
                (if (i64.ne (call $now) (i64.const 0)) (then unreachable))";
            let guest = reaching(("clocks/monotonic-clock", function), "(param i64) (result i32)", body)
                .system(("clocks/monotonic-clock", "now"), "now", "(result i64)")
                .system(("io/poll", "[method]pollable.ready"), "ready", "(param i32) (result i32)")
                .system(("io/poll", "[method]pollable.block"), "block", "(param i32)");
            let recipe = load(&sandbox, guest).await.expect("loads");
            let outcome = within(5_000, recipe.select_samples(call())).await;
            assert!(outcome.result.is_ok(), "{function}: {:?}", outcome.result);
        }
    })
    .await;
}

/// Loading, a start function that hands the system a handle that nobody gave out → a fault of the recipe, 5 s.
#[tokio::test]
async fn a_start_function_with_bad_values_is_the_recipes_doing() {
    for_each_sandbox(async || {
        let sandbox = sandbox(SandboxConfig { wasi_stub: true, ..small() });
        let fields = "(func $begin (call $block (i32.const 7))) (start $begin)";
        let guest = Guest { fields: fields.into(), ..Guest::good() };
        let guest = guest.system(("io/poll", "[method]pollable.block"), "block", "(param i32)");
        match within(5_000, load(&sandbox, guest)).await {
            Err(SandboxError::Describe(fault)) => assert_eq!(fault.blame(), Blame::Recipe, "{fault}"),
            other => panic!("{other:?}"),
        }
        still_works(&sandbox).await;
    })
    .await;
}
