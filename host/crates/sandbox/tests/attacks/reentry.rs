//! Guests that call the host while it waits for them, and allocators that lie.

use reef_sandbox::FaultKind;

use crate::guest::*;

const LOG: &str = "(call $log (i32.const 2) (i32.const 0) (i32.const 0))";

fn logging() -> Guest {
    Guest::good().importing("log", "log", "(param i32 i32 i32)")
}

async fn selecting(guest: Guest) -> FaultKind {
    let sandbox = sandbox(small());
    let recipe = load(&sandbox, guest).await.expect("loads");
    let outcome = within(5_000, recipe.select_samples(call())).await;
    still_works(&sandbox).await;
    kind(&outcome)
}

/// An allocator that does this before it allocates.
fn allocating(body: &str) -> String {
    let locals = "(local $at i32)";
    assert!(BUMP.starts_with(locals));
    BUMP.replacen(locals, &format!("{locals} {body}"), 1)
}

/// select-samples, an allocator that calls the host while it hands over arguments → Trap, 5 s.
#[tokio::test]
async fn an_allocator_may_not_call_the_host() {
    for_each_sandbox(async || {
        assert_eq!(selecting(Guest { realloc: allocating(LOG).leak(), ..logging() }).await, FaultKind::Trap);
    })
    .await;
}

/// select-samples, an allocator that calls the host while that hands over an answer → Trap, 5 s.
#[tokio::test]
async fn an_allocator_may_not_call_the_host_from_a_host_call() {
    for_each_sandbox(async || {
        // The flag lets the arguments pass.
        let body = format!("(if (i32.load (i32.const 32)) (then {LOG}))");
        let guest = Guest { realloc: allocating(&body).leak(), ..logging() };
        let guest = guest
            .importing("experience", "mask", "(param i32 i32)")
            .selecting_after("(i32.store (i32.const 32) (i32.const 1)) (call $mask (i32.const 0) (i32.const 64))");
        assert_eq!(selecting(guest).await, FaultKind::Trap);
    })
    .await;
}

/// select-samples, work after the answer that calls the host, traps or never ends → Trap or OutOfFuel, no answer, 5 s.
#[tokio::test]
async fn what_runs_after_the_answer_is_held_to_the_same_rules() {
    for_each_sandbox(async || {
        let after = |body: &str| {
            let export = "cabi_post_reef:recipe/strategy@0.1.0#select-samples";
            Guest { fields: format!("(func (export \"{export}\") (param i32) {body})"), ..logging() }
        };
        assert_eq!(selecting(after(LOG)).await, FaultKind::Trap);
        assert_eq!(selecting(after("unreachable")).await, FaultKind::Trap);
        assert_eq!(selecting(after("(loop $spin (br $spin))")).await, FaultKind::OutOfFuel);
    })
    .await;
}

/// select-samples, an allocator that gives misaligned, wild or no places → InvalidOutput or Trap, 5 s each.
#[tokio::test]
async fn an_allocator_that_lies_is_found_out() {
    for_each_sandbox(async || {
        for place in ["(i32.const 131073)", "(i32.const -8)", "(i32.const 262140)", "(i32.const 2147483647)"] {
            let ended = selecting(Guest { realloc: place, ..Guest::good() }).await;
            assert!(matches!(ended, FaultKind::InvalidOutput | FaultKind::Trap), "{place}: {ended:?}");
        }
    })
    .await;
}

/// select-samples, an allocator that always gives the same place → the guest hurts itself only: an answer, 5 s.
#[tokio::test]
async fn an_allocator_that_repeats_itself_hurts_nobody_else() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let guest = Guest { realloc: "(i32.const 131072)", ..Guest::good() };
        let recipe = load(&sandbox, guest).await.expect("loads");
        let outcome = within(5_000, recipe.select_samples(call())).await;
        assert!(outcome.result.is_ok(), "{:?}", outcome.result);
    })
    .await;
}

/// Loading, a start function that calls the host → an end, either way; the recipe's calls are counted, 5 s.
#[tokio::test]
async fn a_start_function_gets_no_more_than_a_call() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let fields = format!("(func $begin (loop $again {LOG} (br $again))) (start $begin)");
        let refused = within(5_000, load(&sandbox, Guest { fields, ..logging() })).await.expect_err("refused");
        assert!(matches!(refused, reef_sandbox::SandboxError::Describe(_)), "{refused}");
        still_works(&sandbox).await;
    })
    .await;
}
