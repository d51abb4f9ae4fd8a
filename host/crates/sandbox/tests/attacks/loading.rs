//! Bytes that are no recipe, imports that nobody provides, and capabilities that nobody granted.

use reef_sandbox::{Capability, Grants, SandboxConfig, SandboxError};

use crate::guest::*;

async fn refusal(bytes: Vec<u8>) -> SandboxError {
    let sandbox = sandbox(small());
    let refused = within(10_000, sandbox.load(bytes, &Grants::all())).await.expect_err("refused");
    still_works(&sandbox).await;
    refused
}

fn text(component: &str) -> Vec<u8> {
    wat::parse_str(component).expect("valid text")
}

/// Loading other files → NotAComponent, with what they are.
#[tokio::test]
async fn other_files_are_named_for_what_they_are() {
    for_each_sandbox(async || {
        assert!(refusal(vec![]).await.to_string().contains("the file is empty"));
        assert!(refusal(b"#!/bin/sh\nrm -rf /\n".to_vec()).await.to_string().contains("'#!/bin/s'"));
        assert!(refusal(b"(component)".to_vec()).await.to_string().contains("instead of a WASM header"));
        assert!(refusal(text("(module)")).await.to_string().contains("core module"));
        assert!(refusal(b"\0asm\x0d\0".to_vec()).await.to_string().contains("cut off"));
        // Code that was compiled elsewhere is an ELF file and never loaded.
        assert!(matches!(refusal(b"\x7fELF\x02\x01\x01\0".to_vec()).await, SandboxError::NotAComponent(_)));
    })
    .await;
}

/// Loading every prefix of a good component → an error, or the same recipe when only a trailing note is missing.
#[tokio::test]
async fn no_prefix_of_a_component_breaks_the_loader() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let bytes = Guest::good().bytes();
        let mut loaded = 0;
        for end in 0..bytes.len() {
            match sandbox.load(bytes[..end].to_vec(), &Grants::all()).await {
                Ok(recipe) => {
                    assert_eq!(recipe.manifest().name, "probe");
                    loaded += 1;
                }
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
        assert!(loaded < bytes.len() / 2, "{loaded}");
        still_works(&sandbox).await;
    })
    .await;
}

/// Loading a component with single bytes changed → an error or a recipe, never a crash.
#[tokio::test]
async fn changed_bytes_do_not_break_the_loader() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let bytes = Guest::good().bytes();
        for at in (8..bytes.len()).step_by(29) {
            let mut changed = bytes.clone();
            changed[at] ^= 0x55;
            // Either way is fine; what matters is that there is an answer.
            let _ = sandbox.load(changed, &Grants::all()).await;
        }
        still_works(&sandbox).await;
    })
    .await;
}

/// Loading a component that imports what nobody provides → the import, by name.
#[tokio::test]
async fn unknown_imports_are_named() {
    for_each_sandbox(async || {
        match refusal(text("(component (import \"acme:net/sockets@1.0.0\" (instance)))")).await {
            SandboxError::UnknownImport { import } => assert_eq!(import, "acme:net/sockets@1.0.0"),
            other => panic!("{other:?}"),
        }
        let odd = refusal(text("(component (import \"reef:recipe/sockets@0.2.0\" (instance)))")).await;
        assert!(odd.to_string().contains("reef:recipe/sockets@0.2.0"), "{odd}");
        let later = refusal(text("(component (import \"reef:recipe/training@0.3.0\" (instance)))")).await;
        assert!(
            later.to_string().contains("version 0.3.0") && later.to_string().contains("0.1.0 and 0.2.0"),
            "{later}"
        );
    })
    .await;
}

/// Loading a component that imports WASI → the import, by name, and the remedy.
#[tokio::test]
async fn wasi_imports_are_named() {
    for_each_sandbox(async || {
        for import in ["wasi:filesystem/types@0.2.0", "wasi:sockets/tcp@0.2.0", "wasi:clocks/wall-clock@0.2.0"] {
            let refused = refusal(text(&format!("(component (import \"{import}\" (instance)))"))).await;
            assert!(matches!(refused, SandboxError::WasiImport { .. }));
            let told = refused.to_string();
            assert!(told.contains(import) && told.contains("wasi_stub"), "{told}");
        }
    })
    .await;
}

/// select-samples, a guest that reads the clock of an empty WASI twice → the time of the step, both times, 5 s.
#[tokio::test]
async fn an_empty_wasi_shows_the_time_of_the_step() {
    for_each_sandbox(async || {
        let reading = || {
            let check = "(call $now (i32.const 64)) (if (i64.ne (i64.load (i32.const 64)) (i64.const 1700000000))
            (then unreachable))";
            Guest::good()
                .system(("clocks/wall-clock", "now"), "now", "(param i32)")
                .selecting_after(&format!("{check} {check}"))
        };
        let stubbed = sandbox(SandboxConfig { wasi_stub: true, ..small() });
        let recipe = load(&stubbed, reading()).await.expect("loads");
        let outcome = within(5_000, recipe.select_samples(call())).await;
        assert!(outcome.result.is_ok(), "{:?}", outcome.result);
        assert!(matches!(load(&sandbox(small()), reading()).await, Err(SandboxError::WasiImport { .. })));
    })
    .await;
}

/// Loading a component without the strategy → MissingExport.
#[tokio::test]
async fn a_component_without_the_strategy_is_told_so() {
    for_each_sandbox(async || {
        assert!(matches!(refusal(text("(component)")).await, SandboxError::MissingExport(_)));
    })
    .await;
}

/// Loading a component above the size limit → TooLarge, with both numbers.
#[tokio::test]
async fn large_files_are_refused_before_they_are_read() {
    for_each_sandbox(async || {
        let sandbox = sandbox(SandboxConfig { component_bytes_max: 100, ..small() });
        let told = sandbox.load(vec![0; 101], &Grants::all()).await.expect_err("refused").to_string();
        assert!(told.contains("101 bytes") && told.contains("at most 100"), "{told}");
    })
    .await;
}

fn logging() -> Guest {
    Guest::good().importing("log", "log", "(param i32 i32 i32)")
}

/// Loading a recipe whose import is withheld, or only asked for → NotGranted, by name.
#[tokio::test]
async fn capabilities_that_are_not_granted_are_named() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let others: Grants = Capability::ALL.into_iter().filter(|capability| *capability != Capability::Log).collect();
        assert_eq!(
            sandbox.load(logging().bytes(), &others).await.expect_err("refused"),
            SandboxError::NotGranted(Capability::Log)
        );
        let asking = Guest { capabilities: vec!["models"], ..Guest::good() };
        assert_eq!(
            sandbox.load(asking.bytes(), &Grants::none()).await.expect_err("refused"),
            SandboxError::NotGranted(Capability::Models)
        );
        assert!(
            sandbox
                .load(logging().bytes(), &Grants::all())
                .await
                .expect("granted")
                .imports()
                .contains(&Capability::Log)
        );
    })
    .await;
}

/// Loading a recipe that imports more than its manifest asks for → NotAsked, by name.
#[tokio::test]
async fn imports_must_be_asked_for() {
    for_each_sandbox(async || {
        let silent = Guest { capabilities: vec![], ..logging() };
        let sandbox = sandbox(small());
        assert_eq!(load(&sandbox, silent).await.expect_err("refused"), SandboxError::NotAsked(Capability::Log));
    })
    .await;
}

/// Loading a recipe with a bad manifest → the field, by name.
#[tokio::test]
async fn a_bad_manifest_is_refused_by_field() {
    for_each_sandbox(async || {
        let sandbox = sandbox(small());
        let told = load(&sandbox, Guest { name: "../evil", ..Guest::good() }).await.expect_err("refused").to_string();
        assert!(told.contains("manifest: name must be"), "{told}");
        let told = load(&sandbox, Guest { capabilities: vec!["network"], ..Guest::good() })
            .await
            .expect_err("refused")
            .to_string();
        assert!(told.contains("'network'"), "{told}");
    })
    .await;
}
