//! The decisions and host calls of `reef:recipe@0.2.0`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use reef_core::CallReport;
use reef_sandbox::{Call, Choice, FaultKind, Outcome, Proposal, Sandbox, SandboxConfig, Selection, Verifiers};

use crate::capabilities::Slow;
use crate::guest::*;
use crate::newer::{Newer, load_newer};
use crate::wit_value::{V, bare, case, f, l, n, ok, t};

/// A good guest → its answers, validated, in the host's types.
#[tokio::test]
async fn good_answers_arrive() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let recipe = load_newer(&sandbox, Newer::good()).await.expect("loads");
        assert!(recipe.label().starts_with("probe@2.0.0#sha256:"));
        let outcome = recipe.select_samples(call()).await;
        // Three handles; the texts and numbers of the context. Two handles and one retirement with its reason.
        assert_eq!((outcome.report.bytes_out, outcome.report.bytes_in), (12 + (7 + 5 + 40 + 20), 8 + (4 + 5)));
        let selected = outcome.result.expect("selection");
        assert_eq!(selected, Selection { choice: Choice::Train(vec![0, 1]), retire: vec![(2, "stale".into())] });
        assert_eq!(recipe.propose_update(call()).await.result.expect("proposal"), Proposal::Skip("warm-up".into()));
        let verdict = recipe.evaluate(call(), 0).await.result.expect("verdict");
        assert_eq!(verdict.measurements["score"], 0.5);
    })
    .await;
}

/// Every export, answers that break a rule → InvalidOutput, 5 s each.
#[tokio::test]
async fn answers_that_break_a_rule_are_invalid_output() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let selecting = async |choice: V| {
            let guest = Newer::good().answering("strategy", "select-samples", ok(f([choice, l([])])));
            let recipe = load_newer(&sandbox, guest).await.expect("loads");
            kind(&within(5_000, recipe.select_samples(call())).await)
        };
        assert_eq!(selecting(case(1, l([n(3)]))).await, FaultKind::InvalidOutput);
        assert_eq!(selecting(case(1, l([n(1), n(1)]))).await, FaultKind::InvalidOutput);
        assert_eq!(selecting(case(2, l([f([t("../etc"), l([n(0)])])]))).await, FaultKind::InvalidOutput);
        let verdict = ok(f([bare(0), t("good"), l([f([t("score"), n(f64::NAN)])])]));
        let recipe =
            load_newer(&sandbox, Newer::good().answering("strategy", "evaluate", verdict)).await.expect("loads");
        assert_eq!(kind(&within(5_000, recipe.evaluate(call(), 0)).await), FaultKind::InvalidOutput);
        still_works(&sandbox).await;
    })
    .await;
}

/// propose-update, a forged candidate, mutations and routes → InvalidOutput with the reason, 5 s each.
#[tokio::test]
async fn proposals_for_other_surfaces_are_refused() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let proposing = async |proposal: V| {
            let guest = Newer::good().answering("strategy", "propose-update", ok(proposal));
            let recipe = load_newer(&sandbox, guest).await.expect("loads");
            let outcome = within(5_000, recipe.propose_update(call())).await;
            assert_eq!(kind(&outcome), FaultKind::InvalidOutput);
            outcome.result.expect_err("refused").message
        };
        assert!(proposing(case(0, n(5))).await.contains("candidate 5"));
        let removal = case(1, f([bare(3), t("skill")]));
        assert!(proposing(case(1, l([removal]))).await.contains("not the recipe's surface"));
        assert!(proposing(case(2, l([]))).await.contains("not the recipe's surface"));
    })
    .await;
}

/// Expects the error `case` of the interface's variant at 64 and traps on anything else.
fn expecting(discriminant_at: u32, error: u32) -> String {
    format!(
        "(if (i32.ne (i32.load8_u (i32.const 64)) (i32.const 1)) (then unreachable))
         (if (i32.ne (i32.load8_u (i32.const {discriminant_at})) (i32.const {error})) (then unreachable))"
    )
}

/// select-samples, forged handles, absent alternatives and records → typed errors, 5 s.
#[tokio::test]
async fn refusals_of_experience_are_typed_errors() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        for (function, item, error) in [("mask", 99, 0), ("top-k", 0, 2), ("turns", 0, 2), ("messages", 0, 3)] {
            let mut guest = Newer::good().importing("experience", function);
            let answer = guest.put_result("strategy", "select-samples", &ok(f([case(1, l([n(0)])), l([])])));
            let body = format!(
                "(call ${function} (i32.const {item}) (i32.const 64)) {} i32.const {answer}",
                expecting(68, error)
            );
            let recipe = load_newer(&sandbox, guest.doing("strategy", "select-samples", &body)).await.expect("loads");
            let outcome = within(5_000, recipe.select_samples(call())).await;
            assert!(outcome.result.is_ok(), "{function}: {:?}", outcome.result);
        }
    })
    .await;
}

/// propose-update, a gradient of the wrong length, of NaN, and a good one → invalid, invalid, ok, 5 s each.
#[tokio::test]
async fn gradients_cover_every_response_token_with_finite_numbers() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        for (gradients, refused) in [(vec![1.0_f32], true), (vec![1.0, f32::NAN], true), (vec![1.0, -1.0], false)] {
            let mut guest = Newer::good().importing("training", "open").importing("training", "backward");
            let items = guest.data.words(&[0, 1]);
            let bits: Vec<u32> = gradients.iter().map(|gradient| gradient.to_bits()).collect();
            let column = guest.data.words(&bits);
            let answer = guest.put_result("strategy", "propose-update", &ok(case(3, t("done"))));
            let expected =
                if refused { expecting(68, 2) } else { "(if (i32.load8_u (i32.const 64)) (then unreachable))".into() };
            let body = format!(
                "(call $open (i32.const 128))
             (call $backward (i32.load (i32.const 132)) (i32.const {items}) (i32.const 2) (i32.const {column})
                 (i32.const {count}) (i32.const 64))
             {expected} i32.const {answer}",
                count = gradients.len()
            );
            let recipe = load_newer(&sandbox, guest.doing("strategy", "propose-update", &body)).await.expect("loads");
            let outcome = within(5_000, recipe.propose_update(Call { training: Slow::taking(0), ..call() })).await;
            assert_eq!(outcome.result, Ok(Proposal::Skip("done".into())));
        }
    })
    .await;
}

/// propose-update, samples derived with 1, 0 and 32,769 tokens → a handle with a length of its own, then refusals, 5 s.
#[tokio::test]
async fn derived_samples_are_bounded() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let mut guest = Newer::good().importing("training", "derive").importing("experience", "response-lengths");
        let answer = guest.put_result("strategy", "propose-update", &ok(case(3, t("done"))));
        let derive = |count: u32| {
            format!(
                "(call $derive (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)
               (i32.const 1) (i32.const 131072) (i32.const {count}) (i32.const 64))"
            )
        };
        let body = format!(
            "{good}
         (if (i32.load8_u (i32.const 64)) (then unreachable))
         (i32.store (i32.const 32) (i32.load (i32.const 68)))
         (call $response-lengths (i32.const 32) (i32.const 1) (i32.const 64))
         (if (i32.load8_u (i32.const 64)) (then unreachable))
         (if (i32.ne (i32.load (i32.load (i32.const 68))) (i32.const 9)) (then unreachable))
         {none} {refused} {many} {refused}
         i32.const {answer}",
            good = derive(9),
            none = derive(0),
            many = derive(32_769),
            refused = expecting(68, 2),
        );
        let recipe = load_newer(&sandbox, guest.doing("strategy", "propose-update", &body)).await.expect("loads");
        let outcome = within(5_000, recipe.propose_update(Call { training: Slow::taking(0), ..call() })).await;
        assert_eq!(outcome.result, Ok(Proposal::Skip("done".into())));
    })
    .await;
}

/// A call of select-samples that has a verifier check an answer once for each of these expectations.
async fn checking(sandbox: &Sandbox, verifier: Newer, expected: &[String]) -> Outcome<Selection> {
    let verifier = sandbox.load_verifier(verifier.bytes()).await.expect("loads");
    let verifiers: Verifiers = Arc::new(BTreeMap::from([("exact".to_owned(), verifier)]));
    let mut guest = Newer::good().importing("verify", "check");
    let [name, length] = guest.data.text("exact");
    let answer = guest.put_result("strategy", "select-samples", &ok(f([case(1, l([n(0)])), l([])])));
    let check = format!(
        "(call $check (i32.const {name}) (i32.const {length}) (i32.const {name}) (i32.const {length})
           (i32.const {name}) (i32.const {length}) (i32.const 64))"
    );
    let checks: String = expected.iter().map(|expected| format!("{check} {expected}\n")).collect();
    let body = format!("{checks} i32.const {answer}");
    let recipe = load_newer(sandbox, guest.doing("strategy", "select-samples", &body)).await.expect("loads");
    within(10_000, recipe.select_samples(Call { verifiers, ..call() })).await
}

const SPIN: &str = "(loop $spin (br $spin)) unreachable";

/// select-samples, checks by verifiers that answer, refuse, give NaN, trap and spin → a score or `failed`, 10 s each;
/// the time of the check is host time and its fuel is the call's.
#[tokio::test]
async fn verifiers_answer_or_fail_without_hurting_the_caller() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let verifiers = [
            (Newer::verifying(ok(f([n(0.5), n(1), t("fine")]))), None),
            (Newer::verifying(case(1, t("no such task"))), Some(1)),
            (Newer::verifying(ok(f([n(f64::NAN), n(1), t("")]))), Some(1)),
            (Newer::verifier("unreachable"), Some(1)),
            (Newer::verifier(SPIN), Some(1)),
        ];
        for (verifier, error) in verifiers {
            let expected = match error {
                Some(error) => expecting(72, error),
                None => "(if (i32.load8_u (i32.const 64)) (then unreachable))
                     (if (f64.ne (f64.load (i32.const 72)) (f64.const 0.5)) (then unreachable))"
                    .to_owned(),
            };
            let outcome = checking(&sandbox, verifier, &[expected]).await;
            assert!(outcome.result.is_ok(), "{error:?}: {:?}", outcome.result);
            assert_eq!(outcome.report.host_calls["verify"], 1);
            let own = outcome.report.fuel % small().fuel_evaluate;
            assert!(outcome.report.host_us > 0 && own < 10_000, "{:?}", outcome.report);
        }
        still_works(&sandbox).await;
    })
    .await;
}

/// select-samples with little fuel, three checks by a verifier that spins → `budget` each time, and as much fuel on the
/// bill as the call may use, 10 s.
#[tokio::test]
async fn checks_are_on_the_bill_of_the_call() {
    for_each_sandbox(async || {
        let sandbox = sandbox(SandboxConfig { fuel_select: 1_000_000, ..small() });
        let budget = [expecting(72, 2), expecting(72, 2), expecting(72, 2)];
        let outcome = checking(&sandbox, Newer::verifier(SPIN), &budget).await;
        assert!(outcome.result.is_ok(), "{:?}", outcome.result);
        assert!((1_000_000..1_010_000).contains(&outcome.report.fuel), "{:?}", outcome.report);
        still_works(&sandbox).await;
    })
    .await;
}

/// Loading, a check, a call that answers and one that traps → each is told to the listener once, with its fault, 10 s.
#[tokio::test]
async fn every_call_that_ends_is_told() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let heard: Arc<Mutex<Vec<CallReport>>> = Arc::default();
        let told = Arc::clone(&heard);
        sandbox.on_call(Arc::new(move |report| told.lock().expect("not poisoned").push(report.clone())));
        checking(&sandbox, Newer::verifier("unreachable"), &[expecting(72, 1)]).await;
        let trapping = load(&sandbox, Guest::doing("unreachable")).await.expect("loads");
        let outcome = within(5_000, trapping.evaluate(call(), 0)).await;
        let heard = heard.lock().expect("not poisoned");
        let calls: Vec<_> = heard.iter().map(|report| (report.function.as_str(), report.fault.is_some())).collect();
        assert_eq!(
            calls,
            [("describe", false), ("check", true), ("select-samples", false), ("describe", false), ("evaluate", true)]
        );
        assert_eq!(heard.last(), Some(&outcome.report));
    })
    .await;
}
