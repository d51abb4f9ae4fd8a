//! Components against the compiler, code that somebody brings along, and what stays of a compilation.

use std::ffi::OsString;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use reef_sandbox::{Compiler, Grants, Sandbox, SandboxConfig, SandboxError};
use tempfile::TempDir;

use crate::guest::*;

/// The test below, as a program.
const ENTRY: &str = "compile::compile_child_entry";

pub fn child() -> Compiler {
    let arguments = ["--exact", ENTRY, "--nocapture", "--test-threads=1"].map(OsString::from).to_vec();
    // The program that runs, also when its file has been replaced meanwhile.
    Compiler::Child { program: PathBuf::from("/proc/self/exe"), arguments }
}

fn sandbox_with(config: SandboxConfig, compiler: Compiler) -> Sandbox {
    Sandbox::with_compiler(config, compiler).expect("the sandbox starts")
}

/// Is the compiler's process when two paths follow the arguments; otherwise shows that it would be found.
#[test]
fn compile_child_entry() {
    let paths: Vec<PathBuf> = std::env::args_os().map(PathBuf::from).filter(|path| path.is_absolute()).collect();
    if let [.., input, output] = &paths[..]
        && input.ends_with("component.wasm")
    {
        if let Err(told) = reef_sandbox::compile_worker(input, output) {
            eprintln!("{told}");
            std::process::exit(1);
        }
        return;
    }
    let path = concat!(module_path!(), "::compile_child_entry");
    assert!(path.ends_with(ENTRY), "the compiler's process runs the test {ENTRY} and this is {path}");
}

/// One function of `blocks` nested blocks over many locals: seconds of work for a register allocator.
fn bomb(blocks: usize) -> Vec<u8> {
    let mut body = String::new();
    for at in 0..blocks {
        let _ = write!(
            body,
            "(block (br_if 0 (i64.eqz (local.get {}))) (local.set {} (i64.add (local.get {}) (i64.mul (local.get {}) (local.get {})))))",
            at % 500,
            (at * 7 + 1) % 500,
            (at * 13 + 2) % 500,
            (at * 31 + 3) % 500,
            (at * 57 + 5) % 500
        );
    }
    let locals = "i64 ".repeat(500);
    wat::parse_str(format!("(component (core module (func (local {locals}) {body})))")).expect("valid text")
}

/// Processes that this one started and that have not been waited for.
fn children() -> Vec<u32> {
    let mut found = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").expect("procfs") {
        let list = std::fs::read_to_string(task.expect("a thread").path().join("children")).unwrap_or_default();
        found.extend(list.split_whitespace().filter_map(|id| id.parse::<u32>().ok()));
    }
    found
}

/// Is there a process with this folder's path among its arguments?
fn compiling_in(folder: &Path) -> bool {
    let folder = folder.to_string_lossy().into_owned();
    children().into_iter().any(|id| {
        let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&folder)
    })
}

fn cached(folder: &TempDir) -> SandboxConfig {
    SandboxConfig { cache_dir: Some(folder.path().join("compiled")), ..small() }
}

/// Loading in a process → the same recipe and the same answers as in this one, 60 s.
#[tokio::test]
async fn a_process_compiles_to_the_same_recipe() {
    let (here, there) = (sandbox(small()), sandbox_with(small(), child()));
    let bytes = Guest::good().bytes();
    let mut answers = Vec::new();
    for sandbox in [&here, &there] {
        let recipe = within(60_000, sandbox.load(bytes.clone(), &Grants::all())).await.expect("loads");
        let outcome = recipe.select_samples(call()).await;
        answers.push((recipe.label(), outcome.result.expect("selects"), outcome.report.fuel));
    }
    assert_eq!(answers[0], answers[1]);
    assert_eq!(there.gauges().compile_cache_misses, 1);
}

/// Loading twice, with a host in between that ends → from the cache, with the same digest and answers, 60 s.
#[tokio::test]
async fn a_kept_recipe_is_the_same_after_a_restart() {
    for compiler in [Compiler::InProcess, child()] {
        let folder = TempDir::new().expect("a folder");
        let mut answers = Vec::new();
        for (hits, misses) in [(0, 1), (1, 0)] {
            let sandbox = sandbox_with(cached(&folder), compiler.clone());
            let recipe = within(60_000, load(&sandbox, Guest::good())).await.expect("loads");
            let gauges = sandbox.gauges();
            assert_eq!((gauges.compile_cache_hits, gauges.compile_cache_misses), (hits, misses));
            let outcome = recipe.select_samples(call()).await;
            answers.push((recipe.label(), outcome.result.expect("selects"), outcome.report.fuel));
        }
        assert_eq!(answers[0], answers[1]);
    }
}

/// Loading one component many times at once → compiled once, 60 s.
#[tokio::test]
async fn loading_at_once_compiles_once() {
    let folder = TempDir::new().expect("a folder");
    let sandbox = sandbox_with(cached(&folder), Compiler::InProcess);
    let loads: Vec<_> = (0..8)
        .map(|_| {
            let sandbox = sandbox.clone();
            tokio::spawn(async move { load(&sandbox, Guest::good()).await.map(|recipe| recipe.label()) })
        })
        .collect();
    for load in loads {
        within(60_000, load).await.expect("joined").expect("loads");
    }
    let gauges = sandbox.gauges();
    assert_eq!((gauges.compile_cache_hits, gauges.compile_cache_misses), (7, 1));
}

/// Loading after the kept code was changed → compiled anew, and the guest answers, 60 s.
#[tokio::test]
async fn changed_code_is_compiled_anew() {
    let folder = TempDir::new().expect("a folder");
    let first = sandbox_with(cached(&folder), Compiler::InProcess);
    load(&first, Guest::good()).await.expect("loads");
    let mut changed = 0;
    for entry in std::fs::read_dir(folder.path().join("compiled")).expect("the cache") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|ending| ending == "cwasm") {
            let mut bytes = std::fs::read(&path).expect("read");
            let last = bytes.len() - 1;
            bytes[last] ^= 0x80;
            // Never written in place: the first sandbox has it mapped.
            std::fs::remove_file(&path).expect("removed");
            std::fs::write(&path, bytes).expect("written");
            changed += 1;
        }
    }
    assert_eq!(changed, 1);
    let second = sandbox_with(cached(&folder), Compiler::InProcess);
    still_works(&second).await;
    assert_eq!((second.gauges().compile_cache_hits, second.gauges().compile_cache_misses), (0, 1));
}

/// Loading a component that takes far too long to compile, limit 500 ms → CompileTimeout, no process left, 20 s.
#[tokio::test]
async fn a_compile_bomb_is_stopped_and_its_process_is_gone() {
    let folder = TempDir::new().expect("a folder");
    let config = SandboxConfig { compile_ms_max: 500, ..cached(&folder) };
    let sandbox = sandbox_with(config, child());
    let bomb = bomb(40_000);
    let loading = tokio::spawn({
        let sandbox = sandbox.clone();
        async move { sandbox.load(bomb, &Grants::all()).await }
    });
    let started = Instant::now();
    while !compiling_in(folder.path()) {
        assert!(!loading.is_finished() && started.elapsed() < Duration::from_secs(20), "a process is seen");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let refused = within(20_000, loading).await.expect("joined").expect_err("refused");
    assert_eq!(refused, SandboxError::CompileTimeout { ms_max: 500 });
    assert!(!compiling_in(folder.path()), "the process is gone");
    let left = std::fs::read_dir(folder.path().join("compiled")).expect("the cache").count();
    assert_eq!(left, 1, "only the key");
    assert_eq!(sandbox.gauges().compiles_running, 0);
}

/// Loading with less memory than compiling takes → a sentence that names the limit, 60 s; this process is unharmed.
#[tokio::test]
async fn a_compiler_without_memory_is_a_sentence() {
    let config = SandboxConfig { compile_memory_bytes_max: 256 << 20, ..small() };
    let sandbox = sandbox_with(config, child());
    let told = within(60_000, sandbox.load(bomb(200_000), &Grants::all())).await.expect_err("refused").to_string();
    assert!(told.contains("the process that compiled it") && told.contains("compile_memory_bytes_max"), "{told}");
    still_works(&sandbox).await;
}

/// Loading with a compiler that dies, that fails, that does nothing, and that does not exist → a sentence each, 20 s.
#[tokio::test]
async fn a_compiler_that_dies_is_a_sentence() {
    let script = |text: &str| Compiler::Child {
        program: "/bin/sh".into(),
        arguments: vec!["-c".into(), text.into(), "compiler".into()],
    };
    let missing = Compiler::Child { program: "/nowhere/compiler".into(), arguments: vec![] };
    for (compiler, words) in [
        (script("kill -9 $$"), "was ended by signal 9"),
        (script("echo gone mad >&2; exit 70"), "ended with code 70 (gone mad)"),
        (script("printf 'bad \\033[31mcode' >&2; exit 1"), "the recipe is not valid: bad \\u{1b}[31mcode"),
        (script("yes 1234567 | head -c 100000 >&2; exit 1"), "1234567\\n1234567"),
        (script("exit 0"), "the recipe is not valid"),
        (script("echo garbage > $2"), "the recipe is not valid"),
        (missing, "recipes cannot be compiled: /nowhere/compiler"),
    ] {
        let sandbox = sandbox_with(small(), compiler);
        let told = within(20_000, load(&sandbox, Guest::good())).await.expect_err("refused").to_string();
        assert!(told.contains(words) && told.len() < 1_000, "{words}: {told}");
    }
}

/// What a compiler finds in its environment → its limits, a folder of its own, and nothing of the host's.
#[tokio::test]
async fn a_compiler_gets_a_clean_environment() {
    let asked = "env | cut -d= -f1 | grep -v -e '^_$' -e PWD -e OLDPWD -e SHLVL | sort | tr '\\n' ' ' >&2; exit 1";
    let compiler = Compiler::Child { program: "/bin/sh".into(), arguments: vec!["-c".into(), asked.into()] };
    let told = load(&sandbox_with(small(), compiler), Guest::good()).await.expect_err("refused").to_string();
    let names = told.strip_prefix("the recipe is not valid: ").expect("its words").trim();
    let expected = "REEF_COMPILE_CPU_SECONDS_MAX REEF_COMPILE_MEMORY_BYTES_MAX TMPDIR";
    assert_eq!(names.replace("LD_LIBRARY_PATH ", ""), expected);
}

/// Loading a component that is not valid, in a process → the same words as in this one, 60 s.
#[tokio::test]
async fn the_compilers_words_come_through() {
    let bad = wat::parse_str("(component (core module (func (result i32) i64.const 1)))").expect("valid text");
    let mut told = Vec::new();
    for sandbox in [sandbox(small()), sandbox_with(small(), child())] {
        let refused = within(60_000, sandbox.load(bad.clone(), &Grants::all())).await.expect_err("refused");
        assert!(matches!(refused, SandboxError::Invalid(_)), "{refused}");
        told.push(refused.to_string());
    }
    assert_eq!(told[0], told[1]);
}

/// Loading code that was compiled elsewhere, even by this very compiler → NotAComponent, and why, 60 s.
#[tokio::test]
async fn compiled_code_is_never_taken_from_outside() {
    let folder = TempDir::new().expect("a folder");
    let sandbox = sandbox_with(cached(&folder), Compiler::InProcess);
    load(&sandbox, Guest::good()).await.expect("loads");
    let kept = std::fs::read_dir(folder.path().join("compiled"))
        .expect("the cache")
        .map(|entry| entry.expect("an entry").path())
        .find(|path| path.extension().is_some_and(|ending| ending == "cwasm"))
        .expect("kept code");
    let own = std::fs::read(std::env::current_exe().expect("this program")).expect("read");
    for code in [std::fs::read(kept).expect("read"), own[..4_096].to_vec()] {
        let refused = sandbox.load(code, &Grants::all()).await.expect_err("refused");
        assert!(matches!(refused, SandboxError::NotAComponent(_)));
        assert!(refused.to_string().contains("never taken from outside"), "{refused}");
    }
}

/// A sandbox at rest → every gauge is 0.
#[tokio::test]
async fn gauges_are_zero_at_rest() {
    let sandbox = sandbox(small());
    let recipe = load(&sandbox, Guest::good()).await.expect("loads");
    let trapping = load(&sandbox, Guest::doing("unreachable")).await.expect("loads");
    let calls: Vec<_> = (0..32)
        .map(|at| {
            let recipe = if at % 2 == 0 { recipe.clone() } else { trapping.clone() };
            tokio::spawn(
                async move { recipe.select_samples(call_of(&format!("tenant-{}", at % 5))).await.result.is_ok() },
            )
        })
        .collect();
    for call in calls {
        call.await.expect("joined");
    }
    let gauges = sandbox.gauges();
    let busy = (gauges.calls_running, gauges.calls_waiting, gauges.compiles_running);
    let pool = (gauges.pool_component_instances, gauges.pool_core_instances, gauges.pool_memories, gauges.pool_stacks);
    assert_eq!((busy, pool), ((0, 0, 0), (0, 0, 0, 0)));
    assert_eq!(gauges.pooling, sandbox.pooling());
}
