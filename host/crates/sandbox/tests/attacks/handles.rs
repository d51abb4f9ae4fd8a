//! Handles that run out, that were never given out, that belong to another call, or that were given back.

use reef_sandbox::{Blame, Call, FaultKind, Proposal, SandboxConfig};

use crate::capabilities::Slow;
use crate::guest::*;
use crate::newer::{Newer, load_newer};
use crate::wit_value::{case, n, ok, t};

/// Traps unless the answer at 64 is this case of the interface's error.
fn expecting(error: u32) -> String {
    format!(
        "(if (i32.ne (i32.load8_u (i32.const 64)) (i32.const 1)) (then unreachable))
         (if (i32.ne (i32.load8_u (i32.const 68)) (i32.const {error})) (then unreachable))"
    )
}

const FINE: &str = "(if (i32.load8_u (i32.const 64)) (then unreachable))";
const OPEN: &str = "(call $open (i32.const 64))";

/// propose-update with a trainer: does this, then skips.
async fn proposing(functions: &[&'static str], body: &str) {
    let sandbox = sandbox(small());
    let mut guest = Newer::good();
    for function in functions {
        guest = guest.importing("training", function);
    }
    let answer = guest.put_result("strategy", "propose-update", &ok(case(3, t("done"))));
    let body = format!("(local $trainer i32) {body} i32.const {answer}");
    let recipe = load_newer(&sandbox, guest.doing("strategy", "propose-update", &body)).await.expect("loads");
    let outcome = within(5_000, recipe.propose_update(Call { training: Slow::taking(0), ..call() })).await;
    assert_eq!(outcome.result, Ok(Proposal::Skip("done".into())), "{functions:?}");
    still_works(&sandbox).await;
}

/// propose-update, a fifth trainer, a ninth checkpoint, a 257th derived sample → the typed error budget, 5 s each.
#[tokio::test]
async fn handles_of_a_call_run_out_as_typed_errors() {
    for_each_sandbox(async || {
        proposing(&["open"], &format!("{} {OPEN} {}", format!("{OPEN} {FINE}").repeat(4), expecting(3))).await;
        let checkpoint = "(call $checkpoint (local.get $trainer) (i32.const 64))";
        let opened = format!("{OPEN} {FINE} (local.set $trainer (i32.load (i32.const 68)))");
        let body = format!("{opened} {} {checkpoint} {}", format!("{checkpoint} {FINE}").repeat(8), expecting(3));
        proposing(&["open", "checkpoint"], &body).await;
        let derive = "(call $derive (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)
            (i32.const 1) (i32.const 131072) (i32.const 1) (i32.const 64))";
        let body = format!("{} {derive} {}", format!("{derive} {FINE}").repeat(256), expecting(3));
        proposing(&["derive"], &body).await;
    })
    .await;
}

/// propose-update, trainers and samples that nobody gave out → the typed errors unknown-trainer and unknown-sample, 5 s.
#[tokio::test]
async fn forged_handles_of_training_are_typed_errors() {
    for_each_sandbox(async || {
        for trainer in [0, 2, 4, -1] {
            let body = format!(
                "{OPEN} {FINE} (call $checkpoint (i32.const {trainer})
                (i32.const 64)) {}",
                expecting(1)
            );
            proposing(&["open", "checkpoint"], &body).await;
        }
        // Before anything is open, the trainer's own number is as wrong as any other.
        proposing(&["checkpoint"], &format!("(call $checkpoint (i32.const 3) (i32.const 64)) {}", expecting(1))).await;
        let forward = "(i32.store (i32.const 32) (i32.const 77))
            (call $forward (i32.const 3) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 32)
                (i32.const 1) (i32.const 64))";
        proposing(&["open", "forward"], &format!("{OPEN} {FINE} {forward} {}", expecting(0))).await;
    })
    .await;
}

/// propose-update, a candidate and a trainer of an earlier call → InvalidOutput, and the typed error, 5 s each.
#[tokio::test]
async fn handles_of_another_call_are_unknown() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let mut first = Newer::good().importing("training", "open").importing("training", "checkpoint");
        let answer = first.put_result("strategy", "propose-update", &ok(case(0, n(30))));
        let body = format!("{OPEN} {FINE} (call $checkpoint (i32.const 3) (i32.const 64)) {FINE} i32.const {answer}");
        let recipe = load_newer(&sandbox, first.doing("strategy", "propose-update", &body)).await.expect("loads");
        let outcome = within(5_000, recipe.propose_update(Call { training: Slow::taking(0), ..call() })).await;
        assert_eq!(outcome.result, Ok(Proposal::Weights(30)));
        // The same candidate again, from a call that made none with the same trainer.
        let later = Newer::good().answering("strategy", "propose-update", ok(case(0, n(30))));
        let recipe = load_newer(&sandbox, later).await.expect("loads");
        let outcome = within(5_000, recipe.propose_update(Call { training: outcome.training, ..call() })).await;
        assert_eq!(kind(&outcome), FaultKind::InvalidOutput);
        assert!(outcome.result.expect_err("fault").message.contains("candidate 30"));
    })
    .await;
}

/// select-samples with a batch of 0 and 2, a column of sample 1 → unknown-sample, and as an answer InvalidOutput, 5 s.
#[tokio::test]
async fn samples_outside_of_the_batch_are_unknown() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let mut guest = Guest::good().importing("experience", "mask", "(param i32 i32)");
        let answer = guest.data.train(&[0, 2], &[]);
        guest.select = format!("(call $mask (i32.const 1) (i32.const 64)) {} i32.const {answer}", expecting(0));
        let recipe = load(&sandbox, guest).await.expect("loads");
        let batch = || Call { batch: vec![0, 2], ..call() };
        let outcome = within(5_000, recipe.select_samples(batch())).await;
        assert!(outcome.result.is_ok(), "{:?}", outcome.result);
        let recipe = load(&sandbox, Guest::good()).await.expect("loads");
        assert_eq!(kind(&within(5_000, recipe.select_samples(batch())).await), FaultKind::InvalidOutput);
    })
    .await;
}

/// A guest of an empty system that opens its standard output and does this with the handle.
fn streaming(body: &str) -> Guest {
    Guest::good()
        .system(("cli/stdout", "get-stdout"), "stdout", "(result i32)")
        .system(("io/streams", "[resource-drop]output-stream"), "drop", "(param i32)")
        .selecting_after(body)
}

/// select-samples, 100,000 streams that are never given back → a fault of the recipe, long before the last, 5 s.
#[tokio::test]
async fn system_handles_run_out() {
    for_each_sandbox(async || {
        let sandbox = sandbox(SandboxConfig { wasi_stub: true, ..small() });
        let flood = "(loop $again (drop (call $stdout)) (br $again))";
        let recipe = load(&sandbox, streaming(flood)).await.expect("loads");
        let outcome = within(5_000, recipe.select_samples(call())).await;
        assert_ne!(kind(&outcome), FaultKind::OutOfFuel);
        let fault = outcome.result.expect_err("fault");
        assert_eq!(fault.blame(), Blame::Recipe, "{fault}");
        let given_back = "(local $n i32) (loop $again (call $drop (call $stdout))
            (br_if $again (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const 5000))))";
        let recipe = load(&sandbox, streaming(given_back)).await.expect("loads");
        let outcome = within(5_000, recipe.select_samples(call())).await;
        assert!(outcome.result.is_ok(), "{:?}", outcome.result);
    })
    .await;
}

/// select-samples, a stream given back twice, and handles that nobody gave out → a fault of the recipe, 5 s each.
#[tokio::test]
async fn system_handles_cannot_be_forged_or_dropped_twice() {
    for_each_sandbox(async || {
        let sandbox = sandbox(SandboxConfig { wasi_stub: true, ..small() });
        let twice =
            "(local $s i32) (local.set $s (call $stdout)) (call $drop (local.get $s)) (call $drop (local.get $s))";
        let forged = [0, 1, 77, -1].map(|handle| format!("(call $drop (i32.const {handle}))"));
        for body in [twice.to_owned()].into_iter().chain(forged) {
            let recipe = load(&sandbox, streaming(&body)).await.expect("loads");
            let outcome = within(5_000, recipe.select_samples(call())).await;
            let kind = kind(&outcome);
            assert!(matches!(kind, FaultKind::Trap | FaultKind::InvalidOutput), "{body}: {kind:?}");
        }
        still_works(&sandbox).await;
    })
    .await;
}
