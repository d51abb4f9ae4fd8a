//! Loading guests of `reef:recipe@0.2.0`: versions, capabilities, manifests and verifiers.

use reef_sandbox::{Capability, Exports, Grants, SandboxError};

use crate::guest::*;
use crate::newer::{Newer, load_newer};
use crate::wit_value::{V, bare, f, n, ok, some, t};

/// Loading both generations into one sandbox → each is what it is, side by side.
#[tokio::test]
async fn an_older_and_a_newer_component_load_side_by_side() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let older = load(&sandbox, Guest::good()).await.expect("loads");
        let newer = load_newer(&sandbox, Newer::good()).await.expect("loads");
        assert_eq!((older.generation(), newer.generation()), ("0.1.0", "0.2.0"));
        assert_eq!((older.exports(), newer.exports()), (Exports::default(), Exports::default()));
        assert_eq!((older.manifest().re_evaluate_every, newer.manifest().re_evaluate_every), (0, 5));
        assert!(newer.select_samples(call()).await.result.is_ok() && older.select_samples(call()).await.result.is_ok());
    })
    .await;
}

/// Loading a component that imports 0.1.0 and exports 0.2.0 → Version, with both.
#[tokio::test]
async fn a_component_of_two_versions_is_refused() {
    for_each_sandbox(async || {
        let mixed = "(component
        (import \"reef:recipe/log@0.1.0\" (instance))
        (instance $empty)
        (export \"reef:recipe/strategy@0.2.0\" (instance $empty)))";
        let refused = sandbox(small()).load(wat::parse_str(mixed).expect("valid text"), &Grants::all()).await;
        let told = refused.expect_err("refused").to_string();
        assert!(told.contains("mixes the versions 0.1.0 and 0.2.0"), "{told}");
    })
    .await;
}

/// Loading a recipe that calls or asks for the harness, which the operator withholds → NotGranted.
#[tokio::test]
async fn the_harness_is_granted_or_not() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let mut silent = Newer::good().importing("harness", "tasks");
        silent.manifest.capabilities.clear();
        let refused = load_newer(&sandbox, silent).await.expect_err("refused");
        assert_eq!(refused, SandboxError::NotAsked(Capability::Harness));
        let bytes = Newer::good().importing("harness", "tasks").bytes();
        let without: Grants = Grants::all().0.into_iter().filter(|own| *own != Capability::Harness).collect();
        let refused = sandbox.load(bytes.clone(), &without).await.expect_err("refused");
        assert_eq!(refused, SandboxError::NotGranted(Capability::Harness));
        sandbox.load(bytes, &Grants::all()).await.expect("granted");
    })
    .await;
}

/// Loading a recipe that evolves a router → its manifest, by field.
#[tokio::test]
async fn another_surface_is_refused_by_the_manifest() {
    for_each_sandbox(async || {
        let mut guest = Newer::good();
        guest.manifest.surface = 2;
        let told = load_newer(&sandbox(small()), guest).await.expect_err("refused").to_string();
        assert!(told.contains("surface must be weights or harness"), "{told}");
    })
    .await;
}

fn key(default: &str, minimum: V, maximum: V) -> V {
    f([t("batch"), bare(0), t(default), minimum, maximum, t("")])
}

/// Loading a manifest with ranges, and calls with values outside of them → refused by key.
#[tokio::test]
async fn numbers_outside_of_their_range_are_refused_by_key() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let mut guest = Newer::good();
        guest.manifest.config = vec![key("8", some(n(1)), some(n(64)))];
        let recipe = load_newer(&sandbox, guest).await.expect("loads");
        let config = |value: f64| serde_json::json!({ "batch": value }).as_object().expect("object").clone();
        assert!(recipe.manifest().check_config(&config(64.0)).is_ok());
        let outcome = recipe.select_samples(reef_sandbox::Call { config: config(65.0), ..call() }).await;
        let told = outcome.result.expect_err("refused").message;
        assert!(told.contains("'batch'") && told.contains("at most 64"), "{told}");
        let mut wrong = Newer::good();
        wrong.manifest.config = vec![key("8", some(n(9)), bare(0))];
        assert!(load_newer(&sandbox, wrong).await.expect_err("refused").to_string().contains("at least 9"));
    })
    .await;
}

/// Loading a recipe that exports `transform-request`, with and without the grant → callable, or not there.
#[tokio::test]
async fn changing_requests_must_be_granted_by_name() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let guest = || Newer::good().answering("requests", "transform-request", bare(0));
        let usual = load_newer(&sandbox, guest()).await.expect("loads");
        assert!(!usual.exports().requests);
        let named: Grants = [Capability::Requests].into_iter().collect();
        let granted = sandbox.load(guest().bytes(), &named).await.expect("loads");
        assert!(granted.exports().requests);
        let mut asking = guest();
        asking.manifest.capabilities.push("requests");
        let refused = load_newer(&sandbox, asking).await.expect_err("refused");
        assert_eq!(refused, SandboxError::NotGranted(Capability::Requests));
    })
    .await;
}

/// Loading verifiers: a good one, one that imports something, a recipe, no component → loaded, or why not.
#[tokio::test]
async fn verifiers_import_nothing() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let good = Newer::verifying(ok(f([n(1), n(1), t("fine")])));
        assert_eq!(sandbox.load_verifier(good.bytes()).await.expect("loads").digest().len(), 64);
        let logging = Newer::verifier(
            "(call $log (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)) unreachable",
        )
        .importing("log", "log");
        let told = sandbox.load_verifier(logging.bytes()).await.expect_err("refused").to_string();
        assert!(told.contains("imports nothing") && told.contains("reef:recipe/log@0.2.0"), "{told}");
        assert!(matches!(sandbox.load_verifier(Newer::good().bytes()).await, Err(SandboxError::MissingExport(_))));
        assert!(matches!(sandbox.load_verifier(b"x".to_vec()).await, Err(SandboxError::NotAComponent(_))));
    })
    .await;
}
