//! Guests whose answers break a rule, by content or by layout.

use reef_sandbox::{Choice, Decision, FaultKind, Proposal, Selection};

use crate::guest::*;

/// A good guest → its answers, validated, in the host's types.
#[tokio::test]
async fn good_answers_arrive() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let recipe = load(&sandbox, Guest::good()).await.expect("loads");
        assert_eq!(recipe.manifest().name, "probe");
        assert!(recipe.label().starts_with("probe@1.0.0#sha256:") && recipe.label().ends_with(recipe.digest()));
        let selected = recipe.select_samples(call()).await.result.expect("selection");
        assert_eq!(selected, Selection { choice: Choice::Train(vec![0, 1]), retire: vec![(2, "stale".into())] });
        assert_eq!(recipe.propose_update(call()).await.result.expect("proposal"), Proposal::Skip("warm-up".into()));
        let verdict = recipe.evaluate(call(), 0).await.result.expect("verdict");
        assert_eq!((verdict.decision, verdict.measurements["score"]), (Decision::Promote, 0.5));
    })
    .await;
}

async fn selecting(samples: &[u32], retire: &[u32]) -> String {
    let sandbox = sandbox(small());
    let mut guest = Guest::good();
    guest.select = format!("i32.const {}", guest.data.train(samples, retire));
    let recipe = load(&sandbox, guest).await.expect("loads");
    let outcome = within(5_000, recipe.select_samples(call())).await;
    assert_eq!(kind(&outcome), FaultKind::InvalidOutput);
    still_works(&sandbox).await;
    outcome.result.expect_err("fault").message
}

/// select-samples, forged, repeated and out-of-range handles → InvalidOutput that names the handle, 5 s each.
#[tokio::test]
async fn forged_and_repeated_handles_are_refused() {
    for_each_sandbox(async || {
        assert!(selecting(&[3], &[]).await.contains("sample 3"));
        assert!(selecting(&[0, u32::MAX], &[]).await.contains("sample 4294967295"));
        assert!(selecting(&[1, 1], &[]).await.contains("a second time"));
        assert!(selecting(&[0], &[0]).await.contains("retire names sample 0"));
        assert!(selecting(&[], &[]).await.contains("no samples"));
    })
    .await;
}

async fn answering(select: &str) -> FaultKind {
    let sandbox = sandbox(small());
    let recipe = load(&sandbox, Guest { select: select.into(), ..Guest::good() }).await.expect("loads");
    let outcome = within(5_000, recipe.select_samples(call())).await;
    still_works(&sandbox).await;
    kind(&outcome)
}

/// select-samples, answers that cannot be read → InvalidOutput, 5 s each.
#[tokio::test]
async fn unreadable_answers_are_invalid_output() {
    for_each_sandbox(async || {
        // Misaligned, outside of memory, an unknown discriminant, a list past the end, a text that is not UTF-8.
        assert_eq!(answering("i32.const 4097").await, FaultKind::InvalidOutput);
        assert_eq!(answering("i32.const -64").await, FaultKind::InvalidOutput);
        assert_eq!(answering("(i32.store8 (i32.const 64) (i32.const 9)) i32.const 64").await, FaultKind::InvalidOutput);
        let list = "(i32.store (i32.const 68) (i32.const 1)) (i32.store (i32.const 72) (i32.const 64))
        (i32.store (i32.const 76) (i32.const 1000000000))";
        assert_eq!(answering(&format!("{list} i32.const 64")).await, FaultKind::InvalidOutput);
        let text = "(i32.store8 (i32.const 32) (i32.const 255)) (i32.store (i32.const 72) (i32.const 32))
        (i32.store (i32.const 76) (i32.const 1))";
        assert_eq!(answering(&format!("{text} i32.const 64")).await, FaultKind::InvalidOutput);
    })
    .await;
}

/// select-samples, 2 million handles and 100,000 groups that alias one list → TooMuchOutput, 5 s each.
#[tokio::test]
async fn huge_and_amplified_answers_are_too_much_output() {
    for_each_sandbox(async || {
        let mib = "(drop (memory.grow (i32.const 32)))";
        let list = "(i32.store (i32.const 68) (i32.const 1)) (i32.store (i32.const 76) (i32.const 500000))";
        let sandbox = sandbox(reef_sandbox::SandboxConfig { output_bytes_max: 1 << 20, ..small() });
        let recipe = load(&sandbox, Guest { select: format!("{mib} {list} i32.const 64"), ..Guest::good() })
            .await
            .expect("loads");
        assert_eq!(kind(&within(5_000, recipe.select_samples(call())).await), FaultKind::TooMuchOutput);
        // Groups of 16 bytes each at 256 KiB, all with the same 1,000 slots at address 0.
        let groups = "(local $g i32)
      (drop (memory.grow (i32.const 8)))
      (loop $next
        (i32.store (i32.add (i32.const 262152) (local.get $g)) (i32.const 0))
        (i32.store (i32.add (i32.const 262156) (local.get $g)) (i32.const 1000))
        (local.set $g (i32.add (local.get $g) (i32.const 16)))
        (br_if $next (i32.lt_u (local.get $g) (i32.const 160000))))
      (i32.store (i32.const 68) (i32.const 2)) (i32.store (i32.const 72) (i32.const 262144))
          (i32.store (i32.const 76) (i32.const 10000))
      i32.const 64";
        let recipe = load(&sandbox, Guest { select: groups.into(), ..Guest::good() }).await.expect("loads");
        assert_eq!(kind(&within(5_000, recipe.select_samples(call())).await), FaultKind::TooMuchOutput);
        still_works(&sandbox).await;
    })
    .await;
}

/// evaluate, measurements that are not finite, repeated or misnamed → InvalidOutput, 5 s each.
#[tokio::test]
async fn measurements_must_be_finite_and_named_once() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let bad: [&[(&str, f64)]; 4] =
            [&[("score", f64::NAN)], &[("score", f64::INFINITY)], &[("a", 1.0), ("a", 1.0)], &[("../a", 1.0)]];
        for measurements in bad {
            let mut guest = Guest::good();
            guest.evaluate = format!("i32.const {}", guest.data.verdict(measurements));
            let recipe = load(&sandbox, guest).await.expect("loads");
            assert_eq!(kind(&within(5_000, recipe.evaluate(call(), 0)).await), FaultKind::InvalidOutput);
        }
        still_works(&sandbox).await;
    })
    .await;
}

/// propose-update, a candidate that was never made → InvalidOutput, 5 s.
#[tokio::test]
async fn a_forged_candidate_is_refused() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let mut guest = Guest::good();
        guest.propose = format!("i32.const {}", guest.data.words(&[0, 0, 5, 0]));
        let recipe = load(&sandbox, guest).await.expect("loads");
        let outcome = within(5_000, recipe.propose_update(call())).await;
        assert_eq!(kind(&outcome), FaultKind::InvalidOutput);
        assert!(outcome.result.expect_err("fault").message.contains("candidate 5"));
    })
    .await;
}

/// select-samples, the guest's own failure with terminal escapes in it → Declined, escaped, 5 s.
#[tokio::test]
async fn a_failure_of_the_guest_is_declined() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let mut guest = Guest::good();
        let [at, length] = guest.data.text("key\u{1b}[31m batch\n");
        guest.select = format!("i32.const {}", guest.data.words(&[1, 0, at, length]));
        let recipe = load(&sandbox, guest).await.expect("loads");
        let outcome = within(5_000, recipe.select_samples(call())).await;
        assert_eq!(kind(&outcome), FaultKind::Declined);
        assert_eq!(outcome.result.expect_err("fault").message, "invalid configuration: key\\u{1b}[31m batch\\n");
    })
    .await;
}
