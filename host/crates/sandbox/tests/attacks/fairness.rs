//! One tenant that spins beside tenants with short calls: what the others notice. The figures are printed by
//! `cargo test -p reef-sandbox --test attacks -- --ignored --nocapture figures`; the tests only know wide bounds.

use std::time::{Duration, Instant};

use reef_sandbox::{FaultKind, Grants, Recipe, Sandbox, SandboxConfig};

use crate::guest::*;

/// Guest time after which a spinning call is stopped.
const SPIN_MS: u64 = 200;
/// Calls of the spinning tenant that are in flight.
const SPINNERS: usize = 4;
/// Tenants with short calls, each one call at a time.
const LIGHT_TENANTS: usize = 9;
/// Pause of a light tenant between two calls.
const PAUSE: Duration = Duration::from_millis(5);

fn fair_sandbox() -> Sandbox {
    sandbox(SandboxConfig { fuel_select: u64::MAX / 2, wall_select_ms: SPIN_MS, ..small() })
}

/// Latencies of `count` calls of each light tenant, in ascending order.
async fn light(recipe: &Recipe, count: usize) -> Vec<Duration> {
    let tenants: Vec<_> = (0..LIGHT_TENANTS)
        .map(|tenant| {
            let recipe = recipe.clone();
            tokio::spawn(async move {
                let mut taken = Vec::with_capacity(count);
                for _ in 0..count {
                    let call = call_of(&format!("light-{tenant}"));
                    let started = Instant::now();
                    let outcome = recipe.select_samples(call).await;
                    taken.push(started.elapsed());
                    assert!(outcome.result.is_ok(), "{:?}", outcome.result);
                    tokio::time::sleep(PAUSE).await;
                }
                taken
            })
        })
        .collect();
    let mut all = Vec::new();
    for tenant in tenants {
        all.extend(tenant.await.expect("joined"));
    }
    all.sort();
    all
}

/// Keeps [`SPINNERS`] calls in flight until dropped; tells how long each took and how much guest time it had.
struct Spinning {
    tasks: Vec<tokio::task::JoinHandle<()>>,
    stopped: std::sync::Arc<std::sync::Mutex<Vec<(Duration, Duration)>>>,
}

impl Spinning {
    fn start(recipe: &Recipe) -> Self {
        let stopped = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let tasks = (0..SPINNERS)
            .map(|_| {
                let (recipe, stopped) = (recipe.clone(), std::sync::Arc::clone(&stopped));
                tokio::spawn(async move {
                    loop {
                        let started = Instant::now();
                        let outcome = recipe.select_samples(call_of("spinner")).await;
                        assert_eq!(kind(&outcome), FaultKind::Deadline);
                        let guest = Duration::from_micros(outcome.report.guest_us);
                        stopped.lock().expect("not poisoned").push((started.elapsed(), guest));
                    }
                })
            })
            .collect();
        Self { tasks, stopped }
    }

    /// Whole and guest time of every call that was stopped.
    async fn stop(self) -> Vec<(Duration, Duration)> {
        for task in &self.tasks {
            task.abort();
        }
        for task in self.tasks {
            assert!(task.await.is_err_and(|error| error.is_cancelled()));
        }
        std::mem::take(&mut *self.stopped.lock().expect("not poisoned"))
    }
}

fn at(sorted: &[Duration], share: f64) -> Duration {
    sorted[((sorted.len() - 1) as f64 * share) as usize]
}

/// Nine tenants with short calls beside one with four spinning ones → theirs end within 250 ms in the median, 60 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_calls_pass_long_ones() {
    let sandbox = fair_sandbox();
    let spinner = load(&sandbox, Guest::doing("(loop $spin (br $spin)) unreachable")).await.expect("loads");
    let good = load(&sandbox, Guest::good()).await.expect("loads");
    let spinning = Spinning::start(&spinner);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let latencies = within(60_000, light(&good, 50)).await;
    let median = at(&latencies, 0.5);
    // Without lanes they wait for four slices of the epoch each time, and behind more tenants for ever longer.
    assert!(median < Duration::from_millis(250), "{median:?}");
    spinning.stop().await;
    let started = Instant::now();
    while sandbox.gauges().calls_running > 0 {
        assert!(started.elapsed() < Duration::from_secs(30), "calls that were dropped end");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A call that runs alone and long → it is stopped at its deadline although it runs when nobody else wants to, 30 s.
#[tokio::test]
async fn a_spinning_guest_is_stopped_soon_after_its_deadline() {
    let sandbox = fair_sandbox();
    let spinner = load(&sandbox, Guest::doing("(loop $spin (br $spin)) unreachable")).await.expect("loads");
    let outcome = within(30_000, spinner.select_samples(call())).await;
    assert_eq!(kind(&outcome), FaultKind::Deadline);
    let guest_ms = outcome.report.guest_us / 1_000;
    assert!((SPIN_MS..SPIN_MS * 2).contains(&guest_ms), "{guest_ms} ms");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures for a minute and wants the machine for itself"]
async fn figures_of_fairness() {
    let sandbox = fair_sandbox();
    let spinner = load(&sandbox, Guest::doing("(loop $spin (br $spin)) unreachable")).await.expect("loads");
    let good = load(&sandbox, Guest::good()).await.expect("loads");
    light(&good, 100).await;
    for round in 0..5 {
        let alone = light(&good, 400).await;
        let spinning = Spinning::start(&spinner);
        tokio::time::sleep(Duration::from_millis(100)).await;
        let beside = light(&good, 400).await;
        let stopped = spinning.stop().await;
        let deadline = Duration::from_millis(SPIN_MS);
        let over_guest = stopped.iter().map(|(_, guest)| guest.saturating_sub(deadline)).max().unwrap_or_default();
        println!(
            "round {round}: light alone p50 {:?} p99 {:?}; beside the spinner p50 {:?} p99 {:?}; p99 ratio {:.2}; {} stopped, at most {over_guest:?} of guest time late",
            at(&alone, 0.5),
            at(&alone, 0.99),
            at(&beside, 0.5),
            at(&beside, 0.99),
            at(&beside, 0.99).as_secs_f64() / at(&alone, 0.99).as_secs_f64(),
            stopped.len(),
        );
        // One spinning call on its own.
        let started = Instant::now();
        let outcome = spinner.select_samples(call_of("spinner")).await;
        println!("  one call alone: {:?} after its deadline", started.elapsed().saturating_sub(deadline));
        assert_eq!(kind(&outcome), FaultKind::Deadline);
    }
}

#[tokio::test]
#[ignore = "measures, and wants the path of a recipe in RECIPE"]
async fn figures_of_compiling() {
    let path = std::env::var("RECIPE").expect("RECIPE names a component");
    let bytes = std::fs::read(&path).expect("readable");
    let resident_kib = || {
        let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
        let line = status.lines().find(|line| line.starts_with("VmRSS")).expect("a size").to_owned();
        line.split_whitespace().nth(1).expect("a number").parse::<u64>().expect("a number")
    };
    let folder = tempfile::TempDir::new().expect("a folder");
    let config =
        SandboxConfig { cache_dir: Some(folder.path().join("compiled")), wasi_stub: true, ..Default::default() };
    let plain = SandboxConfig { cache_dir: None, ..config.clone() };
    let mut cases =
        vec![("process", plain.clone(), true), ("process, kept", config.clone(), true), ("cache", config, true)];
    cases.push(("this process", plain, false));
    for (what, config, child) in cases {
        let compiler = if child { crate::compile::child() } else { reef_sandbox::Compiler::InProcess };
        let sandbox = Sandbox::with_compiler(config, compiler).expect("starts");
        let (before, started) = (resident_kib(), Instant::now());
        let loaded = sandbox.load(bytes.clone(), &Grants::all()).await;
        let taken = started.elapsed();
        println!(
            "{what}: {} bytes, {taken:?}, resident {before} → {} KiB, {:?}",
            bytes.len(),
            resident_kib(),
            loaded.map(|recipe| recipe.label())
        );
    }
}
