//! Components that want too many things, or things in things in things.

use reef_sandbox::{FaultKind, Grants, Sandbox, SandboxConfig, SandboxError};

use crate::binary::{deep_type, nested, with_instances};
use crate::compile::child;
use crate::guest::*;
use crate::newer::Newer;

async fn refusal(bytes: Vec<u8>) -> SandboxError {
    let sandbox = sandbox(small());
    let refused = within(10_000, sandbox.load(bytes, &Grants::all())).await.expect_err("refused");
    still_works(&sandbox).await;
    refused
}

fn out_of_memory(error: &SandboxError) -> bool {
    matches!(error, SandboxError::Describe(fault) if fault.kind == FaultKind::OutOfMemory)
}

/// Loading a component of 9 memories → refused by their number before any guest code runs, 10 s.
#[tokio::test]
async fn a_ninth_memory_does_not_load() {
    for_each_sandbox(async || {
        for guest in [Guest::good().bytes(), Newer::good().bytes()] {
            let refused = refusal(with_instances(guest, "(module (memory 1))", 8)).await;
            assert!(matches!(refused, SandboxError::Invalid(_)), "{refused}");
            assert!(refused.to_string().contains("9") && refused.to_string().contains("memories"), "{refused}");
        }
    })
    .await;
}

/// Loading a component of 8 memories that are too large together → OutOfMemory, 10 s.
#[tokio::test]
async fn memories_share_one_budget() {
    for_each_sandbox(async || {
        let refused = refusal(with_instances(Guest::good().bytes(), "(module (memory 10))", 7)).await;
        assert!(out_of_memory(&refused), "{refused}");
        let sandbox = sandbox(small());
        let fits = with_instances(Guest::good().bytes(), "(module (memory 8))", 7);
        let recipe = sandbox.load(fits, &Grants::all()).await.expect("loads");
        let outcome = recipe.select_samples(call()).await;
        assert!(outcome.result.is_ok());
        assert_eq!(outcome.report.memory_peak_bytes, 60 * 65_536);
    })
    .await;
}

/// Loading a component of 70 core instances → OutOfMemory, 10 s.
#[tokio::test]
async fn too_many_instances_do_not_load() {
    for_each_sandbox(async || {
        let refused = refusal(with_instances(Guest::good().bytes(), "(module)", 70)).await;
        assert!(out_of_memory(&refused), "{refused}");
        let many = refusal(with_instances(Guest::good().bytes(), "(module)", 100_000)).await;
        assert!(matches!(many, SandboxError::Invalid(_)), "{many}");
    })
    .await;
}

/// Loading a component of 40 tables, and one whose table has 100 million elements → refused, 10 s each.
#[tokio::test]
async fn too_many_and_too_large_tables_do_not_load() {
    for_each_sandbox(async || {
        for (table, count) in [("(table 1 funcref)", 40), ("(table 100000000 funcref)", 1)] {
            let refused = refusal(with_instances(Guest::good().bytes(), &format!("(module {table})"), count)).await;
            assert!(out_of_memory(&refused) || matches!(refused, SandboxError::Invalid(_)), "{refused}");
        }
    })
    .await;
}

/// A sandbox that gives up on a component soon.
fn impatient() -> Sandbox {
    Sandbox::with_compiler(SandboxConfig { compile_ms_max: 10_000, ..small() }, child()).expect("the sandbox starts")
}

/// Loads it in a process of its own → nothing comes of it: it is no recipe, not valid, or takes too long.
async fn nothing_comes_of(what: &str, bytes: Vec<u8>) {
    let started = std::time::Instant::now();
    let refused = within(30_000, impatient().load(bytes, &Grants::all())).await.expect_err("refused");
    println!("{what}: {refused}, after {:?}", started.elapsed());
    let expected = matches!(
        refused,
        SandboxError::MissingExport(_) | SandboxError::Invalid(_) | SandboxError::CompileTimeout { .. }
    );
    assert!(expected, "{what}: {refused}");
}

/// Loading components and types nested thousands of levels deep → an error, no overflow of the host's stack, 30 s each.
#[tokio::test]
async fn deep_nesting_does_not_break_the_loader() {
    for levels in [200, 5_000, 20_000] {
        nothing_comes_of(&format!("{levels} components"), nested(levels)).await;
        nothing_comes_of(&format!("{levels} lists"), deep_type(levels)).await;
    }
    // Not so deep that a process of its own is called for.
    for bytes in [nested(200), deep_type(200)] {
        let refused = refusal(bytes).await;
        assert!(matches!(refused, SandboxError::Invalid(_) | SandboxError::MissingExport(_)), "{refused}");
    }
}

/// Loading a function of 100,000 nested blocks, or loops → an end of the compiler's process at worst, 30 s each.
#[tokio::test]
async fn deep_blocks_do_not_break_the_host() {
    for block in ["block", "loop"] {
        let body = [format!("{block} ").repeat(100_000), "end ".repeat(100_000)].concat();
        let bytes = wat::parse_str(format!("(component (core module (func {body})))")).expect("valid text");
        nothing_comes_of(block, bytes).await;
    }
}

/// Loading ten instances of ten instances of … a module, 8 levels deep → refused within the time of a compilation, 30 s.
#[tokio::test]
async fn instances_that_multiply_do_not_break_the_host() {
    let mut text = String::from("(component $c0 (core module $m) (core instance (instantiate $m)))");
    for level in 1..=8 {
        let before = level - 1;
        let inner = format!("(instance (instantiate $c{before}))").repeat(10);
        text += &format!("(component $c{level} (alias outer 1 $c{before} (component $c{before})) {inner})");
    }
    let bytes = wat::parse_str(format!("(component {text} (instance (instantiate $c8)))")).expect("valid text");
    nothing_comes_of("instances", bytes).await;
}
