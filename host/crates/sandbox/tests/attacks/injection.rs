//! Text of a guest on its way to people and files: terminal escapes, line breaks, and names that look like paths.

use reef_sandbox::{Choice, FaultKind, Grants, Proposal, Selection};

use crate::guest::*;
use crate::heard;
use crate::newer::{Newer, load_newer};
use crate::wit_value::{V, bare, case, f, l, n, ok, t};

/// A line that forges another one, a terminal escape, and characters that turn the text around.
const FORGERY: &str = "fine\r\nERROR tenant=other\u{1b}[2J\u{1b}]0;x\u{7}\u{202e}\u{200b}\u{0}end";
/// Names that are paths, or worse.
const PATHS: [&str; 7] = ["../etc/passwd", "/etc/passwd", "a/../../b", "a\\b", "..", "a\u{0}b", "-rf\n*"];

fn harmless(text: &str) -> bool {
    let hidden = |c| matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}');
    !text.chars().any(|c| c.is_control() || hidden(c))
}

/// select-samples of both generations, a log line that forges others → one line, escaped, with its tenant, 5 s.
#[tokio::test]
async fn log_lines_cannot_forge_others() {
    heard::listen();
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let before = heard::lines("fine").len();
        let mut older = Guest::good().importing("log", "log", "(param i32 i32 i32)");
        let [at, length] = older.data.text(FORGERY);
        let older = older.selecting_after(&format!("(call $log (i32.const 2) (i32.const {at}) (i32.const {length}))"));
        let mut newer = Newer::good().importing("log", "log");
        let [at, length] = newer.data.text(FORGERY);
        let answer = newer.put_result("strategy", "select-samples", &ok(f([case(1, l([n(0)])), l([])])));
        let newer = newer.doing(
            "strategy",
            "select-samples",
            &format!(
                "(call $log (i32.const 5) (i32.const {at}) (i32.const {length}) (i32.const {at})
                    (i32.const {length})) i32.const {answer}"
            ),
        );
        let recipes = [load(&sandbox, older).await.expect("loads"), load_newer(&sandbox, newer).await.expect("loads")];
        for recipe in recipes {
            assert!(within(5_000, recipe.select_samples(call_of(heard::TENANT))).await.result.is_ok());
        }
        let lines = heard::lines("fine").split_off(before);
        assert_eq!(lines.len(), 2, "{lines:?}");
        for line in lines {
            assert!(harmless(&line) && line.contains("tenant=overheard") && line.contains("\\u{1b}"), "{line:?}");
        }
    })
    .await;
}

async fn selecting(answer: V) -> Result<Selection, FaultKind> {
    let sandbox = sandbox(small());
    let guest = Newer::good().answering("strategy", "select-samples", answer);
    let outcome = within(5_000, load_newer(&sandbox, guest).await.expect("loads").select_samples(call())).await;
    let told = outcome.report.fault.clone().unwrap_or_default();
    assert!(harmless(&told), "{told:?}");
    outcome.result.map_err(|fault| fault.kind)
}

/// All decisions, reasons with forged lines and 100 KB of text → escaped and cut, 5 s each.
#[tokio::test]
async fn reasons_are_escaped_and_cut() {
    for_each_sandbox(async || {
        let long = format!("{FORGERY}{}", "x".repeat(100_000));
        let wait = selecting(ok(f([case(0, t(&long)), l([f([n(2), t(&long)])])]))).await.expect("waits");
        let Choice::Wait(reason) = &wait.choice else { panic!("{wait:?}") };
        for reason in [reason, &wait.retire[0].1] {
            assert!(harmless(reason) && reason.chars().count() < 1_000, "{reason:?}");
        }
        let sandbox = sandbox(small());
        let guest = Newer::good().answering("strategy", "propose-update", ok(case(3, t(&long)))).answering(
            "strategy",
            "evaluate",
            ok(f([bare(0), t(&long), l([])])),
        );
        let recipe = load_newer(&sandbox, guest).await.expect("loads");
        let proposal = within(5_000, recipe.propose_update(call())).await.result.expect("skips");
        assert!(matches!(&proposal, Proposal::Skip(why) if harmless(why)), "{proposal:?}");
        let verdict = within(5_000, recipe.evaluate(call(), 0)).await.result.expect("verdict");
        assert!(harmless(&verdict.reason), "{verdict:?}");
    })
    .await;
}

/// Groups, measurements and gauges with names that are paths → InvalidOutput, or ignored, 5 s each.
#[tokio::test]
async fn names_that_are_paths_are_refused() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        for name in PATHS {
            let group = case(2, l([f([t(name), l([n(0)])])]));
            assert_eq!(selecting(ok(f([group, l([])]))).await, Err(FaultKind::InvalidOutput), "{name:?}");
            let verdict = ok(f([bare(0), t("good"), l([f([t(name), n(0.5)])])]));
            let recipe =
                load_newer(&sandbox, Newer::good().answering("strategy", "evaluate", verdict)).await.expect("loads");
            assert_eq!(kind(&within(5_000, recipe.evaluate(call(), 0)).await), FaultKind::InvalidOutput, "{name:?}");
            let mut guest = Guest::good().importing("metrics", "gauge", "(param i32 i32 f64)");
            let [at, length] = guest.data.text(name);
            let body = format!("(call $gauge (i32.const {at}) (i32.const {length}) (f64.const 1))");
            let recipe = load(&sandbox, guest.selecting_after(&body)).await.expect("loads");
            let outcome = within(5_000, recipe.select_samples(call())).await;
            assert!(outcome.result.is_ok() && outcome.metrics.is_empty(), "{name:?}: {:?}", outcome.metrics);
        }
        still_works(&sandbox).await;
    })
    .await;
}

/// select-samples and migrate, keys of state that are paths → kept as they are: a key names a row and nothing else; with
/// a control character → the guest is refused and nothing is kept, 5 s.
#[tokio::test]
async fn keys_of_state_are_data() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        for key in PATHS {
            let mut guest = Guest::good().importing("state", "set", "(param i32 i32 i32 i32 i32)");
            let [at, length] = guest.data.text(key);
            let set = format!(
                "(call $set (i32.const {at}) (i32.const {length}) (i32.const {at}) (i32.const 1) (i32.const 64))"
            );
            let recipe = load(&sandbox, guest.selecting_after(&set)).await.expect("loads");
            let outcome = within(5_000, recipe.select_samples(call())).await;
            assert!(outcome.result.is_ok(), "{:?}", outcome.result);
            let kept = (key.to_owned(), Some(key.as_bytes()[..1].to_vec()));
            let expected = if key.contains(char::is_control) { vec![] } else { vec![kept] };
            assert_eq!(outcome.state, expected, "{key:?}");
        }
        // In a message they are text for people.
        let entry = || f([t(FORGERY), l([])]);
        let guest = Newer::good().answering("migration", "migrate", ok(l([entry(), entry()])));
        let recipe = load_newer(&sandbox, guest).await.expect("loads");
        let outcome = within(5_000, recipe.migrate(call(), "1.0.0")).await;
        assert_eq!(kind(&outcome), FaultKind::InvalidOutput);
        assert!(harmless(&outcome.result.expect_err("twice").message));
    })
    .await;
}

/// Loading manifests with forged lines in every text → refused or escaped, 5 s each.
#[tokio::test]
async fn manifests_cannot_forge_lines() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let key = |name: &str, default: &str, doc: &str| f([t(name), bare(1), t(default), bare(0), bare(0), t(doc)]);
        for config in [key(FORGERY, "\"a\"", ""), key("a", FORGERY, ""), key("../a", "\"a\"", "")] {
            let mut guest = Newer::good();
            guest.manifest.config = vec![config];
            let told = load_newer(&sandbox, guest).await.expect_err("refused").to_string();
            assert!(harmless(&told), "{told:?}");
        }
        let mut guest = Newer::good();
        guest.manifest.config = vec![key("a", "\"a\"", FORGERY)];
        let recipe = load_newer(&sandbox, guest).await.expect("loads");
        assert!(harmless(&recipe.manifest().config[0].doc));
        let mut guest = Newer::good();
        guest.manifest.capabilities = vec![FORGERY];
        let told = load_newer(&sandbox, guest).await.expect_err("refused").to_string();
        assert!(harmless(&told), "{told:?}");
    })
    .await;
}

/// evaluate, a trap in functions with names full of escapes, and an import named so → one harmless line, 5 s each.
#[tokio::test]
async fn names_of_functions_and_imports_are_escaped() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let fields = "(func $\"in\\1b[31m\\0aside\" unreachable)".to_owned();
        let guest = Guest { fields, evaluate: "(call $\"in\\1b[31m\\0aside\") unreachable".into(), ..Guest::good() };
        let outcome = within(5_000, load(&sandbox, guest).await.expect("loads").evaluate(call(), 0)).await;
        assert_eq!(kind(&outcome), FaultKind::Trap);
        let told = outcome.result.expect_err("fault").message;
        assert!(harmless(&told) && told.len() < 2_000, "{told:?}");
        let import = wat::parse_str("(component (import \"acme:net/sockets@1.0.0-rc.1\" (instance)))").expect("valid");
        let mut forged = import.clone();
        let at = import.windows(4).position(|bytes| bytes == b"acme").expect("the name");
        forged[at..at + 4].copy_from_slice(b"\x1b[1m");
        for bytes in [import, forged] {
            let told = sandbox.load(bytes, &Grants::all()).await.expect_err("refused").to_string();
            assert!(harmless(&told), "{told:?}");
        }
    })
    .await;
}
