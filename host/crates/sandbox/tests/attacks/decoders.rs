//! Deep and odd JSON against the host's own decoders.

use reef_core::{RecordId, ReleaseId};
use reef_sandbox::{Exchange, FaultKind, SandboxConfig, SandboxError};
use serde_json::{Value, json};

use crate::guest::*;
use crate::newer::{Newer, load_newer};
use crate::wit_value::{bare, f, l, n, ok, t};

/// JSON that is `[[[…]]]`, or `{"a":{"a":…}}`.
fn deep(open: &str, close: &str, levels: usize) -> String {
    format!("{}1{}", open.repeat(levels), close.repeat(levels))
}

/// Loading manifests whose defaults are nested 100,000 levels deep, or are odd numbers → the key, by name, 10 s each.
#[tokio::test]
async fn deep_defaults_are_refused_by_key() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let deep_ones = [deep("[", "]", 100_000), deep("{\"a\":", "}", 25_000), "[".repeat(200_000)];
        let odd_ones = ["1e999", "NaN", "-", "1 2", "\u{1b}[31m", "null", "\"\\ud800\""].map(str::to_owned);
        for default in deep_ones.into_iter().chain(odd_ones) {
            let mut guest = Newer::good();
            guest.manifest.config = vec![f([t("batch"), bare(0), t(&default), bare(0), bare(0), t("")])];
            match within(10_000, load_newer(&sandbox, guest)).await {
                Err(SandboxError::Manifest { field, problem }) => {
                    assert!(field.contains("batch") && problem.len() < 200, "{field} {problem}");
                }
                other => panic!("{other:?}"),
            }
        }
        still_works(&sandbox).await;
    })
    .await;
}

/// ingest, metadata nested as deep as its size allows, and deeper → InvalidOutput that names the exchange, 10 s each.
#[tokio::test]
async fn deep_metadata_is_invalid_output() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let object = |inner: String| format!("{{\"a\":{inner}}}");
        for metadata in [
            object(deep("[", "]", 30_000)),
            object(deep("[", "]", 100_000)),
            deep("{\"a\":", "}", 10_000),
            "{\"a\":".repeat(10_000),
            object("1e999".to_owned()),
        ] {
            let judged = ok(l([f([t("r1"), n(0.5), t(&metadata)])]));
            let recipe = load_newer(&sandbox, Newer::good().answering("live", "ingest", judged)).await.expect("loads");
            let exchange = Exchange {
                id: RecordId::parse("r1".to_owned()).expect("id"),
                release: ReleaseId::parse("a".repeat(40)).expect("id"),
                at_ms: 0,
                session: None,
                tags: vec![],
                messages: vec![],
                answer: String::new(),
                tools: false,
                prompt_tokens: 0,
                answer_tokens: 0,
            };
            let outcome = within(10_000, recipe.ingest(call(), vec![exchange])).await;
            assert_eq!(kind(&outcome), FaultKind::InvalidOutput);
            let told = outcome.result.expect_err("fault").message;
            assert!(told.contains("'r1'") && told.len() < 300, "{told}");
        }
        still_works(&sandbox).await;
    })
    .await;
}

/// select-samples with a deep value for a key, and with a deep one for a key that is not there → Declined, 5 s each.
#[tokio::test]
async fn deep_configuration_is_refused_before_any_guest_code_runs() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let mut guest = Newer::good();
        guest.manifest.config = vec![f([t("batch"), bare(0), t("8"), bare(0), bare(0), t("")])];
        let recipe = load_newer(&sandbox, guest).await.expect("loads");
        let value = (0..100).fold(json!(1), |inner, _| json!([inner]));
        for key in ["batch", "other\u{1b}[31m"] {
            let config = [(key.to_owned(), value.clone())].into_iter().collect();
            let outcome = within(5_000, recipe.select_samples(reef_sandbox::Call { config, ..call() })).await;
            assert_eq!((kind(&outcome), outcome.report.fuel), (FaultKind::Declined, 0));
            let told = outcome.result.expect_err("fault").message;
            assert!(told.len() < 300 && !told.contains('\u{1b}'), "{told}");
        }
    })
    .await;
}

/// Reading an operator's limits from JSON nested 100,000 levels deep → an error, 5 s.
#[test]
fn deep_limits_are_an_error() {
    let text = format!("{{\"threads\":{}}}", deep("[", "]", 100_000));
    assert!(serde_json::from_str::<SandboxConfig>(&text).is_err());
    assert!(serde_json::from_str::<Value>(&text).expect_err("too deep").to_string().contains("recursion"));
}
