//! Arguments of host calls that cannot be read, and arguments that are huge.

use reef_sandbox::{Call, FaultKind, SandboxConfig};

use crate::capabilities::Slow;
use crate::guest::*;
use crate::newer::{Newer, load_newer};
use crate::wit_value::{case, f, l, n, ok, t};

/// Bytes that are no UTF-8: a stray byte, half a character, a surrogate, an overlong zero, one beyond the last.
const NO_TEXTS: [&str; 5] = ["\\ff", "\\e2\\82", "\\ed\\a0\\80", "\\c0\\80", "\\f4\\90\\80\\80"];

async fn selecting(guest: Guest) -> FaultKind {
    let sandbox = sandbox(small());
    let recipe = load(&sandbox, guest).await.expect("loads");
    let outcome = within(5_000, recipe.select_samples(call())).await;
    still_works(&sandbox).await;
    kind(&outcome)
}

async fn selecting_newer(guest: Newer, body: &str) -> FaultKind {
    let sandbox = sandbox(small());
    let guest = guest.doing("strategy", "select-samples", &format!("{body} unreachable"));
    let recipe = load_newer(&sandbox, guest).await.expect("loads");
    let outcome = within(5_000, recipe.select_samples(call())).await;
    still_works(&sandbox).await;
    kind(&outcome)
}

/// select-samples, a log line of bytes that are no UTF-8 → InvalidOutput, 5 s each.
#[tokio::test]
async fn texts_of_host_calls_are_utf_8() {
    for_each_sandbox(async || {
        for bytes in NO_TEXTS {
            let length = bytes.len() / 3;
            let fields = format!("(data (i32.const 1024) \"{bytes}\")");
            let body = format!("(call $log (i32.const 2) (i32.const 1024) (i32.const {length})) unreachable");
            let guest = Guest::doing(&body).importing("log", "log", "(param i32 i32 i32)");
            assert_eq!(selecting(Guest { fields, ..guest }).await, FaultKind::InvalidOutput, "{bytes}");
        }
        let mut newer = Newer::good().importing("log", "log");
        let at = newer.data.put(&[0xff, 0xfe]);
        let body = format!("(call $log (i32.const 2) (i32.const {at}) (i32.const 2) (i32.const {at}) (i32.const 0))");
        assert_eq!(selecting_newer(newer, &body).await, FaultKind::InvalidOutput);
    })
    .await;
}

/// select-samples, texts and lists outside of the memory, or around its end → InvalidOutput, 5 s each.
#[tokio::test]
async fn pointers_of_host_calls_lie_in_the_memory() {
    for_each_sandbox(async || {
        for (pointer, length) in [(-1, 1), (262_143, 2), (262_144, 1), (0, -1), (8, -8), (i32::MIN, i32::MAX)] {
            let body = format!("(call $log (i32.const 2) (i32.const {pointer}) (i32.const {length})) unreachable");
            let guest = Guest::doing(&body).importing("log", "log", "(param i32 i32 i32)");
            assert_eq!(selecting(guest).await, FaultKind::InvalidOutput, "text {pointer} {length}");
            let (aligned, count) = (pointer & !3, length);
            let body = format!("(call $scores (i32.const {aligned}) (i32.const {count}) (i32.const 64)) unreachable");
            let guest = Guest::doing(&body).importing("experience", "scores", "(param i32 i32 i32)");
            let expected = [FaultKind::InvalidOutput, FaultKind::TooMuchOutput];
            // The second case lies inside as a list of words.
            let ended = selecting(guest).await;
            assert!(expected.contains(&ended) || aligned == 262_140, "list {aligned} {count}: {ended:?}");
        }
    })
    .await;
}

/// select-samples, a misaligned list, and a misaligned or wild place for the answer → InvalidOutput, 5 s each.
#[tokio::test]
async fn pointers_of_host_calls_are_aligned() {
    for_each_sandbox(async || {
        for (list, answer) in [(4_097, 64), (4_098, 64), (4_096, 65), (4_096, -8), (4_096, 262_140)] {
            let body = format!("(call $scores (i32.const {list}) (i32.const 1) (i32.const {answer})) unreachable");
            let guest = Guest::doing(&body).importing("experience", "scores", "(param i32 i32 i32)");
            assert_eq!(selecting(guest).await, FaultKind::InvalidOutput, "{list} {answer}");
        }
    })
    .await;
}

/// select-samples and propose-update, levels, options and policies that do not exist → InvalidOutput, 5 s each.
#[tokio::test]
async fn discriminants_of_host_calls_exist() {
    for_each_sandbox(async || {
        let log = "(call $log (i32.const 5) (i32.const 0) (i32.const 0)) unreachable";
        let guest = Guest::doing(log).importing("log", "log", "(param i32 i32 i32)");
        assert_eq!(selecting(guest).await, FaultKind::InvalidOutput);
        let zeros = |count: usize| "(i32.const 0) ".repeat(count);
        let log = format!("(call $log (i32.const -1) {})", zeros(4));
        assert_eq!(selecting_newer(Newer::good().importing("log", "log"), &log).await, FaultKind::InvalidOutput);
        for (function, arguments) in [
            ("forward", format!("(i32.const 3) (i32.const 4) {} (i32.const 64)", zeros(4))),
            ("derive", format!("(i32.const 0) (i32.const 2) {} (i32.const 64)", zeros(5))),
        ] {
            let sandbox = sandbox(small());
            let body = format!("(call ${function} {arguments}) unreachable");
            let guest = Newer::good().importing("training", function).doing("strategy", "propose-update", &body);
            let recipe = load_newer(&sandbox, guest).await.expect("loads");
            let outcome = within(5_000, recipe.propose_update(Call { training: Slow::taking(0), ..call() })).await;
            assert_eq!(kind(&outcome), FaultKind::InvalidOutput, "{function}");
        }
    })
    .await;
}

/// A guest with 12 MiB of memory that calls a function of `state`, `experience` or `log`.
fn large(interface: &'static str, function: &str, signature: &str) -> Guest {
    Guest { memory: "192", ..Guest::good() }.importing(interface, function, signature)
}

fn roomy() -> SandboxConfig {
    SandboxConfig { memory_bytes_max: 32 << 20, ..small() }
}

/// select-samples, a state value of 3 MiB and one of 5 MiB → the typed error too-large, then TooMuchOutput, 5 s each.
#[tokio::test]
async fn huge_values_of_state_are_refused() {
    for_each_sandbox(async || {
        let sandbox = sandbox(roomy());
        let set = |bytes: u32| {
            let body = format!(
                "(call $set (i32.const 4096) (i32.const 1) (i32.const 131072) (i32.const {bytes}) (i32.const 64))
                 (if (i32.ne (i32.load8_u (i32.const 64)) (i32.const 1)) (then unreachable))
                 (if (i32.ne (i32.load8_u (i32.const 68)) (i32.const 0)) (then unreachable))"
            );
            large("state", "set", "(param i32 i32 i32 i32 i32)").selecting_after(&body)
        };
        let recipe = load(&sandbox, set(3 << 20)).await.expect("loads");
        let outcome = within(5_000, recipe.select_samples(call())).await;
        assert!(outcome.result.is_ok() && outcome.state.is_empty(), "{:?}", outcome.result);
        let recipe = load(&sandbox, set(5 << 20)).await.expect("loads");
        assert_eq!(kind(&within(5_000, recipe.select_samples(call())).await), FaultKind::TooMuchOutput);
        still_works(&sandbox).await;
    })
    .await;
}

/// select-samples, a column of 900,000 handles → the typed error budget, 5 s.
#[tokio::test]
async fn huge_columns_are_refused() {
    for_each_sandbox(async || {
        let sandbox = sandbox(roomy());
        let body = "(call $scores (i32.const 131072) (i32.const 900000) (i32.const 64))
            (if (i32.ne (i32.load8_u (i32.const 64)) (i32.const 1)) (then unreachable))
            (if (i32.ne (i32.load8_u (i32.const 68)) (i32.const 1)) (then unreachable))";
        let guest = large("experience", "scores", "(param i32 i32 i32)").selecting_after(body);
        let recipe = load(&sandbox, guest).await.expect("loads");
        let outcome = within(5_000, recipe.select_samples(call())).await;
        assert!(outcome.result.is_ok(), "{:?}", outcome.result);
    })
    .await;
}

/// select-samples, a log line of 3 MiB and a gauge with a name of 3 MiB → dropped, counted and ignored, 5 s each.
#[tokio::test]
async fn huge_lines_and_names_are_dropped() {
    for_each_sandbox(async || {
        let sandbox = sandbox(roomy());
        let log = large("log", "log", "(param i32 i32 i32)")
            .selecting_after("(call $log (i32.const 2) (i32.const 131072) (i32.const 3145728))");
        let outcome = within(5_000, load(&sandbox, log).await.expect("loads").select_samples(call())).await;
        assert!(outcome.result.is_ok(), "{:?}", outcome.result);
        assert!(outcome.report.log_dropped_bytes > 3_000_000, "{:?}", outcome.report);
        let gauge = large("metrics", "gauge", "(param i32 i32 f64)")
            .selecting_after("(call $gauge (i32.const 131072) (i32.const 3145728) (f64.const 1))");
        let outcome = within(5_000, load(&sandbox, gauge).await.expect("loads").select_samples(call())).await;
        assert!(outcome.result.is_ok() && outcome.metrics.is_empty(), "{:?}", outcome.result);
    })
    .await;
}

/// select-samples, a text of 2 MiB to encode and 300,000 ids to decode → the typed error invalid, 5 s each.
#[tokio::test]
async fn huge_texts_are_not_encoded() {
    for_each_sandbox(async || {
        let sandbox = sandbox(roomy());
        for (function, count) in [("encode", 2 << 20), ("decode", 300_000)] {
            let mut guest = Newer::good().importing("tokens", function);
            let answer = guest.put_result("strategy", "select-samples", &ok(f([case(1, l([n(0)])), l([])])));
            let body = format!(
                "(drop (memory.grow (i32.const 64)))
                 (call ${function} (i32.const 262144) (i32.const {count}) (i32.const 64))
                 (if (i32.ne (i32.load8_u (i32.const 64)) (i32.const 1)) (then unreachable))
                 (if (i32.ne (i32.load8_u (i32.const 68)) (i32.const 0)) (then unreachable))
                 i32.const {answer}"
            );
            let recipe = load_newer(&sandbox, guest.doing("strategy", "select-samples", &body)).await.expect("loads");
            let outcome = within(5_000, recipe.select_samples(call())).await;
            assert!(outcome.result.is_ok(), "{function}: {:?}", outcome.result);
        }
    })
    .await;
}

/// select-samples, floods of the calls that have no error to answer with → HostLimit of each, 5 s each.
#[tokio::test]
async fn floods_of_calls_without_errors_are_cut_off() {
    use reef_sandbox::Capability::{Config, Log, Metrics};
    for_each_sandbox(async || {
        for (capability, function, signature, arguments) in [
            (Log, "log", "(param i32 i32 i32)", "(i32.const 0) (i32.const 0) (i32.const 0)"),
            (Config, "get", "(param i32 i32 i32)", "(i32.const 4096) (i32.const 1) (i32.const 64)"),
            (Metrics, "gauge", "(param i32 i32 f64)", "(i32.const 4096) (i32.const 1) (f64.const 1)"),
        ] {
            let flood = format!("(loop $again (call ${function} {arguments}) (br $again)) unreachable");
            let guest = Guest::doing(&flood).importing(capability.as_str(), function, signature);
            let ended = selecting(guest).await;
            // A flood of gauges or lines is ignored beyond the budget and ends with the call's own budgets.
            let expected = [FaultKind::HostLimit(capability), FaultKind::OutOfFuel];
            assert!(expected.contains(&ended), "{capability}: {ended:?}");
        }
    })
    .await;
}

/// ingest, 20,000 judgements that all point at one text of 64 KiB → TooMuchOutput, no host memory of that size, 5 s.
#[tokio::test]
async fn aliased_texts_do_not_amplify() {
    if !alone("pointers::aliased_texts_do_not_amplify") {
        return;
    }
    for_each_sandbox(async || {
        let sandbox = sandbox(roomy());
        let mut guest = Newer::good();
        let row = guest.data.words(&[0, 0, 0, 0, 0, 0]);
        let _ = (row, t(""));
        // Rows of 24 bytes from 512 KiB on: receipt and metadata are the 64 KiB from 256 KiB on, the score is 0.
        let body = "(local $row i32)
            (drop (memory.grow (i32.const 16)))
            (memory.fill (i32.const 262144) (i32.const 120) (i32.const 65536))
            (local.set $row (i32.const 524288))
            (loop $next
              (i32.store (local.get $row) (i32.const 262144))
              (i32.store (i32.add (local.get $row) (i32.const 4)) (i32.const 65536))
              (i32.store (i32.add (local.get $row) (i32.const 16)) (i32.const 262144))
              (i32.store (i32.add (local.get $row) (i32.const 20)) (i32.const 65536))
              (local.set $row (i32.add (local.get $row) (i32.const 24)))
              (br_if $next (i32.lt_u (local.get $row) (i32.const 1004288))))
            (i32.store (i32.const 64) (i32.const 0))
            (i32.store (i32.const 68) (i32.const 524288))
            (i32.store (i32.const 72) (i32.const 20000))
            i32.const 64";
        guest = guest.doing("live", "ingest", body);
        let recipe = load_newer(&sandbox, guest).await.expect("loads");
        let before = process_bytes("VmHWM");
        let outcome = within(5_000, recipe.ingest(call(), vec![])).await;
        assert_eq!(kind(&outcome), FaultKind::TooMuchOutput);
        let grown = process_bytes("VmHWM") - before;
        assert!(grown < 64 << 20, "{grown} bytes more for 2.6 GB of text");
        still_works(&sandbox).await;
    })
    .await;
}

/// select-samples, a list and a text of up to 4 GiB by their length → a typed fault and no host memory of that size, 5 s.
#[tokio::test]
async fn huge_lengths_take_no_host_memory() {
    if !alone("pointers::huge_lengths_take_no_host_memory") {
        return;
    }
    for_each_sandbox(async || {
        let sandbox = sandbox(roomy());
        for count in [u32::MAX, u32::MAX / 4, 1 << 30, 1 << 28, 3 << 20] {
            for (choice, payload) in [(0, "text"), (1, "list"), (2, "groups")] {
                let body = format!(
                    "(i32.store (i32.const 64) (i32.const 0)) (i32.store (i32.const 68) (i32.const {choice}))
                     (i32.store (i32.const 72) (i32.const 131072)) (i32.store (i32.const 76) (i32.const {}))
                     i32.const 64",
                    count as i32
                );
                let guest = Guest { memory: "192", select: body, ..Guest::good() };
                let recipe = load(&sandbox, guest).await.expect("loads");
                let before = process_bytes("VmHWM");
                let outcome = within(5_000, recipe.select_samples(call())).await;
                let expected = [FaultKind::InvalidOutput, FaultKind::TooMuchOutput];
                // 3 MiB of zeros are a reason to wait.
                if !(count == 3 << 20 && payload == "text" && outcome.result.is_ok()) {
                    assert!(expected.contains(&kind(&outcome)), "{payload} {count}: {:?}", outcome.result);
                }
                let grown = process_bytes("VmHWM") - before;
                assert!(grown < 64 << 20, "{payload} {count}: {grown} bytes more");
            }
        }
        still_works(&sandbox).await;
    })
    .await;
}
