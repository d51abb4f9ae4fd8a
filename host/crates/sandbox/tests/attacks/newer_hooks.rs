//! The optional exports: good answers, broken rules, deadlines, and that no capability answers where none may.

use std::collections::BTreeMap;

use reef_core::{Message, RecordId, ReleaseId};
use reef_sandbox::{Call, Capability, Exchange, FaultKind, Grants, Recipe, RequestView, Sandbox};

use crate::guest::*;
use crate::newer::{Newer, load_newer};
use crate::wit_value::{V, bare, case, f, l, n, ok, some, t};

const SPIN: &str = "(loop $spin (br $spin)) unreachable";

fn exchange(id: &str) -> Exchange {
    Exchange {
        id: RecordId::parse(id.to_owned()).expect("id"),
        release: ReleaseId::parse("a".repeat(40)).expect("id"),
        at_ms: 1_700_000_000_000,
        session: Some("s".into()),
        tags: vec![("team".into(), "a".into())],
        messages: vec![Message { role: "user".into(), content: "hi".into() }],
        answer: "hello".into(),
        tools: false,
        prompt_tokens: 1,
        answer_tokens: 1,
    }
}

fn judgement(receipt: &str, score: f64, metadata: &str) -> V {
    f([t(receipt), n(score), t(metadata)])
}

/// ingest, judgements of what was handed in, and of what was not → reports, or InvalidOutput, 5 s each.
#[tokio::test]
async fn judgements_are_of_the_exchanges_handed_in() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let ingesting = async |rows: Vec<V>| {
            let recipe =
                load_newer(&sandbox, Newer::good().answering("live", "ingest", ok(l(rows)))).await.expect("loads");
            assert!(recipe.exports().live);
            within(5_000, recipe.ingest(call(), vec![exchange("r1"), exchange("r2")])).await
        };
        let outcome = ingesting(vec![judgement("r2", 0.5, r#"{"why": "short"}"#)]).await;
        assert!(outcome.report.bytes_out > 200 && outcome.report.bytes_in > 10, "{:?}", outcome.report);
        let judged = outcome.result.expect("judged");
        assert_eq!((judged[0].receipt.as_str(), judged[0].score), ("r2", 0.5));
        for wrong in [
            judgement("r3", 0.5, "{}"),
            judgement("r1", f64::NAN, "{}"),
            judgement("r1", 0.5, "[]"),
            judgement("r1", 0.5, ""),
        ] {
            assert_eq!(kind(&ingesting(vec![wrong]).await), FaultKind::InvalidOutput);
        }
        still_works(&sandbox).await;
    })
    .await;
}

/// ingest, an endless loop → OutOfFuel; a recipe without the export → MissingCapability, 5 s.
#[tokio::test]
async fn ingest_is_bounded_and_optional() {
    for_each_sandbox(async || {
        let sandbox = sandbox(reef_sandbox::SandboxConfig { fuel_ingest: 1_000_000, ..small() });
        let spinning = load_newer(&sandbox, Newer::good().doing("live", "ingest", SPIN)).await.expect("loads");
        let outcome = within(5_000, spinning.ingest(call(), vec![])).await;
        assert_eq!((kind(&outcome), outcome.report.fuel), (FaultKind::OutOfFuel, 1_000_000));
        let without = load_newer(&sandbox, Newer::good()).await.expect("loads");
        assert_eq!(kind(&without.ingest(call(), vec![]).await), FaultKind::MissingCapability);
        assert_eq!(kind(&without.migrate(call(), "1.0.0").await), FaultKind::MissingCapability);
    })
    .await;
}

/// migrate, a whole new state, a key twice, and a refusal of the guest → the state, InvalidOutput, Declined, 5 s each.
#[tokio::test]
async fn a_migration_returns_the_whole_new_state() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let entry = |key: &str| f([t(key), l([n(7)])]);
        let migrating = async |answer: V| {
            let guest = Newer::good().answering("migration", "migrate", answer);
            let recipe = load_newer(&sandbox, guest).await.expect("loads");
            let state = BTreeMap::from([("old".to_owned(), vec![1])]);
            within(5_000, recipe.migrate(Call { state, ..call() }, "1.0.0")).await
        };
        let moved = migrating(ok(l([entry("b"), entry("a")]))).await.result.expect("migrated");
        assert_eq!(moved, BTreeMap::from([("a".to_owned(), vec![7]), ("b".to_owned(), vec![7])]));
        assert_eq!(kind(&migrating(ok(l([entry("a"), entry("a")]))).await), FaultKind::InvalidOutput);
        assert_eq!(kind(&migrating(case(1, case(2, t("no")))).await), FaultKind::Declined);
    })
    .await;
}

/// migrate, a guest that asks for its state → a typed error, not a trap, 5 s.
#[tokio::test]
async fn no_capability_answers_during_a_migration() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let mut guest = Newer::good().importing("state", "keys");
        let answer = guest.put_result("migration", "migrate", &ok(l([])));
        // Expects err(other(…)) at 64.
        let guest = guest.doing(
            "migration",
            "migrate",
            &format!(
                "(call $keys (i32.const 64))
             (if (i32.ne (i32.load8_u (i32.const 64)) (i32.const 1)) (then unreachable))
             (if (i32.ne (i32.load8_u (i32.const 68)) (i32.const 2)) (then unreachable))
             i32.const {answer}"
            ),
        );
        let recipe = load_newer(&sandbox, guest).await.expect("loads");
        let outcome = within(5_000, recipe.migrate(call(), "1.0.0")).await;
        assert_eq!(outcome.result, Ok(BTreeMap::new()));
    })
    .await;
}

async fn transforming(sandbox: &Sandbox, guest: Newer) -> Recipe {
    let grants: Grants = Capability::ALL.into_iter().collect();
    sandbox.load(guest.bytes(), &grants).await.expect("loads")
}

fn request() -> RequestView {
    RequestView { messages: vec![Message { role: "user".into(), content: "hi".into() }], session: None, tags: vec![] }
}

/// transform-request, nothing, other messages, and messages that are none → as it was, changed, InvalidOutput, 5 s.
#[tokio::test]
async fn a_transformed_request_is_a_conversation() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let answering = async |answer: V| {
            let recipe = transforming(&sandbox, Newer::good().answering("requests", "transform-request", answer)).await;
            within(5_000, recipe.transform_request(call(), request())).await
        };
        assert_eq!(answering(bare(0)).await.result, Ok(None));
        let other = answering(some(l([f([t("system"), t("be brief")])]))).await.result.expect("changed");
        assert_eq!(other.expect("messages")[0].content, "be brief");
        assert_eq!(kind(&answering(some(l([]))).await), FaultKind::InvalidOutput);
        assert_eq!(kind(&answering(some(l([f([t("root"), t("")])]))).await), FaultKind::InvalidOutput);
    })
    .await;
}

/// transform-request, an endless loop → Deadline after 10 ms of guest time, 5 s.
#[tokio::test]
async fn a_transform_that_spins_meets_its_deadline() {
    for_each_sandbox(async || {
        let sandbox = sandbox(reef_sandbox::SandboxConfig { fuel_transform: u64::MAX / 2, ..small() });
        let recipe = transforming(&sandbox, Newer::good().doing("requests", "transform-request", SPIN)).await;
        let outcome = within(5_000, recipe.transform_request(call(), request())).await;
        assert_eq!(kind(&outcome), FaultKind::Deadline);
        assert!(outcome.report.guest_us >= 10_000 && outcome.report.wall_us >= outcome.report.guest_us);
        still_works(&sandbox).await;
    })
    .await;
}

/// transform-request without the grant → MissingCapability before any guest code runs.
#[tokio::test]
async fn a_transform_without_the_grant_is_not_called() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let guest = Newer::good().doing("requests", "transform-request", "unreachable");
        let recipe = load_newer(&sandbox, guest).await.expect("loads");
        let outcome = recipe.transform_request(call(), request()).await;
        assert_eq!((kind(&outcome), outcome.report.fuel), (FaultKind::MissingCapability, 0));
    })
    .await;
}
